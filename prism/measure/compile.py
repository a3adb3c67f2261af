"""Generated sources to what a child can load: in parallel, each distinct source once.

A backend whose `batch` is false has one compiler a source, which makes a library. The other kind
has one command for many sources, which leaves a result in JSON for each; what is then loaded is the
source itself, and the compiled code is found in Triton's cache below the work folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from prism.errors import PrismError
from prism.files import write_text
from prism.measure import children
from prism.measure.gpu import child_environment
from prism.model.device import CPU, Device

TIMEOUT = 120.0  # seconds for one source
GRACE = 60.0  # more for a command of many: it imports Triton and forks


class Builder(Protocol):
    """What this module needs of a backend's manifest (`prism.codegen.Backend`)."""

    suffix: str
    built: str
    batch: bool

    def build(
        self, pairs: Sequence[tuple[Path, Path]], arch: int | None, jobs: int, timeout: float
    ) -> list[str]:
        """The compiler's argv. Raises PrismError when there is no compiler."""


@dataclass(frozen=True)
class Compiled:
    """One source after compilation; `library` is None when it failed, with one line of error.

    `facts` are the compiler's own: `registers`, `spill_bytes` and `shared_bytes`, the most that one
    kernel uses, and `kernels` one by one; empty on the CPU.
    """

    sha256: str
    library: Path | None
    command: tuple[str, ...]
    seconds: float
    error: str = ""
    facts: Mapping = field(default_factory=dict)


def sha256(source: str) -> str:
    """Hex digest of a source."""
    return hashlib.sha256(source.encode()).hexdigest()


def first_error(stderr: str) -> str:
    """The compiler's first error line without its path, else its first line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    for line in lines:
        if found := re.search(r"\b(?:fatal )?error: .*", line):
            return found.group(0)[:300]
    return lines[0][:300] if lines else "the compiler gave no message"


def compile_one(
    source: str, backend: Builder, work: Path, timeout: float = TIMEOUT, device: Device = CPU
) -> Compiled:
    """Compiles one source. Raises PrismError only for a missing compiler or a full disk."""
    if backend.batch:
        (compiled,) = _together([source], backend, work, 1, timeout, device)
        return compiled
    path = _written(source, backend, work)
    library, temporary = path.with_suffix(backend.built), path.with_suffix(f".{os.getpid()}.tmp.so")
    command = tuple(str(part) for part in backend.build([(path, temporary)], None, 1, timeout))
    ended = _run(command, timeout, work, device)
    shown = _shown(command, {path: path.name, temporary: library.name})
    if ended.returncode == 0 and temporary.exists():
        os.replace(temporary, library)
        return Compiled(sha256(source), library, shown, ended.seconds)
    temporary.unlink(missing_ok=True)
    error = ended.reason if ended.returncode is None else first_error(ended.stderr)
    return Compiled(sha256(source), None, shown, ended.seconds, error)


def compile_trusted(source: str, backend: Builder, work: Path, device: Device = CPU) -> Compiled:
    """Compiles a source that is known to be right; raises PrismError when the compiler fails it."""
    compiled = compile_one(source, backend, work, device=device)
    if compiled.library is None:
        raise PrismError(f"the compiler {compiled.command[0]!r} does not work: {compiled.error}")
    return compiled


def compile_all(
    sources: Sequence[str],
    backend: Builder,
    work: Path,
    jobs: int,
    timeout: float = TIMEOUT,
    progress: Callable[[str, int, int], None] | None = None,
    device: Device = CPU,
) -> dict[str, Compiled]:
    """Compiles the distinct sources with `jobs` compilers at once; by sha256."""
    distinct = list({sha256(source): source for source in sources}.values())
    progress = progress or (lambda stage, done, total: None)
    done: dict[str, Compiled] = {}
    if backend.batch:
        for compiled in _together(distinct, backend, work, jobs, timeout, device):
            done[compiled.sha256] = compiled
        if distinct:
            progress("compile", len(done), len(distinct))
        return done
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        futures = [
            pool.submit(compile_one, source, backend, work, timeout, device) for source in distinct
        ]
        try:
            for future in as_completed(futures):
                compiled = future.result()
                done[compiled.sha256] = compiled
                progress("compile", len(done), len(futures))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return done


def _together(
    sources: Sequence[str],
    backend: Builder,
    work: Path,
    jobs: int,
    timeout: float,
    device: Device,
) -> list[Compiled]:
    """One command for all sources. One that leaves no result failed as the command did."""
    if not sources:
        return []
    paths = [_written(source, backend, work) for source in sources]
    pairs = [(path, path.with_suffix(backend.built)) for path in paths]
    for _, built in pairs:
        built.unlink(missing_ok=True)
    arch = device.gpu.arch
    jobs = max(1, min(jobs, len(pairs)))
    ended = _run(
        backend.build(pairs, arch, jobs, timeout),
        timeout * -(-len(pairs) // jobs) + GRACE,
        work,
        device,
    )
    found = []
    for source, (path, built) in zip(sources, pairs, strict=True):
        command = backend.build([(path, built)], arch, 1, timeout)
        shown = _shown(command, {path: path.name, built: built.name})
        result = _result(built) or {"error": ended.reason or "the compiler left no result"}
        error, seconds = result.get("error") or "", result.get("seconds", ended.seconds)
        library = None if error else path
        facts = {} if error else _facts(result["kernels"])
        found.append(Compiled(sha256(source), library, shown, seconds, error, facts))
    return found


def _result(built: Path) -> dict | None:
    """What the command left for one source; None when that is nothing or half of it."""
    try:
        return json.loads(built.read_text())
    except (OSError, ValueError):
        return None


def _facts(kernels: Sequence[Mapping]) -> dict:
    """The most that one of the kernels uses; None of what the compiler did not tell."""
    facts: dict = {"kernels": [dict(kernel) for kernel in kernels]}
    for name in ("registers", "spill_bytes", "shared_bytes"):
        known = [kernel[name] for kernel in kernels if kernel.get(name) is not None]
        facts[name] = max(known, default=None)
    return facts


def _written(source: str, backend: Builder, work: Path) -> Path:
    return write_text(work / f"{sha256(source)[:16]}{backend.suffix}", source)


def _run(command: Sequence[str], timeout: float, work: Path, device: Device) -> children.Ended:
    """Runs a compiler, whose temporary files go with ours even when it is stopped in the middle."""
    # Triton is compiled for the device here, also where it is then interpreted.
    env = children.environment_for_child(1, child_environment(device, work))
    env |= {"TMPDIR": str(work), "TRITON_INTERPRET": "0"}
    try:
        return children.run(command, timeout, env, "the compiler did not end")
    except OSError as error:
        raise PrismError(f"cannot run the compiler {command[0]!r}: {error.strerror}") from None


def _shown(command: Sequence[str], names: Mapping[Path, str]) -> tuple[str, ...]:
    """A command with its files named without the folder they lay in."""
    short = {str(path): name for path, name in names.items()}
    return tuple(short.get(str(part), str(part)) for part in command)
