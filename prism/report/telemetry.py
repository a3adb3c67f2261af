"""What a search says of itself: how it ended, what it did not prove, what its rules cost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

ANALYSIS = "axes of results"  # rules that derive axes alone, one an operator
DONE = "exhausted"  # how a search ended that no limit and no user did


def stopped(ended: object) -> str:
    """What ended a search whose seconds are no time: `limit`, `interrupted` or else `stopped`.

    Empty for one that ended by itself. `ended` is what its result says, or nothing without one.
    """
    if not ended or ended == DONE:
        return ""
    return next((why for why in ("interrupted", "limit") if why in str(ended)), "stopped")


def gaps(search: Mapping) -> list[tuple[str, int]]:
    """(reason, how many) of what a search did not prove, most first."""
    reasons = (str(gap["reason"]) for gap in search.get("gaps") or ())
    counts = Counter(re.sub(r" at pair \d+$", "", reason) for reason in reasons)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def gap_reasons(search: Mapping) -> str:
    """The same in words: `axiom gap 7, not tried 2`."""
    return ", ".join(f"{reason} {count}" for reason, count in gaps(search))


def rules(search: Mapping) -> list[tuple[str, int, float]]:
    """(rule, matches, seconds) of a search's result, most matches first."""
    found: dict[str, list] = {}
    for name, cost in (search.get("rules") or {}).items():
        shown = ANALYSIS if name.startswith("axes of ") else name
        matches, seconds = found.get(shown, (0, 0.0))
        found[shown] = matches + cost["matches"], seconds + cost["seconds"]
    ordered = sorted(found.items(), key=lambda item: (-item[1][0], item[0]))
    return [(name, *cost) for name, cost in ordered]
