"""Runs a tile program in numpy, block by block, statement by statement."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np

from prism.codegen import tile as t
from prism.errors import PrismError
from prism.instantiate.spans import Span
from prism.program import Op
from prism.program.mask import causal
from prism.program.numeric import BINARY_FN, UNARY, Named, aligned, matmul

_REDUCE = {"sum": np.sum, "max": np.max}
_COMBINE = {"sum": np.add, "max": np.maximum}  # np.maximum keeps NaN from either side
_IDENTITY = {"sum": 0.0, "max": -math.inf}


def run(
    program: t.TileProgram, inputs: Mapping[str, np.ndarray], dtype: type = np.float32
) -> dict[str, np.ndarray]:
    """Outputs by name, in `dtype` (float32 or float64), which is also that of all arithmetic.

    Inputs are arrays of values in the tensors' shapes; outputs are not rounded to the program's
    dtype. Elements that no block writes are NaN. Raises PrismError for a missing or misshapen
    input.
    """
    memory: dict[str, np.ndarray] = {}
    for name in program.inputs:
        shape = program.tensors[name].shape
        if name not in inputs or tuple(inputs[name].shape) != shape:
            raise PrismError(f"interpreter: input {name!r} must be an array of shape {shape}")
        memory[name] = np.asarray(inputs[name], dtype=dtype)
    for name, tensor in program.tensors.items():
        if tensor.role == "mask":
            memory[name] = causal(*tensor.shape, tensor.shift).astype(dtype)
        elif tensor.role != "input":
            memory[name] = np.full(tensor.shape, np.nan, dtype=dtype)
    with np.errstate(all="ignore"):
        for kernel in program.kernels:
            names, counts = [p for p, _ in kernel.grid], [range(n) for _, n in kernel.grid]
            for at in itertools.product(*counts):
                _Block(kernel, memory, dict(zip(names, at, strict=True)), dtype).run()
    return {name: memory[name] for name in program.outputs}


class _Block:
    def __init__(self, kernel: t.TileKernel, memory: dict, block: dict[str, int], dtype: type):
        self.kernel, self.memory, self.block, self.dtype = kernel, memory, block, dtype
        self.iteration: int | None = None
        self.views: dict[str, np.ndarray] = {}
        # NaN, so that an element read before it is written shows.
        self.buffers = {
            name: np.full([s.extent for s in buffer.spans], np.nan, dtype=dtype)
            for name, buffer in kernel.buffers.items()
        }

    def run(self) -> None:
        self._all(self.kernel.pre)
        if self.kernel.loop is not None:
            for iteration in range(t.iterations(self.kernel.loop, self.block)):
                self.iteration = iteration
                self._all(self.kernel.body)
            self.iteration = None
        self._all(self.kernel.post)

    def _all(self, statements) -> None:
        for statement in statements:
            getattr(self, f"_{type(statement).__name__.lower()}")(statement)

    def _length(self, span: Span) -> slice:
        return slice(0, t.length(span, self.block, self.iteration))

    def _tile(self, view: t.View) -> np.ndarray:
        def cut(span: Span) -> slice:
            start = t.offset(span, self.block, self.iteration)
            return slice(start, start + t.length(span, self.block, self.iteration))

        # The ellipsis makes it a view of memory even without axes, where a scalar would come back.
        return self.memory[view.tensor][(*(cut(s) for s in view.spans), ...)]

    def _target(self, target: t.Target) -> Named:
        buffer = self.kernel.buffers[target.buffer]
        where = [self._length(s) for s in buffer.spans]
        if target.at is not None:
            axis = [s.axis for s in buffer.spans].index(target.at.axis)
            start = (self.iteration or 0) * target.at.step
            length = t.length(target.at, self.block, self.iteration)
            where[axis] = slice(start, start + length)
        axes = tuple(s.axis for s in buffer.spans)
        return Named(self.buffers[target.buffer][(*where, ...)], axes)

    def _value(self, name: str) -> Named:
        if name in self.kernel.buffers:
            return self._target(t.Target(name))
        return Named(self.views[name], tuple(s.axis for s in self.kernel.views[name].spans))

    def _eval(self, expr: t.Expr) -> Named:
        if isinstance(expr, t.Ref):
            return self._value(expr.name)
        values = [self._eval(arg) for arg in expr.args]
        first = values[0]
        match expr.op:
            case Op.SCALE:
                array, axes = first.array * self.dtype(expr.constant), first.axes
            case Op.SHIFT:
                array, axes = first.array + self.dtype(expr.constant), first.axes
            case op if op in BINARY_FN:
                axes = tuple(dict.fromkeys(a for v in values for a in v.axes))
                array = BINARY_FN[op](*(aligned(v, axes) for v in values))
            case op:
                array, axes = UNARY[op](first.array), first.axes
        return Named(np.asarray(array, dtype=self.dtype), axes)

    # Statements ---------------------------------------------------------------------------

    def _load(self, s: t.Load) -> None:
        self.views[s.view] = self._tile(self.kernel.views[s.view])

    def _fill(self, s: t.Fill) -> None:
        self.buffers[s.buffer][...] = s.value

    def _chain(self, s: t.Chain) -> None:
        out = self._target(s.out)
        out.array[...] = aligned(self._eval(s.expr), out.axes)

    def _merge(self, s: t.Merge) -> None:
        out = self._target(s.out)
        out.array[...] = _COMBINE[s.kind](out.array, aligned(self._eval(s.expr), out.axes))

    def _reduce(self, s: t.Reduce) -> None:
        out, value = self._target(s.out), self._eval(s.expr)
        where = value.axes.index(s.axis.axis)
        axes = value.axes[:where] + value.axes[where + 1 :]
        reduced = _REDUCE[s.kind](value.array, axis=where, initial=_IDENTITY[s.kind])
        reduced = aligned(Named(reduced, axes), out.axes)
        out.array[...] = _COMBINE[s.kind](out.array, reduced) if s.accumulate else reduced

    def _contract(self, s: t.Contract) -> None:
        out = self._target(s.out)
        product = matmul(self._value(s.a), self._value(s.b), s.inner.axis)
        product = aligned(product, out.axes)
        out.array[...] = out.array + product if s.accumulate else product

    def _store(self, s: t.Store) -> None:
        view = self.kernel.views[s.view]
        out = Named(self._tile(view), tuple(x.axis for x in view.spans))
        out.array[...] = aligned(self._eval(s.expr), out.axes)
