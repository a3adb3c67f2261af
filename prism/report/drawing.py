"""What all plots of a report share: style, axes, legend, and SVG text that is always the same."""

from __future__ import annotations

import io
import re

import seaborn as sns
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

COLOURS = sns.color_palette("colorblind")
STOPPED = "#b00020"  # of what is no time
STYLE = {
    **sns.axes_style("whitegrid"),
    **sns.plotting_context("paper", font_scale=1.1),
    "axes.edgecolor": "#444",
    "figure.facecolor": "white",
    "hatch.linewidth": 0.6,
    "svg.fonttype": "path",
    "svg.hashsalt": "prism",
}


def axes(width: float, height: float):
    """A figure of that many inches and its axes, with horizontal grid lines only."""
    figure = Figure(figsize=(width, height), layout="constrained")
    ax = figure.add_subplot()
    ax.grid(axis="x", visible=False)
    ax.set_axisbelow(True)
    return figure, ax


def plain(text: str) -> str:
    """A dollar sign would start matplotlib's formulas."""
    return text.replace("$", r"\$")


def legend(ax, columns: int = 3) -> None:
    """The legend above the axes, bars first."""
    entries = list(zip(*ax.get_legend_handles_labels(), strict=True))
    entries.sort(key=lambda entry: not isinstance(entry[0], BarContainer))
    handles, labels = [h for h, _ in entries], [plain(label) for _, label in entries]
    place = {"loc": "outside upper center", "ncols": columns, "frameon": False}
    ax.figure.legend(handles, labels, fontsize=9, **place)


def stopped_bars(ax, points: list[tuple[float, float]], width: float, why: list[str]) -> None:
    """Open bars with an arrow for searches that were stopped there: at least so many seconds.

    `why` names what stopped each. For a logarithmic axis that has room above them.
    """
    look = {"facecolor": "none", "edgecolor": STOPPED, "lw": 1.2, "linestyle": "--"}
    ax.bar(*xy(points), width, label="stopped there: at least so long", **look)
    at = {"textcoords": "offset points", "ha": "center", "fontsize": 8, "color": STOPPED}
    for (x, v), word in zip(points, why, strict=True):
        arrow = {"arrowstyle": "->", "color": STOPPED, "lw": 1.5}
        ax.annotate("", (x, v * 1.9), (x, v), arrowprops=arrow)
        ax.annotate(f"> {v:.3g} s\n({word})", (x, v * 1.9), (0, 2), **at)


def xy(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Points as two lists, as matplotlib wants them."""
    return [x for x, _ in points], [y for _, y in points]


def svg(name: str, figure: Figure) -> str:
    """SVG text without dates or outside addresses, with identifiers that no other plot shares."""
    buffer = io.StringIO()
    empty = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=empty)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", text)
    return text
