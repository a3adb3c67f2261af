"""Boxes, edges and frames of a picture: one panel of an SVG, layers of cells from top to bottom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape

from prism.sgraph.layers import place

CHAR = 7.3  # advance of a 12 px monospace glyph, rounded up: text is never wider than its box
LINE = 16.0
LAYER_GAP = 36.0
_NBSP = "\u00a0"  # SVG collapses ordinary leading spaces
_PAD, _WRAP = 8.0, 30
_COLOUR = {  # fill, border; distinguishable in greyscale and by colour-blind readers
    "tensor": ("#ffffff", "#333333"),
    "between": ("#eeeeee", "#333333"),
    "kernel": ("#f3f6fa", "#2f6f9f"),
    "library": ("#e9e2f3", "#6a4a9c"),
    "loader": ("#dcebf7", "#2f6f9f"),
    "operator": ("#f7f7f7", "#666666"),
    "accumulator": ("#fbdcb0", "#b5651d"),
    "saver": ("#d9f0e3", "#2c7a55"),
}


@dataclass
class Cell:
    """One box: lines of text inside, and beneath it the lines of a shape."""

    kind: str
    lines: list[str]
    shape: list[str]
    dashed: bool = False
    x: float = 0.0
    y: float = 0.0
    width: float = field(init=False)

    def __post_init__(self):
        longest = max(len(line) for line in self.lines)
        beneath = max((len(line) for line in self.shape), default=0)
        self.box = longest * CHAR + 2 * _PAD
        self.width = max(self.box, beneath * CHAR)
        self.box_height = len(self.lines) * LINE + _PAD
        self.height = self.box_height + len(self.shape) * LINE


class Panel:
    """Cells in layers, and edges between them; subclasses fill `cells` and `edges`, then `lay`."""

    def __init__(self):
        self.cells: dict[object, Cell] = {}
        self.edges: list[tuple[object, object]] = []

    def lay(self, layer: dict[object, int], left: float) -> None:
        """Horizontal positions, from `left`; sets `layer`, `lanes` and `width`."""
        self.layer = layer
        layout = place(layer, {k: c.width for k, c in self.cells.items()}, self.edges)
        for key, cell in self.cells.items():
            cell.x = layout.x[key] + left
        self.lanes = {e: [x + left for x in xs] for e, xs in layout.lanes.items()}
        right = [c.x + c.width / 2 for c in self.cells.values()]
        right += [x + 7 for xs in self.lanes.values() for x in xs]
        self.width = max(right) + 20
        self.top: dict[int, float] = {}
        self.bottom: dict[int, float] = {}

    def row(self, level: int, y: float) -> None:
        """Places a layer's cells at height `y`; sets its `top` and `bottom`."""
        cells = [c for k, c in self.cells.items() if self.layer[k] == level]
        self.top[level] = y
        for cell in cells:
            cell.y = y
        self.bottom[level] = y + max(c.height for c in cells)

    def graph(self, shift: float) -> str:
        """SVG of the edges and cells, moved to the right by `shift`."""
        parts = [f'<g transform="translate({shift:.1f} 0)">']
        parts += [self._edge(a, b) for a, b in dict.fromkeys(self.edges)]
        parts += [_box(cell) for cell in self.cells.values()]
        return "".join([*parts, "</g>"])

    def _edge(self, source: object, target: object) -> str:
        a, b = self.cells[source], self.cells[target]
        arrivals = sorted(
            {s for s, t in self.edges if t == target},
            key=lambda s: (self.lanes[s, target] or [self.cells[s].x])[-1],
        )
        port = b.x - b.box / 2 + b.box * (arrivals.index(source) + 1) / (len(arrivals) + 1)
        y = self.bottom[self.layer[source]]
        path = [f"M{a.x:.1f} {a.y + a.height + 2:.1f}V{y:.1f}"]
        x = a.x
        stops = [*enumerate(self.lanes[source, target], self.layer[source] + 1)]
        for level, lane in stops:
            path.append(_curve(x, y, lane, self.top[level]) + f"V{self.bottom[level]:.1f}")
            x, y = lane, self.bottom[level]
        path.append(_curve(x, y, port, b.y - 6))
        tip = f"M{port:.1f} {b.y:.1f}l-4 -7h8z"
        return (
            f'<path d="{"".join(path)}" fill="none" stroke="#555" stroke-width="1.2"/>'
            f'<path d="{tip}" fill="#555"/>'
        )


def wrapped(entries: Iterable[str]) -> list[str]:
    """A shape as `[a, b]`, over several lines where it is long."""
    lines = ["["]
    entries = list(entries)
    for i, entry in enumerate(entries):
        piece = entry + (", " if i < len(entries) - 1 else "]")
        if len(lines[-1]) > 1 and len(lines[-1] + piece) > _WRAP:
            lines.append(" ")
        lines[-1] += piece
    return [line.rstrip() for line in lines] if entries else ["[]"]


def _curve(x0: float, y0: float, x1: float, y1: float) -> str:
    middle = (y0 + y1) / 2
    return f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"


def _box(cell: Cell) -> str:
    fill, border = _COLOUR[cell.kind]
    dash = "4 3" if cell.dashed else ""
    left = cell.x - cell.box / 2
    centre = {"anchor": "middle"}
    first, *rest = cell.lines
    return (
        rect(left, cell.y, cell.box, cell.box_height, fill, border, 4, dash)
        + text(cell.x, cell.y + LINE, [first], bold=True, **centre)
        + text(cell.x, cell.y + 2 * LINE, rest, **centre)
        + text(cell.x, cell.y + cell.box_height + LINE - 3, cell.shape, colour="#7a1f1f", **centre)
    )


def rect(x, y, width, height, fill, stroke, radius, dash="") -> str:
    """SVG of a rectangle with rounded corners."""
    extra = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius}" '
        f'fill="{fill}" stroke="{stroke}"{extra}/>'
    )


def text(x, y, lines: Iterable[str], bold=False, colour="#111", anchor="start") -> str:
    """SVG of lines of text, the first with its base at `y`."""
    weight = ' font-weight="bold"' if bold else ""
    return "".join(
        f'<text x="{x:.1f}" y="{y + i * LINE:.1f}" fill="{colour}" text-anchor="{anchor}"{weight}>'
        f"{escape(line.replace('  ', _NBSP * 2))}</text>"
        for i, line in enumerate(lines)
    )
