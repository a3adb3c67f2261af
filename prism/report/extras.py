"""A run's results beside those of its cases: the ablation, the growth, what compiled offline."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from prism.report import settings


@dataclass(frozen=True)
class _Kind:
    """What a file holds (key -> kind), and each of its rows; `done` is what was done for it."""

    rows: frozenset[str]
    holds: tuple[tuple[str, type], ...] = ()
    done: str = "timed"


KINDS = {
    "ablation": _Kind(
        frozenset(
            {"imap", "fmap", "omap", "sizes", "seconds", "ended", "graphs"}
            | {"assignments", "assignments_all"}
        )
    ),
    "growth": _Kind(
        frozenset(
            {"program", "operators", "pieces", "seconds", "graphs_log10", "kernels"}
            | {"ended", "peak_mib"}
        )
    ),
    "offline": _Kind(
        frozenset(
            {"case", "dtype", "device", "status", "cause", "reason", "registers", "spill_bytes"}
            | {"shared_bytes", "estimated_shared_bytes", "modelled_us"}
        ),
        (("status", str), ("cases", list), ("devices", dict)),
        "compiled",
    ),
}


def read_extra(run_dir: Path, name: str, config: dict, problems: list[str]) -> dict | None:
    """The file `name`.json; empty where the configuration plans none, None without a sound one."""
    path, kind = run_dir / f"{name}.json", KINDS[name]
    planned = settings.plans(config, name)
    if not path.is_file():
        if planned:
            problems.append(f"{name}: not {kind.done} (no {name}.json)")
        return None
    if planned is False:
        return {}
    data = read_json(path, problems)
    if data is None:
        return None
    if not _of_the_form(data, kind):
        problems.append(f"{name}.json is damaged and was left out: rows of another form")
        return None
    if differs := settings.extra_differs(config, name, data):
        problems.append(f"{name}.json was made with other settings and left out: {differs}")
        return None
    return data


def _of_the_form(data: dict, kind: _Kind) -> bool:
    rows = data.get("rows")
    whole = all(isinstance(data.get(key), of) for key, of in kind.holds)
    known = (
        bool(rows) or data.get("status") == "unavailable"
    )  # then there are none, and it says why
    return (
        whole
        and known
        and isinstance(rows, list)
        and all(isinstance(row, dict) and row.keys() >= kind.rows for row in rows)
    )


def read_json(path: Path, problems: list[str]) -> dict | None:
    """An object of JSON; None, and a problem, for a file that holds none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        data = None
    if not isinstance(data, dict):
        problems.append(f"{path.parent.name}/{path.name} is damaged and was left out")
        return None
    return data
