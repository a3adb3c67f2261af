"""The plots of a report: measured values as filled marks, published ones hollow and labelled.

Every plot is drawn from the tables alone and comes out as the same SVG text for the same tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from prism.report import extra_plots
from prism.report.drawing import COLOURS, STOPPED, STYLE, axes, legend, plain, stopped_bars, svg, xy
from prism.report.published import number
from prism.report.run import PRISM, REFERENCE, system_order
from prism.report.telemetry import stopped as why_stopped

_STAGECOLOURS = dict(zip(("search", "compile", "tune", "other"), COLOURS, strict=False))
_HATCH = {"search": "", "compile": "//", "tune": "..", "other": "xx"}  # readable without colour
_HEADROOM = 1.6  # an axis ends there over its tallest bar, however far reading alone is above it


def draw(tables: dict[str, pd.DataFrame]) -> dict[str, str]:
    """SVG text by plot name. A plot without a single measured value is left out."""
    makers: dict[str, tuple[Callable, str]] = {
        "relative_performance": (_relative, "kernel_time"),
        "optimization_time": (_optimization, "optimization_time"),
        "search_time": (_search, "search_time"),
        "graph_diversity": (_graphs, "graph_diversity"),
        "ablation": (extra_plots.ablation, "ablation"),
        "growth": (extra_plots.growth, "growth"),
    }
    plots = {}
    with matplotlib.rc_context(STYLE):
        for name, (make, table) in makers.items():
            figure = make(tables[table]) if table in tables else None
            if figure is not None:
                plots[name] = svg(name, figure)
    return plots


def _relative(table: pd.DataFrame) -> Figure | None:
    """Figure 6, upper: performance relative to the best baseline, which is 1 by definition."""
    shown = table[(table.system != REFERENCE) & (table.status != "unavailable")]
    if not shown.ratio_to_best_baseline.notna().any():
        return None
    cases = _cases(table)
    systems = sorted(shown.system.unique(), key=system_order)
    figure, ax = axes(max(9.0, 1.1 * len(cases) + 1.2), 4.2)
    width = 0.8 / len(systems)
    paper = table[table.system == PRISM].drop_duplicates(["workload", "config"])
    paper = paper.set_index(["workload", "config"]).published_prism_vs_mirage.dropna()
    tallest = max([*shown.ratio_to_best_baseline.dropna(), *paper, 1])
    limit = _reading(table)
    top = min(1.12 * max([tallest, *limit]), _HEADROOM * tallest)
    crossed = False
    for n, system in enumerate(systems):
        rows = shown[shown.system == system]
        best = rows.groupby(["workload", "config"]).ratio_to_best_baseline.max()
        offset = (n - (len(systems) - 1) / 2) * width
        values = [best.get(case) for case in cases]
        bars = [(i + offset, v) for i, v in enumerate(values) if pd.notna(v)]
        colour = COLOURS[n % len(COLOURS)]
        drawn = ax.bar(*xy(bars), width, color=colour, edgecolor="#222", lw=0.5, label=system)
        doubtful = set(_cases(rows[rows.noise != ""]))
        partial = set(_cases(rows[rows.without_baselines != ""]))
        for bar, (x, _) in zip(drawn, bars, strict=True):
            bar.set_alpha(0.35 if cases[round(x)] in doubtful else None)
        if system == PRISM:
            for x, v in bars:
                mark = _near(paper.get(cases[round(x)]), v, top)
                where = {"textcoords": "offset points", "ha": "center", "fontsize": 8}
                star = "*" if cases[round(x)] in partial else ""
                ax.annotate(f"{v:.2f}x{star}", (x, max(v, mark)), (0, 6 if mark else 2), **where)
        here = set(zip(rows.workload, rows.config, strict=True))
        failed = [(i + offset, 0.04) for i, c in enumerate(cases) if c in here and pd.isna(best[c])]
        if failed:
            label = None if crossed else "no passing measurement to compare (see the table)"
            ax.plot(*xy(failed), "x", color="#b00020", markersize=8, mew=2, label=label)
            crossed = True
    limits = [(i, limit[case]) for i, case in enumerate(cases) if case in limit.index]
    lines = [(i, v) for i, v in limits if v <= top]
    beyond = [(i, v) for i, v in limits if v > top]
    if beyond:
        label = "only reading the inputs, above the axis"
        at = [(i, 0.97 * top) for i, _ in beyond]
        ax.plot(*xy(at), "^", color="#555", markersize=6, label=label)
        for i, v in beyond:
            where = {"textcoords": "offset points", "va": "center", "fontsize": 8}
            ax.annotate(f"{v:.3g}x", (i, 0.97 * top), (6, 0), color="#555", **where)
    if lines:
        x, y = xy(lines)
        left, right = [v - 0.45 for v in x], [v + 0.45 for v in x]
        ax.hlines(y, left, right, color="#555", linestyles=":", label="only reading the inputs")
    marks = [(i - 0.4 + width / 2, paper[c]) for i, c in enumerate(cases) if c in paper.index]
    if marks:
        label = "published: Prism over Mirage, on A100"
        ax.plot(*xy(marks), "D", mfc="white", mec="#222", mew=1.2, markersize=6, label=label)
    ax.axhline(1, color="#222", linewidth=0.8)
    ax.set_ylabel("performance relative to the\nbest baseline (higher is faster)")
    ax.set_ylim(0, top)
    _case_ticks(ax, cases)
    legend(ax)
    return figure


def _reading(table: pd.DataFrame) -> pd.Series:
    """By case, how many times faster than the best baseline it is to merely read the inputs."""
    keys = ["workload", "config", "dtype"]
    best = table.assign(best_us=table.ratio_to_best_baseline * table.median_us)
    best = best.groupby(keys).best_us.max()  # the same for all rows that have a ratio
    read = table[(table.system == REFERENCE) & (table.status == "ok")]
    limit = best / read.groupby(keys).median_us.min()
    return limit.dropna().groupby(["workload", "config"]).max()


def _optimization(table: pd.DataFrame) -> Figure | None:
    """Figure 6, lower: seconds until a kernel is ready, stacked by stage.

    A search that was stopped is an open part of its bar: it is not what a whole one takes.
    """
    if not table.total_s.notna().any():
        return None
    cases = _cases(table)
    spent = table[table.total_s > 0.002 * table.total_s.max()]  # eager needs next to nothing
    systems = sorted(spent.system.unique(), key=system_order)
    figure, ax = axes(max(9.0, 1.1 * len(cases) + 1.2), 4.0)
    width = 0.8 / max(len(systems), 1)
    named: set[str] = set()
    for n, system in enumerate(systems):
        rows = spent[spent.system == system].drop_duplicates(["workload", "config"])
        rows = rows.set_index(["workload", "config"])
        offset = (n - (len(systems) - 1) / 2) * width
        base = dict.fromkeys(cases, 0.0)
        open_ends = set(rows.index[rows.ended.map(why_stopped) != ""])
        for stage, colour in _STAGECOLOURS.items():
            values = rows[f"{stage}_s"].dropna()
            for halted in (False, True):
                here = [c for c in cases if c in values.index]
                here = [c for c in here if (stage == "search" and c in open_ends) == halted]
                if not here:
                    continue
                name = "search, stopped: at least so long" if halted else stage
                look = {"color": colour, "edgecolor": "#222", "linewidth": 0.5}
                if halted:
                    look = {"facecolor": "none", "edgecolor": STOPPED, "linestyle": "--"}
                ax.bar(
                    [cases.index(c) + offset for c in here],
                    [values[c] for c in here],
                    width * 0.92,
                    bottom=[base[c] for c in here],
                    hatch="" if halted else _HATCH[stage],
                    label=None if name in named else name,
                    **look,
                )
                named.add(name)
                base |= {c: base[c] + values[c] for c in here}
        for i, case in enumerate(cases):
            if case in rows.index:
                note = {"ha": "center", "rotation": 90, "fontsize": 8, "va": "bottom"}
                top = (i + offset, base[case])
                ax.annotate(system, top, (0, 3), textcoords="offset points", **note)
    ax.set_ylim(0, 1.35 * table.total_s.max())  # room for the names above the bars
    ax.set_ylabel("seconds")
    paper = table.drop_duplicates(["workload", "config"]).published_prism_s
    notes = [f"\npublished:\n{p} s" if number(p) is not None else "" for p in paper]
    _case_ticks(ax, cases, notes)
    legend(ax)
    return figure


def _search(table: pd.DataFrame) -> Figure | None:
    """Table 2: seconds of search alone; one that was stopped is an open bar, and no time."""
    published = ("published: Prism, 96 threads", table.published_prism_s)
    return _by_workload(table, table.seconds_total, published, "published_mirage_s", "seconds")


def _graphs(table: pd.DataFrame) -> Figure | None:
    """Table 3: unique graphs, of one kernel as the paper counts them, and all."""
    published = ("published: Prism", table.published_prism)
    label, ours = "unique proved graphs", table.graphs_single_kernel
    every = [10.0 ** min(n, 200) if pd.notna(n) else None for n in table.graphs_log10]
    marked = ("of one kernel", every)
    return _by_workload(table, ours, published, "published_mirage", label, marked)


def _by_workload(table, ours, published, mirage: str, label: str, wider=None) -> Figure | None:
    """One mark a workload for what was measured, and hollow ones for what was published.

    `wider` is what the marks are of, and the values of all kinds, which get a mark of their own.
    A search that was stopped is an open bar of `limit_s`, where the table has it, and what it
    counted a lower bound.
    """
    measured = [(i - 0.15, float(v)) for i, v in enumerate(ours) if pd.notna(v)]
    limits = table.limit_s if "limit_s" in table else [None] * len(table)
    stopped = [(i - 0.15, float(v)) for i, v in enumerate(limits) if pd.notna(v)]
    ended = [why_stopped(e) for e in table.ended]
    if not measured and not stopped:
        return None
    figure, ax = axes(max(9.0, 1.3 * len(table) + 1), 3.6)
    kind, values = wider or ("", ())
    ours_are = f"measured: Prism{kind and ', ' + kind}"
    ax.set_yscale("log")
    if measured:
        ax.plot(*xy(measured), "s", color=COLOURS[0], markersize=9, label=ours_are)
    if stopped:
        stopped_bars(ax, stopped, 0.2, [ended[round(x + 0.15)] for x, _ in stopped])
    every = [(i - 0.15, float(v)) for i, v in enumerate(values) if pd.notna(v)]
    if every:
        ax.plot(*xy(every), "v", color=COLOURS[2], markersize=9, label="measured: Prism, all")
    for x, v in [*measured, *every]:
        where = {"textcoords": "offset points", "ha": "right", "va": "center"}
        text = f"{v:.0e}" if v >= 1e9 else f"{v:,.0f}" if v >= 100 else f"{v:.3g}"
        least = "≥ " if ended[round(x + 0.15)] else ""
        ax.annotate(least + text, (x, v), (-7, 0), **where)
    prism = [(i + 0.05, float(v)) for i, v in enumerate(published[1]) if pd.notna(v)]
    both = [(i + 0.2, cell) for i, text in enumerate(table[mirage]) for cell in text.split("; ")]
    found = [(x, number(cell)) for x, cell in both if number(cell) is not None]
    bounds = [(x, number(cell[1:])) for x, cell in both if cell.startswith(">")]
    groups = [
        (prism, "D", "#222", published[0]),
        (found, "o", "#b5651d", "published: Mirage, each configuration"),
        (bounds, "^", "#b5651d", "published: Mirage, stopped at this limit"),
    ]
    for points, marker, colour, text in groups:
        if points:
            hollow = {"mfc": "white", "mew": 1.3, "markersize": 7, "mec": colour}
            ax.plot(*xy(points), marker, label=text, **hollow)
    values = [*measured, *stopped, *every, *prism, *found, *bounds]
    values = [v for _, v in values if v > 0] or [1.0]
    ax.set_ylim(min(values) / 2, max(values) * (12 if stopped else 2))
    ax.yaxis.set_major_formatter(lambda v, _: f"{v:,g}")
    missing = [i - 0.15 for i, v in enumerate(ours) if pd.isna(v) and pd.isna(limits[i])]
    if missing:
        low = [ax.get_ylim()[0] * 1.2] * len(missing)
        ax.plot(missing, low, "x", color="#b00020", mew=2, label="not measured")
    ax.set_ylabel(label)
    ax.set_xticks(range(len(table)), [plain(w) for w in table.workload])
    ax.set_xlim(-0.6, len(table) - 0.4)
    legend(ax, 2)
    return figure


def _near(mark: float | None, value: float, top: float) -> float:
    """The mark where it would stand in the way of a label above `value`, else 0."""
    return mark if mark is not None and abs(mark - value) < 0.09 * top else 0.0


def _cases(table: pd.DataFrame) -> list[tuple[str, str]]:
    return list(dict.fromkeys(zip(table.workload, table.config, strict=True)))


def _case_ticks(ax, cases, notes: Sequence[str] = ()) -> None:
    labels = [f"{w}\n" + "\n".join(_chunks(c)) for w, c in cases]
    labels = [label + note for label, note in zip(labels, notes or [""] * len(labels), strict=True)]
    ax.set_xticks(range(len(cases)), [plain(label) for label in labels])
    ax.set_xlim(-0.6, len(cases) - 0.4)


def _chunks(config: str) -> list[str]:
    parts = config.split(",")
    return [",".join(parts[i : i + 2]) for i in range(0, len(parts), 2)]
