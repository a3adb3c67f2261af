"""Where accumulators stand: every block graph that computes a given member in one kernel.

A cut divides the operators that depend on the loop into those inside it and those after it; each
value that crosses the cut is accumulated, by concatenation along an axis that the loop partitions
or by reduction. Which axis the loop partitions stays a mapping variable: cuts are enumerated per
axis only to know which values can depend on the loop, and equal block graphs are kept once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from prism.program.node import Node, Op, topological
from prism.sgraph.graph import LOOP_DIM, BlockGraph


def placements(roots: tuple[Node, ...], outputs: tuple[str, ...]) -> list[BlockGraph]:
    """Block graphs for one member, without grid dimensions: they come with the mapping.

    The first has no loop. `outputs` names the roots.
    """
    found: dict[BlockGraph, None] = {loop_free(roots, outputs): None}
    nodes = topological(roots)
    axes = dict.fromkeys(a for n in nodes if n.op is Op.INPUT for a in n.axes)
    for axis in axes:
        varying = _varying(nodes, axis)
        for inside in _down_sets(nodes, varying):
            crossing = _crossing(nodes, roots, varying, inside)
            options = [_kinds(node, axis, inside) for node in crossing]
            for kinds in product(*options):
                chosen = dict(zip(crossing, kinds, strict=True))
                found[_block(roots, outputs, inside, chosen, LOOP_DIM)] = None
    return list(found)


def loop_free(roots: tuple[Node, ...], outputs: tuple[str, ...]) -> BlockGraph:
    """The member as a block graph without a loop."""
    return _block(roots, outputs, frozenset(), {}, None)


def _varying(nodes: list[Node], axis: str) -> list[Node]:
    """Nodes that differ between iterations when the loop partitions `axis` of every input."""
    varying: dict[Node, None] = {}
    for node in nodes:
        if (node.op is Op.INPUT and axis in node.axes) or any(s in varying for s in node.src):
            varying[node] = None
    return list(varying)


def _down_sets(nodes: list[Node], varying: list[Node]) -> Iterator[frozenset[Node]]:
    """Every set of varying nodes that holds the varying inputs and is closed under sources."""
    inner = [n for n in varying if n.op is not Op.INPUT]
    leaves = frozenset(n for n in varying if n.op is Op.INPUT)
    among = frozenset(varying)

    def extend(i: int, inside: frozenset[Node]) -> Iterator[frozenset[Node]]:
        if i == len(inner):
            yield inside
            return
        node = inner[i]
        yield from extend(i + 1, inside)
        if all(s in inside or s not in among for s in node.src):
            yield from extend(i + 1, inside | {node})

    yield from extend(0, leaves)


def _crossing(
    nodes: list[Node], roots: tuple[Node, ...], varying: list[Node], inside: frozenset[Node]
) -> list[Node]:
    """Inside nodes that are read after the loop, or saved."""
    outside = [n for n in nodes if n not in inside]
    read = {s for n in outside for s in n.src} | set(roots)
    return [n for n in varying if n in inside and n in read]


def _kinds(node: Node, axis: str, inside: frozenset[Node]) -> list[str]:
    kinds = ["sum"]
    if axis in node.axes and node.op is not Op.INPUT:  # else: the same as loading it whole
        kinds.insert(0, f"concat:{axis}")
    if any(n.op is Op.MAX and n in inside for n in topological([node])):
        kinds.append("max")
    return kinds


def _block(
    roots: tuple[Node, ...],
    outputs: tuple[str, ...],
    inside: frozenset[Node],
    kinds: dict[Node, str],
    loop: str | None,
) -> BlockGraph:
    """The block graph: readers inside the loop take a value itself, others its accumulator."""
    plain: dict[Node, Node] = {}
    after: dict[Node, Node] = {}
    for node in topological(roots):
        if node.op is Op.INPUT:
            plain[node] = Node(Op.LOAD, arg=node.arg, axes=node.axes)
        else:
            values = plain if node in inside else after
            plain[node] = Node(node.op, [values[s] for s in node.src], node.arg)
        kind = kinds.get(node)
        after[node] = Node(Op.ACCUM, (plain[node],), kind) if kind else plain[node]
    savers = [
        Node(Op.SAVE, (after[root],), name) for root, name in zip(roots, outputs, strict=True)
    ]
    return BlockGraph((), loop, tuple(savers))
