"""Compositions of a program's operators that PyTorch has one operator for."""

from __future__ import annotations

from typing import NamedTuple

from prism.program import Node, Op, Program, constant
from prism.program.numeric import softmax_argument


def rms_norm_argument(node: Node, program: Program) -> tuple[Node, str, float] | None:
    """(x, axis, eps) when `node` is x / sqrt(mean(x^2 over axis) + eps), else None."""
    if node.op is not Op.DIV or node.src[1].op is not Op.SQRT:
        return None
    x, inner = node.src[0], node.src[1].src[0]
    eps = 0.0
    if inner.op is Op.SHIFT:
        eps, inner = constant.evaluate(inner.arg, program.env), inner.src[0]
    if inner.op is not Op.SCALE or inner.src[0].op is not Op.SUM:
        return None
    total = inner.src[0]
    if total.src[0] is not Node(Op.SQUARE, (x,)):
        return None
    factor = constant.evaluate(inner.arg, program.env)
    if abs(factor * program.size(total.arg) - 1) > 1e-12:
        return None
    return x, total.arg, eps


class Attention(NamedTuple):
    """softmax(scale * q k + mask) v, q k contracted over `inner`, the softmax over `keys`.

    Axes: k has `batch`, `keys` and `inner`; v has `batch`, `keys` and `value`; q has `batch`,
    `inner` and whatever rows share the keys of a batch (positions, heads of one group). `mask` is
    an input with some of the axes of q k, or None.
    """

    q: Node
    k: Node
    v: Node
    inner: str
    keys: str
    value: str
    batch: tuple[str, ...]
    scale: float
    mask: Node | None = None


def attention_argument(node: Node, program: Program) -> Attention | None:
    """The parts of an attention when `node` is the product of its weights with v, else None."""
    if node.op is not Op.MATMUL:
        return None
    for weights, v in (node.src, node.src[::-1]):
        scores, keys = softmax_argument(weights), node.arg
        if scores is None or weights.src[1].arg != keys:
            continue
        scores, mask = _masked(scores)
        scale = 1.0
        while scores.op is Op.SCALE:
            scale *= constant.evaluate(scores.arg, program.env)
            scores = scores.src[0]
        if scores.op is not Op.MATMUL or not (found := _parts(scores, v, keys, scale)):
            continue
        if mask is None or set(mask.axes) <= set(scores.axes):
            return found._replace(mask=mask)
    return None


def _masked(scores: Node) -> tuple[Node, Node | None]:
    """What a mask is added to, and the mask."""
    if scores.op is Op.ADD:
        for value, mask in (scores.src, scores.src[::-1]):
            if mask.op is Op.INPUT and value.op is not Op.INPUT:
                return value, mask
    return scores, None


def _parts(scores: Node, v: Node, keys: str, scale: float) -> Attention | None:
    q, k = scores.src if keys in scores.src[1].axes else scores.src[::-1]
    inner = scores.arg
    batch = tuple(a for a in k.axes if a not in (keys, inner))
    free = [a for a in v.axes if a != keys and a not in batch]
    fits = keys in k.axes and keys not in q.axes and set(batch) <= set(q.axes) & set(v.axes)
    if not fits or len(free) != 1 or free[0] in q.axes:
        return None
    return Attention(q, k, v, inner, keys, free[0], batch, scale)
