"""The paper's claims beside what this run shows: one line each, holding or not, or not measured."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from prism.errors import PrismError
from prism.report.published import Published, number, numbers
from prism.report.run import PRISM, REFERENCE, Run
from prism.report.search_tables import LIMIT
from prism.report.tables import NOISY
from prism.report.telemetry import stopped
from prism.sgraph.family import Space

HOLDS, FAILS, NOT_MEASURED = "holds", "does not hold", "not measured here"
TOO_NOISY = "too noisy here"
PARTLY = "holds where measured"  # nothing against it, but not all that the claim covers was run
STOPPED = "not decided: stopped"  # at a limit, before it could be told
_NONE = "none of the paper's configurations was measured"
_SEARCH_BOUND = 10.0  # seconds for a workload on two cores: this project's own, not the paper's
_OTHERS = {  # name in the published tables -> name in a run, and in words
    "torch_compile": ("compiled", "torch.compile"),
    "tvm": ("tvm", "TVM (Ansor)"),
    "mirage": ("mirage", "the best superoptimizer (Mirage)"),
}
_SPACES = (
    "; graphs of one kernel, as the paper counts them. In are the operator orders that factors and "
    "scales moving through contractions give, and distribution and associativity of matmul, with "
    "all accumulator placements and mappings: a wider space than the paper's, so the numbers "
    "compare the spaces as well. With graphs of several kernels: "
)


@dataclass(frozen=True)
class Claim:
    """`where` in the paper, what it says, what this run shows, and whether that agrees."""

    where: str
    claim: str
    measured: str
    verdict: str


def claims(run: Run, tables: dict[str, pd.DataFrame], published: Published) -> list[Claim]:
    """All claims of the paper's evaluation that a run could bear on; `published` must be whole."""
    kernel = tables["kernel_time"]
    # Claims are about the paper's own configurations; a workload of one's own is not in them.
    ours = kernel[(kernel.system == PRISM) & kernel.published_prism_vs_mirage.notna()]
    paper = _among(kernel, ours)
    best = {name: max(numbers(published.kernel, f"prism_vs_{name}")) for name in _OTHERS}
    return [
        _fastest(kernel, ours, len(published.kernel)),
        *(_faster(paper, *names, best[name]) for name, names in _OTHERS.items()),
        _search_seconds(tables["search_time"], published),
        _graphs(tables["graph_diversity"], published),
        _shared_search(run),
        _checked(run),
        _total(tables["optimization_time"], max(numbers(published.total, "prism_vs_mirage"))),
        _ablation(tables.get("ablation"), published),
    ]


def _fastest(kernel: pd.DataFrame, ours: pd.DataFrame, configs: int) -> Claim:
    """A win counts where every named baseline has a sound time in the same configuration."""
    text = f"Prism has the fastest kernel on all {configs} configurations"
    ours = ours[ours.status != "missing"]
    if ours.empty:
        return Claim("7.2", text, _NONE, NOT_MEASURED)
    rivals = kernel[~kernel.system.isin([PRISM, REFERENCE])]
    rivals = _among(rivals, ours)
    failed = rivals[rivals.status != "ok"]
    noisy = rivals[(rivals.status == "ok") & (rivals.p80_us > NOISY * rivals.p20_us)]
    part = {*_keys(failed), *_keys(noisy)}
    told = ours[ours.ratio_to_best_baseline.notna() & (ours.noise == "")]
    behind = int((told.ratio_to_best_baseline < 1).sum())
    won = [key in part for key in _keys(told[told.ratio_to_best_baseline >= 1])]
    ahead, ahead_of_part = won.count(False), won.count(True)
    unclear = int((ours.noise != "").sum())
    lost = ours[(ours.noise == "") & ours.status.isin(["failed", "suspect"])]
    others = _names(rivals)
    measured = f"fastest on {ahead} of {len(ours)} measured, against {others or 'no baseline'}"
    absent = [name for name in ("tvm", "mirage") if name not in set(kernel.system)]
    if absent:
        measured += f" (not run: {', '.join(absent)})"
    if ahead_of_part:
        measured += f"; on {ahead_of_part} more only against those with a sound time"
    for what, rows in (("failed", failed), ("noisy", noisy)):
        counts = rows.system.value_counts(sort=False).items()
        measured += "".join(f"; {system} {what} in {n}" for system, n in counts)
    if unclear:
        measured += f"; {unclear} too noisy to tell"
    if without := len(ours) - len(told) - unclear:
        measured += f"; {without} without a comparable time"
    measured += _part(len(ours), configs, "configurations")
    if behind or len(lost):  # no kernel is not a fast kernel
        return Claim("7.2", text, measured, FAILS)
    if not ahead:
        noise = unclear or len(noisy)
        return Claim("7.2", text, measured, TOO_NOISY if noise else NOT_MEASURED)
    return Claim("7.2", text, measured, HOLDS if ahead == configs and not absent else PARTLY)


def _ratios(kernel: pd.DataFrame, system: str) -> pd.Series:
    """How many times slower a system is than Prism, where both pass."""
    passing = kernel[(kernel.status == "ok") & kernel.median_us.notna()]
    times = passing.groupby(["workload", "config", "dtype", "system"]).median_us.min().unstack()
    if PRISM not in times or system not in times:
        return pd.Series(dtype=float)
    return (times[system] / times[PRISM]).dropna()


def _faster(kernel: pd.DataFrame, system: str, words: str, published: float) -> Claim:
    text = f"Up to {published}x faster than {words}"
    if kernel.empty or (kernel.system == PRISM).sum() == (kernel.status == "missing").sum():
        return Claim("7.2", text, _NONE, NOT_MEASURED)
    if system not in set(kernel.system):
        return Claim("7.2", text, f"{system} is not among the systems of this run", NOT_MEASURED)
    ratio = _ratios(kernel[~(kernel.p80_us > NOISY * kernel.p20_us)], system)
    unclear = len(_ratios(kernel, system)) - len(ratio)
    if ratio.empty and unclear:
        return Claim("7.2", text, f"all {unclear} pairs are too noisy to tell", TOO_NOISY)
    if ratio.empty:
        why = f"no passing pair of Prism and {system} in the paper's configurations"
        return Claim("7.2", text, why, NOT_MEASURED)
    workload, config, _ = ratio.idxmax()
    measured = f"up to {ratio.max():.2f}x ({workload} {config}), median {ratio.median():.2f}x"
    measured += f"; {unclear} too noisy to tell" if unclear else ""
    return Claim("7.2", text, measured, HOLDS if round(ratio.max(), 1) >= published else FAILS)


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
    measured += _part(len(known), workloads, "workloads")
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
    measured += ", ".join(parts) + _part(len(known), workloads, "workloads") + _SPACES
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


def _names(rivals: pd.DataFrame) -> str:
    return ", ".join(dict.fromkeys(rivals[rivals.status == "ok"].system))


def _keys(frame: pd.DataFrame) -> list[tuple[str, str, str]]:
    return list(zip(frame.workload, frame.config, frame.dtype, strict=True))


def _among(frame: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """The rows whose workload, configuration and dtype stand in `others`."""
    wanted = set(_keys(others))
    return frame[pd.Series([key in wanted for key in _keys(frame)], frame.index, dtype=bool)]


def _range(rows: Iterable[dict[str, str]], column: str) -> tuple[str, str]:
    """The least and the greatest number of a column."""
    found = numbers(rows, column)
    return f"{min(found):g}", f"{max(found):g}"


def _for_workloads(holding: int, measured: int, workloads: int) -> str:
    if holding < measured:
        return FAILS
    return HOLDS if measured == workloads else PARTLY


def _part(count: int, all_of_them: int, what: str) -> str:
    return "" if count == all_of_them else f" ({count} of the paper's {all_of_them} {what})"
