"""Plots of seconds on a logarithmic axis, where some were stopped at a limit."""

from __future__ import annotations

import textwrap

import pandas as pd
from matplotlib.figure import Figure

from prism.report.drawing import COLOURS, axes, legend, plain, stopped_bars, xy
from prism.report.telemetry import stopped as why_stopped


def ablation(table: pd.DataFrame) -> Figure | None:
    """Table 4: seconds of the search by which maps are symbolic."""
    names = [
        f"{r.imap}{r.fmap}{r.omap}" + ("\n+ sizes" if r.sizes == "C" else "")
        for r in table.itertuples()
    ]
    figure = _bars(table, names, list(table.published_s), "published: Prism, 96 threads")
    if figure is not None:
        figure.axes[0].set_xlabel("imap, fmap, omap: S symbolic, C concrete")
    return figure


def growth(table: pd.DataFrame) -> Figure | None:
    """Seconds of the search by how many operators a program has."""
    names = [
        f"{r.operators} operators\n{_pieces(r.pieces)}\n{textwrap.fill(r.program, 14)}"
        for r in table.itertuples()
    ]
    return _bars(table, names)


def _pieces(count: int) -> str:
    return "1 piece" if count == 1 else f"{count} pieces"


def _bars(table, names: list[str], published=(), label: str = "") -> Figure | None:
    """Filled bars are times; open ones with an arrow were stopped at a limit, and are no time."""
    whole = [(i, v) for i, v in enumerate(table.seconds) if pd.notna(v)]
    stopped = [(i, v) for i, v in enumerate(table.limit_s) if pd.notna(v)]
    if not whole and not stopped:
        return None
    paper = [(i, v) for i, v in enumerate(published) if pd.notna(v)]
    figure, ax = axes(max(9.0, 1.0 * len(table) + 1), 3.8)
    ax.set_yscale("log")
    values = [v for _, v in [*whole, *stopped, *paper] if v > 0] or [1.0]
    low, high = min(values) / 3, max(values) * (12 if stopped else 4)
    ax.set_ylim(low, high)
    at = {"textcoords": "offset points", "ha": "center", "fontsize": 8}
    if whole:
        ax.bar(*xy(whole), 0.6, color=COLOURS[0], edgecolor="#222", lw=0.5, label="measured: Prism")
    for i, v in whole:
        ax.annotate(f"{v:.3g} s", (i, v), (0, 3), **at)
    if stopped:
        stopped_bars(ax, stopped, 0.6, [why_stopped(table.ended.iloc[i]) for i, _ in stopped])
    if paper:
        hollow = {"mfc": "white", "mec": "#222", "mew": 1.3, "markersize": 7}
        ax.plot(*xy(paper), "D", label=label, **hollow)
    ax.yaxis.set_major_formatter(lambda v, _: f"{v:,g}")
    ax.set_ylabel("seconds of search")
    ax.set_xticks(range(len(table)), [plain(name) for name in names])
    ax.set_xlim(-0.6, len(table) - 0.4)
    legend(ax, 2)
    return figure
