"""Small concrete instances of axioms, on which each of them is tested numerically.

An instance replaces every variable of the two patterns: tensors by random inputs that may already
be partitioned or replicated, axes and parallel dimensions by names, operators and constants by
ones of the language. Only well-typed left sides count: operands of one operator must have the same
parallel dimensions, as every encoded sGraph has.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from prism.errors import PrismError
from prism.program.node import BINARY, REDUCE, UNARY, WITH_CONSTANT, Node, Op
from prism.program.numeric import aligned
from prism.program.program import Program
from prism.verify.axiom import Axiom, Guard, Pattern, read
from prism.verify.semantics import Interpreter, ShapeError
from prism.verify.text import MONOTONE

_AXES = ("a", "b", "c")
_PARS = {"x": 2, "y": 3, "z": 2}
_EXTENT = 24  # of an axis: split by all three, pieces of two elements are left
_TENSORS, _AXIS_VARS, _PAR_VARS = "stuvw", "kde", "pqr"


_UNARY_NAMES = sorted(
    f"{op.value}:3" if op in WITH_CONSTANT else op.value for op in UNARY - {Op.SCALE}
)
_BINARY_NAMES = sorted(op.value for op in BINARY)
_REDUCE_NAMES = sorted(op.value for op in REDUCE)
_OPERATORS = {
    "Un": _UNARY_NAMES,
    "Bin": _BINARY_NAMES,
    "Fold": _REDUCE_NAMES,
    "Merge": _REDUCE_NAMES,
}


class IllTyped(ValueError):
    """An expression that no sGraph encodes to."""


@dataclass(frozen=True)
class Instance:
    """Both sides as expressions over inputs; `right` is None when there is no such expression."""

    left: Node
    right: Node | None


def instance(axiom: Axiom, rng: random.Random, tries: int = 20_000) -> Instance:
    """A random instance on which the guards hold and the left side is well-typed.

    Raises ValueError when none is found, which means that the axiom can never apply.
    """
    slots = _slots(axiom.left)
    for _ in range(tries):
        names = _assignment(slots, rng)
        if not all(_holds(guard, names) for guard in axiom.guards):
            continue
        try:
            left = _build(read(axiom.left), names)
            layout(left)
        except (ValueError, KeyError, PrismError):  # does not fit together: draw again
            continue
        try:
            return Instance(left, _build(read(axiom.right), names))
        except (ValueError, PrismError):
            return Instance(left, None)
    raise ValueError(f"axiom {axiom.name!r}: no instance in {tries} tries")


def agrees(sides: Instance, seed: int) -> bool:
    """Whether both sides have one value at random inputs, in the exact semantics.

    Inputs are positive for even seeds and of both signs for odd ones.
    """
    if sides.right is None:
        return False
    extents = dict.fromkeys(_AXES, _EXTENT)
    program = Program("axiom", (("left", sides.left), ("right", sides.right)), extents)
    low = -1.25 if seed % 2 else 0.25
    interpreter = Interpreter(program, extents, _PARS, seed, low)
    expected = interpreter.value(sides.left)
    try:
        found = interpreter.value(sides.right)
    except ShapeError:
        return False
    if set(found.axes) != set(expected.axes):
        return False
    array = aligned(found, expected.axes)
    return array.shape == expected.array.shape and np.allclose(
        array, expected.array, rtol=1e-9, equal_nan=True
    )


Layout = tuple[frozenset[str], dict[str, tuple[str, ...]]]


def layout(node: Node) -> Layout:
    """The parallel dimensions of an expression, and by which of them each axis is split, in order.

    Raises IllTyped when the operands of one operator disagree.
    """
    sources = [layout(s) for s in node.src]
    if not sources:
        return frozenset(), dict.fromkeys(node.axes, ())
    pars, splits = sources[0]
    if node.op in (Op.PART, Op.REPL):
        par = node.arg if node.op is Op.REPL else node.arg[1]
        if par in pars:
            raise IllTyped(f"{node.op.value}: already parallel along {par}")
        if node.op is Op.PART:
            if any(s.startswith("new/") for s in splits[node.arg[0]]):
                raise IllTyped("part: a fresh axis is never partitioned")
            if par in splits[node.arg[0]]:
                raise IllTyped(f"part: {node.arg[0]} was split along {par} before")
            splits = splits | {node.arg[0]: (*splits[node.arg[0]], par)}
        return pars | {par}, splits
    if node.op in (Op.COMB, Op.RED):
        name, par = node.arg
        if par not in pars:
            raise IllTyped(f"{node.op.value}: not parallel along {par}")
        if node.op is Op.COMB:
            splits = splits | {name: _combined(splits.get(name), par)}
        return pars - {par}, splits
    merged: dict[str, tuple[str, ...]] = {}
    for other, axes in sources:
        if other != pars:
            raise IllTyped(f"{node.op.value}: operands differ in parallel dimensions")
        for axis, split in axes.items():
            if merged.setdefault(axis, split) != split:
                raise IllTyped(f"{node.op.value}: operands split {axis} differently")
    return pars, {axis: merged[axis] for axis in node.axes}


def _combined(split: tuple[str, ...] | None, par: str) -> tuple[str, ...]:
    """How an axis is split after combining it along `par`."""
    if split is None:
        return (f"new/{par}",)  # a fresh axis, of extent d_p
    if split[-1:] == (par,):
        return split[:-1]
    return (*split, f"1/{par}")  # an axis that was not split gets longer


class _Slots(NamedTuple):
    """What a pattern's variables may stand for: cheap to know, and most random draws fail on it.

    `present` says of a tensor whether it must have a parallel dimension, or must not.
    """

    operators: tuple[str, ...]
    present: dict[str, dict[str, bool]]


@cache
def _slots(pattern: str) -> _Slots:
    operators: set[str] = set()
    present: dict[str, dict[str, bool]] = {}

    def walk(item: Pattern, above: dict[str, bool]) -> None:
        if isinstance(item, str):
            if item in _TENSORS:
                present.setdefault(item, {}).update(above)
            return
        head, *rest = item
        if rest[0] == "o":
            operators.update(_OPERATORS[head])
        if head in ("Part", "Repl", "Comb", "Merge"):
            above = above | {rest[-1]: head in ("Comb", "Merge")}
        for child in rest:
            walk(child, above)

    walk(read(pattern), {})
    return _Slots(tuple(sorted(operators)), present)


def _assignment(slots: _Slots, rng: random.Random) -> dict[str, object]:
    pars = sorted(_PARS)
    names: dict[str, object] = {v: rng.choice(_AXES) for v in _AXIS_VARS}
    names |= dict(zip(_PAR_VARS, rng.sample(pars, 3), strict=True))
    if rng.random() < 0.2:
        names |= {v: rng.choice(pars) for v in _PAR_VARS}
    split = {p: rng.choice((*_AXES, None)) for p in rng.sample(pars, 3)}
    others = {p for p in pars if rng.random() < 0.3}
    for tensor, needs in slots.present.items():
        own = {names[var]: needed for var, needed in needs.items()}
        chosen = {p: axis for p, axis in split.items() if own.get(p, p in others)}
        names[tensor] = _tensor(tensor, chosen, rng)
    operator = rng.choice(slots.operators) if slots.operators else ""
    return names | {"o": operator, "c": "3", "b": "5"}


def _tensor(name: str, split: dict[str, str | None], rng: random.Random) -> Node:
    """An input, in some parallel dimensions: partitioned along `split[p]` if it has that axis."""
    axes = [a for a in _AXES if rng.random() < 0.6]
    node = Node(Op.INPUT, arg=name.upper() + "".join(axes), axes=axes)
    for par, axis in split.items():
        op, arg = (Op.PART, (axis, par)) if axis in axes else (Op.REPL, par)
        node = Node(op, (node,), arg)
    return node


def _holds(guard: Guard, names: dict[str, object]) -> bool:
    left, right = names[guard.left], names[guard.right]
    if guard.kind == "monotone":
        return left.partition(":")[0] in {op.value for op in MONOTONE}
    match guard.kind:
        case "lacks":
            return right not in left.axes
        case "has":
            return right in left.axes
        case "within":
            return set(left.axes) <= set(right.axes)
    return left != right


def _build(pattern: Pattern, names: dict[str, object]) -> Node:
    def text(token: str) -> str:
        return token.strip('"') if token.startswith('"') else names[token]

    if isinstance(pattern, str):
        return names[pattern]
    head, *rest = pattern
    match head, rest:
        case "Un", [o, t]:
            op, _, arg = text(o).partition(":")
            if text(o) not in _UNARY_NAMES:
                raise ValueError(op)
            return Node(Op(op), (_build(t, names),), arg or None)
        case "Scale", [c, t]:
            return Node(Op.SCALE, (_build(t, names),), text(c))
        case "Bin", [o, s, t]:
            if text(o) not in _BINARY_NAMES:
                raise ValueError(o)
            return Node(Op(text(o)), (_build(s, names), _build(t, names)))
        case "Mat", [s, t, k]:
            return Node(Op.MATMUL, (_build(s, names), _build(t, names)), text(k))
        case "Fold", [o, t, k]:
            if text(o) not in _REDUCE_NAMES:
                raise ValueError(o)
            return Node(Op(text(o)), (_build(t, names),), text(k))
        case "Part" | "Comb", [t, d, p]:
            source = _build(t, names)
            if head == "Part" and text(d) not in source.axes:
                raise ValueError(d)
            op = Op.PART if head == "Part" else Op.COMB
            return Node(op, (source,), (text(d), text(p)))
        case "Merge", [o, t, p]:
            if text(o) not in _REDUCE_NAMES:
                raise ValueError(o)
            return Node(Op.RED, (_build(t, names),), (text(o), text(p)))
        case "Repl", [t, p]:
            return Node(Op.REPL, (_build(t, names),), text(p))
    raise ValueError(f"not a pattern: {pattern}")
