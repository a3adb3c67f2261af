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
from prism.report import facts
from prism.report.claims import FAILS, HOLDS, PARTLY, Claim
from prism.report.published import UNKNOWN
from prism.report.run import PRISM, Case, Run
from prism.sgraph import SGraph
from prism.sgraph.picture import svg
from prism.sgraph.text import text

_STAGES = ("generate", "map", "refute", "prove")
# Per table: column -> (heading, how a cell is shown).
_COLUMNS: dict[str, dict[str, tuple[str, str]]] = {
    "kernel_time": {
        "workload": ("workload", "word"),
        "config": ("configuration", "word"),
        "dtype": ("dtype", "word"),
        "system": ("system", "word"),
        "numerics": ("numerics", "word"),
        "median_us": ("median µs", "us"),
        "p20_p80": ("p20–p80 µs", "range"),
        "ratio_to_best_baseline": ("ratio to best baseline", "x"),
        "read_speed_fraction": ("share of read speed", "%"),
        "published_ratio": ("published ratio", "words"),
        "warm_median_us": ("warm median µs", "us"),
        "error_max": ("error", "e"),
        "bound_max": ("bound", "e"),
    },
    "optimization_time": {
        "workload": ("workload", "word"),
        "config": ("configuration", "word"),
        "system": ("system", "word"),
        "status": ("status", "word"),
        "search_s": ("search s", "s"),
        "compile_s": ("compile s", "s"),
        "tune_s": ("tune s", "s"),
        "other_s": ("other s", "s"),
        "total_s": ("total s", "s"),
        "published_prism_s": ("published Prism s", "published"),
        "published_mirage_s": ("published Mirage s", "published"),
        "published_tvm_s": ("published TVM s", "published"),
    },
    "search_time": {
        "workload": ("workload", "word"),
        "seconds_total": ("total s", "s"),
        "published_prism_s": ("published Prism s", "published"),
        "published_mirage_s": ("published Mirage s (config. 1; 2)", "published"),
        **{f"seconds_{s}": (f"{s} s", "s") for s in _STAGES},
        **{f"{s}_in_out": (f"{s} in→out", "range") for s in _STAGES},
        "ended": ("ended", "word"),
        "reason": ("reason", "reason"),
    },
    "graph_diversity": {
        "workload": ("workload", "word"),
        "graphs": ("proved graphs", "int"),
        "graphs_single_kernel": ("of one kernel", "int"),
        "published_prism": ("published Prism", "published"),
        "published_mirage": ("published Mirage (config. 1; 2)", "published"),
        "graphs_unknown": ("not provable, unused", "int"),
        "reason": ("reason", "reason"),
    },
}
_SECTIONS = (
    (
        "kernels",
        "Kernel time",
        "kernel_time",
        "relative_performance",
        "Cold-cache medians and quantiles over interleaved rounds. The ratio is the best passing "
        "baseline's median over this median within this run: above 1 is faster. The system named "
        "read only reads the inputs: what any kernel could reach at best, and never a baseline. "
        "Published ratios are Prism's over the system named; the CSV holds every column. A "
        "ratio in grey is noisy: its row, or the baseline it is taken against, has a p80 above 3 "
        "times its p20, and no claim rests on it. "
        "Numerics paper: softmax is exp(x) / sum without the running maximum, as in the paper; "
        "own: as the system itself does it, and PyTorch subtracts the maximum.",
        "As Figure 6, upper: the best passing baseline of each configuration is 1. Bars are "
        "measured here, pale ones are noisy. Hollow marks are the paper's ratio of Prism to Mirage "
        "on an A100, another machine against another system, and are only there to compare with.",
    ),
    (
        "optimization",
        "Optimization time",
        "optimization_time",
        "optimization_time",
        "Seconds before a kernel is ready. A workload's search is shared by its configurations and "
        "stands in each of them, as in the paper. Prism's total is search and tuning as measured "
        "from end to end; other is what no stage holds: inputs, reference outputs, eager's error.",
        "As Figure 6, lower: seconds by stage, stacked. The paper's total for Prism stands under "
        "each configuration. Eager needs none.",
    ),
    (
        "search",
        "Search time",
        "search_time",
        "search_time",
        "The symbolic search alone, with the candidates that went into and came out of each stage. "
        "Refuted candidates are not kept, only counted by cause (rejected in search/*.json).",
        "As Table 2, on a logarithmic axis.",
    ),
    (
        "graphs",
        "Unique graphs",
        "graph_diversity",
        "graph_diversity",
        "Proved graphs that differ in operators or mapping; parameter values do not count. All "
        "operator orders, accumulator placements and mappings within the operator bound are in, a "
        "wider space than the paper's, so the numbers compare the spaces as well.",
        "As Table 3, on a logarithmic axis.",
    ),
)


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
            "plot": Markup(plots[plot]) if plot in plots else None,
            "caption": caption,
            "table": _grid(name, tables[name]),
        }
        for anchor, title, name, plot, note, caption in _SECTIONS
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
    columns = {c: spec for c, spec in _COLUMNS[name].items() if c in table.columns}
    if not any(table.reason):
        columns.pop("reason", None)
    if "dtype" in columns and table["dtype"].nunique() < 2:
        columns.pop("dtype")  # what ran, above, names it
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
        if bad and name == "kernel_time":  # the reason stands where the times would
            first, last = (list(columns).index(c) for c in ("median_us", "read_speed_fraction"))
            reason = {"text": f"{record['status']}: {record['reason']}", "kind": "reason"}
            cells[first : last + 1] = [reason | {"span": last - first + 1}]
        ours = record.get("system") == PRISM
        rows.append({"cells": cells, "kind": "bad" if bad else "best" if ours else ""})
    return {"heads": heads, "rows": rows}


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
        for stage in _STAGES:
            ends = zip(table[f"{stage}_in"], table[f"{stage}_out"], strict=True)
            table[f"{stage}_in_out"] = ["" if pd.isna(a) else f"{a:,}→{b:,}" for a, b in ends]
    return table


def _stated(record: Mapping, column: str) -> bool:
    value = record[f"published_prism_{column}"]
    return not pd.isna(value) and value not in ("", UNKNOWN)


def _places(column: Iterable) -> int:
    """Decimals with which every number of a column can be shown."""
    found = [f"{v:g}".partition(".")[2] for v in column if not isinstance(v, str) and pd.notna(v)]
    return max(map(len, found), default=0)


def _kind(column: str, how: str) -> str:
    if how == "words":
        return "published"
    if how in ("word", "reason"):
        return how
    return "number published" if column.startswith("published") else "number"


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
