"""The paper's numbers, from results/paper (see the README there for where each comes from)."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PAPER = Path(__file__).resolve().parents[2] / "results" / "paper"
UNKNOWN = "unknown"
ABLATED = ("rmsnorm", {"d": 4096, "n": 8})  # what Table 4 is of


@dataclass(frozen=True)
class Published:
    """Rows of the published tables as text; `unknown` where the paper leaves a cell in doubt."""

    kernel: tuple[dict[str, str], ...] = ()
    total: tuple[dict[str, str], ...] = ()
    search: tuple[dict[str, str], ...] = ()
    graphs: tuple[dict[str, str], ...] = ()
    ablation: tuple[dict[str, str], ...] = ()

    @property
    def whole(self) -> bool:
        """Whether every table is there."""
        return all((self.kernel, self.total, self.search, self.graphs, self.ablation))

    def kernel_of(self, workload: str, sizes: Mapping[str, int]) -> dict[str, str]:
        """Ratios of Figure 6 for a configuration whose sizes are all the paper's; else empty."""
        return _case(self.kernel, workload, sizes)

    def total_of(self, workload: str, sizes: Mapping[str, int]) -> dict[str, str]:
        """Total optimization seconds of Figure 6; empty for a configuration not in the paper."""
        return _case(self.total, workload, sizes)

    def search_of(self, workload: str) -> dict[str, str]:
        """The row of Table 2; empty for a workload not in the paper."""
        return next((row for row in self.search if row["workload"] == workload), {})

    def ablation_of(self, workload: str, sizes: Mapping[str, int]) -> dict[str, float | None]:
        """Seconds of Table 4 by imap, fmap and omap (`SSC`); empty for another configuration."""
        name, wanted = ABLATED
        if workload != name or not wanted.items() <= sizes.items():
            return {}
        return {r["imap"] + r["fmap"] + r["omap"]: number(r["search_s"]) for r in self.ablation}

    def graphs_of(self, workload: str) -> dict[str, str]:
        """The row of Table 3; empty for a workload not in the paper."""
        return next((row for row in self.graphs if row["workload"] == workload), {})


def load(folder: Path = PAPER) -> Published:
    """Reads the tables; a table that is not there is empty."""
    names = ("figure6_kernel", "figure6_total_seconds", "table2_search_seconds", "table3_graphs")
    names += ("table4_ablation",)
    return Published(*(_read(folder / f"{name}.csv") for name in names))


def number(text: str | None) -> float | None:
    """A cell as a number; None for an empty or unknown one and for a bound such as `>3600`."""
    return float(text) if text and re.fullmatch(r"\d+(\.\d+)?", text) else None


def numbers(rows: Iterable[Mapping[str, str]], column: str) -> list[float]:
    """The cells of a column that are numbers."""
    found = (number(row[column]) for row in rows)
    return [value for value in found if value is not None]


def both(row: Mapping[str, str], prefix: str, suffix: str = "") -> str:
    """The two configurations of a cell as `11.6; 13.0`; empty where the row is."""
    cells = [row.get(f"{prefix}_config{i}{suffix}") for i in (1, 2)]
    return "; ".join(cell for cell in cells if cell)


def _read(path: Path) -> tuple[dict[str, str], ...]:
    if not path.is_file():
        return ()
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def _case(rows, workload: str, sizes: Mapping[str, int]) -> dict[str, str]:
    for row in rows:
        wanted = {k: int(v) for k, v in (part.split("=") for part in row["config"].split(","))}
        if row["workload"] == workload and wanted.items() <= sizes.items():
            return row
    return {}
