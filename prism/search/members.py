"""The members of an e-class as graphs: every operator order that ordinary algebra allows.

At d = 1 every tensor of a block graph has its full shape and parallel operators are identities
(paper section 3.3), so whatever a feasible block graph computes there is a member of the root
class of the program's e-graph. Enumerating those members builds no partial graph that is dead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prism.program.node import Node, Op, topological
from prism.verify.egraph import ENode


def operators(roots: tuple[Node, ...]) -> int:
    """Number of operators that compute `roots`."""
    return sum(node.op is not Op.INPUT for node in topological(roots))


def members(
    classes: dict[int, list[ENode]], roots: list[int], inputs: Mapping[str, Node], bound: int
) -> Iterator[tuple[Node, ...]]:
    """Graphs (roots in output order, INPUT leaves) of at most `bound` operators, in no order.

    `classes` is a saturated e-graph as tables, `roots` the e-classes of the outputs. Each e-class
    is computed once in a graph: computing one value in two ways is never useful.
    """
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


def _build(
    chosen: dict[int, ENode], roots: list[int], inputs: Mapping[str, Node]
) -> tuple[Node, ...]:
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
