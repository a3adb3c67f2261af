"""The parameter space of mapped sGraphs: valid sizes of each d_p, and what makes no point of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import prod

from prism.errors import PrismError
from prism.instantiate.materialize import scratch_bytes
from prism.instantiate.spans import ceil_div, divides, kernel_spans
from prism.program import Node, Program
from prism.sgraph import Kernel

SCRATCH_BYTES = 8 << 20  # a block's buffers should stay in a core's caches
MAX_TILES = 1 << 16  # blocks times iterations: beyond, the loops cost more than the work
SPLIT_BYTES = (
    64 << 20
)  # partial results of a split reduction: beyond, memory costs more than gained
_SHORT_AXIS = 64  # longer axes are never cut into tiles of fewer than ...
_MIN_TILE = 16  # ... this many elements


def sizes(program: Program, kernel: Kernel) -> dict[str, tuple[int, ...]]:
    """Values worth trying for each d_p, ascending; every one leaves no chunk empty.

    They come from tile extents 2^k, from 3 * 2^k where that divides the axis, from powers of two
    themselves, and 1; so a uniform choice among them is about log-uniform over sizes. A loop that
    cuts the same axis as a grid dimension is limited further by that block's chunk: see `problem`.
    A dimension that splits a reduction is chosen like any other: the fresh axis follows it.
    """
    extents: dict[str, set[int]] = {par: set() for par in kernel.block.pars}
    for var in kernel.mapping.ones:
        if var.axis in program.sizes:  # else it is a fresh axis, which is whole in every block
            extents[var.par].add(program.size(var.axis))
    return {par: _values(tuple(sorted(found))) for par, found in extents.items()}


@lru_cache(maxsize=4096)
def _values(extents: tuple[int, ...]) -> tuple[int, ...]:
    """Values of one d_p that cuts axes of these extents."""
    values = {value for extent in extents for value in _proposals(extent)} | {1}
    found = tuple(sorted(v for v in values if all(_sensible(e, v, e) for e in extents)))
    return found if extents else (1,)


def _proposals(extent: int) -> Iterator[int]:
    power = 1
    while power <= extent:
        yield power
        yield ceil_div(extent, power)
        if extent % (3 * power) == 0:
            yield extent // (3 * power)
        power *= 2


def _sensible(extent: int, count: int, size: int) -> bool:
    """Whether to cut `extent` elements, a chunk of an axis of `size`, into `count` chunks."""
    if count > extent or not divides(extent, count):
        return False
    return count == 1 or size <= _SHORT_AXIS or ceil_div(extent, count) >= _MIN_TILE


def problem(
    program: Program,
    kernel: Kernel,
    chosen: Mapping[str, int],
    scratch_limit: int = SCRATCH_BYTES,
) -> str | None:
    """Why the sizes `chosen` together are no point of the space, or None when they are one.

    `program` holds the extents of the fresh axes too (`Concrete.bound`). A mapping that cannot be
    lowered at all is no reason: lowering reports it.
    """
    for var in kernel.mapping.ones:
        if var.axis in kernel.fresh:
            continue
        extent, count = program.size(var.axis), 1
        for par in kernel.mapping.pars(var.tensor, var.axis):
            extent, count = ceil_div(extent, count), chosen[par]
            if not _sensible(extent, count, program.size(var.axis)):
                return f"d_{par}={count} does not cut {extent} elements of axis {var.axis!r}"
    tiles = prod(chosen.values())
    if tiles > MAX_TILES:
        return f"{tiles} tiles, the limit is {MAX_TILES}"
    for axis, par in kernel.fresh.items():
        stored = sum(_fresh_bytes(program, kernel, saver) for saver in kernel.block.savers)
        if chosen[par] > 1 and stored > SPLIT_BYTES:
            return f"{stored} bytes along {axis!r}, the limit is {SPLIT_BYTES}"
    try:
        used = scratch_bytes(kernel, kernel_spans(program, kernel, chosen))
    except PrismError:
        return None
    if used > scratch_limit:
        return f"{used} bytes of scratch a block, the limit is {scratch_limit}"
    return None


def _fresh_bytes(program: Program, kernel: Kernel, saver: Node) -> int:
    """Bytes of the tensor of a saver with a fresh axis; 0 of others."""
    axes = kernel.tensor_axes(saver)
    return 4 * prod(map(program.size, axes)) if len(axes) > len(saver.axes) else 0
