"""The tables of a report as data frames. Failed and missing cells stay, with their reason."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from prism.files import write
from prism.report import search_tables
from prism.report.frames import MISSING, frame_of
from prism.report.offline_table import offline
from prism.report.published import Published, number
from prism.report.run import EXPERT, PRISM, REFERENCE, Case, Run

COMPILER = ("registers", "spill_bytes", "shared_bytes")  # what it reports of a GPU's kernel
_NO_BASELINES = (PRISM, REFERENCE, EXPERT)
NOISY = 3  # p80 over p20 of the cold times from which on a median says little


def build_tables(run: Run, published: Published) -> dict[str, pd.DataFrame]:
    """All tables by name: kernel_time, optimization_time, search_time, graph_diversity, rules, and
    ablation, growth and offline where the run has them."""
    tables = {
        "kernel_time": kernel_time(run, published),
        "optimization_time": optimization_time(run, published),
        "search_time": search_tables.search_time(run, published),
        "graph_diversity": search_tables.graph_diversity(run, published),
        "rules": search_tables.rules(run),
    }
    if run.ablation is not None:
        tables["ablation"] = search_tables.ablation(run.ablation, published)
    if run.growth is not None:
        tables["growth"] = search_tables.growth(run.growth)
    if run.offline is not None:
        tables["offline"] = offline(run.offline)
    return tables


def kernel_time(run: Run, published: Published) -> pd.DataFrame:
    """Figure 6, upper: one row a system and case.

    `ratio_to_best_baseline` is the best passing baseline's median over this median, within one
    workload, configuration and dtype; above 1 is faster. The reference kernel `read` and an
    expert's `sdpa` are compared too but are never a baseline. `noise` says which spread makes the
    row's median or ratio doubtful; it stands in `reason` as well. `without_baselines` names the
    baselines of the run that have no sound time in the row's configuration, so that its ratio is to
    the best of the others alone. Of rows of a GPU, `modelled_roofline_us` is the least time by the
    model of the device, `of_modelled_roofline` its share of the median, `modelled_bandwidth_us`
    what of it is memory's, and `modelled_us` what the model expected of Prism's kernel;
    `least_replay_us` is what the replay of a graph takes whose one kernel does nothing, which is in
    every time; registers (of a thread), spilled and shared bytes are the compiler's own report.
    """
    records = []
    named = dict.fromkeys(row["system"] for row in run.rows if row["system"] not in _NO_BASELINES)
    for case in run.cases:
        best = _best_baselines(case.rows)
        paper = published.kernel_of(case.workload, case.sizes)
        for row in _with_prism(run, case, case.rows):
            ours = paper if row["system"] == PRISM else {}
            noise = _noise(row, best.get(row.get("dtype")), case.rows)
            without = _without(named, [r for r in case.rows if r.get("dtype") == row.get("dtype")])
            records.append(_kernel_record(row, best.get(row.get("dtype")), ours, noise, without))
    template = _kernel_record({}, None, {}, "", "")
    text = "workload config dtype system status reason published_prism_vs_torch_compile "
    text += "published_prism_vs_tvm verdict numerics timer variant device commit config_hash noise "
    text += "without_baselines"
    whole = ("n", "threads", *COMPILER)
    return frame_of(records, template, text.split(), whole)


def _kernel_record(row: dict, best: dict | None, paper: dict, noise: str, without: str) -> dict:
    median, evidence = row.get("median_us"), row.get("evidence")
    reads = row.get("system") == REFERENCE  # and computes nothing that could be compared
    comparable = row.get("status") == "ok" and median and best and not reads
    return {
        **{k: row.get(k) for k in ("workload", "config", "dtype", "system", "status")},
        "reason": "; ".join(filter(None, (row.get("reason"), noise))),
        **{k: row.get(k) for k in ("median_us", "p20_us", "p80_us")},
        "ratio_to_best_baseline": best["median_us"] / median if comparable else None,
        "read_speed_fraction": row.get("read_speed_fraction"),
        "published_prism_vs_mirage": number(paper.get("prism_vs_mirage")),
        **{f"published_{k}": paper.get(k) for k in ("prism_vs_torch_compile", "prism_vs_tvm")},
        **{k: row.get(k) for k in ("warm_median_us", "n", "verdict", "error_max", "bound_max")},
        "numerics": None if reads else row.get("numerics"),
        **{k: row.get(k) for k in ("timer", "variant", "device", "threads")},
        **{k: row.get(k) for k in ("commit", "config_hash")},
        "noise": noise,
        "modelled_roofline_us": row.get("modelled_roofline_us"),
        "of_modelled_roofline": row.get("of_modelled_roofline"),
        "modelled_us": row.get("modelled_us"),
        **{k: row.get(k) for k in COMPILER},
        "modelled_bandwidth_us": row.get("modelled_bandwidth_us"),
        "least_replay_us": evidence.get("least_replay_us") if isinstance(evidence, dict) else None,
        "without_baselines": without if comparable else "",
    }


def _without(named: Iterable[str], rows: list[dict]) -> str:
    """Those of the named baselines that no row has a sound time of: `compiled (failed)`."""
    found = {system: [r for r in rows if r["system"] == system] for system in named}
    lacking = {
        system: own[0]["status"] if own else "no row"
        for system, own in found.items()
        if not any(r["status"] == "ok" and r.get("median_us") for r in own)
    }
    return ", ".join(f"{system} ({status})" for system, status in lacking.items())


def spread(row: Mapping) -> float | None:
    """How many times its p20 a row's p80 is, where that is too many to trust its median."""
    p20, p80 = row.get("p20_us"), row.get("p80_us")
    return p80 / p20 if p20 and p80 and p80 > NOISY * p20 else None


def _noise(row: dict, best: dict | None, rows: list[dict]) -> str:
    """Why the median or the ratio of a row is in doubt; empty if it is not."""
    if own := spread(row):
        return f"noisy: p80 is {own:.3g} times p20"
    if row["status"] == "suspect":  # of being faster than reading: reading itself may have stalled
        slow = next(filter(None, (spread(r) for r in rows if r["system"] == REFERENCE)), None)
        return f"noisy {REFERENCE}: p80 is {slow:.3g} times p20" if slow else ""
    if row["status"] == "ok" and best is not None and (times := spread(best)):
        return f"noisy baseline {best['system']}: p80 is {times:.3g} times p20"
    return ""


def optimization_time(run: Run, published: Published) -> pd.DataFrame:
    """Figure 6, lower: seconds spent before a system's kernel was ready, by stage.

    Prism's total is its search's and its tuning's, each as measured from end to end. `other_s` is
    what no stage accounts for: making the inputs, the reference outputs and eager's error.
    Prism's search is shared by all configurations of a workload and stands in each of them, as in
    the paper; `ended` says how it ended, and the seconds of one that was stopped are those spent,
    not those of a whole search. The published columns are the totals of Figure 6 for the
    configuration.
    """
    records = []
    for case in run.cases:
        paper = published.total_of(case.workload, case.sizes)
        rows = [row for row in case.rows if row["system"] != REFERENCE]
        for row in _with_prism(run, case, rows):
            ended = _ended(run, case, row)
            records.append(_optimization_record(row, _seconds(run, case, row), ended, paper))
    template = _optimization_record({}, _seconds(run, Case(""), {}), "", {})
    text = "workload config system ended published_prism_s published_mirage_s published_tvm_s"
    return frame_of(records, template, [*text.split(), "status", "reason"])


def _optimization_record(row: dict, seconds: dict, ended: str, paper: dict) -> dict:
    return {
        **{k: row.get(k) for k in ("workload", "config", "system")},
        **seconds,
        "ended": ended,
        **{f"published_{k}": paper.get(k) for k in ("prism_s", "mirage_s", "tvm_s")},
        **{k: row.get(k) for k in ("status", "reason")},
    }


def rows_table(run: Run) -> pd.DataFrame:
    """Every row of the run; samples stay lists, other nested values become JSON text."""
    records = [{k: _flat(v) for k, v in row.items()} for row in run.rows]
    return pd.DataFrame.from_records(records).astype(_types(records))


def write_tables(tables: dict[str, pd.DataFrame], folder: Path) -> None:
    """Each table as NAME.parquet and NAME.csv, every file in one step."""
    for name, frame in tables.items():
        text = frame.copy()
        for column in text.columns:
            if text[column].map(lambda v: isinstance(v, list)).any():
                text[column] = text[column].map(json.dumps)
        write(folder / f"{name}.csv", lambda p, f=text: f.to_csv(p, index=False))
        write(folder / f"{name}.parquet", lambda p, f=frame: f.to_parquet(p, index=False))


def _best_baselines(rows: Iterable[dict]) -> dict[str | None, dict]:
    """The row of the fastest passing baseline by dtype."""
    best: dict[str | None, dict] = {}
    for row in rows:
        median = row.get("median_us")
        if row["system"] in _NO_BASELINES or row["status"] != "ok" or not median:
            continue
        known = best.setdefault(row.get("dtype"), row)
        if median < known["median_us"]:
            best[row.get("dtype")] = row
    return best


def _with_prism(run: Run, case: Case, rows: list[dict]) -> list[dict]:
    """The rows; where Prism has none, one that says so stands first."""
    if any(row["system"] == PRISM for row in rows):
        return rows
    return [_missing_row(run, case), *rows]


def _missing_row(run: Run, case: Case) -> dict:
    program = (case.concrete or {}).get("program") or {}
    others = [row.get("dtype") for row in case.rows]
    dtype = program.get("dtype") or next(iter(others), None) or run.config.get("dtype")
    winner = case.winner or {}
    if case.concrete is None and case.winner is not None:
        reason = f"tuning has no winner: {winner.get('reason') or 'no reason given'}"
    else:
        reason = "not timed in this run" if case.winner else "neither tuned nor timed in this run"
    return {
        "workload": case.workload,
        "config": case.config,
        "dtype": dtype,
        "system": PRISM,
        "status": MISSING,
        "reason": reason,
    }


def _seconds(run: Run, case: Case, row: dict) -> dict[str, float | None]:
    seconds = {s: row.get(f"{s}_seconds") for s in ("search", "compile", "tune")}
    measured = (case.winner or {}).get("seconds") or {} if row.get("system") == PRISM else {}
    searched = (run.searches.get(case.workload) or {}).get("seconds") or {}
    if row.get("system") == PRISM and seconds["search"] is None:
        seconds["search"] = searched.get("total")
    seconds |= {s: measured[s] for s in ("compile", "tune") if measured.get(s) is not None}
    total, other = _total(seconds.values()), None
    if measured.get("total") is not None:
        total = _total([seconds["search"], measured["total"]])
        other = max(0.0, measured["total"] - _total([seconds["compile"], seconds["tune"], 0.0]))
    return {f"{k}_s": v for k, v in (seconds | {"other": other, "total": total}).items()}


def _ended(run: Run, case: Case, row: Mapping) -> str:
    """How the search ended whose seconds stand in Prism's row; other systems have none."""
    if row.get("system") != PRISM:
        return ""
    told = row.get("search") if isinstance(row.get("search"), dict) else {}
    return str(told.get("ended") or (run.searches.get(case.workload) or {}).get("ended") or "")


def _total(seconds: Iterable[float | None]) -> float | None:
    known = [s for s in seconds if s is not None]
    return sum(known) if known else None


def _flat(value: object) -> object:
    if isinstance(value, list) and all(isinstance(v, (int, float)) for v in value):
        return [float(v) for v in value]
    return json.dumps(value, sort_keys=True) if isinstance(value, (list, dict)) else value


def _types(records: list[dict]) -> dict[str, str]:
    """Types that do not change from run to run with the values that some rows lack."""
    seen: dict[str, set[type]] = {}
    for record in records:
        for column, value in record.items():
            seen.setdefault(column, set()).update(() if value is None else (type(value),))
    names = {frozenset({int}): "Int64", frozenset({bool}): "boolean", frozenset({str}): "string"}
    names |= {frozenset({float}): "float64", frozenset({int, float}): "float64"}
    return {c: names.get(frozenset(kinds), "object") for c, kinds in seen.items()}
