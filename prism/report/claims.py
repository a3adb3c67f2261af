"""The paper's claims beside what this run shows: one line each, holding or not, or not measured."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from prism.report.run import PRISM, REFERENCE, Run
from prism.report.tables import graphs_of

HOLDS, FAILS, NOT_MEASURED = "holds", "does not hold", "not measured here"
PARTLY = "holds where measured"  # nothing against it, but not all that the claim covers was run
_COMPILED = "compiled"
_WORKLOADS = 5
_CONFIGS = 10


@dataclass(frozen=True)
class Claim:
    """`where` in the paper, what it says, what this run shows, and whether that agrees."""

    where: str
    claim: str
    measured: str
    verdict: str


def claims(run: Run, tables: dict[str, pd.DataFrame]) -> list[Claim]:
    """All claims of the paper's evaluation that a run could bear on."""
    kernel = tables["kernel_time"]
    known = kernel.drop_duplicates(["workload", "config"])
    # Claims are about the paper's own configurations; a workload of one's own is not in them.
    paper = set(_pairs(known[known.published_prism_vs_mirage.notna()]))
    ours = kernel[(kernel.system == PRISM) & kernel.published_prism_vs_mirage.notna()]
    return [
        _fastest(kernel, ours),
        _over_compiled(kernel, paper),
        _over_mirage(kernel, ours),
        _search_seconds(tables["search_time"]),
        _graphs(tables["graph_diversity"]),
        _shared_search(run),
        _checked(run),
        _total(tables["optimization_time"]),
        _ablation(),
    ]


def _fastest(kernel: pd.DataFrame, ours: pd.DataFrame) -> Claim:
    ratios = ours.ratio_to_best_baseline.dropna()
    text = "Prism has the fastest kernel on all 10 configurations"
    if ratios.empty:
        why = "no passing kernel of Prism stands beside a passing baseline"
        return Claim("7.2", text, why, NOT_MEASURED)
    others = _names(kernel)
    ahead = int((ratios >= 1).sum())
    measured = f"fastest on {ahead} of {len(ours)} measured, against {others}"
    absent = [name for name in ("tvm", "mirage") if name not in set(kernel.system)]
    if absent:
        measured += f" (not run: {', '.join(absent)})"
    if len(ours) > len(ratios):
        measured += f"; {len(ours) - len(ratios)} without a comparable time"
    measured += _of_ten(len(ours))
    failed = int(ours.status.isin(["failed", "suspect"]).sum())  # no kernel is not a fast kernel
    if failed or ahead < len(ratios):
        return Claim("7.2", text, measured, FAILS)
    whole = len(ratios) == _CONFIGS and not absent
    return Claim("7.2", text, measured, HOLDS if whole else PARTLY)


def _over_compiled(kernel: pd.DataFrame, paper: set) -> Claim:
    text = "Up to 4.9x faster than torch.compile"
    passing = kernel[(kernel.status == "ok") & kernel.median_us.notna()]
    times = passing.groupby(["workload", "config", "dtype", "system"]).median_us.min().unstack()
    if PRISM not in times or _COMPILED not in times:
        return Claim("7.2", text, "no passing pair of Prism and torch.compile", NOT_MEASURED)
    ratio = (times[_COMPILED] / times[PRISM]).dropna()
    ratio = ratio[[key[:2] in paper for key in ratio.index]]
    if ratio.empty:
        return Claim("7.2", text, "none of the paper's configurations was timed", NOT_MEASURED)
    workload, config, _ = ratio.idxmax()
    measured = f"up to {ratio.max():.2f}x ({workload} {config}), median {ratio.median():.2f}x"
    return Claim("7.2", text, measured, HOLDS if round(ratio.max(), 1) >= 4.9 else FAILS)


def _over_mirage(kernel: pd.DataFrame, ours: pd.DataFrame) -> Claim:
    text = "Up to 2.2x faster than the best superoptimizer (Mirage)"
    if "mirage" not in set(kernel.system):
        return Claim("7.2", text, "Mirage is not among the systems of this run", NOT_MEASURED)
    passing = kernel[(kernel.status == "ok") & kernel.median_us.notna()]
    times = passing.groupby(["workload", "config", "dtype", "system"]).median_us.min().unstack()
    pairs = set(_pairs(ours))
    ratio = (times.get("mirage") / times.get(PRISM)).dropna() if PRISM in times else pd.Series()
    ratio = ratio[[key[:2] in pairs for key in ratio.index]]
    if ratio.empty:
        return Claim("7.2", text, "no passing pair of Prism and Mirage", NOT_MEASURED)
    verdict = HOLDS if round(ratio.max(), 1) >= 2.2 else FAILS
    return Claim("7.2", text, f"up to {ratio.max():.2f}x", verdict)


def _search_seconds(table: pd.DataFrame) -> Claim:
    text = "One symbolic search a workload takes 0.3 to 871 s (Table 2, 96 threads)"
    known = table[table.seconds_total.notna() & table.published_prism_s.notna()]
    if known.empty:
        why = "none of the paper's workloads was searched"
        return Claim("7.4", text, why, NOT_MEASURED)
    parts = [
        f"{r.workload} {r.seconds_total:.3g} s (published {r.published_prism_s:g})"
        for r in known.itertuples()
    ]
    within = int((known.seconds_total <= known.published_prism_s).sum())
    measured = f"no slower than published on {within} of {len(known)} workloads: "
    measured += ", ".join(parts) + _of_five(len(known))
    return Claim("7.4", text, measured, _for_workloads(within, len(known)))


def _graphs(table: pd.DataFrame) -> Claim:
    text = "9 to 23 unique graphs a workload, more than Mirage (Table 3)"
    known = table[table.graphs.notna() & table.published_prism.notna()]
    if known.empty:
        why = "none of the paper's workloads was searched"
        return Claim("7.5", text, why, NOT_MEASURED)
    parts = [f"{r.workload} {r.graphs} (published {r.published_prism})" for r in known.itertuples()]
    enough = int((known.graphs >= known.published_prism).sum())
    measured = f"at least as many on {enough} of {len(known)} workloads: "
    measured += ", ".join(parts) + _of_five(len(known))
    return Claim("7.5", text, measured, _for_workloads(enough, len(known)))


def _shared_search(run: Run) -> Claim:
    text = "One search of a workload serves all its configurations"
    shared, apart = [], []
    for workload in run.workloads:
        proved = {g.get("id") for g in graphs_of(run.searches.get(workload))}
        cases = [c for c in run.cases if c.workload == workload and c.concrete]
        if len(cases) < 2 or not proved:
            continue
        same = all(case.winner.get("graph_id") in proved for case in cases)
        (shared if same else apart).append(workload)
    if not shared and not apart:
        why = "no workload has winners in two configurations"
        return Claim("7.3", text, why, NOT_MEASURED)
    measured = f"winners of all configurations come from one search: {', '.join(shared) or 'none'}"
    if apart:
        measured += f"; not so: {', '.join(apart)}"
    return Claim("7.3", text, measured, FAILS if apart else HOLDS)


def _checked(run: Run) -> Claim:
    text = "Every generated kernel passes random equivalence testing"
    gated = passed = 0
    for case in run.cases:
        candidates = (case.winner or {}).get("candidates") or []
        passing = sum(c.get("status") == "ok" for c in candidates)
        passed += passing
        gated += passing + sum(c.get("cause") == "gate" for c in candidates)
    if not gated:
        return Claim("4", text, "no kernel of Prism reached the correctness gate", NOT_MEASURED)
    measured = f"{passed} of {gated} tuned kernels that ran passed the gate against float64"
    return Claim("4", text, measured, HOLDS if passed == gated else FAILS)


def _total(table: pd.DataFrame) -> Claim:
    text = "Up to 3.4x less total optimization time than Mirage"
    if "mirage" not in set(table.system):
        return Claim("7.3", text, "Mirage is not among the systems of this run", NOT_MEASURED)
    totals = table.groupby(["workload", "config", "system"]).total_s.min().unstack()
    ratio = (totals["mirage"] / totals[PRISM]).dropna() if PRISM in totals else pd.Series()
    if ratio.empty:
        return Claim("7.3", text, "no pair of totals for Prism and Mirage", NOT_MEASURED)
    verdict = HOLDS if round(ratio.max(), 1) >= 3.4 else FAILS
    return Claim("7.3", text, f"up to {ratio.max():.2f}x", verdict)


def _ablation() -> Claim:
    text = "Symbolic maps cut the search of RMSNorm from 312 s to 0.3 s (Table 4)"
    return Claim("7.6", text, "no search with concrete maps in this run", NOT_MEASURED)


def _names(kernel: pd.DataFrame) -> str:
    passing = kernel[(kernel.status == "ok") & ~kernel.system.isin([PRISM, REFERENCE])]
    return ", ".join(dict.fromkeys(passing.system))


def _pairs(frame: pd.DataFrame) -> list[tuple[str, str]]:
    return list(zip(frame.workload, frame.config, strict=True))


def _for_workloads(holding: int, measured: int) -> str:
    if holding < measured:
        return FAILS
    return HOLDS if measured == _WORKLOADS else PARTLY


def _of_ten(count: int) -> str:
    return "" if count == _CONFIGS else f" ({count} of the paper's {_CONFIGS} configurations)"


def _of_five(count: int) -> str:
    return "" if count == _WORKLOADS else f" ({count} of the paper's {_WORKLOADS} workloads)"
