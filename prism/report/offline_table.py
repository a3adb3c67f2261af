"""The table of what compiled for GPUs, without one: the compiler's report, and modelled figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

import pandas as pd

from prism.report.claim import FAILS, HOLDS, NOT_MEASURED, PARTLY, Claim
from prism.report.frames import frame_of

_NOT_TRIED = ("proof", "lower", "fit")  # causes that keep a configuration from the compiler
_KIB = 1024
_BOUND, _BOUND_OF = 90.0, 100  # seconds of compiling so many configurations for all architectures


def offline(found: Mapping) -> pd.DataFrame:
    """One row a case and device.

    `tried` of the `configurations` were given to the compiler and `compiled` came back; `failed`
    counts the others by cause, `reason` is the first of them. `registers_*` are of a thread,
    `spill_bytes_max` what one thread spills, `shared_kib_*` of a block: the compiler's, of each
    configuration's largest kernel. `modelled_shared_error_kib_*` is the estimate made before
    compiling less the compiler's figure, below 0 where too little was expected, and
    `modelled_best_us` the least time by the model: nothing was timed. `modelled_best_bound`,
    `modelled_best_waves` and `modelled_best_occupancy` are of that configuration, see
    `model.cost.Cost`.
    """
    rows: dict[tuple[str, str], list[Mapping]] = {
        (case, device): [] for case in found["cases"] for device in found["devices"]
    }
    for row in found["rows"]:
        rows.setdefault((row["case"], row["device"]), []).append(row)
    records = [_record(found, *key, part) for key, part in rows.items()]
    text = ("workload", "config", "dtype", "device", "failed", "status", "reason")
    text += ("modelled_best_bound",)
    template = _record({"status": "ok", "devices": {}}, "", "", [])
    counts = ("arch", "configurations", "pruned", "tried", "compiled", "spilling")
    return frame_of(records, template, text, counts)


def compiles(found: Mapping) -> Claim:
    """That every configuration which was tried compiles for every architecture, without a GPU."""
    archs = dict.fromkeys(device["gpu"]["arch"] for device in found["devices"].values())
    names = " and ".join(f"sm_{arch}" for arch in sorted(archs))
    text = f"Every configuration that is tried compiles for {names}, without a GPU"
    if found["status"] != "ok":
        return Claim("", text, found.get("reason") or "no reason given", NOT_MEASURED)
    rows = found["rows"]
    causes = Counter(row["cause"] for row in rows if row["status"] != "ok")
    tried = [row for row in rows if row["cause"] not in _NOT_TRIED]
    compiled = sum(row["status"] == "ok" for row in rows)
    configurations = len({(row["case"], row["digest"]) for row in rows})
    spent = found["seconds"]["compile"]
    measured = (
        f"{compiled} of {len(tried)} compilations of {configurations} configurations, in "
        f"{spent:.3g} s with {found['jobs']} at once"
    )
    if configurations >= _BOUND_OF:  # of fewer, starting takes most
        rate = _BOUND_OF * spent / configurations
        measured += f" (this project's bound of {_BOUND:g} s for {_BOUND_OF} on two cores: "
        measured += f"{rate:.3g} s, {'holds' if rate <= _BOUND else 'does not hold'})"
    words = {"fit": "do not fit a device", "proof": "not proved", "lower": "not lowered"}
    for cause, what in words.items():
        measured += f"; {causes[cause]} {what} and were not tried" if causes[cause] else ""
    if compiled < len(tried) or not tried:
        return Claim("", text, measured, FAILS if tried else NOT_MEASURED)
    return Claim("", text, measured, PARTLY if causes["proof"] or causes["lower"] else HOLDS)


def _record(found: Mapping, case: str, device: str, rows: Sequence[Mapping]) -> dict:
    workload, _, config = case.partition("@")
    passed = [row for row in rows if row["status"] == "ok"]
    failed = [row for row in rows if row["status"] != "ok"]
    tried = [row for row in rows if row["cause"] not in _NOT_TRIED]
    causes = Counter(row["cause"] for row in failed)
    shared = [row["shared_bytes"] / _KIB for row in passed]
    errors = [
        (row["estimated_shared_bytes"] - row["shared_bytes"]) / _KIB
        for row in passed
        if row["estimated_shared_bytes"] is not None
    ]
    gpu = (found["devices"].get(device) or {}).get("gpu") or {}
    # The compiler's tool that tells them may have been missing.
    registers = [row["registers"] for row in passed if row["registers"] is not None]
    spilled = [row["spill_bytes"] for row in passed if row["spill_bytes"] is not None]
    timed = [row for row in passed if row["modelled_us"] is not None]
    best = min(timed, key=lambda row: row["modelled_us"], default={})
    cost = best.get("modelled") or {}
    here = found["status"] == "ok"
    broken = [row for row in failed if row["cause"] != "fit"]
    return {
        **{"workload": workload, "config": config, "dtype": rows[0]["dtype"] if rows else ""},
        **{"device": device, "arch": gpu.get("arch")},
        "configurations": len(rows) if here else None,
        "pruned": (found.get("pruned") or {}).get(case),
        "tried": len(tried) if here else None,
        "compiled": len(passed) if here else None,
        "failed": ", ".join(f"{cause} {n}" for cause, n in sorted(causes.items())),
        **{f"registers_{name}": value for name, value in _middle_and_most(registers).items()},
        "spilling": sum(n > 0 for n in spilled) if here and (spilled or not passed) else None,
        "spill_bytes_max": max(spilled, default=None),
        **{f"shared_kib_{name}": value for name, value in _middle_and_most(shared).items()},
        "modelled_shared_error_kib_min": min(errors, default=None),
        "modelled_shared_error_kib_max": max(errors, default=None),
        "modelled_best_us": best.get("modelled_us"),
        "modelled_best_bound": cost.get("bound") or "",
        **{f"modelled_best_{key}": cost.get(key) for key in ("waves", "occupancy")},
        "status": found["status"] if not here else "failed" if broken else "ok",
        "reason": broken[0]["reason"] if broken else found.get("reason", ""),
    }


def _middle_and_most(values: Sequence[float]) -> dict[str, float | None]:
    return {"median": median(values) if values else None, "max": max(values, default=None)}
