"""The tile program: what every backend prints and the interpreter runs.

A kernel is a grid of independent blocks. A block runs `pre`, then `body` once an iteration of its
loop, then `post`. Values are views (tiles of tensors in memory, in the tensor's dtype) and buffers
(fp32, private to a block). Statements read both by name and write buffers, except Store. All
classes are immutable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from prism.instantiate.spans import Span, ceil_div
from prism.program import Op, Program


@dataclass(frozen=True)
class Tensor:
    """A tensor in memory, row-major in the order of `axes`. `role`: input, output or temp.

    Or, of role mask, one that is in no memory: with axes (query, key) it is 0 where a query sees a
    key, which query i does with key j where j <= i + shift, and -infinity elsewhere.
    """

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    role: str
    shift: int = 0

    @property
    def strides(self) -> dict[str, int]:
        """Elements between neighbours along each axis."""
        return _strides(self.axes, self.shape)


@dataclass(frozen=True)
class View:
    """The tile of a tensor that a block (or an iteration) sees."""

    name: str
    tensor: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Buffer:
    """An fp32 scratch array; `spans` in layout order, the last contiguous, extents the largest."""

    name: str
    spans: tuple[Span, ...]

    @property
    def size(self) -> int:
        """Elements."""
        return prod(s.extent for s in self.spans)

    @property
    def strides(self) -> dict[str, int]:
        """Elements between neighbours along each axis."""
        return _strides([s.axis for s in self.spans], [s.extent for s in self.spans])


def _strides(axes, shape) -> dict[str, int]:
    found, step = {}, 1
    for axis, extent in zip(reversed(axes), reversed(shape), strict=True):
        found[axis] = step
        step *= extent
    return found


# Expressions: the thread graph, one fused elementwise chain ----------------------------------


@dataclass(frozen=True)
class Ref:
    """An element of a view or a buffer, at the indices of the enclosing loops."""

    name: str


@dataclass(frozen=True)
class Call:
    """An elementwise operator; `constant` is the number of SCALE and SHIFT."""

    op: Op
    args: tuple[Expr, ...]
    constant: float | None = None


Expr = Ref | Call


def refs(expr: Expr) -> Iterator[str]:
    """Names that an expression reads, in order, repeated as often as read."""
    if isinstance(expr, Ref):
        yield expr.name
    else:
        for arg in expr.args:
            yield from refs(arg)


# Statements ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """Where a statement writes. `at` is the loop-cut axis whose slice of this iteration it is."""

    buffer: str
    at: Span | None = None


@dataclass(frozen=True)
class Load:
    """Makes a view readable from here on, in place and without a copy."""

    view: str


@dataclass(frozen=True)
class Fill:
    """buffer = value, over its largest extents."""

    buffer: str
    value: float


@dataclass(frozen=True)
class Contract:
    """out[batch, rows, cols] (+)= sum over `inner` of a[batch, rows, inner] b[batch, inner, cols].

    `b` is the operand with more free elements: the one that is streamed.
    """

    out: Target
    a: str
    b: str
    inner: Span
    batch: tuple[Span, ...]
    rows: tuple[Span, ...]
    cols: tuple[Span, ...]
    accumulate: bool


@dataclass(frozen=True)
class Chain:
    """out = expr, elementwise over `spans` (in the layout order of out)."""

    out: Target
    expr: Expr
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Reduce:
    """out (combine)= kind of expr over `axis`; `spans` are the axes of out, in layout order."""

    out: Target
    kind: str
    expr: Expr
    axis: Span
    spans: tuple[Span, ...]
    accumulate: bool


@dataclass(frozen=True)
class Merge:
    """out = out + expr, or max(out, expr): an accumulator's step."""

    out: Target
    kind: str
    expr: Expr
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Store:
    """Writes expr, rounded once, to the block's tile of a tensor; `spans` in its memory order."""

    view: str
    expr: Expr
    spans: tuple[Span, ...]


Statement = Load | Fill | Contract | Chain | Reduce | Merge | Store


def reads(statement: Statement) -> set[str]:
    """The views and buffers whose values a statement uses, without the one it accumulates into."""
    if isinstance(statement, Contract):
        return {statement.a, statement.b}
    if isinstance(statement, (Chain, Reduce, Merge, Store)):
        return set(refs(statement.expr))
    return set()


# Programs ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loop:
    """The for-loop. `count` iterations at most; `span` is the axis whose length in a block says
    how many that block runs (None: all)."""

    par: str
    count: int
    span: Span | None


@dataclass(frozen=True)
class TileKernel:
    """One kernel. `grid` holds (parallel dimension, number of blocks), outermost first.

    `operator` is that of a library kernel (see `prism.instantiate.library`), None of others.
    """

    grid: tuple[tuple[str, int], ...]
    loop: Loop | None
    views: Mapping[str, View]
    buffers: Mapping[str, Buffer]
    pre: tuple[Statement, ...]
    body: tuple[Statement, ...]
    post: tuple[Statement, ...]
    operator: Op | None = None

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return prod(count for _, count in self.grid)

    @cached_property
    def ragged(self) -> tuple[Span, ...]:
        """The spans, each once, whose tiles are not all of one length."""
        values = [*self.views.values(), *self.buffers.values()]
        spans = [s for value in values for s in value.spans]
        spans += [s.axis for s in (*self.pre, *self.body, *self.post) if isinstance(s, Reduce)]
        return tuple(dict.fromkeys(s for s in spans if s.ragged))


@dataclass(frozen=True)
class TileProgram:
    """Kernels in order; `tensors` by name; `options` are for the printer; `of` is what they do."""

    name: str
    tensors: Mapping[str, Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kernels: tuple[TileKernel, ...]
    options: Mapping[str, int | str]
    of: Program

    def is_mask(self, view: View) -> bool:
        """Whether a view is computed from indices."""
        return self.tensors[view.tensor].role == "mask"

    def touched(self, kernel: TileKernel) -> list[View]:
        """The views of a kernel that are tiles of memory: one for each of its arguments."""
        return [view for view in kernel.views.values() if not self.is_mask(view)]


def block_length(span: Span, block: Mapping[str, int]) -> int:
    """Elements of a block's chunk of the axis, all iterations together."""
    if span.grid is None:
        return span.size
    return min(span.tile, span.size - block[span.grid] * span.tile)


def length(span: Span, block: Mapping[str, int], iteration: int | None) -> int:
    """Elements of a tile. `iteration` is None outside the loop: there a loop-cut axis has the
    length of the first iteration's."""
    whole = block_length(span, block)
    if span.step is None:
        return whole
    return max(0, min(span.step, whole - (iteration or 0) * span.step))


def offset(span: Span, block: Mapping[str, int], iteration: int | None) -> int:
    """First element of a tile along the whole axis."""
    start = block[span.grid] * span.tile if span.grid is not None else 0
    return start + (0 if span.step is None else (iteration or 0) * span.step)


def iterations(loop: Loop, block: Mapping[str, int]) -> int:
    """How many iterations a block runs."""
    if loop.span is None:
        return loop.count
    return ceil_div(block_length(loop.span, block), loop.span.step)
