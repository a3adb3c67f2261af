"""The members of an e-class as graphs: every operator order that ordinary algebra allows.

At d = 1 every tensor of a block graph has its full shape and parallel operators are identities
(paper section 3.3), so whatever a feasible block graph computes there is a member of the root
class of the program's e-graph. Enumerating those members builds no partial graph that is dead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prism.program.node import Node, Op, topological
from prism.program.program import Program
from prism.verify.axioms import ALGEBRA
from prism.verify.egraph import ENode, Limits, Saturation, Session


def members(
    program: Program, operators: int, limits: Limits, check: Callable[[], None] = lambda: None
) -> tuple[list[tuple[Node, ...]], Saturation]:
    """Graphs (roots in output order, INPUT leaves) of at most `operators` operators.

    Each e-class is computed once in a graph: computing one value in two ways is never useful.
    The program's own graph is left out, the rest is sorted, fewest operators first. `check` is
    called often and may raise.
    """
    session = Session({"algebra": ALGEBRA})
    roots = tuple(node for _, node in program.outputs)
    session.insert(roots)
    saturation = session.saturate(limits)
    classes, root_ids = session.table(roots)
    found = {roots: None}
    for graph in _graphs(classes, root_ids, program.inputs, operators):
        check()
        found[graph] = None
    del found[roots]
    return sorted(found, key=lambda g: (_count(g), str(g))), saturation


def _count(roots: tuple[Node, ...]) -> int:
    return sum(node.op is not Op.INPUT for node in topological(roots))


def _graphs(
    classes: dict[int, list[ENode]], roots: list[int], inputs: dict[str, Node], bound: int
) -> Iterator[tuple[Node, ...]]:
    chosen: dict[int, ENode] = {}

    def reaches(start: int, goal: int) -> bool:
        stack, seen = [start], set()
        while stack:
            current = stack.pop()
            if current == goal:
                return True
            if current not in seen:
                seen.add(current)
                if current in chosen:
                    stack.extend(chosen[current].src)
        return False

    def choose(pending: tuple[int, ...], used: int) -> Iterator[tuple[Node, ...]]:
        while pending and pending[0] in chosen:
            pending = pending[1:]
        if not pending:
            yield _build(chosen, roots, inputs)
            return
        current = pending[0]
        for enode in classes[current]:
            cost = enode.op is not Op.INPUT
            if used + cost > bound or any(reaches(s, current) for s in enode.src):
                continue
            chosen[current] = enode
            yield from choose(pending[1:] + enode.src, used + cost)
            del chosen[current]

    yield from choose(tuple(roots), 0)


def _build(chosen: dict[int, ENode], roots: list[int], inputs: dict[str, Node]) -> tuple[Node, ...]:
    built: dict[int, Node] = {}

    def node(current: int) -> Node:
        if current not in built:
            enode = chosen[current]
            built[current] = (
                inputs[enode.arg]
                if enode.op is Op.INPUT
                else Node(enode.op, [node(s) for s in enode.src], enode.arg)
            )
        return built[current]

    return tuple(node(root) for root in roots)
