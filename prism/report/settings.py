"""Whether a result in a run's folder was made with the settings that its config.yaml plans."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

_BUDGET = ("count", "seconds", "seed")  # of a tuning


def hash_of(config: Mapping, case: str) -> str | None:
    """The hash that config.yaml plans for a case; it covers the settings of every stage."""
    cases = config.get("cases")
    planned = cases.get(case) if isinstance(cases, dict) else None
    return str(planned) if planned else None


def device_of(config: Mapping, rows: Iterable[Mapping]) -> str | None:
    """The one device of a run: the planned one, else that of most rows."""
    device = config.get("device")
    planned = device.get("name") if isinstance(device, dict) else device
    found = Counter(row["device"] for row in rows if row.get("device"))
    return planned or next((name for name, _ in found.most_common(1)), None)


def row_differs(config: Mapping, case: str, row: Mapping, device: str | None = None) -> str:
    """In what a row's settings are not the planned ones, in words; empty when they agree.

    A row or a config.yaml without a hash is compared by dtype, seed and sizes. `device` is that of
    the run, which is of one device alone.
    """
    if differs := _unlike({"device": device}, row):
        return differs
    wanted, found = hash_of(config, case), row.get("config_hash")
    if wanted and found:
        return _unlike({"configuration hash": wanted}, {"configuration hash": str(found)})
    shape = row.get("shape") if isinstance(row.get("shape"), dict) else {}
    planned = {key: config.get(key) for key in ("dtype", "seed")}
    differs = _unlike(planned, row)
    return differs or _unlike(sizes_in(case), shape)


def winner_differs(config: Mapping, case: str, winner: Mapping, device: str | None = None) -> str:
    """The same of a tuning, which records no hash: device, dtype, budget, strategy and sizes."""
    tune = _section(config, "tune")
    planned = {"device": device, "dtype": config.get("dtype"), "strategy": tune.get("name")}
    differs = _unlike(planned, winner)
    differs = differs or _unlike({k: tune.get(k) for k in _BUDGET}, winner.get("budget"))
    program = (winner.get("concrete") or {}).get("program") or {}
    return differs or _unlike(sizes_in(case), program.get("sizes"))


def search_differs(config: Mapping, search: Mapping) -> str:
    """The same of a search, which records no hash: the generator's bounds.

    Its dtype is none of them, as it is of real numbers: a folder that was packed after a search in
    bf16 is measured in fp16.
    """
    bounds = _section(config, "search")
    planned = {("generator" if k == "name" else k): v for k, v in bounds.items()}
    return _unlike(planned, search.get("bounds"))


def plans(config: Mapping, name: str) -> bool | None:
    """Whether config.yaml has an `ablation`, a `growth` or `offline`; None if it does not say.

    The first two are a suite's own, and `offline` is every run's.
    """
    if name == "offline":
        return True if name in config else None
    suite = _section(config, "suite")
    return bool(suite[name]) if name in suite else None


def extra_differs(config: Mapping, name: str, data: Mapping) -> str:
    """In what the settings of an extra are not the planned ones; a growth records none."""
    if name == "offline":
        cases = config.get("cases")
        planned = sorted(map(str, cases)) if isinstance(cases, (dict, list)) else None
        differs = _unlike(_section(config, name), data.get("settings"))
        return differs or _unlike({"cases": planned}, {"cases": sorted(map(str, data["cases"]))})
    if name != "ablation":
        return ""
    planned = _section(_section(config, "suite"), name)
    limit = {"limit_s": _section(config, name).get("limit_s")}
    differs = _unlike(limit | {"workload": planned.get("workload")}, data)
    return differs or _unlike(_section(planned, "sizes"), data.get("sizes"))


def sizes_in(text: str) -> dict[str, int]:
    """The sizes in a case's name."""
    return {axis: int(size) for axis, size in re.findall(r"(\w+)=(\d+)\b", text)}


def _section(config: Mapping, name: str) -> Mapping:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _unlike(planned: Mapping, found: object) -> str:
    """The first value that both know and that is not the same."""
    if not isinstance(found, dict):
        return ""
    for name, value in planned.items():
        other = found.get(name)
        if None not in (value, other) and value != other:
            return f"{name} {other}, not {value}"
    return ""
