"""What can be said of an sGraph: PROVED, REFUTED or UNKNOWN, with a reason, never a boolean."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """PROVED by the e-graph; REFUTED by a counterexample; UNKNOWN when neither is had."""

    PROVED = "PROVED"
    REFUTED = "REFUTED"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True)
class Verdict:
    """An outcome and its reason; a refutation carries the seed that reproduces it."""

    outcome: Outcome
    reason: str = ""
    seed: int | None = None

    @property
    def proved(self) -> bool:
        """Whether the graph may be used."""
        return self.outcome is Outcome.PROVED
