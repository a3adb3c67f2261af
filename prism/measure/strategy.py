"""Tuning strategies: which configurations of a space to try next, given what was tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from prism.instantiate.concrete import Concrete
from prism.instantiate.sampling import sample
from prism.program import Program
from prism.sgraph import SGraph


@dataclass(frozen=True)
class Space:
    """What may be tried: all mapped graphs, their sizes and the backend's options.

    `limit` is how many configurations the budget allows, `scratch_bytes` the backend's bound.
    """

    program: Program
    graphs: Sequence[tuple[str, SGraph]]
    options: Mapping[str, Sequence]
    seed: int
    limit: int
    scratch_bytes: int


class Strategy(Protocol):
    """One interface for all strategies."""

    def propose(
        self, space: Space, history: Sequence[dict], count: int
    ) -> list[tuple[str, Concrete]]:
        """At most `count` new configurations, (graph id, concrete); empty when there are none.

        `history` holds the records of those tried so far (see `race.Candidate.record`).
        """


class RandomStrategy:
    """Random points without repeats, in the shares of `sample`; the history is not read."""

    def __init__(self):
        self._points: list[tuple[str, Concrete]] | None = None

    def propose(
        self, space: Space, history: Sequence[dict], count: int
    ) -> list[tuple[str, Concrete]]:
        """The next `count` of the sample that the seed determines."""
        if self._points is None:
            self._points = sample(
                space.graphs,
                space.program,
                space.limit,
                space.seed,
                space.options,
                space.scratch_bytes,
            )
        return self._points[len(history) : len(history) + count]


STRATEGIES: dict[str, type[Strategy]] = {"random": RandomStrategy}
