"""What a backend is: a short manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prism.codegen.tile import TileProgram

Pairs = Sequence[tuple[Path, Path]]  # (source, what is built from it)


@dataclass(frozen=True)
class Backend:
    """`source` prints a tile program, `read` a kernel that only reads inputs of these bytes.

    `build(pairs, arch, jobs, timeout)` is the command that compiles sources to files with suffix
    `built`, several at once (`jobs`, each within `timeout` seconds) if `batch`; `arch` is the
    compute capability of a GPU, such as 90, None on the CPU. It raises PrismError when the compiler
    is missing. `options` are the knobs that tuning may choose, with their values; the first is the
    default. `scratch_bytes` bounds the fp32 buffers of one block. `library` says what a library
    operator is: the backend's "own" tile kernel, or a call of "torch".
    """

    name: str
    dtypes: tuple[str, ...]
    suffix: str
    built: str
    batch: bool
    source: Callable[[TileProgram], str]
    read: Callable[[Sequence[int]], str]
    build: Callable[[Pairs, int | None, int, float], list[str]]
    options: Mapping[str, tuple]
    scratch_bytes: int
    library: str
