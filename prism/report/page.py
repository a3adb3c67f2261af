"""The report's page: tables, plots and winning graphs as one HTML text that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from types import SimpleNamespace

import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from prism.errors import PrismError
from prism.program import program_from_json
from prism.report import facts, telemetry
from prism.report.claim import FAILS, HOLDS, PARTLY, Claim
from prism.report.layout import COLUMNS, GPU_ONLY, SECTIONS, STAGES
from prism.report.published import UNKNOWN
from prism.report.run import PRISM, Case, Run
from prism.sgraph import SGraph
from prism.sgraph.picture import svg
from prism.sgraph.text import text

_WHOLE = ("optimization_time", "graph_diversity")  # say how searches ended where one was stopped


def page(
    run: Run, tables: Mapping[str, pd.DataFrame], plots: Mapping[str, str], claims: Iterable[Claim]
) -> str:
    """The whole page. Every text that comes from a run is escaped."""
    kinds = {HOLDS: "holds", PARTLY: "holds", FAILS: "fails"}
    sections = [
        {
            "id": anchor,
            "title": title,
            "text": note,
            "warning": facts.busy(run) if name == "kernel_time" else "",
            "plotted": bool(plot),
            "plot": Markup(plots[plot]) if plot in plots else None,
            "caption": caption,
            "table": None if name == "rules" else _grid(name, tables[name]),
            "folded": _folded(tables[name]) if name == "rules" else [],
        }
        for anchor, title, name, plot, note, caption in SECTIONS
        if name in tables and (name != "rules" or len(tables[name]))
    ]
    title = f"Prism: {run.path.resolve().name}"
    return _template().render(
        title=title,
        css=Markup(_resource("report.css")),
        ran=facts.ran(run),
        problems=run.problems,
        environment=facts.environment(run),
        claims=[
            SimpleNamespace(**vars(claim), kind=kinds.get(claim.verdict, "none"))
            for claim in claims
        ],
        sections=sections,
        winners=[_winner(case) for case in run.cases if case.winner is not None],
    )


@cache
def _template():
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(_resource("report.html.j2"))


def _resource(name: str) -> str:
    return resources.files("prism.report").joinpath(name).read_text(encoding="utf-8")


def _grid(name: str, table: pd.DataFrame) -> dict:
    table = _joined(name, table)
    columns = {c: spec for c, spec in COLUMNS[name].items() if c in table.columns}
    empty = {c for c in GPU_ONLY & columns.keys() if table[c].isna().all()}
    columns = {c: spec for c, spec in columns.items() if c not in empty}
    if not any(table.reason):
        columns.pop("reason", None)
    if name in _WHOLE and not any(map(telemetry.stopped, table.ended)):
        columns.pop("ended")
    if name == "kernel_time" and table["dtype"].nunique() < 2:
        columns.pop("dtype")  # what ran, above, names it
    if name == "kernel_time" and table[table.timer != ""].timer.nunique() < 2:
        columns.pop("timer")  # the environment names it
    places = {c: _places(table[c]) for c, (_, how) in columns.items() if how == "published"}
    heads = [
        {"text": heading, "kind": _kind(column, how)} for column, (heading, how) in columns.items()
    ]
    rows = []
    for record in table.to_dict("records"):
        bad = record["status"] != "ok"
        cells = [
            {
                "text": _cell(record[column], how, places.get(column, 0)),
                "kind": _kind(column, how),
                "span": 1,
            }
            for column, (_, how) in columns.items()
        ]
        if not bad and record.get("noise"):
            ratio = cells[list(columns).index("ratio_to_best_baseline")]
            ratio |= {
                "kind": f"{ratio['kind']} noisy",
                "text": f"{ratio['text']} {record['noise']}",
            }
        if without := record.get("without_baselines"):
            ratio = cells[list(columns).index("ratio_to_best_baseline")]
            ratio |= {
                "kind": f"{ratio['kind']} noisy",
                "text": f"{ratio['text']} without {without}",
            }
        if bad and name == "kernel_time":  # the reason stands where the times would
            first, last = (list(columns).index(c) for c in ("median_us", "read_speed_fraction"))
            reason = {"text": f"{record['status']}: {record['reason']}", "kind": "reason"}
            cells[first : last + 1] = [reason | {"span": last - first + 1}]
        ours = record.get("system") == PRISM
        bad = bad and record["status"] != "unavailable"  # what is not there did not fail
        rows.append({"cells": cells, "kind": "bad" if bad else "best" if ours else ""})
    return {"heads": heads, "rows": rows}


def _folded(table: pd.DataFrame) -> list[dict]:
    """One table a workload, each folded away under what it comes to."""
    found = []
    for workload, part in table.groupby("workload", sort=False):
        total = f"{part.matches.sum():,} matches in {part.seconds.sum():.3f} s"
        found.append({"title": f"{workload}: {total}", "table": _grid("rules", part)})
    return found


def _joined(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """The table with several columns in one where the page has no room for each."""
    table = table.copy()
    if name == "kernel_time":
        ends = zip(table.p20_us, table.p80_us, strict=True)
        table["p20_p80"] = ["" if pd.isna(a) else f"{a:,.1f}–{b:,.1f}" for a, b in ends]
        systems = {"vs_mirage": "Mirage", "vs_torch_compile": "torch.compile", "vs_tvm": "TVM"}
        stated = [
            [
                f"{shown} {r[f'published_prism_{c}']}"
                for c, shown in systems.items()
                if _stated(r, c)
            ]
            for r in table.to_dict("records")
        ]
        table["published_ratio"] = [", ".join(parts) for parts in stated]
    if name == "search_time":
        for stage in STAGES:
            ends = zip(table[f"{stage}_in"], table[f"{stage}_out"], strict=True)
            table[f"{stage}_in_out"] = ["" if pd.isna(a) else f"{a:,}→{b:,}" for a, b in ends]
        table["spent"] = _spent(table.seconds_total, table)
    if name in ("search_time", "graph_diversity"):
        told = zip(table.gaps, table.gap_reasons, strict=True)
        table["gaps_told"] = ["" if pd.isna(n) else f"{n:,}{why and f': {why}'}" for n, why in told]
    if name == "graph_diversity":
        shown = zip(table.graphs, table.graphs_log10, strict=True)
        table["graphs_all"] = ["" if pd.isna(n) else _graphs(every, n) for every, n in shown]
    if name == "rules":
        table["milliseconds"] = 1e3 * table.seconds
    if name == "offline":
        table["compiled_of"] = _pairs(table.compiled, table.tried, "{:,} of {:,}")
        for what in ("registers", "shared_kib"):
            ends = table[f"{what}_median"], table[f"{what}_max"]
            table[f"{what.partition('_')[0]}_told"] = _pairs(*ends, "{:,.3g}; {:,.3g}")
        table["spilled"] = _pairs(table.spilling, table.spill_bytes_max, "{:,}; {:,.0f}")
        ends = table.modelled_shared_error_kib_min, table.modelled_shared_error_kib_max
        table["modelled_shared"] = _pairs(*ends, "{:+.3g} to {:+.3g}")
    if name in ("ablation", "growth"):
        table["spent"] = _spent(table.seconds, table)
    if name == "ablation":
        ends = zip(table.speedup_of_symbolic, table.speedup_at_least, strict=True)
        table["speedup"] = [_times(s, "") if pd.isna(n) else _times(n, "≥ ") for s, n in ends]
        ends = zip(table.assignments, table.assignments_all, strict=True)
        table["tried"] = [f"{some:,} of {every:,.0f}" for some, every in ends]
    return table


def _pairs(first: pd.Series, second: pd.Series, form: str) -> list[str]:
    """Two columns as one text; empty where a value is missing."""
    ends = zip(first, second, strict=True)
    return ["" if pd.isna(a) or pd.isna(b) else form.format(a, b) for a, b in ends]


def _graphs(count: object, log10: float) -> str:
    return f"about 10^{log10:.1f}" if pd.isna(count) else f"{count:,}"


def _spent(seconds: pd.Series, table: pd.DataFrame) -> list[str]:
    """Seconds of searches; those of one that was stopped are a bound, and say so."""
    ends = zip(seconds, table.limit_s, table.ended, strict=True)
    return [
        _seconds(s) if pd.isna(n) else f"> {n:.3g} s ({telemetry.stopped(ended)})"
        for s, n, ended in ends
    ]


def _seconds(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.3g}"


def _times(value: float, sign: str) -> str:
    return "" if pd.isna(value) else f"{sign}{value:,.1f}x"


def _stated(record: Mapping, column: str) -> bool:
    value = record[f"published_prism_{column}"]
    return not pd.isna(value) and value not in ("", UNKNOWN)


def _places(column: Iterable) -> int:
    """Decimals with which every number of a column can be shown."""
    found = [f"{v:g}".partition(".")[2] for v in column if not isinstance(v, str) and pd.notna(v)]
    return max(map(len, found), default=0)


def _kind(column: str, how: str) -> str:
    """The classes of a cell: published and modelled figures have grounds of their own."""
    if how in ("word", "reason"):
        return how
    ground = next((kind for kind in ("published", "modelled") if kind in column), "")
    if how == "words" and ground:
        return ground
    return f"number {ground}".strip()


def _cell(value: object, how: str, places: int) -> str:
    if (
        value is None
        or value is pd.NA
        or value == ""
        or isinstance(value, float)
        and value != value
    ):
        return "" if how == "reason" else facts.NONE
    if how in ("word", "reason") or isinstance(value, str):
        return str(value)
    if how == "plain":
        return f"{int(value)}"
    if how == "int":
        return f"{int(value):,}"
    if how == "published":
        return f"{value:,.{places}f}"
    if not math.isfinite(value):
        return "∞"
    if how == "x":
        return f"{value:.2f}x"
    if how == "%":
        return f"{100 * value:.0f}%"
    if how == "e":
        return f"{value:.1e}"
    return f"{value:,.1f}" if how == "us" else f"{value:,.2f}"


def _winner(case: Case) -> dict:
    shown = {"title": f"{case.workload} {case.config}", "picture": None, "text": "", "problem": ""}
    shown |= {"source": case.source, "lines": len((case.source or "").splitlines())}
    shown["facts"] = facts.winner(case)
    if case.concrete is None:
        return shown | {"problem": f"No winner: {case.winner.get('reason') or 'no reason given'}"}
    try:
        graph = SGraph.from_json(case.concrete["graph"])
        program = program_from_json(case.concrete["program"])
        return shown | {"picture": Markup(svg(graph, program)), "text": text(graph, program)}
    except (KeyError, PrismError) as error:
        return shown | {"problem": f"The winning graph cannot be shown: {error}"}
