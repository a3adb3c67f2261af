"""What a backend is: a short manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from prism.codegen.tile import TileProgram


@dataclass(frozen=True)
class Backend:
    """`source` prints a tile program; `build` is the command that compiles it to a library.

    `options` are the knobs that tuning may choose, with their values; the first is the default.
    `scratch_bytes` bounds the fp32 buffers of one block. `build` raises PrismError when the
    compiler is missing.
    """

    name: str
    dtypes: tuple[str, ...]
    suffix: str
    source: Callable[[TileProgram], str]
    build: Callable[[Path, Path], list[str]]
    options: Mapping[str, tuple]
    scratch_bytes: int
