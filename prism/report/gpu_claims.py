"""This project's own claims about a GPU's kernels, beside what a run measured on its device."""

from __future__ import annotations

import numpy as np
import pandas as pd

from prism.measure.rounds import LATE
from prism.report.claim import FAILS, HOLDS, NOT_MEASURED, PARTLY, TOO_NOISY, Claim
from prism.report.run import INTERPRETER, PRISM
from prism.report.tables import NOISY

_BASELINES = ("eager", "compiled")
_BEST = "the best of eager and torch.compile"
_MEAN = 1.5  # times, over the configurations
_SHARE = 0.7  # of the modelled bandwidth's least time, in a memory-bound configuration
_CASE = ["workload", "config", "dtype"]


def gpu_claims(kernel: pd.DataFrame) -> list[Claim]:
    """Claims about every configuration of a run on a GPU; none for a run without rows of one.

    Cold medians alone count, and a noisy one is no time. `kernel` is the table kernel_time.
    """
    rows = kernel[kernel.modelled_roofline_us.notna() & (kernel.device != INTERPRETER)]
    if rows.empty:
        return []
    ours = kernel[kernel.system == PRISM].drop_duplicates(_CASE).set_index(_CASE)
    sound = rows[(rows.status == "ok") & ~(rows.p80_us > NOISY * rows.p20_us)]
    times = sound.pivot_table("median_us", _CASE, "system", "min")
    times = times.reindex(index=ours.index, columns=[PRISM, *_BASELINES])
    device = rows.device.iloc[0]  # a run is of one
    return [*_against_baselines(times, ours, device), _bandwidth(times[PRISM], ours, device)]


def _against_baselines(times: pd.DataFrame, ours: pd.DataFrame, device: str) -> list[Claim]:
    """In configurations with all three times; being slower than one baseline decides as well."""
    rivals = times[list(_BASELINES)]
    ratio = rivals.min(axis=1) / times[PRISM]
    whole, behind = ratio[rivals.notna().all(axis=1)].dropna(), ratio[ratio < 1]
    lost = _lost(ours)
    missing = len(ours) - len(whole)
    told = f"on {device}: {len(whole)} of {len(ours)} configurations have all three times"
    told += f"; Prism has no kernel in {lost}" if lost else ""
    each = told + (f"; no slower in {int((whole >= 1).sum())}" if len(whole) else "")
    each += f"; slower in {_named(behind, '{:.2f}x')}" if len(behind) else ""
    holds = HOLDS if not missing else PARTLY if len(whole) else _untold(ours)
    verdict = FAILS if lost or len(behind) else holds
    claims = [Claim("", f"At least as fast as {_BEST} in each configuration", each, verdict)]
    mean = float(np.exp(np.log(whole).mean())) if len(whole) else 0.0
    told += f"; {mean:.2f}x over these" if len(whole) else ""
    if mean < _MEAN:  # what is missing could make up for it
        holds = _untold(ours) if missing else FAILS
    verdict = FAILS if lost else holds
    text = f"{_MEAN:g} times as fast as {_BEST} in the geometric mean over the configurations"
    return [*claims, Claim("", text, told, verdict)]


def _bandwidth(times: pd.Series, ours: pd.DataFrame, device: str) -> Claim:
    bound = ours[ours.modelled_bandwidth_us >= ours.modelled_roofline_us]
    share = (bound.modelled_bandwidth_us / times[bound.index]).dropna()
    lost, below = _lost(bound), share[share < _SHARE]
    told = f"on {device}: {len(share)} of {len(bound)} memory-bound configurations measured"
    told += f"; Prism has no kernel in {lost}" if lost else ""
    told += f"; so much in {len(share) - len(below)}" if len(share) else ""
    told += f"; less in {_named(below, '{:.0%}')}" if len(below) else ""
    near = int((bound.modelled_bandwidth_us < 2 * bound.least_replay_us).sum())
    told += f"; in {near} the modelled time is below twice the least replay" if near else ""
    whole = len(share) == len(bound) and ours.modelled_bandwidth_us.notna().all()
    verdict = HOLDS if whole and len(share) else PARTLY if len(share) else _untold(bound)
    text = f"At least {_SHARE:.0%} of the modelled bandwidth, cold, where memory is the bound"
    return Claim("", text, told, FAILS if lost or len(below) else verdict)


def _lost(ours: pd.DataFrame) -> int:
    """Where Prism was timed and has no sound kernel: none is not a fast one."""
    timed = ours.status.isin(["failed", "suspect"]) & (ours.reason != LATE)
    return int((timed & (ours.noise == "")).sum())


def _untold(ours: pd.DataFrame) -> str:
    return TOO_NOISY if (ours.noise != "").any() else NOT_MEASURED


def _named(values: pd.Series, form: str) -> str:
    named = values.sort_values(kind="stable").items()
    return ", ".join(
        f"{workload} {config} ({form.format(v)})" for (workload, config, _), v in named
    )
