"""Random points of the parameter space: deterministic, without repeats, in two strata."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod

from prism.instantiate.concrete import Concrete
from prism.instantiate.distinct import operators, reduced, structure
from prism.instantiate.space import SCRATCH_BYTES, sizes
from prism.instantiate.stable import stable_graphs
from prism.program import Program
from prism.sgraph import SGraph

OTHERS = 4  # one draw in so many is of a graph that is more than one generated kernel
_MAX_DRAWS = 100_000  # of points, before a sample gives up on a space with few valid ones


@dataclass(frozen=True)
class _Family:
    """All points of one graph, numbered; a point may still have a `problem`."""

    name: str
    graph: SGraph
    axes: tuple[tuple[tuple[int, str], Sequence], ...]  # ((kernel or -1, name), values)

    @cached_property
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
    """At most `count` different points of graphs, sizes and options together.

    Graphs without a form in the program's numerics have none (`stable.refused` tells why).

    Points of graphs that are one generated kernel are drawn uniformly over all of them together.
    The others (several generated kernels, or a library operator) have products of sizes, which
    would drown the first kind; so where there are both, every fourth point is of the others, until
    one kind has no more. Among the others a graph is drawn uniformly, then one of its points.

    What is one kernel counts once: a point with a dimension of size 1 belongs to the graph without
    that dimension, when `graphs` has it.

    Sizes are uniform over the values of `sizes`, which are about log-uniform. The same seed gives
    the same points, and a smaller `count` a prefix of them; the whole space, shuffled, comes back
    when it has no more than `count` (and a stratum no more than 100,000 candidates, valid or not).
    """
    kept = stable_graphs(program, graphs)
    families = [_family(name, graph, program, options) for name, graph in kept]
    single: list[_Family] = []
    others: list[_Family] = []
    for family in families:
        (single if is_single(family.graph) else others).append(family)
    check = _Check(program, families, scratch_limit)
    most = max(_MAX_DRAWS, 10 * count)
    strata = [
        check.valid(_by_point(single, random.Random(seed)), most),
        check.valid(_by_graph(others, random.Random(f"{seed} others")), most),
    ]
    found: list[tuple[str, Concrete]] = []
    while len(found) < count:
        turn = len(found) % OTHERS == OTHERS - 1
        point = next(strata[turn], None) or next(strata[not turn], None)
        if point is None:
            break
        found.append(point)
    return found


def is_single(graph: SGraph) -> bool:
    """Whether the graph is one generated kernel."""
    return len(graph.kernels) == 1 and not graph.kernels[0].library


class _Check:
    """What keeps a drawn candidate out: another graph's point, a repeat, a `problem`."""

    def __init__(self, program: Program, families: Sequence[_Family], scratch_limit: int):
        self.program, self.scratch_limit = program, scratch_limit
        self.alike: dict[Hashable, list[_Family]] = {}  # by operators; most are never looked at
        for family in families:
            self.alike.setdefault(operators(family.graph), []).append(family)
        self.owners: dict[Hashable, dict[Hashable, _Family]] = {}
        self.seen: set = set()

    def valid(
        self, candidates: Iterator[tuple[_Family, int]], most: int
    ) -> Iterator[tuple[str, Concrete]]:
        """The points among the first `most` candidates."""
        for (family, index), _ in zip(candidates, range(most), strict=False):
            concrete = family.point(self.program, index)
            if self._keeps(family, concrete):
                yield family.name, concrete

    def _keeps(self, family: _Family, concrete: Concrete) -> bool:
        owner = self._owners(family).get(reduced(family.graph, concrete.sizes), family)
        if owner is not family:
            return False
        if concrete.key in self.seen:
            return False
        self.seen.add(concrete.key)
        return concrete.problem(self.scratch_limit) is None

    def _owners(self, family: _Family) -> Mapping[Hashable, _Family]:
        """By structure, the first of the graphs with the operators of `family`."""
        same = operators(family.graph)
        if same not in self.owners:
            pairs = [(structure(f.graph), f) for f in reversed(self.alike[same])]
            self.owners[same] = dict(pairs)
        return self.owners[same]


def _family(name: str, graph: SGraph, program: Program, options: Mapping[str, Sequence]) -> _Family:
    axes = [
        ((k, par), values)
        for k, kernel in enumerate(graph.kernels)
        for par, values in sizes(program, kernel).items()
    ]
    axes += [((-1, option), values) for option, values in sorted(options.items())]
    return _Family(name, graph, tuple(axes))


def _by_point(families: Sequence[_Family], rng: random.Random) -> Iterator[tuple[_Family, int]]:
    """All candidates of all families together, in random order."""
    ends = list(accumulate(f.count for f in families))
    for index in _shuffled(ends[-1] if ends else 0, rng):
        at = bisect_right(ends, index)
        yield families[at], index - (ends[at] - families[at].count)


def _by_graph(families: Sequence[_Family], rng: random.Random) -> Iterator[tuple[_Family, int]]:
    """All candidates: a random family each time, and of each its own in random order."""
    left = list(families)
    order: dict[int, Iterator[int]] = {}
    while left:
        at = rng.randrange(len(left))
        family = left[at]
        drawn = order.setdefault(id(family), _shuffled(family.count, rng))
        index = next(drawn, None)
        if index is None:
            left[at] = left[-1]
            left.pop()
        else:
            yield family, index


def _shuffled(total: int, rng: random.Random) -> Iterator[int]:
    """0 .. total-1 in random order, each once, with memory for those drawn only (Fisher-Yates)."""
    moved: dict[int, int] = {}
    for i in range(total):
        j = rng.randrange(i, total)
        yield moved.get(j, j)
        moved[j] = moved.pop(i, i)
