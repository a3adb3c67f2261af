"""Lowering: from a concrete graph to a tile program.

Every decision that is not spelling is made here: which values have buffers and in which layout,
what is fused into what, what is hoisted out of the loop, which operand of a matmul is streamed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from prism.codegen.errors import LoweringError
from prism.codegen.memory import tensors_of
from prism.codegen.tile import (
    Buffer,
    Call,
    Chain,
    Contract,
    Expr,
    Fill,
    Load,
    Loop,
    Merge,
    Reduce,
    Ref,
    Statement,
    Store,
    Target,
    Tensor,
    TileKernel,
    TileProgram,
    View,
    reads,
    refs,
)
from prism.errors import PrismError
from prism.instantiate.concrete import Concrete
from prism.instantiate.library import schedule
from prism.instantiate.materialize import in_place, materialized, regions, streamed
from prism.instantiate.spans import Span, ceil_div, kernel_spans
from prism.program import Node, Op, Program
from prism.program.constant import evaluate
from prism.program.node import REDUCE, WITH_CONSTANT, accum_kind
from prism.sgraph import Kernel

_IDENTITY = {"sum": 0.0, "max": -math.inf}


def lower(concrete: Concrete, library: str = "own") -> TileProgram:
    """The tile program of a concrete graph.

    `library` says what a library operator is (see Backend): one of "torch" rounds its result to
    the program's dtype, as a vendor's kernel does, one of our own keeps it in fp32.

    Raises LoweringError, with the reason, for a graph whose tiles do not fit together at these
    sizes or whose kernels do not read and write the program's tensors.
    """
    program = concrete.program
    try:
        parts = zip(concrete.bound, concrete.kernels, concrete.sizes, strict=True)
        tensors = tensors_of(concrete, library)
        kernels = tuple(_lower_kernel(*part, tensors) for part in parts)
    except LoweringError:
        raise
    except PrismError as error:
        raise LoweringError(str(error)) from None
    inputs, outputs = tuple(program.arguments), tuple(name for name, _ in program.outputs)
    options = dict(concrete.options)
    return TileProgram(program.name, tensors, inputs, outputs, kernels, options, program)


def _lower_kernel(
    program: Program, kernel: Kernel, sizes: Mapping[str, int], tensors: Mapping[str, Tensor]
) -> TileKernel:
    """One kernel; a library operator is the backend's own kernel of it, see `library`."""
    if not kernel.library:
        return _Lowering(program, kernel, sizes, tensors).run()
    own, sizes = schedule(program, kernel)
    lowered = _Lowering(program, own, sizes, tensors).run()
    return replace(lowered, operator=kernel.operator.op)


def _late(code: Iterable[Statement]) -> Iterator[Statement]:
    """The statements with every load before its first reader: what it loads is live no longer."""
    waiting: dict[str, Load] = {}
    for statement in code:
        if isinstance(statement, Load):
            waiting[statement.view] = statement
            continue
        for name in [name for name in waiting if name in reads(statement)]:
            yield waiting.pop(name)
        yield statement
    yield from waiting.values()


class _Lowering:
    """One kernel."""

    def __init__(
        self,
        program: Program,
        kernel: Kernel,
        sizes: Mapping[str, int],
        tensors: Mapping[str, Tensor],
    ):
        self.program, self.kernel, self.sizes, self.tensors = program, kernel, sizes, tensors
        self.spans: dict[Node, tuple[Span, ...]] = kernel_spans(program, kernel, sizes)
        self.where, self.buffered = regions(kernel), materialized(kernel)
        self.reuse, self.streamed = in_place(kernel), streamed(kernel)
        self.name: dict[Node, str] = {}
        self.views: dict[str, View] = {}
        self.buffers: dict[str, Buffer] = {}
        self.code: dict[str, list[Statement]] = {"pre": [], "body": [], "post": []}

    def run(self) -> TileKernel:
        for node in self.kernel.block.nodes:
            if node.op is Op.LOAD:
                self._load(node)
            elif node.op is Op.SAVE:
                self._save(node)
            elif node.op is Op.ACCUM and node not in self.streamed:
                self._accum(node)
            elif node.op is Op.RUNNING:
                self._running(node)
            elif node in self.buffered and node not in self.name:
                self._value(node)
        grid = tuple((p, self.sizes[p]) for p in self._grid_order())
        code = {region: tuple(_late(statements)) for region, statements in self.code.items()}
        return TileKernel(grid, self._loop(), self.views, self.buffers, **code)

    # Statements ---------------------------------------------------------------------------

    def _emit(self, node: Node, statement: Statement) -> None:
        self.code[self.where[node]].append(statement)

    def _view(self, node: Node, value: Node | None = None) -> str:
        """The tile of a tensor; `value` has those of its spans that it cuts itself."""
        name, tensor = f"v_{node.arg}", self.tensors[node.arg]
        spans = {s.axis: s for s in (*self.spans[node], *(self.spans[value] if value else ()))}
        self.views[name] = View(name, node.arg, tuple(spans[a] for a in tensor.axes))
        return name

    def _load(self, node: Node) -> None:
        self.name[node] = self._view(node)
        self._emit(node, Load(self.name[node]))

    def _save(self, node: Node) -> None:
        (value,) = node.src
        if value in self.streamed:
            value, region = value.src[0], "body"
            name = self._view(node, value)
        else:
            name, region = self._view(node), "post"
        self.code[region].append(Store(name, self._expr(value), self.views[name].spans))

    def _value(self, node: Node) -> None:
        if node.op is Op.MATMUL:
            self._contract(node, node)
        elif node.op in REDUCE:
            self._reduce(node, node)
        else:
            expr = self._call(node)
            if node in self.reuse:
                self.name[node] = self.name[self.reuse[node]]
                target = Target(self.name[node])
            else:
                target = self._buffer(node, self._layout(node, expr))
            self._emit(node, Chain(target, expr, self.buffers[target.buffer].spans))

    def _running(self, node: Node) -> None:
        """A running maximum, and before it changes a copy of it where one is read."""
        (source,), body = node.src, self.code["body"]
        place = len(body)
        if source in self._fused():
            self._reduce(source, node)
        else:
            expr = self._expr(source)
            target = self._buffer(node, self._layout(source, expr))
            self._emit(node, Merge(target, node.arg, expr, self.buffers[target.buffer].spans))
        before, layout = Node(Op.BEFORE, (node,)), self.buffers[self.name[node]].spans
        if before in self.buffered:
            copy = self._buffer(before, [s.axis for s in layout])
            body.insert(place, Chain(copy, Ref(self.name[node]), layout))
        self.code["pre"].append(Fill(self.name[node], _IDENTITY[node.arg]))

    def _accum(self, node: Node) -> None:
        (source, *factor) = node.src
        kind, axis = accum_kind(node)
        if kind == "last":
            self.name[node] = self.name[source]
            return
        place = len(self.code["body"])
        if source in self.name or source not in self._fused():
            expr = self._expr(source)
            target = self._buffer(node, self._layout(source, expr))
            if kind == "concat":
                self._emit(node, Chain(target, expr, self._order(target, source)))
            else:
                self._emit(node, Merge(target, kind, expr, self.buffers[target.buffer].spans))
        elif source.op is Op.MATMUL:
            self._contract(source, node)
        else:
            self._reduce(source, node)
        if kind != "concat":
            fill = Fill(self.name[node], _IDENTITY[kind])
            self.code["pre"].append(fill)
        for by in factor:
            name = self.name[node]
            if short := [s.axis for s in self.buffers[name].spans if s.step and s.ragged]:
                raise LoweringError(
                    f"accum[{node.arg}]: exponentials are summed over iterations of different "
                    f"lengths along {short[0]!r} while their maximum changes"
                )
            scaled = Call(Op.MUL, (Ref(name), self._expr(by)))
            step = Chain(Target(name), scaled, self.buffers[name].spans)
            self.code["body"].insert(place, step)

    def _fused(self) -> set[Node]:
        made = REDUCE | {Op.MATMUL}
        return {n for n in self.kernel.block.nodes if n.op in made and n not in self.buffered}

    def _contract(self, node: Node, dest: Node) -> None:
        for source in node.src:
            if source.op is Op.LOAD and self.tensors[source.arg].role == "mask":
                raise LoweringError(f"matmul: {source.arg} is a mask, which is in no memory")
        first, second = node.src
        free = [
            [s for s in self.spans[x] if s.axis not in y.axes]
            for x, y in ((first, second), (second, first))
        ]
        # The streamed operand is the one with more free elements; on a tie, one in memory.
        weight = [math.prod(s.extent for s in spans) for spans in free]
        in_memory = [x.op is Op.LOAD for x in (first, second)]
        if (weight[0], in_memory[0]) > (weight[1], in_memory[1]):
            first, second = second, first
            free.reverse()
        a, b = self.name[first], self.name[second]
        order = {s.axis: i for i, s in enumerate(self._spans_of(b))}
        lead = {s.axis: i for i, s in enumerate(self._spans_of(a))}
        rows = sorted(free[0], key=lambda s: lead[s.axis])
        cols = sorted(free[1], key=lambda s: order[s.axis])
        inner = next(s for s in self.spans[first] if s.axis == node.arg)
        batch = [s for s in self._spans_of(a) if s.axis in second.axes and s != inner]
        target = self._buffer(dest, [s.axis for s in (*batch, *rows, *cols)])
        accumulate = dest is not node and accum_kind(dest).kind == "sum"
        parts = tuple(batch), tuple(rows), tuple(cols)
        self._emit(node, Contract(target, a, b, inner, *parts, accumulate))

    def _reduce(self, node: Node, dest: Node) -> None:
        (source,) = node.src
        expr = self._expr(source)
        axis = next(s for s in self.spans[source] if s.axis == node.arg)
        layout = [a for a in self._layout(source, expr) if a != node.arg]
        target = self._buffer(dest, layout)
        accumulate = dest is not node and dest.arg.partition(":")[0] != "concat"
        spans = self._order(target, node)
        self._emit(node, Reduce(target, node.op.value, expr, axis, spans, accumulate))

    # Values -------------------------------------------------------------------------------

    def _expr(self, node: Node) -> Expr:
        return Ref(self.name[node]) if node in self.name else self._call(node)

    def _call(self, node: Node) -> Call:
        constant = evaluate(node.arg, self.program.env) if node.op in WITH_CONSTANT else None
        return Call(node.op, tuple(self._expr(s) for s in node.src), constant)

    def _buffer(self, node: Node, layout: Iterable[str]) -> Target:
        """A new buffer for the node, its axes in the order of `layout`."""
        spans = {s.axis: s for s in self.spans[node]}
        name = self.name[node] = f"t{len(self.buffers)}_{node.op.value}"
        self.buffers[name] = Buffer(name, tuple(spans[axis] for axis in layout))
        at = None
        if node.op is Op.ACCUM and accum_kind(node).kind == "concat":
            cut = {s.axis: s for s in self.spans[node.src[0]]}[accum_kind(node).axis]
            at = cut if cut.step is not None else None
        return Target(name, at)

    def _spans_of(self, name: str) -> tuple[Span, ...]:
        return (self.views.get(name) or self.buffers[name]).spans

    def _order(self, target: Target, node: Node) -> tuple[Span, ...]:
        """The node's spans in the layout order of the target."""
        spans = {s.axis: s for s in self.spans[node]}
        return tuple(spans[s.axis] for s in self.buffers[target.buffer].spans)

    def _layout(self, node: Node, expr: Expr) -> list[str]:
        """The axis order of the widest value that an expression reads, and what else there is."""
        size = {name: math.prod(s.extent for s in self._spans_of(name)) for name in refs(expr)}
        widest = max(size, key=size.get)
        order = [s.axis for s in self._spans_of(widest)]
        return [a for a in node.axes if a not in order] + order

    # The grid and the loop ----------------------------------------------------------------

    def _grid_order(self) -> list[str]:
        """Grid dimensions, the one that cuts the most memory outermost.

        So neighbouring blocks differ in what is small and find the large tiles in the cache.
        """

        def cut(par: str) -> int:
            tensors = (self.tensors[name] for name in self.kernel.reads)
            read = (t for t in tensors if t.role != "mask")
            mapped = self.kernel.mapping
            return sum(math.prod(t.shape) for t in read if mapped.axis(t.name, par))

        return sorted(self.kernel.block.grid, key=cut, reverse=True)

    def _loop(self) -> Loop | None:
        par = self.kernel.block.loop
        if par is None:
            return None
        cut = {s for spans in self.spans.values() for s in spans if s.step is not None}
        shapes = {(s.size, s.grid, s.tile, s.step) for s in cut}
        ragged = [s for s in cut if ceil_div(s.last, s.step) != self.sizes[par]]
        if len(shapes) > 1 and ragged:
            axes = sorted({s.axis for s in cut})
            raise LoweringError(f"loop {par}: blocks run different numbers of it along {axes}")
        return Loop(par, self.sizes[par], min(ragged, key=lambda s: s.axis) if ragged else None)
