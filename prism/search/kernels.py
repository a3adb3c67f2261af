"""Mappings and loops of one kernel: what its function allows, by looking transitions up.

Grid dimensions and the loop are chosen apart from each other. Let F be the function of a kernel
without grid, loop included; constants, which may stand for sizes of the whole program, are fixed
parameters of it. Suppose that grid dimension x alone is right: combining F's results on the parts
of its inputs gives F, whatever inputs and sizes. Then the kernel with x and y is the kernel with y
alone, in which each block computes F by means of x; so it is right if y alone is. The same holds
with the loop inside F, and with a dimension that leaves partial results: what it saves along the
fresh axis is F of each part, and reducing that gives F; the other dimensions compute those F. There
is one such dimension at most, and nothing partitions the fresh axis. Every combination of choices
that are right alone, and partition no axis of a tensor twice, is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prism.program.node import Node, Op, topological
from prism.search.actions import REPL, State, Transitions, accumulated
from prism.sgraph.family import Choice, Loop
from prism.sgraph.graph import GRID_DIMS

UNKNOWN = "not tried: the search was stopped before"
Merges = tuple[tuple[int, str], ...]  # outputs that are saved in parts, and how they are reduced
Options = Callable[
    [Node], Iterable[str | None]
]  # axes of an input that may be partitioned, or None


def any_axis(node: Node) -> tuple[str | None, ...]:
    """Every axis of an input, and to partition none."""
    return (None, *node.axes)


def no_axis(node: Node) -> tuple[None]:
    """Nothing is partitioned."""
    return (None,)


@dataclass(frozen=True)
class GridChoice:
    """What one grid dimension partitions, and which outputs it leaves as partial results."""

    pairs: Choice
    merges: Merges


def grid_choices(
    roots: Sequence[Node],
    found: Transitions,
    fresh: str,
    rejected: Counter,
    check: Callable[[], None] = lambda: None,
    options: Options = any_axis,
) -> list[GridChoice]:
    """All right mappings of one grid dimension, which partitions inputs as `options` allow.

    An active grid dimension partitions an axis of every output, or leaves partial results of it,
    which are saved along the fresh axis: idle, its blocks would write the same elements.
    """
    nodes = topological(roots)
    states: dict[Node, State] = {}
    choices: list[GridChoice] = []
    table, causes = found.table, found.causes

    def extend(i: int) -> None:
        if i == len(nodes):
            choices.extend(finished())
            return
        node = nodes[i]
        if node.op is Op.INPUT:
            check()
            for axis in options(node):
                if axis not in found.whole:
                    states[node] = REPL if axis is None else State("part", axis)
                    extend(i + 1)
            return
        key = node, tuple(states[s] for s in node.src)
        state = table.get(key)
        if state is None:
            rejected[causes.get(key, UNKNOWN)] += 1
            return
        states[node] = state
        extend(i + 1)

    def finished() -> Iterator[GridChoice]:
        ends = [states[root] for root in roots]
        missing = [k for k in ((r.axes, (states[r],)) for r in roots) if k in causes]
        if missing:
            rejected[causes[missing[0]]] += 1
            return
        if REPL in ends:
            if any(s != REPL for s in states.values()):
                rejected["mapping: blocks would write the same elements"] += 1
            return
        pairs = [(n.arg, states[n].axis) for n in nodes if n.op is Op.INPUT and states[n] != REPL]
        pairs += [(f"out:{i}", s.axis or fresh) for i, s in enumerate(ends)]
        merges = tuple((i, s.kind) for i, s in enumerate(ends) if s.kind != "part")
        yield GridChoice(tuple(sorted(pairs)), merges)

    extend(0)
    return choices


def grids(
    choices: Sequence[GridChoice],
    merges: Merges,
    limit: int,
    check: Callable[[], None] = lambda: None,
) -> tuple[tuple[Choice, ...], ...]:
    """Sets of choices, one a grid dimension, that respect equation (2): no axis twice.

    Grid dimensions are interchangeable: of all orders of a set only the smallest is made. With
    `merges`, exactly one dimension leaves those partial results and the others none.
    """
    plain = [c.pairs for c in choices if not c.merges]
    pairs = {pair: 1 << i for i, pair in enumerate({p for c in choices for p in c.pairs})}
    masks = [sum(pairs[p] for p in choice) for choice in plain]
    most = min(limit, len(GRID_DIMS))
    found: list[tuple[Choice, ...]] = []

    def extend(start: int, chosen: tuple[Choice, ...], used: int) -> None:
        check()
        found.append(tuple(sorted(chosen)))
        if len(chosen) < most:
            for i in range(start, len(plain)):
                if not masks[i] & used:
                    extend(i + 1, (*chosen, plain[i]), used | masks[i])

    if not merges:
        extend(0, (), 0)
    elif most:
        for choice in (c.pairs for c in choices if c.merges == merges):
            extend(0, (choice,), sum(pairs[p] for p in choice))
    return tuple(sorted(found, key=lambda grid: (len(grid), grid)))


class Loops:
    """Every right way to put a loop around part of a graph; the first is to have none.

    Nodes that depend on the loop are inside it or after it, and a value that leaves the loop is
    accumulated, one way each. `check` is called often and may raise; `result` has what was found.
    """

    def __init__(
        self,
        roots: Sequence[Node],
        found: Transitions,
        rejected: Counter,
        check: Callable[[], None] = lambda: None,
        options: Options = any_axis,
    ):
        self.nodes, self.roots = topological(roots), tuple(dict.fromkeys(roots))
        self.position = {node: i for i, node in enumerate(self.nodes)}
        self.found, self.rejected, self.check, self.options = found, rejected, check, options
        self.varying: set[Node] = set()
        self.inside: dict[Node, State] = {}  # of varying nodes in the loop
        self.after: dict[Node, State] = {}  # of invariants, and of varying values after the loop
        self.kinds: dict[Node, str] = {}
        self.result: list[Loop] = []

    def run(self) -> list[Loop]:
        """All of them."""
        self.extend(0)
        return self.result

    def extend(self, i: int) -> None:
        """All choices for the nodes from position `i` on."""
        if i == len(self.nodes):
            self.leave(self.roots, self.finish)
            return
        node = self.nodes[i]
        if node.op is Op.INPUT:
            for axis in self.options(node):
                if axis is None:
                    self.invariant(i, node)
                elif axis not in self.found.whole:
                    self.put_inside(i, node, State("part", axis))
        elif self.varying.isdisjoint(node.src):
            self.invariant(i, node)
        else:
            if all(s in self.inside or s not in self.varying for s in node.src):
                state = self.look_up(node, self.inside)
                if state is not None:
                    self.put_inside(i, node, state)
            self.leave(node.src, lambda: self.put_after(i, node))

    def invariant(self, i: int, node: Node) -> None:
        """It does not depend on the loop."""
        self.after[node] = REPL
        self.extend(i + 1)
        del self.after[node]

    def put_inside(self, i: int, node: Node, state: State) -> None:
        """It is computed in the loop."""
        self.varying.add(node)
        self.inside[node] = state
        self.extend(i + 1)
        del self.inside[node]
        self.varying.remove(node)

    def put_after(self, i: int, node: Node) -> None:
        """It depends on the loop and is computed after it."""
        state = self.look_up(node, self.after)
        if state is not None:
            self.varying.add(node)
            self.after[node] = state
            self.extend(i + 1)
            del self.after[node]
            self.varying.remove(node)

    def look_up(self, node: Node, states: dict[Node, State]) -> State | None:
        """The state of a node, or None, which is counted with its cause."""
        key = node, tuple([states.get(s, REPL) for s in node.src])
        state = self.found.table.get(key)
        if state is None:
            self.rejected[self.found.causes.get(key, UNKNOWN)] += 1
        return state

    def leave(self, values: Sequence[Node], then: Callable[[], None]) -> None:
        """`then` for every way to accumulate those of `values` that still have to be."""
        for node in values:
            if node in self.inside and node not in self.kinds:
                break
        else:
            then()
            return
        for kind, state in accumulated(node, self.inside[node], self.found.maximum):
            if kind.startswith("concat") and (node.axes, (self.inside[node],)) in self.found.causes:
                continue
            self.kinds[node], self.after[node] = kind, state
            self.leave(values, then)
            del self.kinds[node], self.after[node]

    def finish(self) -> None:
        """A whole choice: keeps it if every output is whole."""
        self.check()
        if any(self.after[root] != REPL for root in self.roots):
            self.rejected["loop: an output is not whole after it"] += 1
            return
        at = self.position
        split = [(n.arg, s.axis) for n, s in self.inside.items() if n.op is Op.INPUT]
        kinds = tuple((at[n], kind) for n, kind in self.kinds.items())
        self.result.append(Loop(tuple(split), tuple(at[n] for n in self.inside), kinds))
