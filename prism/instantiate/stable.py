"""Stable softmax: a pass over a verified graph that shifts exponentials by their row's maximum.

e^x becomes e^(x - m) where `program.homogeneous` says that the shift cancels. What m is depends on
what cuts a row:

- nothing: m is the row's maximum.
- the loop: m is the maximum so far, and what sums up exponentials is multiplied by e^(old m - m) in
  every iteration. Where exponentials are kept, their operands are, until the maximum is known.
- a grid dimension along which partial results are saved: m is the maximum of the block's part and
  is saved beside them. The kernel that loads them multiplies each by e^(m - maximum of all parts).

Sizes play no part, so a graph has one stable form, or none, with a reason: then another graph of
its program has. The verified graph stays what is stored, named and proved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from prism.errors import PrismError
from prism.program import Node, Op, Program
from prism.program.homogeneous import Degrees, Group, Shifts, reached, shifts
from prism.program.node import LEGAL, REDUCE, accum_kind
from prism.sgraph import BlockGraph, Kernel, MapVar, SGraph, make_mapping


class StableBlock(BlockGraph):
    """A block graph with the operators of numerics."""

    legal = LEGAL["numeric"]


@dataclass(frozen=True)
class _Partial:
    """Where the maxima are that the parts of a tensor are relative to."""

    tensor: str
    rows: tuple[str, ...]
    axis: str  # the fresh one


def kernels_of(program: Program, graph: SGraph) -> tuple[Kernel, ...]:
    """The kernels that are lowered: those of the graph, or of its stable form.

    Raises PrismError, with the reason, for a graph that has none.
    """
    if program.numerics == "paper":
        return graph.kernels
    found, reason = _stable(graph, program.outputs)
    if reason:
        raise PrismError(f"no stable form: {reason}")
    return found


def refused(program: Program, graphs: Iterable[SGraph]) -> Counter[str]:
    """How many of the graphs have no stable form, by reason."""
    return Counter(reason for graph in graphs if (reason := _why_not(program, graph)))


def stable_graphs(
    program: Program, graphs: Iterable[tuple[str, SGraph]]
) -> list[tuple[str, SGraph]]:
    """Those of the graphs, with their ids, that have a form in the program's numerics."""
    return [(name, graph) for name, graph in graphs if not _why_not(program, graph)]


def _why_not(program: Program, graph: SGraph) -> str:
    try:
        kernels_of(program, graph)
    except PrismError as error:
        return str(error)
    return ""


@lru_cache(maxsize=4096)
def _raw(outputs: tuple[tuple[str, Node], ...]) -> tuple[int, frozenset[str]]:
    """How many exponentials of a program no shift leaves alone, and the outputs they are in."""
    roots = [node for _, node in outputs]
    raw = shifts([roots]).raw
    inside = set(reached([roots], raw))
    return len(raw), frozenset(name for name, node in outputs if node in inside)


@lru_cache(maxsize=1 << 16)
def _stable(graph: SGraph, outputs: tuple[tuple[str, Node], ...]) -> tuple[tuple[Kernel, ...], str]:
    """The kernels of the stable form, or a reason."""
    if not any(n.op is Op.EXP for k in graph.kernels for n in k.block.nodes):
        return graph.kernels, ""
    savers = [kernel.block.savers for kernel in graph.kernels]
    found = shifts(savers, [name for name, _ in outputs])
    count, names = _raw(outputs)
    left = {saver.arg for saver in reached(savers, found.raw)} & {name for name, _ in outputs}
    if len(found.raw) > count or not left <= names:
        return (), "an exponential has no degree in some value"
    try:
        return tuple(_Pass(graph, found).run()), ""
    except PrismError as error:
        return (), str(error)


class _Pass:
    """All kernels of one graph."""

    def __init__(self, graph: SGraph, found: Shifts):
        self.graph, self.shifts = graph, found
        self.partial: dict[tuple[str, Group], _Partial] = {}  # by tensor and exponential
        taken = {name for kernel in graph.kernels for name in (*kernel.reads, *kernel.writes)}
        self.names = (n for n in map("maxima{}".format, range(10**6)) if n not in taken)

    def run(self) -> list[Kernel]:
        return [self._kernel(n, kernel) for n, kernel in enumerate(self.graph.kernels)]

    def _kernel(self, number: int, kernel: Kernel) -> Kernel:
        degrees = self.shifts.degrees[number]
        own = [(n, node) for n, node in self.shifts.rows if n == number]
        loads = [(node.arg, group) for node in kernel.block.loaders for group in degrees[node]]
        loaded = any(one in self.partial for one in loads)
        if not own and not loaded:
            return kernel
        if kernel.library:
            raise PrismError("a library operator would have to shift")
        return _KernelPass(self, number, kernel).run()

    def next_name(self) -> str:
        return next(self.names)


class _KernelPass:
    """One kernel: its nodes, made anew in order."""

    def __init__(self, whole: _Pass, number: int, kernel: Kernel):
        self.whole, self.number, self.kernel = whole, number, kernel
        self.degrees: Mapping[Node, Degrees] = whole.shifts.degrees[number]
        self.varying = kernel.block.varying(kernel.mapping)
        self.cuts = _cuts(kernel)
        self.new: dict[Node, Node] = {}
        self.maxima: dict[Group, Node] = {}  # by exponential of this kernel
        self.running: set[Group] = set()
        self.parts: dict[Group, str] = {}  # those relative to a block's part: the dimension
        self.saved: dict[Group, _Partial] = {}
        self.loaded: dict[str, set[MapVar]] = {}  # maxima of parts, and how they are cut
        self.ones: list[MapVar] = list(kernel.mapping.ones)

    def run(self) -> Kernel:
        for node in self.kernel.block.nodes:
            self.new[node] = self._make(node)
        savers = [self.new[s] for s in self.kernel.block.savers]
        savers += [self._save_maxima(group, to) for group, to in self.saved.items()]
        block = StableBlock(self.kernel.block.grid, self.kernel.block.loop, tuple(savers))
        return replace(self.kernel, block=block, mapping=make_mapping(self.ones))

    def _make(self, node: Node) -> Node:
        src = [self.new[s] for s in node.src]
        group = self.number, node
        if group in self.whole.shifts.rows:
            return Node(Op.EXP_SHIFTED, (*src, self._maximum(group, src[0])))
        if node.op is Op.LOAD:
            return self._load(node)
        if node.op is Op.ACCUM and (moving := self.degrees[node].keys() & self.running):
            return self._accumulate(node, src[0], moving)
        if node.op is Op.SAVE:
            self._check_saved(node)
        return Node(node.op, src, node.arg)

    # Maxima -------------------------------------------------------------------------------

    def _maximum(self, group: Group, x: Node) -> Node:
        """What is subtracted from the operand of an exponential; `x` is the new operand."""
        old = group[1].src[0]
        over = [a for a in old.axes if a not in self.whole.shifts.rows[group]]
        found = x
        for axis in over:
            found = Node(Op.MAX, (found,), axis)
        pars = {par for axis in over for par in self.cuts[old].get(axis, ())}
        if self.kernel.block.loop in pars:
            found = Node(Op.RUNNING, (found,), "max")
            self.running.add(group)
        if grid := sorted(pars - {self.kernel.block.loop}):
            if len(grid) > 1:
                raise PrismError(f"grid dimensions {' and '.join(grid)} both cut a row")
            self.parts[group] = grid[0]
        self.maxima[group] = found
        return found

    def _accumulate(self, node: Node, source: Node, moving: Iterable[Group]) -> Node:
        """An accumulator of exponentials whose maximum still changes."""
        (group, *more) = moving
        maximum = self.maxima[group]
        if accum_kind(node).kind == "concat":
            if node.src[0] is not group[1]:
                raise PrismError("exponentials are kept while their maximum still changes")
            kept = Node(Op.ACCUM, source.src[:1], node.arg)  # not yet exponentials
            return Node(Op.EXP_SHIFTED, (kept, Node(Op.ACCUM, (maximum,), "last")))
        if more or self.degrees[node][group] != 1:
            raise PrismError("a power of an exponential is accumulated")
        factor = Node(Op.RESCALE, (Node(Op.BEFORE, (maximum,)), maximum))
        return Node(Op.ACCUM, (source, factor), node.arg)

    # Partial results ----------------------------------------------------------------------

    def _check_saved(self, saver: Node) -> None:
        """A value that is relative to a part's maximum needs an axis that numbers the parts."""
        for group in self.degrees[saver].keys() & self.parts.keys():
            axes = self.kernel.tensor_axes(saver)[len(saver.axes) :]
            if [self.kernel.fresh[axis] for axis in axes] != [self.parts[group]]:
                raise PrismError("exponentials of one row are saved by several blocks")
            if group not in self.saved:
                rows = self.whole.shifts.rows[group]
                self.saved[group] = _Partial(self.whole.next_name(), rows, axes[0])
            self.whole.partial[saver.arg, group] = self.saved[group]

    def _save_maxima(self, group: Group, to: _Partial) -> Node:
        """The saver of the maxima of the parts, and where blocks put them."""
        value, old, loop = self.maxima[group], group[1].src[0], self.kernel.block.loop
        if group in self.running:
            value = Node(Op.ACCUM, (value,), "last")
        elif old in self.varying:
            cut = [axis for axis in to.rows if loop in self.cuts[old].get(axis, ())]
            if len(cut) != 1:
                raise PrismError("the loop cuts no axis of the rows whose maxima are saved")
            value = Node(Op.ACCUM, (value,), f"concat:{cut[0]}")
        for axis in to.rows:
            pars = self.cuts[old].get(axis, frozenset()) - {loop}
            self.ones += [MapVar(to.tensor, axis, par) for par in pars]
        self.ones.append(MapVar(to.tensor, to.axis, self.parts[group]))
        return Node(Op.SAVE, (value,), to.tensor)

    def _load(self, node: Node) -> Node:
        """A loaded tensor; its parts relative to the maximum over all of them."""
        value = node
        for group, degree in self.degrees[node].items():
            part = self.whole.partial.get((node.arg, group))
            if part is None:
                continue
            if degree != 1:
                raise PrismError("a power of an exponential is saved in parts")
            cut = [v for v in self.kernel.mapping.ones if v.tensor == node.arg]
            if part.axis not in node.axes or any(v.axis == part.axis for v in cut):
                raise PrismError("parts of a row are not loaded together")
            maxima = Node(Op.LOAD, (), part.tensor, (part.axis, *part.rows))
            ones = {MapVar(part.tensor, v.axis, v.par) for v in cut if v.axis in part.rows}
            if self.loaded.setdefault(part.tensor, ones) != ones:
                raise PrismError("what is in parts is cut in two ways")
            self.ones += ones
            most = Node(Op.MAX, (maxima,), part.axis)
            value = Node(Op.MUL, (value, Node(Op.RESCALE, (maxima, most))))
        return value


def _cuts(kernel: Kernel) -> dict[Node, dict[str, frozenset[str]]]:
    """The parallel dimensions that cut each axis of each value, where any do."""
    found: dict[Node, dict[str, frozenset[str]]] = {}
    for node in kernel.block.nodes:
        if node.op is Op.LOAD:
            pars = {a: frozenset(kernel.mapping.pars(node.arg, a)) for a in node.axes}
            found[node] = {axis: cut for axis, cut in pars.items() if cut}
            continue
        joined: dict[str, frozenset[str]] = {}
        for source in node.src:
            for axis, cut in found[source].items():
                joined[axis] = joined.get(axis, frozenset()) | cut
        gone = {node.arg} if node.op in REDUCE or node.op is Op.MATMUL else set()
        kept = {a: cut for a, cut in joined.items() if a not in gone}
        if node.op is Op.ACCUM:
            axis = accum_kind(node).axis
            kept = {a: cut - {kernel.block.loop} if a == axis else cut for a, cut in kept.items()}
        found[node] = kept
    return found
