"""Kernel graphs: every way to cut a graph into generated kernels and library operators.

A cut assigns each operator of a member to one of at most two generated kernels or makes it a call
of a predefined operator; each value is computed once. Kernels must be convex, so that they can run
one after another, and of several kernels each is connected, by its values or by what it reads:
putting unrelated work into one kernel gains nothing over two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from prism.program.node import Node, Op, topological

GENERATED = 2  # kernels at most


@dataclass(frozen=True)
class Part:
    """The nodes that one kernel computes, and those of them that are saved, sources first."""

    nodes: frozenset[Node]
    saved: tuple[Node, ...]
    library: bool


Cut = tuple[Part, ...]  # in an order in which every tensor is written before it is read


def cuts(
    roots: tuple[Node, ...],
    library: frozenset[Op],
    kernels: int,
    generated: int = GENERATED,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Cut]:
    """All cuts into at most `kernels` kernels, at most `generated` (1 or 2) of them generated.

    `library` are the operators that may be calls. The first cut is a single generated kernel.
    """
    graph = _Graph(roots)
    callable_ = [i for i, n in enumerate(graph.nodes) if n.op in library]
    seen: set[tuple[int, frozenset[int]]] = set()
    for count in range(min(kernels, len(callable_)) + 1):
        for calls in combinations(callable_, count):
            called = sum(1 << i for i in calls)
            rest = graph.all & ~called
            for first in graph.down_sets(rest, check) if generated > 1 else [0]:
                check()
                made = frozenset(k for k in (first, rest & ~first) if k)
                if len(made) + count > kernels or (called, made) in seen:
                    continue
                seen.add((called, made))
                connected = len(made) + count == 1 or all(map(graph.connected, made))
                if connected and all(map(graph.convex, made)):
                    yield graph.cut([(k, False) for k in made] + [(1 << i, True) for i in calls])


class _Graph:
    """Sets of operators as bit masks over the topological order."""

    def __init__(self, roots: tuple[Node, ...]):
        self.nodes = [n for n in topological(roots) if n.op is not Op.INPUT]
        self.all = (1 << len(self.nodes)) - 1
        at = {node: i for i, node in enumerate(self.nodes)}
        self.above: list[int] = []  # what a node depends on
        self.readers = [0] * len(self.nodes)
        for i, node in enumerate(self.nodes):
            sources = [at[s] for s in node.src if s in at]
            self.above.append(0)
            for s in sources:
                self.above[i] |= self.above[s] | 1 << s
                self.readers[s] |= 1 << i
        self.below = [
            sum(1 << j for j in range(len(self.nodes)) if self.above[j] >> i & 1)
            for i in range(len(self.nodes))
        ]
        self.roots = sum(1 << i for i in {at[r] for r in roots})

    def down_sets(self, among: int, check: Callable[[], None]) -> list[int]:
        """Subsets of `among` that hold whatever of it their members depend on; the empty first."""
        found = [0]
        for i in range(len(self.nodes)):
            check()
            if among >> i & 1:
                needs = self.above[i] & among
                found += [d | 1 << i for d in found if needs & ~d == 0]
        return found

    def convex(self, kernel: int) -> bool:
        """Whether no path leaves the kernel and comes back."""
        outside = self.all & ~kernel
        return not any(
            outside >> i & 1 and self.above[i] & kernel and self.below[i] & kernel
            for i in range(len(self.nodes))
        )

    def connected(self, kernel: int) -> bool:
        """Whether all nodes of the kernel hang together by values that they make or read."""
        groups: list[set[Node]] = []
        for i, node in enumerate(self.nodes):
            if kernel >> i & 1:
                group = {node, *node.src}
                groups, apart = (
                    [g for g in groups if g & group],
                    [g for g in groups if not g & group],
                )
                groups = [group.union(*groups), *apart]
        return len(groups) == 1

    def cut(self, kernels: list[tuple[int, bool]]) -> Cut:
        done, order = 0, []
        left = sorted(kernels)
        while left:
            ready = next(k for k in left if not self._needs(k[0]) & ~done)
            left.remove(ready)
            done |= ready[0]
            order.append(self._part(*ready))
        return tuple(order)

    def _needs(self, kernel: int) -> int:
        needs = 0
        for i in range(len(self.nodes)):
            if kernel >> i & 1:
                needs |= self.above[i]
        return needs & ~kernel

    def _part(self, kernel: int, library: bool) -> Part:
        inside = [i for i in range(len(self.nodes)) if kernel >> i & 1]
        saved = [i for i in inside if self.readers[i] & ~kernel or self.roots >> i & 1]
        nodes = self.nodes
        return Part(frozenset(nodes[i] for i in inside), tuple(nodes[i] for i in saved), library)


@dataclass(frozen=True)
class Function:
    """What a kernel computes: `roots` over INPUT leaves.

    `reads` lists, in order, the values behind the leaves in:0, in:1, ..., which other kernels save;
    inputs of the program keep their own names. Equal kernels of different graphs have equal roots.
    """

    roots: tuple[Node, ...]
    reads: tuple[Node, ...]


def function(part: Part, partial: Mapping[Node, tuple[str, str]] | None = None) -> Function:
    """The function of a part.

    `partial` are values that arrive as partial results, with the reduction that makes them whole
    and the axis that holds them. A value of `part.saved` that the part does not compute must be
    one of them: its reduction is saved.
    """
    partial = partial or {}
    reads: dict[Node, None] = {}
    built: dict[Node, Node] = {}

    def build(node: Node) -> Node:
        if node.op is Op.INPUT:
            return node
        if node not in built:
            if node in part.nodes:
                built[node] = Node(node.op, [build(s) for s in node.src], node.arg)
            else:
                reduction, axis = partial.get(node, (None, None))
                axes = (*node.axes, axis) if axis else node.axes
                leaf = Node(Op.INPUT, arg=f"in:{len(reads)}", axes=axes)
                built[node] = Node(Op(reduction), (leaf,), axis) if axis else leaf
                reads[node] = None
        return built[node]

    return Function(tuple(build(node) for node in part.saved), tuple(reads))
