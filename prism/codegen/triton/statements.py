"""Triton of each tile statement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from prism.codegen import tile as t
from prism.codegen.triton.axes import Axes
from prism.codegen.triton.products import IEEE, TF32, product_type
from prism.codegen.triton.spelling import (
    COMBINE,
    IDENTITY,
    REDUCE,
    TYPE,
    bare,
    expression,
    placed,
)
from prism.instantiate.spans import Span

LINE = 92  # letters


class Statements:
    """Prints the statements of one kernel. Index vectors are called o_NAME, masks m_NAME."""

    def __init__(self, program: t.TileProgram, kernel: t.TileKernel, axes: Axes):
        self.program, self.kernel, self.axes = program, kernel, axes
        self.strides = stride_names(program, kernel)
        self.in_body = False

    def print(self, statement: t.Statement) -> list[str]:
        """Lines of Triton."""
        return getattr(self, f"_{type(statement).__name__.lower()}")(statement)

    # Operands -----------------------------------------------------------------------------

    def _spans(self, name: str) -> tuple[Span, ...]:
        """The dimensions in which a view or buffer is held."""
        value = self.kernel.views.get(name) or self.kernel.buffers[name]
        return self.axes.held(value.spans)

    def _stored_as(self, name: str) -> str:
        """The dtype in which a value is held in registers."""
        view = self.kernel.views.get(name)
        return self.program.tensors[view.tensor].dtype if view else "fp32"

    def _value(self, name: str, want: Sequence[Span]) -> str:
        """A view or buffer in fp32, as it broadcasts against the dimensions `want`."""
        text = name if self._stored_as(name) == "fp32" else f"{name}.to(tl.float32)"
        return placed(text, self._spans(name), want)

    def _expression(self, expr: t.Expr, want: Sequence[Span]) -> str:
        return expression(expr, {name: self._value(name, want) for name in t.refs(expr)})

    def _mask(self, spans: Iterable[Span], want: Sequence[Span]) -> str:
        """Which elements are there, or an empty string when all are."""
        found = self.axes.masked(spans)
        masks = [placed(f"m{self.axes.by_span[s].name}", [s], want) for s in found]
        return " & ".join(masks)

    def _kept(self, text: str, spans: Iterable[Span], want: Sequence[Span], other: str) -> str:
        """`text` with `other` where an element is not there."""
        mask = self._mask(spans, want)
        return f"tl.where({mask}, {bare(text)}, {other})" if mask else text

    def _shape(self, spans: Iterable[Span]) -> str:
        found = self.axes.shape(spans)
        return f"({found[0]},)" if len(found) == 1 else str(found)

    # Memory -------------------------------------------------------------------------------

    def _pointer(self, view: t.View) -> str:
        """Pointers to the elements of a tile: 64-bit, whatever the strides."""
        held = self._spans(view.name)
        parts = [f"g_{view.tensor}"]
        for span in view.spans:
            stride = self.strides[view.tensor, span.axis]
            if span.grid is not None:
                parts.append(f"p_{span.grid} * {span.tile} * {stride}")
            if span.step is not None and self.in_body:
                parts.append(f"i * {span.step} * {stride}")
        for span in held:
            index = f"o{self.axes.by_span[span].name}"
            parts.append(f"{placed(index, [span], held)} * {self.strides[view.tensor, span.axis]}")
        return " + ".join(parts).replace(" * 1 * ", " * ")

    def _causal(self, view: t.View) -> str:
        """A mask's tile: 0 where the key is not behind the query's own, in no memory."""
        held, shift = self._spans(view.name), self.program.tensors[view.tensor].shift
        ends = []
        for span in view.spans:
            parts = [] if span.grid is None else [f"p_{span.grid} * {span.tile}"]
            if span.step is not None and self.in_body:
                parts.append(f"i * {span.step}")
            if span in held:
                parts.append(placed(f"o{self.axes.by_span[span].name}", [span], held))
            ends.append(parts)
        query, key = (" + ".join(parts) for parts in ends)
        if not query and not key:  # of one element
            value = "0.0" if shift >= 0 else IDENTITY["max"]
            return f"{view.name} = tl.full((), {value}, tl.float32)"
        query = f"{query} + {shift}" if query and shift else query or str(shift)
        return f"{view.name} = tl.where({query} >= {key or 0}, 0.0, {IDENTITY['max']})"

    def _load(self, s: t.Load) -> list[str]:
        view = self.kernel.views[s.view]
        self.axes.shape(view.spans)
        if self.program.is_mask(view):
            return [self._causal(view)]
        mask = self._mask(view.spans, self._spans(s.view))
        rest = [f"mask={mask}", "other=0.0"] if mask else []
        return _call(f"{s.view} = tl.load", self._pointer(view), *rest)

    def _store(self, s: t.Store) -> list[str]:
        view = self.kernel.views[s.view]
        held = self._spans(s.view)
        dtype = TYPE[self.program.tensors[view.tensor].dtype]
        value = self._expression(s.expr, held)
        mask = self._mask(view.spans, held)
        rest = [f"mask={mask}"] if mask else []
        value = value if dtype == "tl.float32" else f"{value}.to({dtype})"
        return _call("tl.store", self._pointer(view), bare(value), *rest)

    # Buffers ------------------------------------------------------------------------------

    def _fill(self, s: t.Fill) -> list[str]:
        spans = self.kernel.buffers[s.buffer].spans
        value = {0.0: "0.0"}.get(s.value, IDENTITY["max"])
        return [f"{s.buffer} = tl.full({self._shape(spans)}, {value}, tl.float32)"]

    def _write(self, out: t.Target, value: str, held: Sequence[Span], kind: str | None) -> str:
        """The assignment of `value`, held in dimensions `held`, to a buffer.

        With a `kind` it is combined with what is there, but for elements that this iteration does
        not have.
        """
        name, want = out.buffer, self._spans(out.buffer)
        if out.at is not None:
            return f"{name} = {self._chunk(out, value, held)}"
        value = placed(value, held, want)
        if kind is None:
            return f"{name} = {bare(value)}"
        value = COMBINE[kind].format(name, value)
        changing = [s for s in want if self.axes.by_span[s].in_loop]
        if self.in_body and changing:
            value = f"tl.where({self._mask(changing, want)}, {value}, {name})"
        return f"{name} = {value}"

    def _chunk(self, out: t.Target, value: str, held: Sequence[Span]) -> str:
        """The buffer with this iteration's chunk replaced by `value`."""
        want = self._spans(out.buffer)
        if out.at.whole not in want:  # an axis of one element
            return placed(value, held, want)
        whole = self.axes.by_span[out.at.whole]
        where = f"(tl.arange(0, {whole.size}) // {whole.chunk} == i)"
        where = placed(where, [out.at.whole], want)
        here = [out.at if s == out.at.whole else s for s in want]
        value = placed(value, held, [s for s in here if s in held])
        lead = [":" for _ in here]
        at = want.index(out.at.whole)
        lead[at] = "None, :" if out.at in held else "None, None"
        for position, span in enumerate(here):
            if span not in held and span is not out.at:
                lead[position] = "None"
        sizes = [self.axes.by_span[s].size for s in want]
        wide = [*sizes[:at], whole.size // whole.chunk, whole.chunk, *sizes[at + 1 :]]
        spread = f"tl.broadcast_to({value}[{', '.join(lead)}], {tuple(wide)})"
        return f"tl.where({where}, tl.reshape({spread}, {self._shape(want)}), {out.buffer})"

    def _chain(self, s: t.Chain) -> list[str]:
        held = self.axes.held(s.spans)
        self.axes.shape(held)
        value = self._expression(s.expr, held)
        return [self._write(s.out, value, held, None)]

    def _merge(self, s: t.Merge) -> list[str]:
        held = self.axes.held(s.spans)
        return [self._write(s.out, self._expression(s.expr, held), held, s.kind)]

    def _reduce(self, s: t.Reduce) -> list[str]:
        want = self._reduced_in(s)
        self.axes.shape(want)
        value = self._expression(s.expr, want)
        held = [x for x in want if x != s.axis]
        if s.axis in want:
            value = self._kept(value, [s.axis], want, IDENTITY[s.kind])
            value = REDUCE[s.kind].format(bare(value), want.index(s.axis))
        return [self._write(s.out, value, held, s.kind if s.accumulate else None)]

    def _reduced_in(self, s: t.Reduce) -> list[Span]:
        """The dimensions in which a reduction is computed: as its widest operand is held."""
        names = list(t.refs(s.expr))
        widest = max(names, key=lambda n: prod(self.axes.shape(self._spans(n))))
        order = [*self._spans(widest), *(x for name in names for x in self._spans(name))]
        return list(dict.fromkeys(order))

    # Contractions -------------------------------------------------------------------------

    def _contract(self, s: t.Contract) -> list[str]:
        kind = "sum" if s.accumulate else None
        batch, rows, cols, inner = (
            list(self.axes.held(x)) for x in (s.batch, s.rows, s.cols, [s.inner])
        )
        result = [*batch, *rows, *cols]
        if not self.axes.is_dot(s):
            want = [*batch, *rows, *inner, *cols]
            self.axes.shape(want)
            a, b = self._value(s.a, want), self._value(s.b, want)
            value = f"({a} * {b})"
            if inner:
                value = bare(self._kept(value, inner, want, "0.0"))
                value = f"tl.sum({value}, {want.index(s.inner)})"
            return [self._write(s.out, value, result, kind)]
        self.axes.shape(result)
        kind_of = product_type(self.program, self.kernel, s)
        dtype = "fp32" if kind_of in (IEEE, TF32) else kind_of
        precision = f', input_precision="{kind_of}"' if dtype == "fp32" else ""
        a = self._matrix(s.a, batch, rows, inner, inner, dtype)
        b = self._matrix(s.b, batch, inner, cols, inner, dtype)
        flat = len(rows) == len(cols) == 1 and len(batch) <= 1
        straight = flat and kind and s.out.at is None and self._spans(s.out.buffer) == tuple(result)
        if straight and not (self.in_body and any(self.axes.by_span[x].in_loop for x in result)):
            return [f"{s.out.buffer} = tl.dot({a}, {b}, {s.out.buffer}{precision})"]
        value = f"tl.dot({a}, {b}{precision})"
        if not flat:
            value = f"tl.reshape({value}, {self._shape(result)})"
        return [self._write(s.out, value, result, kind)]

    def _matrix(
        self, name: str, batch: list, first: list, second: list, inner: list, dtype: str
    ) -> str:
        """An operand of tl.dot: [batch,] first, second; zero where there is no product."""
        want = [*batch, *first, *second]
        text = placed(name, self._spans(name), want)
        if name in self.kernel.buffers:  # loads are zero there already
            text = self._kept(text, inner, want, "0.0")
        if self._stored_as(name) != dtype:
            text = f"{text}.to({TYPE[dtype]})"
        sizes = [prod(self.axes.shape(group)) for group in (batch, first, second)]
        if len(first) == len(second) == 1 and len(batch) <= 1:
            return text
        return f"tl.reshape({text}, {tuple(sizes if batch else sizes[1:])})"


def stride_names(program: t.TileProgram, kernel: t.TileKernel) -> dict[tuple[str, str], str]:
    """By tensor and axis, in the order of the arguments, the one that holds the stride."""
    found: dict[tuple[str, str], str] = {}
    for view in program.touched(kernel):
        for axis in program.tensors[view.tensor].axes:
            name = f"s_{view.tensor}_{axis}"
            while name in found.values():  # tensor a, axis b_c and tensor a_b, axis c
                name += "_"
            found[view.tensor, axis] = name
    return found


def _call(function: str, *args: str) -> list[str]:
    """A call, in a line an argument where it is long."""
    text = f"{function}({', '.join(args)})"
    if len(text) <= LINE:
        return [text]
    return [f"{function}(", *(f"    {arg}," for arg in args), ")"]
