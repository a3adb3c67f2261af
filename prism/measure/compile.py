"""Generated sources to shared libraries: in parallel, each distinct source once."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from prism.errors import PrismError
from prism.files import write_text
from prism.measure import children


class Builder(Protocol):
    """What this module needs of a backend's manifest."""

    suffix: str

    def build(
        self, pairs: Sequence[tuple[Path, Path]], arch: int | None, jobs: int, timeout: float
    ) -> list[str]:
        """The compiler's argv. Raises PrismError when there is no compiler."""


@dataclass(frozen=True)
class Compiled:
    """One source after compilation; `library` is None when it failed, with one line of error."""

    sha256: str
    library: Path | None
    command: tuple[str, ...]
    seconds: float
    error: str = ""


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


def compile_one(source: str, backend: Builder, work: Path, timeout: float = 120.0) -> Compiled:
    """Compiles one source. Raises PrismError only for a missing compiler or a full disk."""
    digest = sha256(source)
    path = work / f"{digest[:16]}{backend.suffix}"
    library, temporary = path.with_suffix(".so"), path.with_suffix(f".{os.getpid()}.tmp.so")
    write_text(path, source)
    command = tuple(str(part) for part in backend.build([(path, temporary)], None, 1, timeout))
    # Its temporary files go with ours, even when it is stopped in the middle.
    env = {**os.environ, "TMPDIR": str(work)}
    try:
        ended = children.run(command, timeout, env, "the compiler did not end")
    except OSError as error:
        raise PrismError(f"cannot run the compiler {command[0]!r}: {error.strerror}") from None
    shown = tuple(library.name if c == str(temporary) else c for c in command)
    shown = tuple(path.name if c == str(path) else c for c in shown)
    if ended.returncode == 0 and temporary.exists():
        os.replace(temporary, library)
        return Compiled(digest, library, shown, ended.seconds)
    temporary.unlink(missing_ok=True)
    error = ended.reason if ended.returncode is None else first_error(ended.stderr)
    return Compiled(digest, None, shown, ended.seconds, error)


def compile_trusted(source: str, backend: Builder, work: Path) -> Compiled:
    """Compiles a source that is known to be right; raises PrismError when the compiler fails it."""
    compiled = compile_one(source, backend, work)
    if compiled.library is None:
        raise PrismError(f"the compiler {compiled.command[0]!r} does not work: {compiled.error}")
    return compiled


def compile_all(
    sources: Sequence[str],
    backend: Builder,
    work: Path,
    jobs: int,
    timeout: float = 120.0,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Compiled]:
    """Compiles the distinct sources with `jobs` compilers at once; by sha256."""
    distinct = {sha256(source): source for source in sources}
    done: dict[str, Compiled] = {}
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        futures = [
            pool.submit(compile_one, source, backend, work, timeout) for source in distinct.values()
        ]
        try:
            for future in as_completed(futures):
                compiled = future.result()
                done[compiled.sha256] = compiled
                if progress is not None:
                    progress("compile", len(done), len(futures))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return done
