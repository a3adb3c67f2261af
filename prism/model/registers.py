"""The registers of a thread, estimated from what is live at once.

Triton spreads a tile over the threads of its block; a tensor of fewer elements than threads takes
one register. Live are the accumulators and every loaded or computed value until its last use, the
addresses of what a loop loads (64-bit, one for each row of a thread), and the fragments of an
operand that several matrix products read: each warp along the columns holds all of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from prism.codegen.tile import (
    Contract,
    Fill,
    Load,
    Statement,
    Store,
    TileKernel,
    TileProgram,
    reads,
)
from prism.codegen.triton.axes import Axes
from prism.model.device import WARP
from prism.model.roofline import ITEM_BYTES
from prism.model.shared import writes

OTHERS = 24  # registers for indices, masks and what is being computed
ADDRESS = 2  # registers
COPY_BYTES = 16  # of a thread, at most, from one address
STREAMED = 0.5  # share of a tile that is held when the next statement is its only reader
FRAGMENT_ROWS, FRAGMENT_COLUMNS = 16, 8  # of the matrix instructions
INVARIANT = 0.25  # share held of the fragments of an operand that the loop does not change


def registers(program: TileProgram, kernel: TileKernel, axes: Axes) -> int:
    """Registers that a thread would use if there were any number of them."""
    return OTHERS + round(_Registers(program, kernel, axes).most())


class _Registers:
    def __init__(self, program: TileProgram, kernel: TileKernel, axes: Axes):
        self.program, self.kernel, self.axes = program, kernel, axes
        self.warps = program.options["num_warps"]
        self.code: list[Statement] = [*kernel.pre, *kernel.body, *kernel.post]
        start = len(kernel.pre)
        self.loop = range(start, start + len(kernel.body))
        self.looped = kernel.loop is not None and kernel.loop.count > 1

    def most(self) -> float:
        """Over all statements, the most that is live."""
        lives = list(self._lives())
        inside = sum(self._addresses(s.view) for s in self.kernel.body if isinstance(s, Load))
        found = 0.0
        for at, s in enumerate(self.code):
            live = sum(words for words, first, last in lives if first <= at <= last)
            if at in self.loop and self.looped:
                live += inside
            elif isinstance(s, (Load, Store)):
                live += self._addresses(s.view)
            found = max(found, live)
        return found + max(map(self._fragments, range(len(self.code))), default=0.0)

    def _lives(self) -> Iterator[tuple[float, int, int]]:
        """Registers of each value, the first and the last statement where it is live."""
        made: dict[str, int] = {}
        used: dict[str, list[int]] = {}
        for at, s in enumerate(self.code):
            name = s.view if isinstance(s, Load) else s.buffer if isinstance(s, Fill) else writes(s)
            if name is not None:
                made.setdefault(name, at)
            for read in reads(s):
                if not (self._is_dot(s) and read in self.kernel.views):  # else in shared memory
                    used.setdefault(read, []).append(at)
            if writes(s) is not None:
                used.setdefault(writes(s), []).append(at)
        for name, uses in used.items():
            first, last, words = made[name], uses[-1], self._words(name)
            readers = [at for at in uses if name in reads(self.code[at])]
            if name in self.kernel.buffers and readers and all(map(self._multiplies, readers)):
                uses = [at for at in uses if at not in readers] or [first]
                last = uses[-1]  # from there on it is in shared memory
            elif self.looped and first not in self.loop and any(u in self.loop for u in readers):
                last = max(last, self.loop[-1])
                if name in self.kernel.views:  # converted to fp32 once, before the loop
                    words *= 4 / self._item(name)
            if first in self.loop and any(u > self.loop[-1] for u in uses):
                first = self.loop[0]
            if uses in ([first], [first + 1]):
                words *= STREAMED
            yield words, first, last

    def _multiplies(self, at: int) -> bool:
        return self._is_dot(self.code[at])

    def _is_dot(self, s: Statement) -> bool:
        return isinstance(s, Contract) and self.axes.is_dot(s)

    def _each(self, name: str) -> float:
        """Elements of a thread."""
        value = self.kernel.views.get(name) or self.kernel.buffers[name]
        return prod(self.axes.shape(value.spans)) / (WARP * self.warps)

    def _item(self, name: str) -> int:
        view = self.kernel.views.get(name)
        return ITEM_BYTES[self.program.tensors[view.tensor].dtype] if view else 4

    def _words(self, name: str) -> float:
        return max(1.0, self._each(name) * self._item(name) / 4)

    def _addresses(self, name: str) -> float:
        """Registers of the addresses of a view's tile: one for each row of a thread, as elements
        of a row are at constant distances."""
        if self.program.is_mask(self.kernel.views[name]):
            return 0.0
        spans, each = self.kernel.views[name].spans, max(1.0, self._each(name))
        held, run, rows = self.axes.held(spans), 1.0, each
        if held and held[-1] == spans[-1]:  # neighbours are contiguous
            run = min(COPY_BYTES / self._item(name), self.axes.by_span[held[-1]].size, each)
            rows = prod(self.axes.shape(held[:-1]))
        return ADDRESS * min(rows, each / run)

    def _fragments(self, at: int) -> float:
        """Registers of the left operand's fragments, where they are kept from one product to the
        next: another product reads it, or the loop does not change it."""
        s = self.code[at]
        if not self._is_dot(s):
            return 0.0
        rows, cols, inner = (prod(self.axes.shape(x)) for x in (s.rows, s.cols, (s.inner,)))
        across = max(
            1, min(self.warps // max(1, min(self.warps, cols // 8)), rows // FRAGMENT_ROWS)
        )
        held = rows * inner / (2 * WARP * across)
        readers = sum(self._is_dot(x) and x.a == s.a for x in self.code)
        made = [i for i, x in enumerate(self.code) if isinstance(x, Load) and x.view == s.a]
        if readers > 1:
            return held
        invariant = self.looped and at in self.loop and made and made[0] not in self.loop
        return held * INVARIANT if invariant else 0.0
