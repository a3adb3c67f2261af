"""Tuning strategies: which configurations of a space to try next, given what was tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from prism.instantiate.concrete import Concrete
from prism.instantiate.distinct import operators
from prism.instantiate.sampling import sample
from prism.measure.local import LocalStrategy
from prism.measure.space import Space, Strategy
from prism.model.rank import Ranked, rank


class RandomStrategy:
    """Random points without repeats, in the shares of `sample`; the history is not read."""

    pruned = 0

    def __init__(self):
        self._points: list[tuple[str, Concrete]] | None = None

    def propose(
        self, space: Space, history: Sequence[dict], count: int
    ) -> list[tuple[str, Concrete]]:
        """The next `count` of the sample that the seed determines."""
        if self._points is None:
            self._points = _drawn(space, space.limit)
        return self._points[len(history) : len(history) + count]


class RankedStrategy:
    """Of many random points those that fit the device, the least modelled time first; but every
    fourth in the order of the sample, so that an error of the model cannot hide what is good.

    Points of the same operators and sizes are alike, and the model's errors for them too: each
    further one of a kind counts as slower by `ALIKE` of its modelled time than the one before it.
    The history is not read.
    """

    POOL = 4096  # points to rank, a millisecond each
    UNRANKED = 4  # one proposal in so many is a random one
    ALIKE = 0.1

    def __init__(self):
        self.pruned = 0
        self._points: list[tuple[str, Concrete]] | None = None

    def propose(
        self, space: Space, history: Sequence[dict], count: int
    ) -> list[tuple[str, Concrete]]:
        """The next `count`. Raises PrismError for a device that has no model (see `rank`)."""
        if self._points is None:
            drawn = _drawn(space, max(self.POOL, space.limit))
            ranked = _spread(rank(drawn, space.device), self.ALIKE)
            self.pruned = len(drawn) - len(ranked)
            self._points = _interleaved(ranked, drawn, self.UNRANKED)
        return self._points[len(history) : len(history) + count]


def _drawn(space: Space, count: int) -> list[tuple[str, Concrete]]:
    options = space.options, space.scratch_bytes
    return sample(space.graphs, space.program, count, space.seed, *options)


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


STRATEGIES: dict[str, type[Strategy]] = {
    "local": LocalStrategy,
    "random": RandomStrategy,
    "ranked": RankedStrategy,
}
