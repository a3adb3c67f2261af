"""A graph as a picture in the style of the paper's Figure 1: a self-contained SVG.

The kernel graph's tensors stand above and below the frame of each thread-block graph; inside it are
the loaders with imap and fmap, the operators, the accumulators (orange) and the output savers with
omap. The text beneath a box is the shape of what it makes, per block and iteration. Numbers such as
%3 are those of the text form.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from html import escape

from prism.program.node import Node, Op
from prism.program.program import Program
from prism.sgraph.graph import Kernel, SGraph
from prism.sgraph.layers import place
from prism.sgraph.text import detail, dims, maps, numbered, shapes, stages

_CHAR = 7.3  # advance of a 12 px monospace glyph, rounded up: text is never wider than its box
_LINE = 16.0
_NBSP = "\u00a0"  # SVG collapses ordinary leading spaces
_PAD, _LAYER_GAP, _WRAP = 8.0, 36.0, 30
_SIGMA = "σ(T,a) = Π over p of (m[T,a,p]·d_p + 1 − m[T,a,p])"  # equation (3)
_COLOUR = {  # fill, border; distinguishable in greyscale and by colour-blind readers
    "tensor": ("#ffffff", "#333333"),
    "loader": ("#dcebf7", "#2f6f9f"),
    "operator": ("#f7f7f7", "#666666"),
    "accumulator": ("#fbdcb0", "#b5651d"),
    "saver": ("#d9f0e3", "#2c7a55"),
}


@dataclass
class _Cell:
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
        self.box = longest * _CHAR + 2 * _PAD
        self.width = max(self.box, beneath * _CHAR)
        self.box_height = len(self.lines) * _LINE + _PAD
        self.height = self.box_height + len(self.shape) * _LINE


def svg(graph: SGraph, program: Program | None = None) -> str:
    """The picture, 800 px wide or more where the graph needs it; it scales down with its container.

    `program` adds the sizes of the kernel-level tensors.
    """
    drawn = []
    top, width = 8.0, 800.0
    for number, kernel in enumerate(graph.kernels):
        picture = _Picture(number, kernel, program)
        drawn.append((top, picture))
        top += picture.height + 14
        width = max(width, picture.width + 16)
    parts = [f'<g transform="translate(8 {y:.0f})">{p.draw(width - 16)}</g>' for y, p in drawn]
    label = escape(f"sGraph of {len(graph.kernels)} kernel(s), {graph.operators} operators")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {top:.0f}" '
        f'width="{width:.0f}" style="max-width:100%;height:auto;background:#fff" role="img" '
        f"font-family=\"'DejaVu Sans Mono', Menlo, Consolas, 'Courier New', monospace\" "
        f'font-size="12"><title>{label}</title>{"".join(parts)}</svg>'
    )


class _Picture:
    """The layout of one kernel: layers of cells from input tensors to output tensors."""

    def __init__(self, number: int, kernel: Kernel, program: Program | None):
        self.number, self.kernel, self.program = number, kernel, program
        self.cells: dict[object, _Cell] = {}
        self.edges: list[tuple[object, object]] = []
        self.stages = stages(kernel)
        self.head, self.loop_note = self._notes()
        # The left column holds the names of frames and stages; no edge ever enters it.
        names = [*self.head, *self.loop_note, "Kernel graph, kernel 00"]
        self.gutter = 36 + max(map(len, names)) * _CHAR
        self._make_cells()
        self.layer = self._layers()
        layout = place(self.layer, {k: c.width for k, c in self.cells.items()}, self.edges)
        for key, cell in self.cells.items():
            cell.x = layout.x[key] + self.gutter
        self.lanes = {e: [x + self.gutter for x in xs] for e, xs in layout.lanes.items()}
        right = [c.x + c.width / 2 for c in self.cells.values()]
        right += [x + 7 for xs in self.lanes.values() for x in xs]
        self.width = max(right) + 20
        self._rows()

    def _notes(self) -> tuple[list[str], list[str]]:
        block = self.kernel.block
        grid = [f"{p}=d_{p}" for p in block.grid]
        head = ["ThreadBlock graph", *_braced("grid_dim: ", grid)]
        if block.loop is None:
            return head, []
        note = [f"loop over {block.loop}"]
        if "before the loop" in self.stages:
            note += ["(dashed: once,", " before the loop)"]
        return [*head, f"forloop_dim: {dims((block.loop,))}"], note

    def _make_cells(self) -> None:
        number, shape = numbered(self.kernel), shapes(self.kernel)
        before = set(self.stages.get("before the loop", ()))
        for node in self.kernel.block.nodes:
            kind = {Op.LOAD: "loader", Op.ACCUM: "accumulator", Op.SAVE: "saver"}.get(node.op)
            lines = [f"%{number[node]} {_title(node)}"]
            if node.op is Op.LOAD:
                self._tensor(("in", node.arg), node)
                self.edges.append((("in", node.arg), node))
            if node.op in (Op.LOAD, Op.SAVE):
                for name, _ in maps(self.kernel, node):
                    lines += self._map(node, name)
            elif node.op in (Op.SUB, Op.DIV):
                sign = "-" if node.op is Op.SUB else "/"
                lines.append(f"%{number[node.src[0]]} {sign} %{number[node.src[1]]}")
            elif detail(node):
                lines.append(detail(node))
            text = [e.replace("sigma", "σ").replace("*", "·") for e in shape[node]]
            below = _wrapped(text)
            self.cells[node] = _Cell(kind or "operator", lines, below, node in before)
            self.edges += [(source, node) for source in node.src]
            if node.op is Op.SAVE:
                self._tensor(("out", node.arg), node)
                self.edges.append((node, ("out", node.arg)))

    def _tensor(self, key: tuple[str, str], node: Node) -> None:
        sizes = self.program.sizes if self.program is not None else {}
        text = [f"{a}={sizes[a]}" if isinstance(sizes.get(a), int) else a for a in node.axes]
        self.cells[key] = _Cell("tensor", [node.arg], _wrapped(text))

    def _map(self, node: Node, name: str) -> list[str]:
        if self.kernel.mapping is not None:
            entries = dict(maps(self.kernel, node))[name]
            arrows = ["↔".join(reversed(entry.split(":"))) for entry in entries]
            return [f"{name}: {{{', '.join(arrows) or '∅'}}}"]
        pars = (self.kernel.block.loop,) if name == "fmap" else self.kernel.block.grid
        return [f"{name}: m[{node.arg},{'|'.join(node.axes)},{p}]" for p in pars]

    def _layers(self) -> dict[object, int]:
        """Longest paths; everything after the loop stands below everything in it."""
        after = {*self.stages.get("after the loop", ()), *(k for k in self.cells if _out(k))}
        above: dict[object, list] = {key: [] for key in self.cells}
        for source, target in self.edges:
            above[target].append(source)
        order = list(TopologicalSorter(above).static_order())
        layer: dict[object, int] = {}
        floor = 0
        for late in (False, True):
            for key in order:
                if (key in after) == late:
                    layer[key] = max([floor, *(layer[p] + 1 for p in above[key])])
            floor = max(layer.values()) + 1
        last = max(layer.values())
        layer |= {key: last for key in self.cells if _out(key)}
        return {key: layer[key] for key in self.cells}

    def _rows(self) -> None:
        """Vertical positions: every layer as high as its highest cell, frames in between."""
        last = max(self.layer.values())
        inside = [n for k, ns in self.stages.items() if k != "after the loop" for n in ns]
        self.loop_end = max(self.layer[n] for n in inside)
        self.top, self.bottom = {}, {}
        y = 26.0
        for level in range(last + 1):
            cells = [c for k, c in self.cells.items() if self.layer[k] == level]
            self.top[level] = y
            for cell in cells:
                cell.y = y
            self.bottom[level] = y + max(c.height for c in cells)
            if level == self.loop_end:  # the notes beside the loop need their room too
                notes = len(self.head) + len(self.loop_note) + 1
                self.bottom[level] = max(self.bottom[level], self.top[1] + notes * _LINE)
            y = self.bottom[level] + _LAYER_GAP
        self.frame = (self.bottom[0] + _LAYER_GAP / 2, self.top[last] - _LAYER_GAP / 2)
        self.height = self.bottom[last] + (14 if self.kernel.mapping else 34)

    # Drawing ------------------------------------------------------------------------------

    def draw(self, width: float) -> str:
        """SVG elements of the kernel in a frame of the given width."""
        frame_top, frame_bottom = self.frame
        block = self.kernel.block
        parts = [
            _rect(0, 0, width, self.height, "#fff", "#333", 6),
            _rect(10, frame_top, width - 20, frame_bottom - frame_top, "#fff", "#888", 4, "6 4"),
            _text(12, 20, [f"Kernel graph, kernel {self.number}"], bold=True),
        ]
        if block.loop:
            low = self.bottom[self.loop_end] + _LAYER_GAP / 2
            parts.append(
                _rect(14, frame_top + 4, width - 28, low - frame_top - 4, "#f3f6fa", "none", 3)
            )
            note_top = low - 10 - _LINE * (len(self.loop_note) - 1)
            parts.append(_text(20, note_top, self.loop_note, colour="#555"))
            parts.append(_text(20, low + 18, ["after the loop"], colour="#555"))
        parts.append(_text(20, frame_top + 22, self.head, bold=True))
        if self.kernel.mapping is None:
            parts.append(_text(20, self.height - 12, [_SIGMA], colour="#555"))
        shift = (width - self.width) / 2
        parts.append(f'<g transform="translate({shift:.1f} 0)">')
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


def _out(key: object) -> bool:
    return isinstance(key, tuple) and key[0] == "out"


def _title(node: Node) -> str:
    names = {Op.LOAD: "Input Loader", Op.SAVE: "Output Saver", Op.SILU: "SiLU", Op.GELU: "GELU"}
    return names.get(node.op, node.op.value.capitalize())


def _braced(name: str, entries: list[str]) -> list[str]:
    """`grid_dim: {x=d_x}` on one line, or one entry a line where there are several."""
    if len(entries) < 2:
        return [f"{name}{{{', '.join(entries)}}}"]
    pad = " " * (len(name) + 1)
    first, *rest = [e + ("," if e is not entries[-1] else "}") for e in entries]
    return [f"{name}{{{first}", *(pad + r for r in rest)]


def _wrapped(entries: Iterable[str]) -> list[str]:
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


def _box(cell: _Cell) -> str:
    fill, border = _COLOUR[cell.kind]
    dash = "4 3" if cell.dashed else ""
    left = cell.x - cell.box / 2
    centre = {"anchor": "middle"}
    first, *rest = cell.lines
    return (
        _rect(left, cell.y, cell.box, cell.box_height, fill, border, 4, dash)
        + _text(cell.x, cell.y + _LINE, [first], bold=True, **centre)
        + _text(cell.x, cell.y + 2 * _LINE, rest, **centre)
        + _text(
            cell.x, cell.y + cell.box_height + _LINE - 3, cell.shape, colour="#7a1f1f", **centre
        )
    )


def _rect(x, y, width, height, fill, stroke, radius, dash="") -> str:
    extra = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius}" '
        f'fill="{fill}" stroke="{stroke}"{extra}/>'
    )


def _text(x, y, lines: Iterable[str], bold=False, colour="#111", anchor="start") -> str:
    weight = ' font-weight="bold"' if bold else ""
    return "".join(
        f'<text x="{x:.1f}" y="{y + i * _LINE:.1f}" fill="{colour}" text-anchor="{anchor}"{weight}>'
        f"{escape(line.replace('  ', _NBSP * 2))}</text>"
        for i, line in enumerate(lines)
    )
