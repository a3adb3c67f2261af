"""The parameter space of mapped sGraphs: valid sizes of each d_p, and uniform random sampling."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod

from prism.errors import PrismError
from prism.instantiate.concrete import Concrete
from prism.instantiate.distinct import identity, reduced, structure
from prism.instantiate.materialize import scratch_bytes
from prism.instantiate.spans import ceil_div, divides, kernel_spans
from prism.program import Program
from prism.sgraph import Kernel, SGraph

SCRATCH_BYTES = 8 << 20  # a block's buffers should stay in a core's caches
MAX_TILES = 1 << 16  # blocks times iterations: beyond, the loops cost more than the work
_SHORT_AXIS = 64  # longer axes are never cut into tiles of fewer than ...
_MIN_TILE = 16  # ... this many elements
_MAX_DRAWS = 100_000  # of points, before a sample gives up on a space with few valid ones


def sizes(program: Program, kernel: Kernel) -> dict[str, list[int]]:
    """Values worth trying for each d_p, ascending; every one leaves no chunk empty.

    They come from tile extents 2^k, from 3 * 2^k where that divides the axis, from powers of two
    themselves, and 1; so a uniform choice among them is about log-uniform over sizes. A loop that
    cuts the same axis as a grid dimension is limited further by that block's chunk: see `problem`.
    """
    found = {}
    for par in kernel.block.pars:
        axes = {v.axis for v in kernel.mapping.ones if v.par == par}
        extents = sorted({program.size(axis) for axis in axes})
        values = {value for extent in extents for value in _proposals(extent)} | {1}
        found[par] = sorted(v for v in values if all(_sensible(e, v, e) for e in extents))
        found[par] = found[par] if extents else [1]
    return found


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

    A mapping that cannot be lowered at all is no reason: lowering reports it.
    """
    for var in kernel.mapping.ones:
        extent, count = program.size(var.axis), 1
        for par in kernel.mapping.pars(var.tensor, var.axis):
            extent, count = ceil_div(extent, count), chosen[par]
            if not _sensible(extent, count, program.size(var.axis)):
                return f"d_{par}={count} does not cut {extent} elements of axis {var.axis!r}"
    tiles = prod(chosen.values())
    if tiles > MAX_TILES:
        return f"{tiles} tiles, the limit is {MAX_TILES}"
    try:
        used = scratch_bytes(kernel, kernel_spans(program, kernel, chosen))
    except PrismError:
        return None
    if used > scratch_limit:
        return f"{used} bytes of scratch a block, the limit is {scratch_limit}"
    return None


@dataclass(frozen=True)
class _Family:
    """All points of one graph, numbered; a point may still have a `problem`."""

    name: str
    graph: SGraph
    axes: tuple[tuple[tuple[int, str], tuple], ...]  # ((kernel or -1, name), values)

    @property
    def count(self) -> int:
        return prod(len(values) for _, values in self.axes)

    def point(self, program: Program, index: int) -> Concrete:
        chosen: list[dict] = [{} for _ in range(len(self.graph.kernels) + 1)]
        for (kernel, name), values in self.axes:
            index, at = divmod(index, len(values))
            chosen[kernel][name] = values[at]
        return Concrete(program, self.graph, tuple(chosen[:-1]), chosen[-1])


def sample(
    graphs: Sequence[tuple[str, SGraph]],
    program: Program,
    count: int,
    seed: int,
    options: Mapping[str, Sequence],
    scratch_limit: int = SCRATCH_BYTES,
) -> list[tuple[str, Concrete]]:
    """At most `count` different points, uniform over all graphs, sizes and options together.

    What is one kernel counts once: a point with a dimension of size 1 belongs to the graph without
    that dimension, when `graphs` has it.

    Sizes are uniform over the values of `sizes`, which are about log-uniform. The same seed gives
    the same points; the whole space, shuffled, comes back when it has no more than `count` (and
    no more than 100,000 candidates, valid or not).
    """
    families = [_family(name, graph, program, options) for name, graph in graphs]
    total = sum(f.count for f in families)
    owner: dict = {}
    for family in families:
        owner.setdefault(structure(family.graph), family)
    seen: set = set()
    found: list[tuple[str, Concrete]] = []
    draws = islice(_shuffled(total, random.Random(seed)), max(_MAX_DRAWS, 10 * count))
    for index in draws:
        if len(found) >= count:
            break
        for family in families:
            if index < family.count:
                break
            index -= family.count
        concrete = family.point(program, index)
        if owner.get(reduced(family.graph, concrete.sizes), family) is not family:
            continue
        key = identity(family.graph, concrete.sizes), tuple(sorted(concrete.options.items()))
        if key in seen:
            continue
        seen.add(key)
        pairs = zip(concrete.graph.kernels, concrete.sizes, strict=True)
        if all(problem(program, k, s, scratch_limit) is None for k, s in pairs):
            found.append((family.name, concrete))
    return found


def _family(name: str, graph: SGraph, program: Program, options: Mapping[str, Sequence]) -> _Family:
    axes = [
        ((k, par), tuple(values))
        for k, kernel in enumerate(graph.kernels)
        for par, values in sizes(program, kernel).items()
    ]
    axes += [((-1, option), tuple(values)) for option, values in sorted(options.items())]
    return _Family(name, graph, tuple(axes))


def _shuffled(total: int, rng: random.Random) -> Iterator[int]:
    """0 .. total-1 in random order, each once, with memory for those drawn only (Fisher-Yates)."""
    moved: dict[int, int] = {}
    for i in range(total):
        j = rng.randrange(i, total)
        yield moved.get(j, j)
        moved[j] = moved.pop(i, i)
