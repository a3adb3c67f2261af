"""A graph as a picture in the style of the paper's Figure 1: a self-contained SVG.

The kernel graph's tensors stand above and below the frame of each thread-block graph; inside it are
the loaders with imap and fmap, the operators, the accumulators (orange) and the output savers with
omap. The text beneath a box is the shape of what it makes, per block and iteration. Numbers such as
%3 are those of the text form. Of several kernels, the kernel graph comes first: tensors between
kernels (grey), generated kernels, and library operators (violet), which are one box and no frame.
"""

from __future__ import annotations

from graphlib import TopologicalSorter
from html import escape

from prism.program.node import Node, Op
from prism.program.program import Program
from prism.sgraph.graph import Kernel, SGraph
from prism.sgraph.panel import CHAR, LAYER_GAP, LINE, Cell, Panel, rect, text, wrapped
from prism.sgraph.text import LIBRARY, detail, dims, maps, numbered, shapes, stages, tensor_axes

_SIGMA = "σ(T,a) = Π over p of (m[T,a,p]·d_p + 1 − m[T,a,p])"  # equation (3)


def svg(graph: SGraph, program: Program | None = None) -> str:
    """The picture, 800 px wide or more where the graph needs it; it scales down with its container.

    `program` adds the sizes of the kernel-level tensors.
    """
    axes = {name: _sized(labels, program) for name, labels in tensor_axes(graph).items()}
    several = len(graph.kernels) > 1 or any(k.library for k in graph.kernels)
    panels: list[_Kernels | _Picture] = [_Kernels(graph, axes)] if several else []
    panels += [
        _Picture(i, k, axes, _between(graph)) for i, k in enumerate(graph.kernels) if not k.library
    ]
    drawn = []
    top, width = 8.0, 800.0
    for panel in panels:
        drawn.append((top, panel))
        top += panel.height + 14
        width = max(width, panel.width + 16)
    parts = [f'<g transform="translate(8 {y:.0f})">{p.draw(width - 16)}</g>' for y, p in drawn]
    label = escape(f"sGraph of {len(graph.kernels)} kernel(s), {graph.operators} operators")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {top:.0f}" '
        f'width="{width:.0f}" style="max-width:100%;height:auto;background:#fff" role="img" '
        f"font-family=\"'DejaVu Sans Mono', Menlo, Consolas, 'Courier New', monospace\" "
        f'font-size="12"><title>{label}</title>{"".join(parts)}</svg>'
    )


def _sized(axes: tuple[str, ...], program: Program | None) -> list[str]:
    """Axes with their sizes, where the program has them."""
    sizes = program.sizes if program is not None else {}
    return [f"{a}={sizes[a]}" if isinstance(sizes.get(a), int) else a for a in axes]


def _between(graph: SGraph) -> frozenset[str]:
    """Tensors that one kernel writes and another reads."""
    made = {name for kernel in graph.kernels for name in kernel.writes}
    return frozenset(name for kernel in graph.kernels for name in kernel.reads if name in made)


def _tensor_cell(name: str, axes: list[str], between: frozenset[str]) -> Cell:
    return Cell("between" if name in between else "tensor", [name], wrapped(axes))


def _longest_paths(panel: Panel, late: frozenset = frozenset()) -> dict[object, int]:
    """Layers of a panel's cells; those in `late` stand below all others."""
    above: dict[object, list] = {key: [] for key in panel.cells}
    for source, target in panel.edges:
        above[target].append(source)
    order = list(TopologicalSorter(above).static_order())
    layer: dict[object, int] = {}
    floor = 0
    for part in (False, True):
        for key in order:
            if (key in late) == part:
                layer[key] = max([floor, *(layer[p] + 1 for p in above[key])])
        floor = max(layer.values()) + 1
    return {key: layer[key] for key in panel.cells}


class _Kernels(Panel):
    """The kernel graph: tensors and kernels, from the program's inputs to its outputs."""

    def __init__(self, graph: SGraph, axes: dict[str, list[str]]):
        super().__init__()
        self.library = any(kernel.library for kernel in graph.kernels)
        made = {name for kernel in graph.kernels for name in kernel.writes}
        between = _between(graph)
        for name, labels in axes.items():
            self.cells[name] = _tensor_cell(name, labels, between)
        for number, kernel in enumerate(graph.kernels):
            self.cells[number] = _kernel_cell(number, kernel)
            self.edges += [(name, number) for name in kernel.reads]
            self.edges += [(number, name) for name in kernel.writes]
        layer = _longest_paths(self)
        for source in axes.keys() - made:  # an input stands just above its first reader
            layer[source] = min(layer[k] for s, k in self.edges if s == source) - 1
        self.lay(layer, 20)
        y = 36.0
        for level in range(max(layer.values()) + 1):
            self.row(level, y)
            y = self.bottom[level] + LAYER_GAP
        self.height = y - LAYER_GAP + (34 if self.library else 14)

    def draw(self, width: float) -> str:
        """SVG elements of the kernel graph in a frame of the given width."""
        parts = [
            rect(0, 0, width, self.height, "#fff", "#333", 6),
            text(12, 20, ["Kernel graph"], bold=True),
            self.graph((width - self.width) / 2),
        ]
        if self.library:
            parts.append(text(12, self.height - 12, [LIBRARY], colour="#555"))
        return "".join(parts)


def _kernel_cell(number: int, kernel: Kernel) -> Cell:
    if kernel.library:
        operator = kernel.operator
        lines = [f"kernel {number}: library", f"{_title(operator)} {detail(operator)}".strip()]
        return Cell("library", lines, [])
    lines = [f"kernel {number}: generated", *_braced("grid_dim: ", kernel.block.grid)]
    if kernel.block.loop:
        lines.append(f"forloop_dim: {dims((kernel.block.loop,))}")
    lines += [f"{axis} = d_{par}, fresh" for axis, par in kernel.fresh.items()]
    return Cell("kernel", lines, [])


class _Picture(Panel):
    """The layout of one kernel: layers of cells from input tensors to output tensors."""

    def __init__(
        self, number: int, kernel: Kernel, axes: dict[str, list[str]], between: frozenset[str]
    ):
        super().__init__()
        self.number, self.kernel, self.axes, self.between = number, kernel, axes, between
        self.stages = stages(kernel)
        self.head, self.loop_note = self._notes()
        # The left column holds the names of frames and stages; no edge ever enters it.
        names = [*self.head, *self.loop_note, "Kernel graph, kernel 00"]
        self._make_cells()
        self.lay(self._layers(), 36 + max(map(len, names)) * CHAR)
        self._rows()

    def _notes(self) -> tuple[list[str], list[str]]:
        block = self.kernel.block
        head = ["ThreadBlock graph", *_braced("grid_dim: ", block.grid)]
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
                self._tensor(("in", node.arg))
                self.edges.append((("in", node.arg), node))
            if node.op in (Op.LOAD, Op.SAVE):
                for name, _ in maps(self.kernel, node):
                    lines += self._map(node, name)
            elif node.op in (Op.SUB, Op.DIV):
                sign = "-" if node.op is Op.SUB else "/"
                lines.append(f"%{number[node.src[0]]} {sign} %{number[node.src[1]]}")
            elif detail(node):
                lines.append(detail(node))
            below = wrapped(e.replace("sigma", "σ").replace("*", "·") for e in shape[node])
            self.cells[node] = Cell(kind or "operator", lines, below, node in before)
            self.edges += [(source, node) for source in node.src]
            if node.op is Op.SAVE:
                self._tensor(("out", node.arg))
                self.edges.append((node, ("out", node.arg)))

    def _tensor(self, key: tuple[str, str]) -> None:
        self.cells[key] = _tensor_cell(key[1], self.axes[key[1]], self.between)

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
        layer = _longest_paths(self, frozenset(after))
        last = max(layer.values())
        return layer | {key: last for key in self.cells if _out(key)}

    def _rows(self) -> None:
        """Vertical positions: every layer as high as its highest cell, frames in between."""
        last = max(self.layer.values())
        inside = [n for k, ns in self.stages.items() if k != "after the loop" for n in ns]
        self.loop_end = max(self.layer[n] for n in inside)
        y = 26.0
        for level in range(last + 1):
            self.row(level, y)
            if level == self.loop_end:  # the notes beside the loop need their room too
                notes = len(self.head) + len(self.loop_note) + 1
                self.bottom[level] = max(self.bottom[level], self.top[1] + notes * LINE)
            y = self.bottom[level] + LAYER_GAP
        self.frame = (self.bottom[0] + LAYER_GAP / 2, self.top[last] - LAYER_GAP / 2)
        self.height = self.bottom[last] + (14 if self.kernel.mapping else 34)

    # Drawing ------------------------------------------------------------------------------

    def draw(self, width: float) -> str:
        """SVG elements of the kernel in a frame of the given width."""
        frame_top, frame_bottom = self.frame
        block = self.kernel.block
        parts = [
            rect(0, 0, width, self.height, "#fff", "#333", 6),
            rect(10, frame_top, width - 20, frame_bottom - frame_top, "#fff", "#888", 4, "6 4"),
            text(12, 20, [f"Kernel graph, kernel {self.number}"], bold=True),
        ]
        if block.loop:
            low = self.bottom[self.loop_end] + LAYER_GAP / 2
            parts.append(
                rect(14, frame_top + 4, width - 28, low - frame_top - 4, "#f3f6fa", "none", 3)
            )
            note_top = low - 10 - LINE * (len(self.loop_note) - 1)
            parts.append(text(20, note_top, self.loop_note, colour="#555"))
            parts.append(text(20, low + 18, ["after the loop"], colour="#555"))
        parts.append(text(20, frame_top + 22, self.head, bold=True))
        if self.kernel.mapping is None:
            parts.append(text(20, self.height - 12, [_SIGMA], colour="#555"))
        return "".join([*parts, self.graph((width - self.width) / 2)])


def _out(key: object) -> bool:
    return isinstance(key, tuple) and key[0] == "out"


def _title(node: Node) -> str:
    names = {Op.LOAD: "Input Loader", Op.SAVE: "Output Saver", Op.SILU: "SiLU", Op.GELU: "GELU"}
    return names.get(node.op, node.op.value.capitalize())


def _braced(name: str, pars: tuple[str, ...]) -> list[str]:
    """`grid_dim: {x=d_x}` on one line, or one entry a line where there are several."""
    entries = [f"{p}=d_{p}" for p in pars]
    if len(entries) < 2:
        return [f"{name}{{{', '.join(entries)}}}"]
    pad = " " * (len(name) + 1)
    first, *rest = [e + ("," if e is not entries[-1] else "}") for e in entries]
    return [f"{name}{{{first}", *(pad + r for r in rest)]
