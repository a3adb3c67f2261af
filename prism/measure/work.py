"""What is kept of one case of a packed folder while the suite is at work on it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from prism.measure.bench import PRISM
from prism.measure.folder import Case
from prism.measure.rounds import CUT
from prism.measure.rows import read_rows
from prism.measure.strategy import Strategy
from prism.measure.winner import WINNER, read_winner

ROWS = "rows.jsonl"
TUNING, TIMING = "tuning", "benchmark"  # begin the reason of an error outside of any candidate
LATER, LEFT_OUT = "left for a later pass: it compiles for long", "left out"  # reason and cause


@dataclass
class Work:
    """A case at work. `key` names what it is measured of, `seconds` is what its last benchmark
    took, and `chooser` remembers from pass to pass which configurations come next."""

    case: Case
    folder: Path
    key: str
    seconds: float | None = None
    chooser: Strategy | None = None
    finished: bool = False

    @property
    def winner(self) -> dict | None:
        """What tuning has stored so far."""
        return read_winner(self.folder) if (self.folder / WINNER).is_file() else None

    @property
    def rows(self) -> list[dict]:
        """The rows of its last benchmark; none when there was none."""
        path = self.folder / ROWS
        return read_rows(path) if path.is_file() else []

    @property
    def cut(self) -> bool:
        """Whether a baseline had no time to compile, or too little."""
        return bool(self.lacking)

    @property
    def broken(self) -> bool:
        """Whether an error ended its tuning or its benchmark."""
        winner = (self.winner or {}).get("reason") or ""
        rows = [row["reason"] for row in self.rows]
        return winner.startswith(TUNING) or any(reason.startswith(TIMING) for reason in rows)

    @property
    def compiled(self) -> float:
        """Seconds that its baselines took to compile, or were waited for."""
        rows = [row for row in self.rows if row["system"] != PRISM]
        waited = sum(row["evidence"].get("waited_seconds", 0.0) for row in rows)
        return waited + sum(row["compile_seconds"] or 0.0 for row in rows)

    @property
    def lacking(self) -> set[str]:
        """The baselines that had no time to compile, or too little."""
        return {row["system"] for row in self.rows if row.get("cause") in (CUT, LEFT_OUT)}

    def compile_seconds(self, names: Collection[str]) -> list[float]:
        """Seconds that these baselines took to compile, as far as they were measured."""
        known = [row["compile_seconds"] for row in self.rows if row["system"] in names]
        return [seconds for seconds in known if seconds is not None]

    @property
    def timed(self) -> bool:
        """Whether its rows are those of its winner."""
        variants = [row["variant"] for row in self.rows if row["system"] == PRISM]
        return variants == [(self.winner or {}).get("digest") or ""]


def no_winner(case: Case, settings: Mapping, reason: str) -> dict:
    """What stands for the result of a tuning that could not be made."""
    device = settings["device"]
    return {
        **{"status": "failed", "reason": reason, "tried": 0, "passed": 0, "causes": {}},
        **{"backend": device["backend"], "device": device["name"], "candidates": []},
        **{"concrete": None, "graph_id": None, "median_us": None, "program": case.program.name},
        **{"dtype": case.program.dtype, "seconds": {"compile": 0.0, "tune": 0.0, "total": 0.0}},
    }
