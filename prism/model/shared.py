"""The shared memory of a block, from how Triton's compiler uses it.

A matrix product reads its operands from shared memory. One that the loop loads has a buffer for
each stage of loads ahead, for as long as the loop runs; so has whatever else the loop loads and a
product depends on. Any other operand has a buffer from its load, or from the product itself when
it was computed, until the last product that reads it. Values that change their layout, and
reductions over several warps, pass through a scratch area. The most that is live at once counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from prism.codegen.tile import (
    Contract,
    Load,
    Reduce,
    Statement,
    Store,
    TileKernel,
    TileProgram,
    reads,
)
from prism.codegen.triton.axes import Axes
from prism.codegen.triton.products import TF32, product_type
from prism.instantiate.spans import Span
from prism.model.device import WARP, Gpu
from prism.model.roofline import ITEM_BYTES
from prism.model.work import warp_groups

CONVERTED = 64 << 10  # bytes of the scratch area, at most
ASYNC_BYTES = 4  # a thread's copy into shared memory moves at least so many contiguous bytes


def shared_bytes(program: TileProgram, kernel: TileKernel, axes: Axes, gpu: Gpu) -> int:
    """Estimated bytes of one block, rather too many than too few."""
    return _Shared(program, kernel, axes, gpu).total()


def operand_bytes(program: TileProgram, kernel: TileKernel, axes: Axes, gpu: Gpu) -> int:
    """Estimated bytes of one block without the scratch area, which is often small."""
    return _Shared(program, kernel, axes, gpu).total(scratch=False)


def writes(statement: Statement) -> str | None:
    """The buffer that a statement computes."""
    out = getattr(statement, "out", None)
    return out.buffer if out is not None else None


@dataclass(frozen=True)
class _Life:
    """A buffer in shared memory: its bytes, and the first and the last statement that need it."""

    bytes: int
    first: int
    last: int


class _Shared:
    def __init__(self, program: TileProgram, kernel: TileKernel, axes: Axes, gpu: Gpu):
        self.program, self.kernel, self.axes, self.gpu = program, kernel, axes, gpu
        self.code = [*kernel.pre, *kernel.body, *kernel.post]
        start = len(kernel.pre)
        self.loop = range(start, start + len(kernel.body))
        looped = kernel.loop is not None and kernel.loop.count > 1
        self.used = self._operands()
        self.ahead = program.options["num_stages"] - 1 if looped else 0

    def total(self, scratch: bool = True) -> int:
        lives = list(self._lives())
        return max(
            scratch * self._scratch(s) + sum(x.bytes for x in lives if x.first <= at <= x.last)
            for at, s in enumerate(self.code)
        )

    def _lives(self) -> Iterator[_Life]:
        used = self.used
        for at, name in self._loads().items():
            piped = at in self.loop and self.ahead and self._feeds_a_product(name)
            if piped and self._copies(name):
                stages = self.ahead + self._asynchronous(used.get(name, []))
                held = self._elements(name) * self._stored(name)
                yield _Life(stages * held, self.loop[0], self.loop[-1])
            elif name in used:
                yield _Life(self._bytes(name), at, self._last(at, used[name]))
        for name in used.keys() & self.kernel.buffers.keys():
            yield _Life(self._bytes(name), used[name][0], used[name][-1])

    def _loads(self) -> Mapping[int, str]:
        loads = {at: s.view for at, s in enumerate(self.code) if isinstance(s, Load)}
        views = self.kernel.views
        return {at: name for at, name in loads.items() if not self.program.is_mask(views[name])}

    def _operands(self) -> dict[str, list[int]]:
        """What products read, with the statements that do."""
        found: dict[str, list[int]] = {}
        for at, s in enumerate(self.code):
            if isinstance(s, Contract) and self.axes.is_dot(s):
                for name in dict.fromkeys((s.a, s.b)):
                    found.setdefault(name, []).append(at)
        return found

    def _asynchronous(self, users: list[int]) -> bool:
        """Whether products read a value while the next one is loaded: Hopper's do."""
        warps = self.program.options["num_warps"]
        return any(warp_groups(self.code[at], self.axes, self.gpu, warps) for at in users)

    def _last(self, first: int, used: list[int]) -> int:
        """The statement until which a value is kept: one made before the loop serves all of it."""
        across = first not in self.loop and used[-1] in self.loop
        return self.loop[-1] if across else used[-1]

    def _feeds_a_product(self, name: str) -> bool:
        """Whether some product of the loop depends on the value."""
        known = {name}
        for at in self.loop:
            s = self.code[at]
            if known & reads(s):
                if isinstance(s, Contract) and self.axes.is_dot(s):
                    return True
                known.add(writes(s))
        return False

    def _copies(self, name: str) -> bool:
        """Whether threads can copy the tile without registers: enough contiguous bytes each."""
        view = self.kernel.views[name]
        held = self.axes.held(view.spans)
        if not held or held[-1] != view.spans[-1]:
            return False
        each = prod(self.axes.shape(held)) / (WARP * self.program.options["num_warps"])
        return min(each, self.axes.by_span[held[-1]].size) * self._stored(name) >= ASYNC_BYTES

    def _stored(self, name: str) -> int:
        """Bytes of an element of a view in memory."""
        return ITEM_BYTES[self.program.tensors[self.kernel.views[name].tensor].dtype]

    def _item(self, name: str) -> int:
        """Bytes of an element as a product reads it."""
        users = (self.code[at] for at in self.used.get(name, ()))
        if any(product_type(self.program, self.kernel, s) == TF32 for s in users):
            return ITEM_BYTES["fp32"]
        if name in self.kernel.views:
            return self._stored(name)
        return ITEM_BYTES[self.program.tensors[self.program.outputs[0]].dtype]

    def _bytes(self, name: str) -> int:
        return self._elements(name) * self._item(name)

    def _scratch(self, s: Statement) -> int:
        """Bytes through which values change their layout, or are reduced over the warps."""
        return min(CONVERTED, 4 * self._passed(s))

    def _passed(self, s: Statement) -> int:
        """Elements of that area, each fp32."""
        warps = self.program.options["num_warps"]
        if isinstance(s, (Load, Store)):
            kept = s.view in self.used or self.program.is_mask(self.kernel.views[s.view])
            return 0 if kept else self._elements(s.view)
        if isinstance(s, Contract) and not self.axes.is_dot(s):
            result = self._size((*s.batch, *s.rows, *s.cols))
            narrow = min(map(self._elements, (s.a, s.b)))
            return max(narrow, min(warps, self._size((s.inner,))) * result)
        if isinstance(s, Reduce):
            return min(warps, self._size((s.axis,))) * self._size(s.spans)
        out = getattr(s, "out", None)
        if out is None or out.at is None:
            return 0
        return self._size((*s.batch, *s.rows, *s.cols) if isinstance(s, Contract) else s.spans)

    def _size(self, spans: Sequence[Span]) -> int:
        return prod(self.axes.shape(spans))

    def _elements(self, name: str) -> int:
        value = self.kernel.views.get(name) or self.kernel.buffers[name]
        return self._size(value.spans)
