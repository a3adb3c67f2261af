"""Where accumulators may stand, by shapes alone: the reference for `kernels.Loops`.

A cut divides the operators that depend on the loop into those inside it and those after it; each
value that crosses the cut is accumulated, by concatenation along an axis that the loop partitions
or by reduction. What the loop partitions stays a mapping variable: cuts are enumerated per way to
partition the inputs only to know which values can depend on the loop, and equal block graphs are
kept once.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from itertools import product

from prism.program.node import Node, Op, topological
from prism.sgraph.family import block_graph
from prism.sgraph.graph import BlockGraph

Split = dict[Node, str | None]  # nodes inside the loop: the axis it partitions, if any is left


def placements(
    roots: tuple[Node, ...],
    outputs: tuple[str, ...],
    check: Callable[[], None] = lambda: None,
    whole: Container[str] = (),
    maximum: bool | None = None,
) -> Iterator[BlockGraph]:
    """Block graphs for one member, without grid dimensions: they come with the mapping.

    The first has no loop. `outputs` names the roots; `check` is called often and may raise; axes in
    `whole` are not partitioned. `maximum`: whether there are max accumulators; by default if there
    is a maximum.
    """
    yield loop_free(roots, outputs)
    found: set[BlockGraph] = set()
    nodes = topological(roots)
    inputs = [n for n in nodes if n.op is Op.INPUT]
    maximum = any(n.op is Op.MAX for n in nodes) if maximum is None else maximum
    for axes in product(*((None, *(a for a in n.axes if a not in whole)) for n in inputs)):
        looped: Split = {n: a for n, a in zip(inputs, axes, strict=True) if a is not None}
        if not looped:
            continue
        varying = _varying(nodes, looped)
        for inside in _cuts(varying, looped):
            check()
            crossing = _crossing(nodes, roots, inside)
            for kinds in product(*(_kinds(node, inside, maximum) for node in crossing)):
                chosen = dict(zip(crossing, kinds, strict=True))
                if not _whole(nodes, roots, inside, chosen):
                    continue
                block = block_graph(roots, outputs, inside, chosen)
                if block not in found:
                    found.add(block)
                    yield block


def loop_free(roots: tuple[Node, ...], outputs: tuple[str, ...]) -> BlockGraph:
    """The member as a block graph without a loop."""
    return block_graph(roots, outputs, {}, {})


def _varying(nodes: list[Node], looped: Split) -> list[Node]:
    """Nodes that differ between iterations when the loop partitions the inputs as `looped` says."""
    varying: dict[Node, None] = {}
    for node in nodes:
        if node in looped or any(s in varying for s in node.src):
            varying[node] = None
    return list(varying)


def _cuts(varying: list[Node], looped: Split) -> Iterator[Split]:
    """Sets of varying nodes that hold the looped inputs and are closed under sources."""
    inner = [n for n in varying if n.op is not Op.INPUT]
    among = frozenset(varying)

    def extend(i: int, inside: Split) -> Iterator[Split]:
        if i == len(inner):
            yield inside
            return
        node = inner[i]
        yield from extend(i + 1, inside)
        if all(s in inside or s not in among for s in node.src):
            axes = _split_axes(node, inside)
            if axes is not None and len(axes) <= 1:  # equation (1)
                yield from extend(i + 1, inside | {node: next(iter(axes), None)})

    yield from extend(0, looped)


def _split_axes(node: Node, inside: Split) -> set[str] | None:
    """Axes of the result that the loop partitions; None when the operands' sizes cannot match."""
    axes = {inside[s] for s in node.src if inside.get(s)}
    for axis in axes:
        if any(axis in s.axes and inside.get(s) != axis for s in node.src):
            return None
    return axes & set(node.axes)


def _crossing(nodes: list[Node], roots: tuple[Node, ...], inside: Split) -> list[Node]:
    """Inside nodes that are read after the loop, or saved."""
    read = {s for n in nodes if n not in inside for s in n.src} | set(roots)
    return [n for n in nodes if n in inside and n in read]


def _kinds(node: Node, inside: Split, maximum: bool) -> list[str]:
    """Accumulator kinds that the sizes allow; whether they are right is for the proof."""
    kinds = ["sum"]
    if inside[node] and node.op is not Op.INPUT:  # an input whole is loaded whole
        kinds.insert(0, f"concat:{inside[node]}")
    if maximum:
        kinds.append("max")
    return kinds


def _whole(
    nodes: list[Node], roots: tuple[Node, ...], inside: Split, kinds: dict[Node, str]
) -> bool:
    """Whether sizes match after the loop too, up to outputs that are whole.

    A value accumulated by reduction still has a tile's extent along the axis that the loop
    partitions, until a reduction over that axis removes it.
    """
    after: Split = {n: inside[n] if kinds[n] in ("sum", "max") else None for n in kinds}
    for node in nodes:
        if node in inside or node.op is Op.INPUT:
            continue
        axes = _split_axes(node, after)
        if axes is None or len(axes) > 1:
            return False
        after[node] = next(iter(axes), None)
    return not any(after.get(root) for root in roots)


def without_accumulators(block: BlockGraph) -> BlockGraph:
    """The block graph at d_i = 1, where accumulators are identities."""
    new: dict[Node, Node] = {}
    for node in block.nodes:
        src = tuple(new[s] for s in node.src)
        if node.op is Op.ACCUM:
            new[node] = src[0]
        else:
            new[node] = Node(node.op, src, node.arg, None if src else node.axes)
    return BlockGraph(block.grid, None, tuple(new[s] for s in block.savers))
