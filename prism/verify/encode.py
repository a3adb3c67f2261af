"""sGraphs as expressions over part, comb, red and repl (paper section 4, Figure 5)."""

from __future__ import annotations

from collections.abc import Mapping as MappingT

from prism.errors import PrismError
from prism.program.node import Node, Op, accum_kind
from prism.sgraph.graph import Kernel, Mapping, SGraph


def encode(graph: SGraph, inputs: MappingT[str, Node]) -> dict[str, Node]:
    """The expression of every tensor the graph's kernels save, over the INPUT nodes `inputs`.

    Every kernel must have its mapping. The parallel dimensions of different kernels have sizes of
    their own and so names of their own: those of the second kernel are x2, y2, z2 and i2. Raises
    PrismError for a tensor read before it is written, or partitioned along an axis it lacks.
    """
    tensors = dict(inputs)
    for kernel, mark in zip(graph.kernels, marks(graph), strict=True):
        if kernel.mapping is None:
            raise PrismError("encode: the kernel's mapping variables are not assigned")
        tensors.update(encode_kernel(kernel, kernel.mapping, tensors, mark))
    return {name: node for name, node in tensors.items() if name not in inputs}


def marks(graph: SGraph) -> list[str]:
    """What `encode` adds to the names of each kernel's parallel dimensions."""
    return [str(n) if n > 1 else "" for n in range(1, len(graph.kernels) + 1)]


def encode_kernel(
    kernel: Kernel, mapping: Mapping, tensors: MappingT[str, Node], mark: str = ""
) -> dict[str, Node]:
    """Expressions of the kernel's outputs over those of the tensors it loads.

    `mark` is added to the names of its parallel dimensions. A saver's mapping along an axis that
    the saved value lacks makes that a fresh axis, which comb does by itself.

    Each tensor inside a block is wrapped by the grid dimensions first, then by the loop, so that
    the loop is outermost and can be removed by an accumulator while the grid stays. What does not
    vary over the loop is wrapped by repl only where it meets something that does.
    """
    block, loop = kernel.block, kernel.block.loop
    dim = loop and loop + mark
    values: dict[Node, Node] = {}
    in_loop: set[Node] = set()  # expressions that have the loop dimension
    for node in block.nodes:
        if node.op is Op.LOAD:
            value = _load(node, block.grid, mapping, tensors, mark)
            if loop and (axis := mapping.axis(node.arg, loop)):
                value = _part(value, node.arg, axis, dim)
                in_loop.add(node)
        elif node.op is Op.ACCUM:
            value = values[node.src[0]]
            if node.src[0] not in in_loop:
                value = Node(Op.REPL, (value,), dim)
            kind, axis = accum_kind(node)
            if kind == "concat":
                value = Node(Op.COMB, (value,), (axis, dim))
            else:
                value = Node(Op.RED, (value,), (kind, dim))
        elif node.op is Op.SAVE:
            value = values[node.src[0]]
            if node.src[0] in in_loop:
                in_loop.add(node)  # never accumulated: the loop dimension is left dangling
            for par in reversed(block.grid):
                if axis := mapping.axis(node.arg, par):
                    value = Node(Op.COMB, (value,), (axis, par + mark))
        else:
            sources = [values[s] for s in node.src]
            varies = [s in in_loop for s in node.src]
            if any(varies):
                in_loop.add(node)
                sources = [
                    s if v else Node(Op.REPL, (s,), dim)
                    for s, v in zip(sources, varies, strict=True)
                ]
            value = Node(node.op, sources, node.arg)
        values[node] = value
    return {s.arg: values[s] for s in block.savers}


def _load(
    node: Node,
    grid: tuple[str, ...],
    mapping: Mapping,
    tensors: MappingT[str, Node],
    mark: str,
) -> Node:
    if node.arg not in tensors:
        raise PrismError(f"encode: tensor {node.arg!r} is loaded but nothing writes it")
    value = tensors[node.arg]
    for par in grid:
        axis, name = mapping.axis(node.arg, par), par + mark
        value = _part(value, node.arg, axis, name) if axis else Node(Op.REPL, (value,), name)
    return value


def _part(value: Node, tensor: str, axis: str, par: str) -> Node:
    if axis not in value.axes:
        raise PrismError(f"encode: {par} partitions axis {axis!r}, which tensor {tensor!r} lacks")
    return Node(Op.PART, (value,), (axis, par))
