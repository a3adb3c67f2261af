"""How one parallel dimension acts on a value, and the lemmas that say so.

Let p be a grid dimension or the loop, v a value of a graph without p, and e what the same node
computes when p partitions some inputs. The *state* of e is one of

    repl         e = v, p plays no part
    part(a)      e = part(v, a, p), a chunk of v
    sum, max     red(e, p) = v, a partial result
    fold-sum(a), fold-max(a)    e = red(part(v, a, p), p): chunks of v accumulated on each other

A transition says which state an operator makes of its operands' states. It is used only where its
lemma is PROVED by the e-graph for arbitrary operands and constants, over the reals, wherever the
value is defined. What is true of each operator is then true of every graph made of them, by
induction over its nodes: if e and v of all operands are in the states that the lemma assumes, so
are those of the result.

A lemma knows nothing of where its operands come from. One exception is made, for roots of maxima,
which are right of what is never negative only; where that does not suffice for a proof, the lemma
is a gap, though single graphs that need it may be provable as wholes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from prism.program.node import REDUCE, UNARY, Node, Op
from prism.program.numeric import aligned
from prism.program.program import Program
from prism.verify.semantics import Interpreter, ShapeError
from prism.verify.text import MONOTONE

PAR = "x"  # of the lemmas; they hold for any
_NEVER_NEGATIVE = frozenset({Op.EXP, Op.RELU, Op.SQUARE})
_FRESH = "*"  # an axis that stands for p itself, and that no program has
_SIZE, _CHUNK = 3, 2  # of p, and of what it leaves, when a lemma is tried on numbers


class State(NamedTuple):
    """The state of a value under one parallel dimension."""

    kind: str
    axis: str | None = None

    def __str__(self) -> str:
        return self.kind if self.axis is None else f"{self.kind}({self.axis})"


REPL, SUM, MAX = State("repl"), State("sum"), State("max")


@dataclass(frozen=True)
class Lemma:
    """`node`, its operands in the states `before`, is in state `after`."""

    op: Op
    arg: str | None
    operands: tuple[tuple[str, ...], ...]  # axes
    before: tuple[State, ...]
    after: State
    inner: tuple[tuple[Op, str | None], ...] = ()  # what the operand is a result of, if it matters

    def __str__(self) -> str:
        arg = f"[{self.arg}]" if self.arg else ""
        of = "".join(f"{op.value}, " for op, _ in self.inner)
        states = " and ".join(map(str, self.before))
        return f"{self.op.value}{arg} of {of}{states} is {self.after}"

    def goal(self) -> tuple[Node, Node]:
        """Two expressions that are equal exactly if the lemma holds, over arbitrary operands."""
        pairs = [
            _operand(i, axes, state, self.inner)
            for i, (axes, state) in enumerate(zip(self.operands, self.before, strict=True))
        ]
        if self.op is Op.SAVE:
            return _saved(self.before[0], *pairs[0])
        value = Node(self.op, [v for v, _ in pairs], self.arg)
        wide = [s.kind in ("part", "sum", "max") for s in self.before]
        sources = [
            Node(Op.REPL, (e,), PAR) if any(wide) and not w else e
            for (_, e), w in zip(pairs, wide, strict=True)
        ]
        found = Node(self.op, sources, self.arg)
        if self.after.kind in ("sum", "max"):
            return Node(Op.RED, (found,), (self.after.kind, PAR)), value
        return found, _in_state(value, self.after)

    def refuted(self, seed: int) -> bool:
        """Whether the two sides differ at small random operands, in exact semantics.

        Operands are mostly negative, of both signs, and positive, constants negative and positive;
        where the operator has no value, as roots of negatives, nothing is compared.
        """
        found, value = self.goal()
        axes = {a for operand in self.operands for a in operand} | {_FRESH}
        axes |= {arg for _, arg in self.inner if arg}
        split = {s.axis for s in (*self.before, self.after)} | {_FRESH}
        extents = {a: _CHUNK * _SIZE if a in split else _CHUNK for a in axes}
        program = Program("lemma", (("found", found), ("value", value)), extents)
        for low in (-3.0, -1.25, 0.25):
            interpreter = Interpreter(program, extents, {PAR: _SIZE}, seed, low, low < 0)
            try:
                left, right = interpreter.value(found), interpreter.value(value)
            except ShapeError:
                return True
            if set(left.axes) != set(right.axes) or left.array.size != right.array.size:
                return True
            array = aligned(left, right.axes)
            defined = np.isfinite(right.array).all()
            if array.shape != right.array.shape or (
                defined and not np.allclose(array, right.array, rtol=1e-9)
            ):
                return True
        return False


def _operand(
    number: int, axes: tuple[str, ...], state: State, inner: tuple[tuple[Op, str | None], ...]
) -> tuple[Node, Node]:
    """Value and expression of an arbitrary operand in the given state, or of any among `inner`'s
    results."""

    def among(node: Node) -> Node:
        for op, arg in reversed(inner):
            node = Node(op, (node,), arg)
        return node

    axes = (*axes, *(arg for _, arg in inner if arg))
    if state.kind in ("sum", "max"):  # any tensor with dimension p is a sum of such parts
        whole = Node(Op.INPUT, arg=f"P{number}", axes=(*axes, _FRESH))
        partial = among(Node(Op.SUM, (Node(Op.PART, (whole,), (_FRESH, PAR)),), _FRESH))
        return Node(Op.RED, (partial,), (state.kind, PAR)), partial
    value = among(Node(Op.INPUT, arg=f"V{number}", axes=axes))
    return value, _in_state(value, state)


def _saved(state: State, value: Node, found: Node) -> tuple[Node, Node]:
    """Chunks are combined; partial results are combined along a fresh axis and reduced over it."""
    if state.kind == "part":
        return Node(Op.COMB, (found,), (state.axis, PAR)), value
    whole = Node(Op.COMB, (found,), (_FRESH, PAR))
    return Node(Op(state.kind), (whole,), _FRESH), value


def _in_state(value: Node, state: State) -> Node:
    if state == REPL:
        return value
    chunk = Node(Op.PART, (value,), (state.axis, PAR))
    if state.kind == "part":
        return chunk
    return Node(Op.RED, (chunk,), (state.kind.removeprefix("fold-"), PAR))


def proposed(node: Node, states: Sequence[State]) -> State | str:
    """The state that a node's result may be in, or why there is none.

    What is proposed is then refuted or proved. What is not is right for no operands at all, which a
    test tries on numbers for every operator and state.
    """
    if clash := _clash(node, states):
        return clash
    parallel = [s for s in states if s != REPL]
    if not parallel:
        return REPL
    first = parallel[0]
    linear = first.kind in ("part", "sum", "fold-sum")
    wrong = f"{node.op.value} of a {first.kind}"
    if node.op in UNARY:
        keeps = first.kind == "part" or (node.op is Op.SCALE and linear)
        grows = node.op in MONOTONE or bool(inner_of(node, states))
        return first if keeps or (grows and first.kind in ("max", "fold-max")) else wrong
    if node.op in REDUCE:
        return _reduced(node, first) or wrong
    if len(parallel) == 2:
        same = states[0] == states[1]
        if same and first.kind == "part":
            return SUM if node.op is Op.MATMUL and first.axis == node.arg else first
        return first if same and linear and node.op in (Op.ADD, Op.SUB) else f"{wrong} and another"
    if first.kind == "part":
        return first
    left = states[0] != REPL
    scaled = node.op in (Op.MUL, Op.MATMUL) or (node.op is Op.DIV and left)
    shifted = node.op is Op.ADD or (node.op is Op.SUB and left)
    return first if (scaled if linear else shifted) else wrong


def inner_of(node: Node, states: Sequence[State]) -> tuple[tuple[Op, str | None], ...]:
    """Of a root of a maximum: what its operand is a result of, if that is never negative.

    Roots grow where they exist: of max(s, t) there may be one, and none of s.
    """
    if node.op is not Op.SQRT or states[0].kind not in ("max", "fold-max"):
        return ()
    found, inner = [], node.src[0]
    while inner.op is Op.MAX:
        found.append((inner.op, inner.arg))
        (inner,) = inner.src
    return (*found, (inner.op, None)) if inner.op in _NEVER_NEGATIVE else ()


def _clash(node: Node, states: Sequence[State]) -> str | None:
    """Whether the operands' sizes differ along a shared axis."""
    for i, state in enumerate(states):
        for j, other in enumerate(node.src):
            if i != j and state.axis in other.axes and states[j] != state:
                return "shapes: operands are cut differently"
    return None


def _reduced(node: Node, state: State) -> State | None:
    own = node.op.value
    if state.kind == "part":
        return State(own) if state.axis == node.arg else state
    if state.kind == f"fold-{own}":
        return REPL if state.axis == node.arg else state
    return state if state.kind == own else None


def accumulated(node: Node, state: State, maximum: bool) -> Iterator[tuple[str, State]]:
    """Kinds of accumulator for a value inside the loop, each with the state after the loop.

    They hold by definition of the states. An input that is whole is loaded whole, so it is not
    concatenated. `maximum`: whether max accumulators are of any use.
    """
    if state.kind == "part":
        if node.op is not Op.INPUT:
            yield f"concat:{state.axis}", REPL
        yield "sum", State("fold-sum", state.axis)
        if maximum:
            yield "max", State("fold-max", state.axis)
    elif state != REPL:
        yield state.kind, REPL


Key = tuple[Hashable, tuple[State, ...]]


class Transitions:
    """All transitions that the nodes of some graphs can need, as a table to look up.

    Keys are (node, states of its operands), and (axes, (state,)) for a value that is saved. What is
    not in `table` has its cause in `causes`. `whole` are axes that nothing partitions.
    """

    def __init__(self, whole: frozenset[str] = frozenset(), maximum: bool = False):
        self.table: dict[Key, State] = {}
        self.causes: dict[Key, str] = {}
        self.lemmas: dict[Lemma, list[Key]] = {}
        self.whole, self.maximum = whole, maximum
        self.dropped = False
        self._possible: dict[Node, set[State]] = {}

    def add(self, nodes: Iterable[Node]) -> None:
        """Adds what `nodes`, sources before their readers, may need."""
        for node in nodes:
            if node not in self._possible:
                self._possible[node] = self._states(node)

    def drop(self, lemma: Lemma, cause: str) -> None:
        """Takes the transitions out that need a lemma which is not proved."""
        self.dropped = True
        for key in self.lemmas[lemma]:
            self.table.pop(key, None)
            self.causes[key] = cause

    def _states(self, node: Node) -> set[State]:
        if node.op is Op.INPUT:
            found = {State("part", a) for a in node.axes if a not in self.whole} | {REPL}
        else:
            found = set()
            for states in product(*(sorted(self._possible[s], key=str) for s in node.src)):
                if len({s.kind.startswith("fold") for s in states if s != REPL}) > 1:
                    continue  # one inside the loop, one after it
                state = self._transition(node, states)
                if state is not None:
                    found.add(state)
        for state in found:
            if state.kind in ("part", "sum", "max"):
                lemma = Lemma(Op.SAVE, None, (node.axes,), (state,), REPL)
                self._record((node.axes, (state,)), REPL, lemma)
        after = {s for state in found for _, s in accumulated(node, state, self.maximum)}
        return found | after

    def _transition(self, node: Node, states: tuple[State, ...]) -> State | None:
        key, state = (node, states), proposed(node, states)
        if isinstance(state, str):
            self.causes[key] = state
            return None
        if all(s == REPL for s in states):
            self.table[key] = state
        else:
            axes = tuple(s.axes for s in node.src)
            inner = inner_of(node, states)
            self._record(key, state, Lemma(node.op, node.arg, axes, states, state, inner))
        return state

    def _record(self, key: Key, state: State, lemma: Lemma) -> None:
        if key not in self.table:
            self.table[key] = state
            self.lemmas.setdefault(lemma, []).append(key)
