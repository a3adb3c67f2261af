"""The page of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prism.errors import PrismError
from prism.stages.items import needed


def report(own: dict[str, str], overrides: Sequence[str]) -> None:
    """Builds the report of a run's folder."""
    from prism.report import build

    if overrides:
        raise PrismError(f"{overrides[0]}: report reads a run as it is; only run=FOLDER is known")
    run = Path(needed(own, "run", "report"))
    if not run.is_dir():
        raise PrismError(f"run={run}: no such folder; a run leaves it, such as results/paper-cpu")
    print(build(run))
