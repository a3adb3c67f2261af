"""Compiling generated Triton files without a GPU, by the path that a launch takes.

`python -m prism.codegen.triton.offline ARCH JOBS TIMEOUT SOURCE OUT [SOURCE OUT ...]`

A stub takes the place of the GPU's driver and says for which architecture to compile; `launch` is
replaced by Triton's own warm-up. So types, specializations and options are those of a real launch,
and a process with a GPU finds the kernels in Triton's cache (TRITON_CACHE_DIR). Every source is
compiled in a process of its own, forked from one that has imported Triton: a crash of the compiler
or a source that takes too long is that source's failure.

OUT is JSON: `error` (null, or one line), `seconds`, and of each kernel what the compiler reports
of it: registers of a thread, bytes of local memory of a thread (spills), bytes of shared memory.
Registers and spills are null where Triton's `cuobjdump`, which reads them, is missing or fails.
"""

from __future__ import annotations

import multiprocessing
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import wait
from pathlib import Path

from prism.codegen.triton.module import load
from prism.files import write_json

WARP = 32


@dataclass(frozen=True)
class _Tensor:
    """What Triton's warm-up reads of a tensor; row-major, aligned as PyTorch's are."""

    shape: tuple[int, ...]
    dtype: str

    def stride(self) -> tuple[int, ...]:
        found, step = [], 1
        for extent in reversed(self.shape):
            found.append(step)
            step *= extent
        return tuple(reversed(found))

    @staticmethod
    def data_ptr() -> int:
        return 0

    @staticmethod
    def ptr_range() -> int:
        return 0


def compile_source(path: Path, arch: int) -> dict:
    """Compiles every kernel of a file for compute capability `arch`, such as 90.

    Replaces Triton's driver in this process. Returns what OUT holds; raises what Triton raises.
    """
    from triton.runtime import driver

    start = time.perf_counter()
    driver.set_active(_stub(arch))
    module = load(path)
    found = []

    def warm(kernel, grid, *args, **options) -> None:
        if grid is None:  # a library operator
            return
        compiled = kernel.warmup(*args, grid=grid, **options)
        found.append({"name": compiled.metadata.name, "grid": list(grid), **_report(compiled)})

    tables = (module.INPUTS, module.OUTPUTS, module.TEMPS)
    tensors = [[_Tensor(tuple(s), _NAMES[d]) for s, d in x.values()] for x in tables]
    module.prism_run(*tensors, launch=warm)
    return {"error": None, "seconds": time.perf_counter() - start, "kernels": found}


_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def _stub(arch: int):
    """A driver without a device."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    class Stub(DriverBase):
        def __init__(self):
            """Opens no device."""

        @classmethod
        def is_active(cls):
            return False

        def get_current_target(self):
            return GPUTarget("cuda", arch, WARP)

        def get_current_device(self):
            return 0

        def get_current_stream(self, device):
            return 0

        def map_python_to_cpp_type(self, kind):
            return kind

        def get_active_torch_device(self):
            raise NotImplementedError

        def get_benchmarker(self):
            raise NotImplementedError

        def get_device_interface(self):
            raise NotImplementedError

    return Stub()


def _report(compiled) -> dict:
    """What the compiler says of a kernel. Its shared memory is that which a launch asks for."""
    used = _used(compiled.asm["cubin"])
    known = {"REG", "STACK", "LOCAL"} <= used.keys()
    return {
        "registers": used["REG"] if known else None,
        "spill_bytes": used["STACK"] + used["LOCAL"] if known else None,
        "shared_bytes": compiled.metadata.shared,
        "warps": compiled.metadata.num_warps,
        "ptx_bytes": len(compiled.asm["ptx"]),
        "cubin_bytes": len(compiled.asm["cubin"]),
    }


def _used(cubin: bytes) -> dict[str, int]:
    """What a thread uses, by the name that `cuobjdump` gives it; empty where it tells nothing."""
    if (tool := _cuobjdump()) is None:
        return {}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        argv = [tool, "-res-usage", file.name]
        text = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    return {key: int(n) for key, n in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}


@cache
def _cuobjdump() -> str | None:
    """Path of the tool that Triton would take: TRITON_CUOBJDUMP_PATH, else the one in its wheel."""
    from triton import knobs

    try:
        return knobs.nvidia.cuobjdump.path
    except (RuntimeError, OSError):  # there is none, or it cannot be run
        return None


def _child(path: Path, arch: int, out: Path) -> None:
    start = time.perf_counter()
    try:
        found = compile_source(path, arch)
    except Exception as error:  # whatever Triton raises is the source's failure
        lines = str(error).strip().splitlines()  # the source first, what is wrong with it last
        text = " ".join(lines[-1].split())[:300] if lines else ""
        found = {"error": f"{type(error).__name__}: {text}", "kernels": []}
        found["seconds"] = time.perf_counter() - start
    write_json(out, found)


def compile_all(pairs: Sequence[tuple[Path, Path]], arch: int, jobs: int, timeout: float) -> None:
    """Compiles each source to its OUT, `jobs` at once, each within `timeout` seconds."""
    import triton.compiler  # noqa: F401 - before the forks, so that each has it already
    from triton.runtime.cache import triton_key

    triton_key()  # a digest of all of Triton's files, which it remembers
    _cuobjdump()

    if any("import torch" in source.read_text() for source, _ in pairs):
        import torch  # noqa: F401
    fork = multiprocessing.get_context("fork")
    waiting, running = list(reversed(pairs)), {}
    while waiting or running:
        while waiting and len(running) < jobs:
            source, out = waiting.pop()
            child = fork.Process(target=_child, args=(source, arch, out))
            child.start()
            running[child.sentinel] = child, out, time.perf_counter()
        first = min(start for *_, start in running.values()) + timeout
        ended = set(wait(running, max(0.0, first - time.perf_counter())))
        for sentinel, (child, out, start) in list(running.items()):
            seconds = time.perf_counter() - start
            late = seconds > timeout
            if sentinel not in ended and not late:
                continue
            if sentinel not in ended:
                child.kill()
            child.join()
            del running[sentinel]
            if not out.exists():
                why = f"the compiler did not end within {timeout:g} s"
                why = why if sentinel not in ended else f"the compiler ended with {child.exitcode}"
                write_json(out, {"error": why, "kernels": [], "seconds": seconds})


def main(argv: Sequence[str]) -> int:
    """Entry point."""
    arch, jobs, timeout, *paths = argv
    pairs = [(Path(a), Path(b)) for a, b in zip(paths[::2], paths[1::2], strict=True)]
    for _, out in pairs:
        out.unlink(missing_ok=True)
    compile_all(pairs, int(arch), int(jobs), float(timeout))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
