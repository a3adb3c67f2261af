"""Checks of numbers that a user may set: budgets, bounds and switches of every stage."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from prism.errors import PrismError
from prism.program.node import COMPUTE

SECTIONS = ("search", "tune", "bench", "ablation", "growth", "pack", "offline", "profile")
OPERATORS = {"library", "operators"}  # keys that hold lists of operators
_NAMES = {"name", "device", "devices", "dtype"}  # checked where they choose something
_SWITCHES = {"loop", "split", "cache"}
_SECONDS = {"seconds", "limit_s"}
_FROM_ZERO = {"seed", "extra_operators", "grid"}
_MOST = {"generated": 2, "kernels": 5, "grid": 3}  # that the search can do
_NO_LIMIT = {"profile.seconds", "bench.repetitions"}  # null leaves it to the stage


def check_budgets(data: Mapping) -> None:
    """Raises PrismError for a budget that is none, in those sections that `data` has."""
    for section in SECTIONS:
        for key, value in data.get(section, {}).items():
            _check(f"{section}.{key}", key, value)
    if "seed" in data:
        _check("seed", "seed", data["seed"])


def _check(where: str, key: str, value: Any) -> None:
    """Seeds are integers from 0, the rest positive numbers, and whole ones but for seconds."""
    if key in _NAMES or (value is None and where in _NO_LIMIT):
        return
    if key in _SWITCHES:
        if not isinstance(value, bool):
            raise PrismError(f"{where}={value!r}: must be true or false")
        return
    if key in OPERATORS:
        _check_operators(where, value)
        return
    zero = key in _FROM_ZERO
    number = isinstance(value, int) or (key in _SECONDS and isinstance(value, float))
    number = number and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0 or (value == 0 and not zero):
        kind = "a positive number" if key in _SECONDS else "a positive integer"
        raise PrismError(f"{where}={value!r}: must be {'an integer from 0' if zero else kind}")
    if (most := _MOST.get(key)) and value > most:
        raise PrismError(f"{where}={value!r}: must be {most} at most")


def _check_operators(where: str, value: Any) -> None:
    known = sorted(op.value for op in COMPUTE)
    if not isinstance(value, list):
        raise PrismError(f"{where}={value!r}: must be a list of operators such as [matmul]")
    if unknown := [item for item in value if item not in known]:
        raise PrismError(
            f"{where}: {unknown[0]!r} is not an operator; known are {', '.join(known)}"
        )
