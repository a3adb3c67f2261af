"""How the axes of tiles are held in registers: Triton's tensors have powers of two as extents.

An axis of one element is dropped. Of every other one the extent is rounded up to a power of two
(and further where a matrix product would have fewer than 16 rows, columns or products to sum), and
a mask tells the elements that are there. Padding holds anything but where a load made it zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

from prism.codegen import tile as t
from prism.codegen.errors import LoweringError
from prism.instantiate.spans import Span, ceil_div

LEAST_DOT = 16  # rows, columns and products of a matrix unit's smallest tile
MOST_ELEMENTS = 1 << 20  # of one tensor, Triton's own limit


@dataclass(frozen=True)
class Axis:
    """An axis as a vector of indices: `size` of them, a power of two.

    Where iterations write an axis chunk by chunk (`chunk` > 0 slots of which `step` are used), the
    index is that of slot s: s // chunk * step + s % chunk.
    """

    span: Span
    size: int
    chunk: int = 0
    step: int = 0

    @property
    def name(self) -> str:
        """What cuts the axis, and the axis: one name for one length, whatever axes are called."""
        span = self.span
        return f"{span.grid or ''}{'i' if span.step else ''}_{span.axis}"

    @property
    def masked(self) -> bool:
        """Whether some of the indices may be outside the tile."""
        return self.size > self.span.extent or self.span.ragged

    @property
    def in_loop(self) -> bool:
        """Whether which indices are outside changes from iteration to iteration."""
        return self.span.step is not None and self.span.ragged


class Axes:
    """The axes of one kernel."""

    def __init__(self, kernel: t.TileKernel):
        self.kernel = kernel
        self.by_span = {s: Axis(s, _power(s.extent)) for s in _spans(kernel) if s.extent > 1}
        for statement in _statements(kernel):
            if isinstance(statement, t.Contract) and self.is_dot(statement):
                for group in (statement.rows, statement.cols, (statement.inner,)):
                    self._widen(group, LEAST_DOT)
        for statement in _statements(kernel):
            out = getattr(statement, "out", None)
            if out is not None and out.at is not None:
                self._chunked(out.at)

    def held(self, spans: Iterable[Span]) -> tuple[Span, ...]:
        """The spans that are dimensions of a tensor in registers."""
        return tuple(s for s in spans if s.extent > 1)

    def shape(self, spans: Iterable[Span]) -> tuple[int, ...]:
        """Extents in registers. Raises LoweringError when they are too many elements."""
        found = tuple(self.by_span[s].size for s in self.held(spans))
        if prod(found) > MOST_ELEMENTS:
            raise LoweringError(
                f"a tile of {' x '.join(map(str, found))} elements; Triton holds {MOST_ELEMENTS}"
            )
        return found

    def masked(self, spans: Iterable[Span]) -> list[Span]:
        """Those with indices that may be outside the tile."""
        return [s for s in self.held(spans) if self.by_span[s].masked]

    def is_dot(self, s: t.Contract) -> bool:
        """Whether a contraction has rows, columns and products to sum; else it is no matrix
        product but a product of vectors."""
        return all(self.held(group) for group in (s.rows, s.cols, (s.inner,)))

    def _widen(self, spans: Iterable[Span], least: int) -> None:
        """At least so many elements along the spans together."""
        held = self.held(spans)
        missing = ceil_div(least, prod(self.by_span[s].size for s in held))
        last = self.by_span[held[-1]]
        self.by_span[last.span] = replace(last, size=last.size * missing)

    def _chunked(self, cut: Span) -> None:
        """The whole axis is written in chunks of `cut`."""
        chunk = self.by_span[cut].size if cut.extent > 1 else 1
        whole = self.by_span[cut.whole]
        chunks = max(_power(ceil_div(cut.tile, cut.step)), ceil_div(whole.size, chunk))
        self.by_span[cut.whole] = Axis(cut.whole, chunks * chunk, chunk, cut.step)


def _power(extent: int) -> int:
    return 1 << (extent - 1).bit_length()


def _statements(kernel: t.TileKernel) -> Iterator[t.Statement]:
    yield from (*kernel.pre, *kernel.body, *kernel.post)


def _spans(kernel: t.TileKernel) -> Iterator[Span]:
    for value in (*kernel.views.values(), *kernel.buffers.values()):
        yield from value.spans
    for s in _statements(kernel):
        if isinstance(s, t.Reduce):
            yield s.axis
        if isinstance(s, t.Contract):
            yield s.inner
        out = getattr(s, "out", None)
        if out is not None and out.at is not None:
            yield from (out.at, out.at.whole)
