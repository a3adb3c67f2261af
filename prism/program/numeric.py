"""Numeric meaning of the operators on arrays with named axes, in float64 (or any numpy dtype)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from prism.errors import PrismError
from prism.program import constant
from prism.program.mask import causal
from prism.program.node import Node, Op, topological
from prism.program.program import Program

_erf = np.frompyfunc(math.erf, 1, 1)


class Named(NamedTuple):
    """An array and the names of its dimensions, in order."""

    array: np.ndarray
    axes: tuple[str, ...]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))  # never overflows
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _silu(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(x), -0.0, x * _sigmoid(x))  # the limit, not -inf * 0


def _gelu(x: np.ndarray) -> np.ndarray:
    half = 0.5 * (1 + np.asarray(_erf(np.asarray(x, dtype=np.float64) / math.sqrt(2)), np.float64))
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(x), -0.0, x * half)


UNARY: dict[Op, Callable[[np.ndarray], np.ndarray]] = {
    Op.EXP: np.exp,
    Op.SQUARE: np.square,
    Op.SQRT: np.sqrt,
    Op.SILU: _silu,
    Op.GELU: _gelu,
    Op.RELU: lambda x: np.maximum(x, 0),
}
BINARY_FN: dict[Op, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    Op.ADD: np.add,
    Op.SUB: np.subtract,
    Op.MUL: np.multiply,
    Op.DIV: np.divide,
    Op.EXP_SHIFTED: lambda x, m: np.exp(x - np.where(np.isneginf(m), x.dtype.type(0), m)),
    Op.RESCALE: lambda old, new: np.where(np.isneginf(old), old.dtype.type(1), np.exp(old - new)),
}


def aligned(value: Named, axes: tuple[str, ...]) -> np.ndarray:
    """The array transposed to the order of `axes`, with size-1 dimensions where it lacks one."""
    order = sorted(range(len(value.axes)), key=lambda i: axes.index(value.axes[i]))
    array = value.array.transpose(order)
    present = set(value.axes)
    return array[tuple(slice(None) if a in present else None for a in axes)]


def matmul(a: Named, b: Named, axis: str) -> Named:
    """Contracts `axis`, batching over the other shared axes."""
    batch = tuple(x for x in a.axes if x in b.axes and x != axis)
    left = tuple(x for x in a.axes if x not in b.axes)
    right = tuple(x for x in b.axes if x not in a.axes)
    x = aligned(a, batch + left + (axis,))
    y = aligned(b, batch + (axis,) + right)
    lead = np.broadcast_shapes(x.shape[: len(batch)], y.shape[: len(batch)])
    flat_x = x.reshape(*x.shape[: len(batch)], -1, x.shape[-1])
    flat_y = y.reshape(*y.shape[: len(batch)], y.shape[len(batch)], -1)
    out = np.matmul(flat_x, flat_y)
    shape = lead + x.shape[len(batch) : -1] + y.shape[len(batch) + 1 :]
    return Named(out.reshape(shape), batch + left + right)


def apply(op: Op, arg, values: list[Named], number: Callable[[str], float]) -> Named:
    """One operator of the program language on named arrays; `number` evaluates constants."""
    first = values[0]
    if op in UNARY:
        return Named(UNARY[op](first.array), first.axes)
    if op is Op.SCALE:
        return Named(first.array * number(arg), first.axes)
    if op is Op.SHIFT:
        return Named(first.array + number(arg), first.axes)
    if op in BINARY_FN:
        axes = tuple(dict.fromkeys(a for v in values for a in v.axes))
        return Named(BINARY_FN[op](*(aligned(v, axes) for v in values)), axes)
    if op is Op.MATMUL:
        return matmul(*values, arg)
    reduce = {Op.SUM: np.sum, Op.MAX: np.max}[op]
    where = first.axes.index(arg)
    return Named(reduce(first.array, axis=where), first.axes[:where] + first.axes[where + 1 :])


def softmax_argument(node: Node) -> Node | None:
    """x when `node` is exp(x) / sum(exp(x) over an axis), else None."""
    if node.op is not Op.DIV:
        return None
    top, total = node.src
    same = top.op is Op.EXP and total.op is Op.SUM and total.src[0] is top
    return top.src[0] if same else None


def _softmax(x: Named, axis: str) -> Named:
    at = x.axes.index(axis)
    most = np.max(x.array, axis=at, keepdims=True)
    e = BINARY_FN[Op.EXP_SHIFTED](x.array, most)
    return Named(e / np.sum(e, axis=at, keepdims=True), x.axes)


def evaluate(program: Program, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Float64 value of every output, axes in the order of the output node.

    A softmax, exp(x) / sum(exp(x) over an axis), is shifted by its row's maximum: it has its value
    whatever its logits are. Nothing else is: kernels shift by a calculus of their own, and are
    judged by this.

    Generated inputs are made here. Raises PrismError for a missing input or one of a wrong shape,
    naming it.
    """
    values: dict[Node, Named] = {}
    number = partial(constant.evaluate, env=program.env)
    for name, rule in program.generated.items():
        shape = program.shape(program.inputs[name])
        values[program.inputs[name]] = Named(causal(*shape, rule.shift(*shape)), rule.axes)
    for name, node in program.arguments.items():
        if name not in inputs:
            raise PrismError(f"program {program.name}: input {name!r} is missing")
        if tuple(inputs[name].shape) != program.shape(node):
            raise PrismError(
                f"program {program.name}: input {name!r} has shape {tuple(inputs[name].shape)}, "
                f"declared {program.shape(node)}"
            )
        values[node] = Named(np.asarray(inputs[name], dtype=np.float64), node.axes)
    with np.errstate(all="ignore"):
        for node in topological(node for _, node in program.outputs):
            if node in values:
                continue
            if (x := softmax_argument(node)) is not None:
                values[node] = _softmax(values[x], node.src[1].arg)
            else:
                values[node] = apply(node.op, node.arg, [values[s] for s in node.src], number)
    return {
        name: np.asarray(aligned(values[node], node.axes), order="C")
        for name, node in program.outputs
    }
