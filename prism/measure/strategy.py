"""Tuning strategies: which configurations of a space to try next, given what was tried."""

from __future__ import annotations

from collections.abc import Sequence

from prism.instantiate.concrete import Concrete
from prism.measure.local import LocalStrategy
from prism.measure.ranked import Points, drawn, ranked
from prism.measure.space import Space, Strategy


class RandomStrategy:
    """Random points without repeats, in the shares of `sample`; the history is not read."""

    pruned = 0

    def __init__(self):
        self._points: Points | None = None

    def propose(
        self, space: Space, history: Sequence[dict], count: int
    ) -> list[tuple[str, Concrete]]:
        """The next `count` of the sample that the seed determines."""
        if self._points is None:
            self._points = drawn(space, space.limit)
        return self._points[len(history) : len(history) + count]


class RankedStrategy:
    """Random points in the order of the device's model, see `ranked`; the history is not read."""

    def __init__(self):
        self.pruned = 0
        self._points: Points | None = None

    def propose(
        self, space: Space, history: Sequence[dict], count: int
    ) -> list[tuple[str, Concrete]]:
        """The next `count`."""
        if self._points is None:
            self._points, self.pruned = ranked(space)
        return self._points[len(history) : len(history) + count]


STRATEGIES: dict[str, type[Strategy]] = {
    "local": LocalStrategy,
    "random": RandomStrategy,
    "ranked": RankedStrategy,
}
