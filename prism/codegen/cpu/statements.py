"""C++ of each tile statement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from prism.codegen import tile as t
from prism.codegen.cpu.loops import ForLoop, at, nest, wrap
from prism.codegen.cpu.spelling import CTYPE, expression, extent, number, summary, total
from prism.instantiate.spans import Span

_COMBINE = {"sum": "{0} + {1}", "max": "prism::max({0}, {1})"}
_OUT = "(out)"  # the operand name of a statement's destination; no identifier


class Statements:
    """Prints the statements of one kernel."""

    def __init__(self, program: t.TileProgram, kernel: t.TileKernel):
        self.program, self.kernel = program, kernel

    def print(self, statement: t.Statement) -> list[str]:
        """Lines of C++."""
        return getattr(self, f"_{type(statement).__name__.lower()}")(statement)

    # Operands -----------------------------------------------------------------------------

    def _strides(self, name: str) -> dict[str, int]:
        """Strides by axis of a view or buffer."""
        if name in self.kernel.buffers:
            return self.kernel.buffers[name].strides
        if self._is_mask(name):
            query, key = self.kernel.views[name].spans
            return {query.axis: 1, key.axis: -1}  # of how far a key is behind a query
        return self.program.tensors[self.kernel.views[name].tensor].strides

    def _is_mask(self, name: str) -> bool:
        return name in self.kernel.views and self.program.is_mask(self.kernel.views[name])

    def _base(self, target: t.Target) -> str:
        """The destination's first element, as a pointer that can be indexed."""
        if target.at is None:
            return target.buffer
        stride = target.at.step * self._strides(target.buffer)[target.at.axis]
        return f"({target.buffer} + it * {stride})"

    def _operands(self, expr: t.Expr, out: str) -> dict[str, dict[str, int]]:
        operands = {_OUT: self._strides(out)}
        return operands | {name: self._strides(name) for name in t.refs(expr)}

    def _value(self, expr: t.Expr, loops: Iterable[ForLoop]) -> str:
        """The expression's element inside the loops, as a float."""
        loops = list(loops)
        elements = {}
        for name in t.refs(expr):
            if self._is_mask(name):
                elements[name] = f"prism::causal({name} + {at(name, loops)})"
                continue
            element = f"{name}[{at(name, loops)}]"
            in_memory = name in self.kernel.views
            elements[name] = f"prism::to_float({element})" if in_memory else element
        return expression(expr, elements)

    def _widest(self, expr: t.Expr) -> str:
        def size(name: str) -> int:
            value = self.kernel.buffers.get(name) or self.kernel.views[name]
            return math.prod(s.extent for s in value.spans)

        return max(t.refs(expr), key=size)

    # Statements ---------------------------------------------------------------------------

    def _load(self, s: t.Load) -> list[str]:
        if self._is_mask(s.view):
            return [self._behind(s.view)]
        return [self.pointer(s.view, const=True)]

    def _first(self, view: t.View, strides: Mapping[str, int]) -> str:
        """The index of a view's first element in its tensor; "0" when it is the tensor's."""
        terms: list[tuple[str, int]] = []
        for span in view.spans:
            stride = strides[span.axis]
            if span.grid is not None:
                terms.append((f"p_{span.grid}", span.tile * stride))
            if span.step is not None:
                terms.append(("it", span.step * stride))
        return total(terms)

    def _behind(self, name: str) -> str:
        """The declaration of a mask's view: how far its first key is behind its first query."""
        view = self.kernel.views[name]
        first, shift = (
            self._first(view, self._strides(name)),
            self.program.tensors[view.tensor].shift,
        )
        return f"const long {name} = {first if not shift else f'{first} + {shift}'};"

    def pointer(self, name: str, const: bool) -> str:
        """The declaration of a view: a pointer to its first element."""
        view = self.kernel.views[name]
        tensor = self.program.tensors[view.tensor]
        first = self._first(view, tensor.strides)
        base = f"g_{view.tensor}" + (f" + {first}" if first != "0" else "")
        kind = ("const " if const else "") + CTYPE[tensor.dtype]
        return f"{kind}* {name} = {base};"

    def _fill(self, s: t.Fill) -> list[str]:
        size = self.kernel.buffers[s.buffer].size
        return [f"std::fill_n({s.buffer}, {size}, {number(s.value)});"]

    def _chain(self, s: t.Chain) -> list[str]:
        return self._elementwise(s.out, s.expr, s.spans, None)

    def _merge(self, s: t.Merge) -> list[str]:
        return self._elementwise(s.out, s.expr, s.spans, s.kind)

    def _elementwise(
        self, out: t.Target, expr: t.Expr, spans: tuple[Span, ...], kind: str | None
    ) -> list[str]:
        loops = nest(spans, self._operands(expr, out.buffer))
        element = f"{self._base(out)}[{at(_OUT, loops)}]"
        value = self._value(expr, loops)
        if kind is not None:
            value = _COMBINE[kind].format(element, value)
        head = f"// {out.buffer} {_sign(kind)} {summary(expr)}"
        return [head, *wrap(loops, [f"{element} = {value};"], simd=True)]

    def _store(self, s: t.Store) -> list[str]:
        tensor = self.program.tensors[self.kernel.views[s.view].tensor]
        loops = nest(s.spans, self._operands(s.expr, s.view))
        value = self._value(s.expr, loops)
        body = f"{s.view}[{at(_OUT, loops)}] = prism::from_float<{CTYPE[tensor.dtype]}>({value});"
        head = f"// {s.view} = {summary(s.expr)}"
        return [head, self.pointer(s.view, const=False), *wrap(loops, [body], simd=True)]

    def _reduce(self, s: t.Reduce) -> list[str]:
        operands = self._operands(s.expr, s.out.buffer)
        loops, inner = nest(s.spans, operands), nest([s.axis], operands)
        widest = self._widest(s.expr)
        kind = s.kind if s.accumulate else None
        head = f"// {s.out.buffer} {_sign(kind)} {s.kind}[{s.axis.axis}] {summary(s.expr)}"
        by_column = loops and inner and inner[0].strides[widest] != 1
        if by_column and loops[-1].strides[widest] == 1:
            return [head, *self._columns(s, loops, inner)]
        element = f"{self._base(s.out)}[{at(_OUT, loops)}]"
        value = self._value(s.expr, [*loops, *inner])
        if inner:
            var, n = inner[0].var, inner[0].length
            value = f"prism::reduce_{s.kind}({n}, [&](long {var}) {{ return {value}; }})"
        if s.accumulate:
            value = _COMBINE[s.kind].format(element, value)
        return [head, *wrap(loops, [f"{element} = {value};"])]

    def _columns(self, s: t.Reduce, loops: list[ForLoop], inner: list[ForLoop]) -> list[str]:
        """The reduced axis outside the contiguous one: whole rows are combined."""
        row = loops[-1]
        element = f"{self._base(s.out)}[{at(_OUT, loops)}]"
        value = self._value(s.expr, [*loops, *inner])
        step = f"{element} = {_COMBINE[s.kind].format(element, value)};"
        body = wrap(inner, wrap([row], [step], simd=True))
        if not s.accumulate:
            first = {"sum": 0.0, "max": -math.inf}[s.kind]
            body = [*wrap([row], [f"{element} = {number(first)};"], simd=True), *body]
        return wrap(loops[:-1], body)

    def _contract(self, s: t.Contract) -> list[str]:
        a, b, c = (self._strides(n) for n in (s.a, s.b, s.out.buffer))
        batch = nest(s.batch, {"a": a, "b": b, "c": c})
        rows = nest(s.rows, {"a": a, "b": {}, "c": c})
        cols = nest(s.cols, {"a": {}, "b": b, "c": c})
        row, col = (x[-1] if x else None for x in (rows, cols))
        outer = [*batch, *rows[:-1], *cols[:-1]]
        at_a, at_b, at_c = (f" + {x}" if x != "0" else "" for x in (at(n, outer) for n in "abc"))
        k, k_a, k_b = extent(s.inner), a[s.inner.axis], b[s.inner.axis]
        m, m_a, m_c = (row.length, row.strides["a"], row.strides["c"]) if row else ("1", 1, 1)
        n, n_b, n_c = (col.length, col.strides["b"], col.strides["c"]) if col else ("1", 1, 1)
        call = (
            f"prism::gemm({m}, {n}, {k}, {s.a}{at_a}, {m_a}, {k_a}, "
            f"{s.b}{at_b}, {k_b}, {n_b}, {self._base(s.out)}{at_c}, {m_c}, {n_c}, "
            f"{str(s.accumulate).lower()});"
        )
        sign = _sign("sum" if s.accumulate else None)
        head = f"// {s.out.buffer} {sign} matmul[{s.inner.axis}]({s.a}, {s.b})"
        return [head, *wrap(outer, [call])]


def _sign(kind: str | None) -> str:
    return {None: "=", "sum": "+=", "max": "max="}[kind]
