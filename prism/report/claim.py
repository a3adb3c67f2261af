"""A claim beside what a run shows of it."""

from __future__ import annotations

from dataclasses import dataclass

HOLDS, FAILS, NOT_MEASURED = "holds", "does not hold", "not measured here"
TOO_NOISY = "too noisy here"
PARTLY = "holds where measured"  # nothing against it, but not all that the claim covers was run
STOPPED = "not decided: stopped"  # at a limit, before it could be told


@dataclass(frozen=True)
class Claim:
    """`where` in the paper, empty for a claim of this project; what it says, what this run shows,
    and whether that agrees.
    """

    where: str
    claim: str
    measured: str
    verdict: str


def part(count: int, all_of_them: int, what: str) -> str:
    """Of how many, where a run has not all."""
    return "" if count == all_of_them else f" ({count} of the paper's {all_of_them} {what})"
