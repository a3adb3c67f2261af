"""Masks that are computed from indices: inputs of a program that are never in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prism.errors import PrismError

ALIGN = ("last", "first")


@dataclass(frozen=True)
class Causal:
    """0 where a query sees a key, -infinity elsewhere, with axes (query, key).

    A query sees its own key and those before it. Which key is its own where there are more of one
    than of the other says `align`: "last" makes the last query's the last key (as decoding with a
    cache of keys needs), "first" the first query's the first key.
    """

    query: str
    key: str
    align: str = "last"

    def __post_init__(self):
        if self.align not in ALIGN:
            raise PrismError(f"causal: alignment {self.align!r} is not one of {', '.join(ALIGN)}")

    @property
    def axes(self) -> tuple[str, str]:
        """(query, key)."""
        return self.query, self.key

    @property
    def text(self) -> str:
        """As a formula has it."""
        align = () if self.align == ALIGN[0] else (self.align,)
        return f"causal({', '.join((*self.axes, *align))})"

    def shift(self, queries: int, keys: int) -> int:
        """Query i sees key j where j <= i + shift; the arguments are how many there are."""
        return keys - queries if self.align == "last" else 0


def causal(queries: int, keys: int, shift: int) -> np.ndarray:
    """The mask as a float64 array: query i sees key j where j <= i + shift."""
    sees = np.arange(keys) <= np.arange(queries)[:, None] + shift
    return np.where(sees, 0.0, -np.inf)
