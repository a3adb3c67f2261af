"""The one node type and the one enum of operators of every graph in Prism.

Tensors have *named axes*: broadcasting, batching and contraction follow from the names, so no
operator carries dimension numbers. A node is immutable and hash-consed: two nodes with the same
operator, sources and argument are the same object, and identity is equality.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from enum import Enum
from typing import NamedTuple
from weakref import WeakValueDictionary

from prism.errors import PrismError


class Op(Enum):
    """All operators. Which of them a stage's graph may hold is `LEGAL`, as data."""

    INPUT = "input"  # arg: name
    MATMUL = "matmul"  # arg: contracted axis; other shared axes are batch axes
    SUM = "sum"  # arg: reduced axis
    MAX = "max"  # arg: reduced axis
    EXP = "exp"
    SQUARE = "square"
    SQRT = "sqrt"
    SILU = "silu"
    GELU = "gelu"  # the erf form
    RELU = "relu"
    SCALE = "scale"  # arg: constant expression; multiplies
    SHIFT = "shift"  # arg: constant expression; adds
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    # Block graphs (paper section 2).
    LOAD = "load"  # arg: loader name; the loader's imap and fmap live in the Mapping
    # arg: "sum", "max" or "concat:AXIS"; over the for-loop dimension. Numerics: "last" keeps a
    # running maximum, and a second operand is what a sum is multiplied by in every iteration.
    ACCUM = "accum"
    SAVE = "save"  # arg: name of the output tensor
    # Numerics: what the stable form of a verified block graph has besides (`instantiate.stable`).
    EXP_SHIFTED = "exp_shifted"  # e^(x - m); where m is -inf, e^x, which is 0
    RESCALE = "rescale"  # e^(old - new); where old is -inf, 1: nothing was summed until then
    RUNNING = "running"  # the maximum of an operand over this iteration and those before
    BEFORE = "before"  # a running maximum as it was before this iteration
    # Parallel operators of the verifier's expressions (paper section 4, Figure 4).
    PART = "part"  # arg: (axis, par)
    COMB = "comb"  # arg: (axis, par); an axis that the operand lacks is a fresh one, of extent d_p
    RED = "red"  # arg: ("sum" | "max", par)
    REPL = "repl"  # arg: par


UNARY = frozenset({Op.EXP, Op.SQUARE, Op.SQRT, Op.SILU, Op.GELU, Op.RELU, Op.SCALE, Op.SHIFT})
BINARY = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.DIV})
REDUCE = frozenset({Op.SUM, Op.MAX})
SHIFTS = frozenset({Op.EXP_SHIFTED, Op.RESCALE})
COMPUTE = UNARY | BINARY | REDUCE | {Op.MATMUL}
PARALLEL = frozenset({Op.PART, Op.COMB, Op.RED, Op.REPL})
WITH_CONSTANT = frozenset({Op.SCALE, Op.SHIFT})
ELEMENTWISE = UNARY | BINARY | SHIFTS

LEGAL: dict[str, frozenset[Op]] = {
    "program": COMPUTE | {Op.INPUT},
    "block": COMPUTE | {Op.LOAD, Op.ACCUM, Op.SAVE},
    "expression": COMPUTE | PARALLEL | {Op.INPUT},
    "numeric": COMPUTE | {Op.LOAD, Op.ACCUM, Op.SAVE} | SHIFTS | {Op.RUNNING, Op.BEFORE},
}

ARITY: dict[Op, int] = (
    dict.fromkeys(UNARY | REDUCE | PARALLEL | {Op.ACCUM, Op.SAVE, Op.RUNNING, Op.BEFORE}, 1)
    | dict.fromkeys(BINARY | SHIFTS | {Op.MATMUL}, 2)
    | dict.fromkeys({Op.INPUT, Op.LOAD}, 0)
)


class AccumKind(NamedTuple):
    """How an accumulator removes the loop: `sum`, `max`, or `concat` along an axis."""

    kind: str
    axis: str | None = None


def accum_kind(node: Node) -> AccumKind:
    """The accumulator's kind, parsed from its argument."""
    kind, _, axis = node.arg.partition(":")
    return AccumKind(kind, axis or None)


class Node:
    """One operator application. Fields: `op`, `src` (nodes), `arg` (str, tuple or None), `axes`.

    Nodes are made by `Node(op, src, arg, axes)`; `axes` is given for leaves alone and derived for
    the rest. Raises PrismError, naming operator and axis, when the operands do not fit.
    """

    __slots__ = ("op", "src", "arg", "axes", "__weakref__")
    op: Op
    src: tuple[Node, ...]
    arg: str | tuple[str, str] | None
    axes: tuple[str, ...]

    _pool: WeakValueDictionary[tuple, Node] = WeakValueDictionary()

    def __new__(cls, op, src=(), arg=None, axes=None):
        """The one node with these fields."""
        src = tuple(src)
        key = (op, src, arg, tuple(axes) if not src and axes is not None else None)
        found = cls._pool.get(key)
        if found is not None:
            return found
        node = object.__new__(cls)
        fields = (op, src, arg, _axes(op, src, arg, axes))
        for name, value in zip(("op", "src", "arg", "axes"), fields, strict=True):
            object.__setattr__(node, name, value)
        cls._pool[key] = node
        return node

    def __setattr__(self, name, value):
        raise AttributeError("a Node is immutable")

    def __reduce__(self):
        return (Node, (self.op, self.src, self.arg, None if self.src else self.axes))

    def __repr__(self) -> str:
        arg = "" if self.arg is None else f"[{self.arg}]"
        if not self.src:
            return f"{self.arg}"
        return f"{self.op.value}{arg}({', '.join(map(repr, self.src))})"


def _axes(op: Op, src: tuple[Node, ...], arg, axes) -> tuple[str, ...]:
    if len(src) != ARITY[op] and (op, len(src)) != (Op.ACCUM, 2):
        raise PrismError(f"{op.value}: takes {ARITY[op]} operand(s), got {len(src)}")
    if not src:
        if axes is None:
            raise PrismError(f"{op.value} {arg!r}: a leaf needs its axes")
        if len(set(axes)) != len(tuple(axes)):
            raise PrismError(f"{op.value} {arg!r}: axis named twice in {list(axes)}")
        return tuple(axes)
    if op in REDUCE:
        if arg not in src[0].axes:
            raise PrismError(f"{op.value} over {arg!r}: the operand has axes {list(src[0].axes)}")
        return tuple(a for a in src[0].axes if a != arg)
    if op is Op.MATMUL:
        for side, node in zip(("left", "right"), src, strict=True):
            if arg not in node.axes:
                raise PrismError(
                    f"matmul over {arg!r}: the {side} operand has axes {list(node.axes)}"
                )
        return tuple(a for a in union_axes(src) if a != arg)
    if op is Op.COMB and arg[0] not in src[0].axes:
        return (*src[0].axes, arg[0])
    return union_axes(src)


def union_axes(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Axes of a broadcast result: in order of first appearance, the widest operand first."""
    ordered = sorted(nodes, key=lambda n: -len(n.axes))
    return tuple(dict.fromkeys(axis for node in ordered for axis in node.axes))


def topological(roots: Iterable[Node], known: Container[Node] = ()) -> list[Node]:
    """Nodes reachable from `roots`, sources before users, in a deterministic order.

    Those in `known`, and what only they reach, are left out.
    """
    order: dict[Node, None] = {}
    stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, done = stack.pop()
        if node in order or node in known:
            continue
        if done:
            order[node] = None
            continue
        stack.append((node, True))
        stack.extend((s, False) for s in reversed(node.src))
    return list(order)
