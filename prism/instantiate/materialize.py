"""Which values of a block graph need a buffer: the fusion of elementwise chains (thread graph).

Loaded tensors are read in place. A matmul or a reduction that only feeds a matching accumulator is
computed straight into it. Chunks that are only concatenated to be saved are stored by the iteration
that makes them. An elementwise operator with one user is evaluated inside that user's
loop, unless the user would evaluate it more often than it has elements, or is a matmul.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from prism.instantiate.spans import Span
from prism.program import Node, Op
from prism.program.node import ELEMENTWISE, REDUCE, accum_kind, topological
from prism.sgraph import Kernel

_FITS = {Op.MATMUL: "sum", Op.SUM: "sum", Op.MAX: "max"}


def regions(kernel: Kernel) -> dict[Node, str]:
    """Where each node runs: "pre" (once, before the loop), "body" or "post".

    An ACCUM node is in "body", where it accumulates; what reads it is in "post".
    """
    after, varying = kernel.block.after_loop, kernel.block.varying(kernel.mapping)
    found = {}
    for node in kernel.block.nodes:
        if node.op is Op.ACCUM or node in varying:
            found[node] = "body"
        else:
            found[node] = "post" if node in after or node.op is Op.SAVE else "pre"
    return found


def users(kernel: Kernel) -> dict[Node, list[Node]]:
    """The users of each node, one entry a use."""
    found: dict[Node, list[Node]] = {node: [] for node in kernel.block.nodes}
    for node in kernel.block.nodes:
        for source in node.src:
            found[source].append(node)
    return found


def fuses(source: Node, accum: Node) -> bool:
    """Whether `accum` can be the destination of the matmul or reduction `source`."""
    kind = accum_kind(accum).kind  # of a running maximum as well
    return kind == "concat" or _FITS[source.op] == kind


def streamed(kernel: Kernel) -> frozenset[Node]:
    """Concat accumulators that are only saved: they need no memory in the block."""
    used = users(kernel)
    return frozenset(
        node
        for node in kernel.block.nodes
        if node.op is Op.ACCUM
        and accum_kind(node).kind == "concat"
        and all(user.op is Op.SAVE for user in used[node])
    )


def materialized(kernel: Kernel) -> frozenset[Node]:
    """The nodes that get a buffer."""
    where, used, stored = regions(kernel), users(kernel), streamed(kernel)
    found = set()
    for node in kernel.block.nodes:
        user = used[node][0] if len(used[node]) == 1 else None
        if node.op in (Op.LOAD, Op.SAVE) or node in stored or node.arg == "last":
            continue
        if node.op in REDUCE | {Op.MATMUL}:
            inline = user is not None and user.op in (Op.ACCUM, Op.RUNNING) and user not in stored
            inline = inline and fuses(node, user)
        elif node.op in ELEMENTWISE:
            inline = user is not None and user.op is not Op.MATMUL
            # What an accumulator is multiplied by is not computed for each of its elements.
            inline = inline and not (user.op is Op.ACCUM and user.src[0] is not node)
            inline = inline and (where[node], where[user]) != ("pre", "body")
            if inline and user.op in ELEMENTWISE:
                inline = set(node.axes) == set(user.axes)
        else:
            inline = False
        if not inline:
            found.add(node)
    return frozenset(found)


def in_place(kernel: Kernel) -> dict[Node, Node]:
    """Elementwise nodes that overwrite the buffer of a value that nothing else reads: that value.

    The value has the same axes, lives in the same part of the block (or is an accumulator, read
    after the loop), and is read once, but for the maximum that it is shifted by.
    """
    where, used, buffered = regions(kernel), users(kernel), materialized(kernel)

    def last(node: Node, source: Node) -> bool:
        """Whether nothing reads `source` after `node`."""
        others = [user for user in used[source] if user is not node]
        if not others or node.op is not Op.EXP_SHIFTED or node.src[0] is not source:
            return len(used[source]) == 1
        return all(user.op is Op.MAX for user in others) and set(others) <= set(topological([node]))

    def reads(node: Node) -> Iterator[Node]:
        for source in node.src:
            if source in buffered:
                yield source
            elif source.op in ELEMENTWISE:
                yield from reads(source)

    found = {}
    for node in kernel.block.nodes:
        if node not in buffered or node.op not in ELEMENTWISE:
            continue
        for source in reads(node):
            alive = where[source] == where[node] or (source.op, where[node]) == (Op.ACCUM, "post")
            if alive and last(node, source) and set(source.axes) == set(node.axes):
                found[node] = source
                break
    return found


def buffers(kernel: Kernel) -> list[Node]:
    """The nodes that make a buffer of their own."""
    own = materialized(kernel) - in_place(kernel).keys()
    return [node for node in kernel.block.nodes if node in own]


def scratch_bytes(kernel: Kernel, spans: Mapping[Node, tuple[Span, ...]]) -> int:
    """Bytes of a block's fp32 buffers, each with its largest extents."""
    return sum(4 * prod(s.extent for s in spans[node]) for node in buffers(kernel))
