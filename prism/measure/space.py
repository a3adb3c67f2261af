"""What a tuning may try, and the interface of what chooses from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from prism.instantiate.concrete import Concrete
from prism.model.device import CPU, Device
from prism.program import Program
from prism.sgraph import SGraph


@dataclass(frozen=True)
class Space:
    """What may be tried: all mapped graphs, their sizes and the backend's options.

    `limit` is how many configurations the budget allows, `scratch_bytes` the backend's bound,
    `device` what they are tuned for, with so many `threads` of a CPU.
    """

    program: Program
    graphs: Sequence[tuple[str, SGraph]]
    options: Mapping[str, Sequence]
    seed: int
    limit: int
    scratch_bytes: int
    device: Device = CPU
    threads: int = 1


class Strategy(Protocol):
    """One interface for all strategies. `pruned` counts the configurations that were looked at and
    left out without compiling them, as they would not run."""

    pruned: int

    def propose(
        self, space: Space, history: Sequence[dict], count: int
    ) -> list[tuple[str, Concrete]]:
        """At most `count` new configurations, (graph id, concrete); empty when there are none.

        `history` holds the records of those tried so far (see `race.Candidate.record`).
        """
