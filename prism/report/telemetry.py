"""What a search spent on its rules, by name."""

from __future__ import annotations

from collections.abc import Mapping

ANALYSIS = "axes of results"  # rules that derive axes alone, one an operator


def rules(search: Mapping) -> list[tuple[str, int, float]]:
    """(rule, matches, seconds) of a search's result, most matches first."""
    found: dict[str, list] = {}
    for name, cost in (search.get("rules") or {}).items():
        shown = ANALYSIS if name.startswith("axes of ") else name
        matches, seconds = found.get(shown, (0, 0.0))
        found[shown] = matches + cost["matches"], seconds + cost["seconds"]
    ordered = sorted(found.items(), key=lambda item: (-item[1][0], item[0]))
    return [(name, *cost) for name, cost in ordered]
