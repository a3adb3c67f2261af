"""Random points of a space in the order of their modelled time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import permutations, product

from prism.instantiate.concrete import Concrete
from prism.instantiate.distinct import operators
from prism.instantiate.sampling import sample
from prism.instantiate.space import sizes
from prism.measure.space import Space
from prism.model.rank import Ranked, rank

POOL = 2048  # points to rank, about a millisecond each
UNRANKED = 4  # one point in so many is a random one
ALIKE = 0.1
STARTS = 32  # kinds of operators whose best point is improved in the model
ROUNDS = 12  # of improving one

Points = list[tuple[str, Concrete]]


def drawn(space: Space, count: int) -> Points:
    """Random points without repeats, as the seed determines them."""
    options = space.options, space.scratch_bytes
    return sample(space.graphs, space.program, count, space.seed, *options)


def ranked(space: Space) -> tuple[Points, int]:
    """Of many random points those that fit the device, the least modelled time first; but every
    fourth in the order of the sample, so that an error of the model cannot hide what is good. And
    the number of those that do not fit.

    The best of each kind of operators is followed to better sizes, as graphs of several kernels
    have too many for a sample to hold the good ones. Points of the same operators and sizes are
    alike, and the model's errors for them too: each further one of a kind counts as slower by
    `ALIKE` of its modelled time than the one before it.
    """
    points = drawn(space, max(POOL, space.limit))
    fit = rank(points, space.device, space.threads)
    found = _spread(sorted(fit + _improved(fit, space), key=lambda one: one[0]), ALIKE)
    return _interleaved(found, points, UNRANKED), len(points) - len(fit)


def _improved(found: Ranked, space: Space) -> Ranked:
    """Where steps to the sizes beside those of the best of each kind lead, in the model."""
    best: dict = {}
    for one in found:
        best.setdefault(operators(one[2].graph), one)
    known = {one[2].key for one in found}
    improved = []
    for one in list(best.values())[:STARTS]:
        for _ in range(ROUNDS):
            name, concrete = one[1:]
            near = [(name, other) for other in _beside(concrete, space)]
            better = rank(near, space.device, space.threads)[:1]
            if not better or better[0][0] >= one[0]:
                break
            one = better[0]
        if one[2].key not in known:
            known.add(one[2].key)
            improved.append(one)
    return improved


def _beside(concrete: Concrete, space: Space) -> Iterator[Concrete]:
    """The valid points of a graph where one size of a kernel is a step up or down, or two are in
    opposite directions, as when blocks cut another axis."""
    for number, kernel in enumerate(concrete.graph.kernels):
        now = concrete.sizes[number]
        near = {}
        for par, values in sizes(space.program, kernel).items():
            at = values.index(now[par])
            near[par] = values[max(0, at - 1) : at], values[at + 1 : at + 2]
        steps = [{par: to} for par, (down, up) in near.items() for to in (*down, *up)]
        for one, other in permutations(near, 2):
            pairs = product(near[one][0], near[other][1])
            steps += [{one: down, other: up} for down, up in pairs]
        for step in steps:
            chosen = [dict(s) for s in concrete.sizes]
            chosen[number] |= step
            beside = Concrete(space.program, concrete.graph, chosen, concrete.options)
            if beside.problem(space.scratch_bytes) is None:
                yield beside


def _spread(ranked: Ranked, alike: float) -> list[tuple[str, Concrete]]:
    """In the order of modelled time, where each further point of a kind counts as slower."""
    kinds: Counter = Counter()
    found = []
    for us, name, concrete in ranked:
        sizes = tuple(tuple(sorted(chosen.items())) for chosen in concrete.sizes)
        kind = operators(concrete.graph), sizes
        found.append((us * (1 + alike * kinds[kind]), name, concrete))
        kinds[kind] += 1
    return [(name, concrete) for _, name, concrete in sorted(found, key=lambda one: one[0])]


def _interleaved(ranked: list, drawn: list, every: int) -> list:
    """All of `ranked`, each once: in that order, but each `every`-th in the order of `drawn`."""
    left = {id(point[1]): point for point in ranked}
    orders = iter([p for p in drawn if id(p[1]) in left]), iter(ranked)
    found = []
    while left:
        order = orders[len(found) % every != every - 1]
        point = next(p for p in order if id(p[1]) in left)
        found.append(left.pop(id(point[1])))
    return found
