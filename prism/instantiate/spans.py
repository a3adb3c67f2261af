"""How the parallel dimensions cut the axes of every value of a block graph.

A size d_p cuts an axis of D elements into chunks of ceil(D / d_p); the last may be shorter. Where
a grid dimension and the loop cut the same axis, the grid cuts first and the loop cuts the block's
chunk, so that a short block runs fewer, or shorter, iterations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from prism.errors import PrismError
from prism.program import Node, Op, Program
from prism.program.node import accum_kind
from prism.sgraph import Kernel


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def divides(extent: int, count: int) -> bool:
    """Whether cutting `extent` elements into `count` chunks leaves none of them empty."""
    return (count - 1) * ceil_div(extent, count) < extent


@dataclass(frozen=True)
class Span:
    """One axis of a tile.

    `size` elements in all; `tile` a block, cut by grid dimension `grid` (None: the whole axis);
    `step` an iteration where the loop cuts it too (None: it does not). A dimension of size 1
    counts as absent.
    """

    axis: str
    size: int
    grid: str | None
    tile: int
    step: int | None

    @property
    def extent(self) -> int:
        """The most elements that a tile has along this axis."""
        return self.tile if self.step is None else self.step

    @property
    def blocks(self) -> int:
        """Number of chunks the grid makes."""
        return ceil_div(self.size, self.tile)

    @property
    def last(self) -> int:
        """Elements of the last block's chunk."""
        return self.size - (self.blocks - 1) * self.tile

    @property
    def ragged(self) -> bool:
        """Whether some tile is shorter than `extent`."""
        if self.step is None:
            return self.last != self.tile
        return bool(self.tile % self.step or self.last % self.step)

    @property
    def whole(self) -> Span:
        """The same axis with all iterations of a block together."""
        return replace(self, step=None)


def kernel_spans(program: Program, kernel: Kernel, sizes: Mapping[str, int]) -> dict:
    """Spans of every node, in the order of its axes; of a saver, in the order of its tensor's.

    `program` holds the extents of the fresh axes too: a block saves one element along its own.
    Raises PrismError where the mapping gives one axis two different cuts, where an accumulator has
    nothing to accumulate, and where a result would be written by two blocks.
    """
    return _Spans(program, kernel, sizes).run()


class _Spans:
    def __init__(self, program: Program, kernel: Kernel, sizes: Mapping[str, int]):
        self.program, self.kernel, self.sizes = program, kernel, sizes
        self.block, self.mapping = kernel.block, kernel.mapping
        self.varying = self.block.varying(kernel.mapping)
        self.spans: dict[Node, tuple[Span, ...]] = {}

    def run(self) -> dict[Node, tuple[Span, ...]]:
        after = self.block.after_loop
        for node in self.block.nodes:
            if node.op is not Op.ACCUM and node in after:
                for source in node.src:
                    if source in self.varying:
                        raise PrismError(
                            f"{node.op.value}: reads {source.op.value} of a single iteration "
                            f"after the loop"
                        )
            self.spans[node] = self._of(node)
        return self.spans

    def _of(self, node: Node) -> tuple[Span, ...]:
        if node.op is Op.LOAD:
            return tuple(self._cut(node.arg, axis, node.op) for axis in node.axes)
        if node.op is Op.SAVE:
            return self._save(node)
        if node.op is Op.ACCUM:
            return self._accum(node)
        found: dict[str, Span] = {}
        for source in node.src:
            for span in self.spans[source]:
                if found.setdefault(span.axis, span) != span:
                    raise PrismError(
                        f"{node.op.value}: axis {span.axis!r} is cut in two ways: "
                        f"{describe(found[span.axis])} and {describe(span)}"
                    )
        return tuple(found[axis] for axis in node.axes)

    def _cut(self, tensor: str, axis: str, op: Op) -> Span:
        pars = self.mapping.pars(tensor, axis)
        grid = [p for p in pars if p in self.block.grid and self.sizes[p] > 1]
        if len(grid) > 1:
            raise PrismError(f"{op.value} {tensor}: grid dimensions {grid} both cut axis {axis!r}")
        size = self.program.size(axis)
        tile, step = size, None
        if grid:
            tile = self._chunk(size, grid[0], axis)
        loop = self.block.loop
        if loop in pars and self.sizes[loop] > 1:
            step = self._chunk(tile, loop, axis)
        return Span(axis, size, grid[0] if grid else None, tile, step)

    def _chunk(self, extent: int, par: str, axis: str) -> int:
        if not divides(extent, self.sizes[par]):
            raise PrismError(
                f"d_{par}={self.sizes[par]} leaves an empty chunk of axis {axis!r} "
                f"({extent} elements)"
            )
        return ceil_div(extent, self.sizes[par])

    def _accum(self, node: Node) -> tuple[Span, ...]:
        source, (kind, axis) = node.src[0], accum_kind(node)
        if source not in self.varying:
            raise PrismError(f"accum[{node.arg}]: its source does not change over the loop")
        spans = self.spans[source]
        if kind != "concat":
            return spans
        if axis not in node.axes:
            raise PrismError(f"accum[{node.arg}]: its source has axes {list(node.axes)}")
        cut = next(s for s in spans if s.axis == axis)
        if cut.step is None and self.sizes[self.block.loop] > 1:
            raise PrismError(f"accum[{node.arg}]: the loop does not cut that axis")
        return tuple(s.whole if s.axis == axis else s for s in spans)

    def _save(self, node: Node) -> tuple[Span, ...]:
        (source,) = node.src
        if source in self.varying:
            raise PrismError(f"save {node.arg}: its source still changes over the loop")
        wanted = tuple(self._cut(node.arg, axis, node.op) for axis in node.axes)
        for span, have in zip(wanted, self.spans[source], strict=True):
            if span != have:
                raise PrismError(
                    f"save {node.arg}: axis {span.axis!r} is {describe(have)} in the block "
                    f"and {describe(span)} in the output"
                )
        for axis in self.kernel.tensor_axes(node)[len(wanted) :]:
            wanted += (self._cut(node.arg, axis, node.op),)
        for par in self.block.grid:
            if self.sizes[par] > 1 and par not in [s.grid for s in wanted]:
                raise PrismError(f"save {node.arg}: grid dimension {par} cuts none of its axes")
        return wanted


def describe(span: Span) -> str:
    """The cut in words."""
    if span.grid is None and span.step is None:
        return "whole"
    grid = "" if span.grid is None else f"cut by {span.grid} into {span.tile}"
    loop = "" if span.step is None else f"cut by the loop into {span.step}"
    return " and ".join(filter(None, (grid, loop)))
