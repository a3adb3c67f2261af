"""Large programs in pieces: each small enough to be searched as one, their graphs in a row.

A kernel cannot hold a whole layer: sooner or later a value must be in memory before the next kernel
starts. Pieces are consecutive operators of one order in which operators can run, so that piece by
piece is an order for kernels too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from prism.program.node import Node, Op, topological
from prism.program.program import Program


def pieces(program: Program, most: int) -> list[Program]:
    """The program as programs of at most `most` operators, in order.

    What crosses from one to another is an output of the one and an input of the other, named c1,
    c2, ... A program that is small enough is its only piece. The fewest pieces; among those, the
    fewest values that cross; among those, the most even ones.
    """
    order = _order(program)
    if len(order) <= most:
        return [program]
    return list(_Pieces(program, order).cut(_ends(program, order, most)))


def _order(program: Program) -> list[Node]:
    """Operators in an order that keeps few values alive: next is what frees most, makes least."""
    left = [n for n in topological(program.nodes) if n.op is not Op.INPUT]
    readers = Counter(s for n in left for s in set(n.src))
    order: list[Node] = []
    done = {n for n in program.nodes if n.op is Op.INPUT}

    def growth(node: Node) -> int:
        frees = sum(readers[s] == 1 and s.op is not Op.INPUT for s in set(node.src))
        return (readers[node] > 0) - frees

    while left:
        node = min((n for n in left if all(s in done for s in n.src)), key=growth)
        left.remove(node)
        done.add(node)
        order.append(node)
        readers.subtract(set(node.src))
    return order


def _ends(program: Program, order: list[Node], most: int) -> list[int]:
    """Positions at which the pieces end, by dynamic programming over prefixes."""
    crossing = _crossing(order)
    best = [(0, 0, 0, 0)]  # (pieces, values that cross, sum of squared sizes, previous end)
    for end in range(1, len(order) + 1):
        options = []
        for start in range(max(0, end - most), end):
            count, values, squares, _ = best[start]
            squares += (end - start) ** 2
            options.append((count + 1, values + crossing[end], squares, start))
        best.append(min(options))
    ends, end = [], len(order)
    while end:
        ends.append(end)
        end = best[end][3]
    return ends[::-1]


def _crossing(order: list[Node]) -> list[int]:
    """For each position, how many values from before it are read behind it."""
    at = {node: i for i, node in enumerate(order)}
    last = dict(at)
    for node in order:
        for source in node.src:
            if source in at:
                last[source] = max(last[source], at[node])
    return [sum(at[node] < end <= last[node] for node in order) for end in range(len(order) + 1)]


@dataclass
class _Pieces:
    program: Program
    order: list[Node]

    def cut(self, ends: list[int]) -> Iterator[Program]:
        taken = {*self.program.inputs, *(name for name, _ in self.program.outputs)}
        names = (f"c{i}" for i in count(1) if f"c{i}" not in taken)
        output = {node: name for name, node in self.program.outputs}
        leaves: dict[Node, Node] = {}
        start = 0
        for number, end in enumerate(ends, 1):
            inside, later = self.order[start:end], self.order[end:]
            read = {s for node in later for s in node.src}
            built: dict[Node, Node] = {}
            for node in inside:
                sources = [s if s.op is Op.INPUT else built.get(s) or leaves[s] for s in node.src]
                built[node] = Node(node.op, sources, node.arg)
            saved = [n for n in inside if n in output or n in read]
            outputs = tuple((output.get(n) or next(names), built[n]) for n in saved)
            leaves |= {
                node: Node(Op.INPUT, arg=name, axes=node.axes)
                for node, (name, _) in zip(saved, outputs, strict=True)
            }
            yield self.piece(number, outputs)
            start = end

    def piece(self, number: int, outputs: tuple[tuple[str, Node], ...]) -> Program:
        nodes = topological(node for _, node in outputs)
        axes = {a for n in nodes for a in n.axes}
        sizes = {a: size for a, size in self.program.sizes.items() if a in axes}
        name = f"{self.program.name}.{number}"
        generated = self.program.generated.items()
        read = {n.arg for n in nodes if n.op is Op.INPUT}
        return Program(
            name,
            outputs,
            sizes,
            self.program.dtype,
            self.program.params,
            generated={name: rule for name, rule in generated if name in read},
        )
