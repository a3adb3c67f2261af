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
from prism.report.run import PRISM, Case, Run
from prism.sgraph import SGraph
from prism.sgraph.picture import svg
from prism.sgraph.text import text

# Per table: column -> (heading, how a cell is shown).
_COLUMNS: dict[str, dict[str, tuple[str, str]]] = {
    "kernel_time": {
        "workload": ("workload", "word"),
        "config": ("configuration", "word"),
        "dtype": ("dtype", "word"),
        "system": ("system", "word"),
        "numerics": ("numerics", "word"),
        "median_us": ("median µs", "3"),
        "p20_us": ("p20", "3"),
        "p80_us": ("p80", "3"),
        "ratio_to_best_baseline": ("ratio to best baseline", "x"),
        "read_speed_fraction": ("share of read speed", "%"),
        "published_prism_vs_mirage": ("published ratio to Mirage", "published"),
        "published_prism_vs_torch_compile": ("published, to torch.compile", "published"),
        "published_prism_vs_tvm": ("published, to TVM", "published"),
        "warm_median_us": ("warm median µs", "3"),
        "error_max": ("error", "e"),
        "bound_max": ("bound", "e"),
        "n": ("n", "int"),
    },
    "optimization_time": {
        "workload": ("workload", "word"),
        "config": ("configuration", "word"),
        "system": ("system", "word"),
        "status": ("status", "word"),
        "search_s": ("search s", "3"),
        "compile_s": ("compile s", "3"),
        "tune_s": ("tune s", "3"),
        "other_s": ("other s", "3"),
        "total_s": ("total s", "3"),
        "published_prism_s": ("published Prism s", "published"),
        "published_mirage_s": ("published Mirage s", "published"),
        "published_tvm_s": ("published TVM s", "published"),
    },
    "search_time": {
        "workload": ("workload", "word"),
        "seconds_total": ("total s", "3"),
        "published_prism_s": ("published Prism s", "published"),
        "published_mirage_s": ("published Mirage s (config. 1; 2)", "published"),
        **{f"seconds_{s}": (f"{s} s", "3") for s in ("generate", "map", "refute", "prove")},
        **{
            f"{s}_{end}": (f"{s} {end}", "int")
            for s in ("generate", "map", "refute", "prove")
            for end in ("in", "out")
        },
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
        "Published ratios are Prism's over another system; unknown: the paper's text states none. "
        "Numerics paper: softmax is exp(x) / sum without the running maximum, as in the paper; "
        "own: as the system itself does it, and PyTorch subtracts the maximum.",
        "As Figure 6, upper: the best passing baseline of each configuration is 1. Bars are "
        "measured here. Hollow marks are the paper's ratio of Prism to Mirage on an A100, another "
        "machine against another system, and are only there to compare with.",
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
        "The symbolic search alone, with the candidates that went into and came out of each stage.",
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
    columns = {c: spec for c, spec in _COLUMNS[name].items() if c in table.columns}
    if not any(table["reason"]):
        columns.pop("reason", None)
    heads = [
        {"text": heading, "kind": _kind(column, how)} for column, (heading, how) in columns.items()
    ]
    rows = []
    for record in table.to_dict("records"):
        bad = record["status"] != "ok"
        cells = [
            {"text": _cell(record[column], how), "kind": _kind(column, how), "span": 1}
            for column, (_, how) in columns.items()
        ]
        if bad and name == "kernel_time":  # the reason stands where the times would
            first, last = (list(columns).index(c) for c in ("median_us", "read_speed_fraction"))
            reason = {"text": f"{record['status']}: {record['reason']}", "kind": "reason"}
            cells[first : last + 1] = [reason | {"span": last - first + 1}]
        ours = record.get("system") == PRISM
        rows.append({"cells": cells, "kind": "bad" if bad else "best" if ours else ""})
    return {"heads": heads, "rows": rows}


def _kind(column: str, how: str) -> str:
    if how in ("word", "reason"):
        return how
    return "number published" if column.startswith("published") else "number"


def _cell(value: object, how: str) -> str:
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
        return f"{value:g}"
    if not math.isfinite(value):
        return "∞"
    if how == "x":
        return f"{value:.2f}x"
    if how == "%":
        return f"{100 * value:.0f}%"
    if how == "e":
        return f"{value:.1e}"
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.2g}"


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
