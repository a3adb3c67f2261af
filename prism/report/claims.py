"""The paper's claims beside what this run shows: one line each, holding or not, or not measured."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from prism.errors import PrismError
from prism.report.claim import FAILS, HOLDS, NOT_MEASURED, PARTLY, STOPPED, Claim, part
from prism.report.gpu_claims import gpu_claims
from prism.report.kernel_claims import kernel_claims
from prism.report.offline_table import compiles
from prism.report.published import Published, number, numbers
from prism.report.run import PRISM, Run
from prism.report.search_tables import LIMIT
from prism.report.telemetry import stopped
from prism.sgraph.family import Space

_SEARCH_BOUND = 10.0  # seconds for a workload on two cores: this project's own, not the paper's
_SPACES = (
    "; graphs of one kernel, as the paper counts them. In are the operator orders that factors and "
    "scales moving through contractions give, and distribution and associativity of matmul, with "
    "all accumulator placements and mappings: a wider space than the paper's, so the numbers "
    "compare the spaces as well. With graphs of several kernels: "
)


def claims(run: Run, tables: dict[str, pd.DataFrame], published: Published) -> list[Claim]:
    """All claims of the paper's evaluation that a run could bear on, and this project's own about
    a GPU's kernels and what it compiled for them; `published` must be whole."""
    return [
        *kernel_claims(tables["kernel_time"], published),
        _search_seconds(tables["search_time"], published),
        _graphs(tables["graph_diversity"], published),
        _shared_search(run),
        _checked(run),
        _total(tables["optimization_time"], max(numbers(published.total, "prism_vs_mirage"))),
        _ablation(tables.get("ablation"), published),
        *gpu_claims(tables["kernel_time"]),
        *([] if run.offline is None else [compiles(run.offline)]),
    ]


def _search_seconds(table: pd.DataFrame, published: Published) -> Claim:
    """Held against the paper's total over the workloads searched here, and against Mirage, which
    searches each of a workload's two configurations anew. The seconds of a search that was stopped
    are a lower bound: they may fail the claim, but not make it hold."""
    least, most = _range(published.search, "prism_shared_s")
    text = (
        f"One symbolic search serves all configurations of a workload, in {least} to {most} s, "
        f"less than Mirage's searches of them (Table 2, 96 threads)"
    )
    least_s = table.seconds_total.fillna(table.limit_s)
    known = table.assign(least_s=least_s)[least_s.notna() & table.published_prism_s.notna()]
    if known.empty:
        why = "none of the paper's workloads was searched"
        return Claim("7.4", text, why, NOT_MEASURED)
    spent, theirs = known.least_s.sum(), known.published_prism_s.sum()
    longest = known.least_s.max()
    halted = known.limit_s.notna()
    at_least = "at least " if halted.any() else ""
    # A search that was stopped took at least its limit.
    mirage = [
        sum(number(cell.lstrip(">")) or 0.0 for cell in cells.split("; "))
        for cells in known.published_mirage_s
    ]
    faster = known.least_s < pd.Series(mirage, index=known.index)
    below = int((faster & ~halted).sum())
    within = int(((known.least_s <= known.published_prism_s) & ~halted).sum())
    parts = [
        f"{r.workload} {'at least ' if stopped(r.ended) else ''}{r.least_s:.3g} s "
        f"(published {r.published_prism_s:g})"
        for r in known.itertuples()
    ]
    bound = STOPPED if halted.any() else "holds"
    bound = bound if longest <= _SEARCH_BOUND else "does not hold"
    measured = (
        f"{at_least}{spent:.3g} s in all, published {theirs:g}; less than Mirage's published "
        f"searches on {below} of {len(known)} workloads; {at_least or 'at most '}{longest:.3g} s "
        f"for {'the longest' if at_least else 'a workload'} (this "
        f"project's bound of {_SEARCH_BOUND:g} s: {bound}); no slower than published on "
        f"{within} of {len(known)}: {', '.join(parts)}"
    )
    workloads = len(published.search)
    measured += part(len(known), workloads, "workloads")
    verdict = _for_workloads(int(faster.sum()) if spent <= theirs else 0, len(known), workloads)
    return Claim("7.4", text, measured, STOPPED if at_least and verdict != FAILS else verdict)


def _graphs(table: pd.DataFrame, published: Published) -> Claim:
    least, most = _range(published.graphs, "prism_shared")
    text = f"{least} to {most} unique graphs a workload, more than Mirage (Table 3)"
    known = table[table.graphs_single_kernel.notna() & table.published_prism.notna()]
    if known.empty:
        why = "none of the paper's workloads was searched"
        return Claim("7.5", text, why, NOT_MEASURED)
    parts = [
        f"{r.workload} {'at least ' if stopped(r.ended) else ''}{r.graphs_single_kernel:,} "
        f"(published {r.published_prism})"
        for r in known.itertuples()
    ]
    fewer = known[known.graphs_single_kernel < known.published_prism]
    enough, open_ends = len(known) - len(fewer), sum(map(bool, map(stopped, fewer.ended)))
    measured = f"at least as many on {enough} of {len(known)} workloads: "
    workloads = len(published.graphs)
    measured += ", ".join(parts) + part(len(known), workloads, "workloads") + _SPACES
    measured += ", ".join(f"{r.workload} {_amount(r)}" for r in known.itertuples())
    if open_ends and open_ends == len(fewer):  # a whole search might have found enough
        return Claim("7.5", text, measured, STOPPED)
    return Claim("7.5", text, measured, _for_workloads(enough, len(known), workloads))


def _amount(row) -> str:
    return f"10^{row.graphs_log10:.1f}" if pd.isna(row.graphs) else f"{row.graphs:,}"


def _shared_search(run: Run) -> Claim:
    text = "One search of a workload serves all its configurations"
    shared, apart = [], []
    for workload in run.workloads:
        space = _space(run.searches.get(workload))
        cases = [c for c in run.cases if c.workload == workload and c.concrete]
        if len(cases) < 2 or space is None:
            continue
        same = all(_holds(space, str(case.winner.get("graph_id"))) for case in cases)
        (shared if same else apart).append(workload)
    if not shared and not apart:
        why = "no workload has winners in two configurations"
        return Claim("7.3", text, why, NOT_MEASURED)
    measured = f"winners of all configurations come from one search: {', '.join(shared) or 'none'}"
    if apart:
        measured += f"; not so: {', '.join(apart)}"
    return Claim("7.3", text, measured, FAILS if apart else HOLDS)


def _space(search: dict | None) -> Space | None:
    try:
        return Space.from_json(search["space"])
    except (PrismError, KeyError, TypeError):  # not there, or of an earlier version
        return None


def _holds(space: Space, graph: str) -> bool:
    try:
        space.graph(graph)
    except PrismError:
        return False
    return True


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


def _total(table: pd.DataFrame, published: float) -> Claim:
    text = f"Up to {published}x less total optimization time than Mirage"
    if "mirage" not in set(table.system):
        return Claim("7.3", text, "Mirage is not among the systems of this run", NOT_MEASURED)
    halted = table.ended.map(stopped) != ""  # less than a whole search takes
    paper = table[(table.published_prism_s != "") & ~halted]
    totals = paper.groupby(["workload", "config", "system"]).total_s.min().unstack()
    both = {"mirage", PRISM} <= set(totals)
    ratio = (totals["mirage"] / totals[PRISM]).dropna() if both else pd.Series(dtype=float)
    left_out = f"; {halted.sum()} left out whose search was stopped" if halted.any() else ""
    if ratio.empty:
        why = f"no pair of totals for Prism and Mirage{left_out}"
        return Claim("7.3", text, why, STOPPED if left_out else NOT_MEASURED)
    verdict = HOLDS if round(ratio.max(), 1) >= published else STOPPED if left_out else FAILS
    return Claim("7.3", text, f"up to {ratio.max():.2f}x{left_out}", verdict)


def _ablation(table: pd.DataFrame | None, published: Published) -> Claim:
    """All maps concrete against all symbolic, sizes deferred in both, as in the paper."""
    seconds = {r["imap"] + r["fmap"] + r["omap"]: r["search_s"] for r in published.ablation}
    text = (
        f"Symbolic maps cut the search of RMSNorm from {seconds['CCC']} s to {seconds['SSS']} s "
        f"(Table 4)"
    )
    least = 10 ** math.floor(math.log10(float(seconds["CCC"]) / float(seconds["SSS"])))
    if table is None:
        return Claim("7.6", text, "no search with concrete maps in this run", NOT_MEASURED)
    if not table.published_s.notna().any():
        return Claim("7.6", text, "not measured in the paper's configuration", NOT_MEASURED)
    rows = {r.imap + r.fmap + r.omap + r.sizes: r for r in table.itertuples()}
    symbolic, concrete, sized = (rows.get(name) for name in ("SSSS", "CCCS", "CCCC"))
    if symbolic is None or concrete is None or pd.isna(symbolic.seconds):
        return Claim("7.6", text, "the symbolic search itself has no time", NOT_MEASURED)
    measured = f"held against {least:,} times: {_slower(concrete)} the "
    measured += f"{symbolic.seconds:.2g} s of symbolic ones"
    if sized is not None:
        measured += f"; with concrete sizes as well, as Mirage searches, {_slower(sized)} them"
    stopped = concrete.ended == LIMIT
    ratio = concrete.speedup_at_least if stopped else concrete.speedup_of_symbolic
    verdict = HOLDS if ratio >= least else STOPPED if stopped else FAILS
    return Claim("7.6", text, measured, verdict)


def _slower(row) -> str:
    if row.ended == LIMIT:
        return f"concrete maps take at least {row.speedup_at_least:,.0f} times (limit)"
    return f"concrete maps take {row.seconds:.3g} s, {row.speedup_of_symbolic:,.0f} times"


def _range(rows: Iterable[dict[str, str]], column: str) -> tuple[str, str]:
    """The least and the greatest number of a column."""
    found = numbers(rows, column)
    return f"{min(found):g}", f"{max(found):g}"


def _for_workloads(holding: int, measured: int, workloads: int) -> str:
    if holding < measured:
        return FAILS
    return HOLDS if measured == workloads else PARTLY
