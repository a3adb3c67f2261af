"""The paper's generator (section 3.1): add an operator, match dimensions, check the expression.

It explores partial block graphs from the loaders up. It is the reference for the guided generator,
which enumerates the same block graphs from the e-class down; far slower, for small spaces only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product

from prism.program.node import (
    BINARY,
    REDUCE,
    UNARY,
    WITH_CONSTANT,
    Node,
    Op,
    topological,
)
from prism.program.program import Program
from prism.search.mappings import assignments
from prism.search.placements import without_accumulators
from prism.sgraph.constraints import walk
from prism.sgraph.graph import LOOP_DIM, BlockGraph, after_loop
from prism.verify.egraph import Limits
from prism.verify.prove import saturated_table

State = frozenset[Node]


class Expressions:
    """Membership in the program's e-graph at d = 1, as a dictionary (section 3.3)."""

    def __init__(self, program: Program, limits: Limits):
        roots = tuple(node for _, node in program.outputs)
        classes, self.roots, self.saturation = saturated_table(roots, limits)
        self._class = {
            (node.op, node.src, node.arg): number
            for number, nodes in classes.items()
            for node in nodes
        }
        self._known: dict[Node, int | None] = {}

    def of(self, node: Node) -> int | None:
        """The e-class of a block node, or None when no completion can use it."""
        if node not in self._known:
            if node.op is Op.LOAD:
                found = self._class.get((Op.INPUT, (), node.arg))
            elif node.op is Op.ACCUM:  # the identity at d = 1
                found = self.of(node.src[0])
            else:
                found = self._class.get((node.op, tuple(map(self.of, node.src)), node.arg))
            self._known[node] = found
        return self._known[node]


def block_graphs(
    program: Program,
    operators: int,
    allowed: frozenset[Op],
    limits: Limits,
    check: Callable[[], None] = lambda: None,
) -> set[BlockGraph]:
    """All block graphs of at most `operators` operators, each `allowed`, that compute the program.

    The space is the guided generator's: each value is computed once and accumulated at most one
    way, and an input that is needed whole is loaded whole. `check` is called often and may raise.
    """
    expressions = Expressions(program, limits)
    loaders = [Node(Op.LOAD, arg=n.arg, axes=n.axes) for n in program.inputs.values()]
    constants = {(n.op, n.arg) for n in program.nodes if n.op in WITH_CONSTANT}
    maximum = any(n.op is Op.MAX for n in program.nodes)
    found: set[BlockGraph] = set()
    start: State = frozenset(loaders)
    seen, stack = {start}, [start]
    while stack:
        check()
        state = stack.pop()
        found.update(_finished(state, program, expressions))
        used = sum(n.op not in (Op.LOAD, Op.ACCUM) for n in state)
        computed = {expressions.of(n) for n in state if n.op is not Op.ACCUM}
        for node in _candidates(state, constants, maximum):
            larger = state | {node}
            if node in state or larger in seen:
                continue
            if node.op is not Op.ACCUM:
                if node.op not in allowed:
                    continue
                number = expressions.of(node)
                if number is None or number in computed or used == operators:
                    continue
            if not _sizes_match(larger):
                continue
            seen.add(larger)
            stack.append(larger)
    return found


def _candidates(state: State, constants: set[tuple[Op, str]], maximum: bool) -> Iterator[Node]:
    """Every operator of the language on every operand there is."""
    accumulated = {n.src[0] for n in state if n.op is Op.ACCUM}
    after = after_loop(topological(state))
    for node in state:
        for op in UNARY - WITH_CONSTANT:
            yield Node(op, (node,))
        for op, arg in constants:
            yield Node(op, (node,), arg)
        for op, axis in product(REDUCE, node.axes):
            yield Node(op, (node,), axis)
        if node not in after and node not in accumulated:
            yield Node(Op.ACCUM, (node,), "sum")
            if maximum:
                yield Node(Op.ACCUM, (node,), "max")
            if node.op is not Op.LOAD:
                for axis in node.axes:
                    yield Node(Op.ACCUM, (node,), f"concat:{axis}")
    for a, b in product(state, repeat=2):
        for op in BINARY:
            yield Node(op, (a, b))
        for axis in a.axes:
            if axis in b.axes:
                yield Node(Op.MATMUL, (a, b), axis)


def _sizes_match(state: State) -> bool:
    """Whether some assignment of the loop's variables satisfies the constraints so far."""
    loop = LOOP_DIM if any(n.op is Op.ACCUM for n in state) else None
    if loop is None:
        return True
    found = walk(topological(state), (), loop)[1]
    return next(iter(assignments(found, loop)), None) is not None


def _finished(state: State, program: Program, expressions: Expressions) -> Iterator[BlockGraph]:
    """The graphs that this set of nodes makes, if every node serves an output."""
    loop = LOOP_DIM if any(n.op is Op.ACCUM for n in state) else None
    options = [[n for n in state if expressions.of(n) == number] for number in expressions.roots]
    for chosen in product(*options):
        if set(topological(chosen)) != state:
            continue
        savers = tuple(
            Node(Op.SAVE, (node,), name)
            for node, (name, _) in zip(chosen, program.outputs, strict=True)
        )
        block = BlockGraph((), loop, savers)
        if loop is None or _sizes_match(frozenset(block.nodes)):
            yield block


def by_operators(blocks: Iterable[BlockGraph]) -> dict[BlockGraph, list[BlockGraph]]:
    """Block graphs grouped by what they are without accumulators; the loop-free one first."""
    groups: dict[BlockGraph, list[BlockGraph]] = {}
    for block in sorted(blocks, key=lambda b: (b.loop is not None, len(b.nodes), str(b.savers))):
        groups.setdefault(without_accumulators(block), []).append(block)
    return groups
