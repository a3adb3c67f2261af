"""Families of sGraphs: what a search found, as products that are never multiplied out.

A kernel family is one function of its loaded tensors with all the ways found to place its loop and
to map its grid; both choices are free of each other, so `loops * grids` kernels need the memory of
`loops + grids`. A graph family is a sequence of kernels; a space is the union of its families, or,
for a program that was cut into pieces, the product of the pieces' unions.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import NamedTuple

from prism.errors import PrismError
from prism.program.node import Node, Op, topological
from prism.program.serial import nodes_from_json, nodes_to_json
from prism.sgraph.graph import GRID_DIMS, LOOP_DIM, BlockGraph, Kernel, MapVar, SGraph
from prism.sgraph.graph import Mapping as Mapped

Choice = tuple[tuple[str, str], ...]  # (tensor, axis) pairs that one parallel dimension partitions


class Loop(NamedTuple):
    """Where the loop of a kernel stands.

    `split`: (input, axis) pairs that it partitions; `inside`: positions of the nodes computed in
    it; `accumulated`: (position, accumulator kind) of those that leave it.
    """

    split: Choice = ()
    inside: tuple[int, ...] = ()
    accumulated: tuple[tuple[int, str], ...] = ()


NO_LOOP = Loop()


@dataclass(frozen=True)
class KernelFamily:
    """All kernels found for one function: `roots` over INPUT leaves, saved as out:0, out:1, ...

    `grids` are tuples of choices, one a grid dimension. Any loop goes with any grid. A saved tensor
    whose partitioned axis is not its own has a fresh axis there.
    """

    roots: tuple[Node, ...]
    loops: tuple[Loop, ...] = (NO_LOOP,)
    grids: tuple[tuple[Choice, ...], ...] = ((),)
    library: bool = False

    @property
    def count(self) -> int:
        """Number of kernels."""
        return len(self.loops) * len(self.grids)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every node, sources first: what positions refer to."""
        return tuple(topological(self.roots))

    def kernel(self, number: int, names: Mapping[str, str]) -> Kernel:
        """The kernel of that number, its tensors renamed by `names`."""
        loop_number, grid_number = divmod(number, len(self.grids))
        loop, grid = self.loops[loop_number], self.grids[grid_number]
        block = self._block(loop, names)
        pairs = [(p, pair) for p, choice in zip(GRID_DIMS, grid, strict=False) for pair in choice]
        pairs += [(LOOP_DIM, pair) for pair in loop.split]
        ones = frozenset(MapVar(names.get(t, t), axis, p) for p, (t, axis) in pairs)
        block = BlockGraph(GRID_DIMS[: len(grid)], block.loop, block.savers)
        return Kernel(block, Mapped(ones), self.library)

    def _block(self, loop: Loop, names: Mapping[str, str]) -> BlockGraph:
        inside = {self.nodes[i] for i in loop.inside}
        kinds = {self.nodes[i]: kind for i, kind in loop.accumulated}
        outputs = [names.get(f"out:{i}", f"out:{i}") for i in range(len(self.roots))]
        return block_graph(self.roots, outputs, inside, kinds, names)

    def to_json(self) -> dict:
        """Plain data; `from_json` gives an equal family back."""
        at = {node: i for i, node in enumerate(self.nodes)}
        return {
            "nodes": nodes_to_json(self.nodes),
            "roots": [at[root] for root in self.roots],
            "loops": [list(loop) for loop in self.loops],
            "grids": [list(grid) for grid in self.grids],
            "library": self.library,
        }

    @staticmethod
    def from_json(data: dict) -> KernelFamily:
        """Raises KeyError, TypeError, ValueError or IndexError for other data."""
        nodes = nodes_from_json(data["nodes"])
        return KernelFamily(
            tuple(nodes[i] for i in data["roots"]),
            tuple(
                Loop(_pairs(split), tuple(inside), _pairs(accumulated))
                for split, inside, accumulated in data["loops"]
            ),
            tuple(tuple(_pairs(choice) for choice in grid) for grid in data["grids"]),
            data["library"],
        )


def _pairs(items: Sequence[Sequence]) -> tuple:
    return tuple((a, b) for a, b in items)


def block_graph(
    roots: Sequence[Node],
    outputs: Sequence[str],
    inside: frozenset[Node] | set[Node] | Mapping[Node, object],
    kinds: Mapping[Node, str],
    names: Mapping[str, str] | None = None,
) -> BlockGraph:
    """The block graph of a function, without grid, its loop around the nodes `inside`.

    Readers inside the loop take a value itself, others its accumulator. `names` renames inputs.
    """
    names = names or {}
    plain: dict[Node, Node] = {}
    after: dict[Node, Node] = {}
    for node in topological(roots):
        if node.op is Op.INPUT:
            plain[node] = Node(Op.LOAD, arg=names.get(node.arg, node.arg), axes=node.axes)
        else:
            values = plain if node in inside else after
            plain[node] = Node(node.op, [values[s] for s in node.src], node.arg)
        kind = kinds.get(node)
        after[node] = Node(Op.ACCUM, (plain[node],), kind) if kind else plain[node]
    savers = tuple(
        Node(Op.SAVE, (after[root],), name) for root, name in zip(roots, outputs, strict=True)
    )
    return BlockGraph((), LOOP_DIM if inside else None, savers)


@dataclass(frozen=True)
class ListedKernels:
    """Kernels of one function, one by one: what a search finds that tries candidates singly."""

    kernels: tuple[Kernel, ...]
    library = False

    @property
    def count(self) -> int:
        """Number of kernels."""
        return len(self.kernels)

    def kernel(self, number: int, names: Mapping[str, str]) -> Kernel:
        """The kernel of that number, its tensors renamed by `names`."""
        found = self.kernels[number]
        new: dict[Node, Node] = {}
        for node in found.block.nodes:
            arg = names.get(node.arg, node.arg) if node.op in (Op.LOAD, Op.SAVE) else node.arg
            new[node] = Node(node.op, [new[s] for s in node.src], arg, node.axes)
        block = BlockGraph(
            found.block.grid, found.block.loop, tuple(new[s] for s in found.block.savers)
        )
        ones = frozenset(MapVar(names.get(t, t), a, p) for t, a, p in found.mapping.ones)
        return Kernel(block, Mapped(ones))

    def to_json(self) -> dict:
        """Plain data; `from_json` gives an equal list back."""
        return {"listed": SGraph(self.kernels).to_json()["kernels"]}

    @staticmethod
    def from_json(data: dict) -> ListedKernels:
        """Raises PrismError or KeyError for other data."""
        return ListedKernels(SGraph.from_json({"kernels": data["listed"]}).kernels)


class Step(NamedTuple):
    """A kernel of a graph family: one of the space's kernel families, and its tensors' names."""

    family: int
    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Piece:
    """The graphs found for one program, or for one piece of it: a union of families of graphs.

    Raises PrismError where a graph refers to a kernel family that is not there.
    """

    kernels: tuple[KernelFamily | ListedKernels, ...]
    graphs: tuple[tuple[Step, ...], ...]

    def __post_init__(self):
        if any(not 0 <= s.family < len(self.kernels) for graph in self.graphs for s in graph):
            raise PrismError("graphs: a kernel family is missing")

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Number of sGraphs of each family of graphs."""
        return tuple(prod(self.kernels[s.family].count for s in graph) for graph in self.graphs)

    @cached_property
    def count(self) -> int:
        """Number of sGraphs, no two alike in operators, kernels and mapping."""
        return sum(self.counts)

    def kernel_graph(self, family: int, number: int) -> tuple[Kernel, ...]:
        """The kernels of graph `number` of a family. Raises PrismError when there is none."""
        if not (0 <= family < len(self.graphs) and 0 <= number < self.counts[family]):
            raise PrismError(f"graph {family}.{number}: the result has no such graph")
        kernels = []
        for step in reversed(self.graphs[family]):
            found = self.kernels[step.family]
            number, at = divmod(number, found.count)
            kernels.append(found.kernel(at, dict(step.names)))
        return tuple(reversed(kernels))

    def generated(self, family: int) -> int:
        """Number of generated kernels of a family's graphs; library operators are not counted."""
        return sum(not self.kernels[s.family].library for s in self.graphs[family])

    def single(self, family: int) -> bool:
        """Whether a family's graphs are one generated kernel and nothing else."""
        return len(self.graphs[family]) == self.generated(family) == 1

    def to_json(self) -> dict:
        """Plain data; `from_json` gives an equal piece back."""
        return {
            "kernels": [k.to_json() for k in self.kernels],
            "graphs": [[[s.family, dict(s.names)] for s in graph] for graph in self.graphs],
        }

    @staticmethod
    def from_json(data: dict) -> Piece:
        """Raises PrismError for data that is no such piece."""
        try:
            return Piece(
                tuple(
                    (ListedKernels if "listed" in k else KernelFamily).from_json(k)
                    for k in data["kernels"]
                ),
                tuple(
                    tuple(Step(family, tuple(names.items())) for family, names in graph)
                    for graph in data["graphs"]
                ),
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise PrismError(f"graphs: not readable from JSON: {error!r}") from None


@dataclass(frozen=True)
class Space:
    """Every sGraph that a search proved: one graph of each piece, in order, is an sGraph.

    A graph's id is `FAMILY.NUMBER`, joined by `+` where there are several pieces.
    """

    pieces: tuple[Piece, ...]

    @property
    def count(self) -> int:
        """Number of sGraphs."""
        return prod(piece.count for piece in self.pieces)

    @property
    def single_kernel(self) -> int:
        """Number of sGraphs that are one generated kernel."""
        if len(self.pieces) != 1:
            return 0
        (piece,) = self.pieces
        return sum(n for f, n in enumerate(piece.counts) if piece.single(f))

    def graph(self, name: str) -> SGraph:
        """The sGraph with this id. Raises PrismError when there is none."""
        parts = name.split("+")
        try:
            numbers = [tuple(map(int, part.split("."))) for part in parts]
            pairs = [(family, number) for family, number in numbers]
        except ValueError:
            raise PrismError(f"graph {name!r}: an id is FAMILY.NUMBER, such as 0.12") from None
        if len(pairs) != len(self.pieces):
            raise PrismError(f"graph {name!r}: the result has {len(self.pieces)} piece(s)")
        found = [p.kernel_graph(*pair) for p, pair in zip(self.pieces, pairs, strict=True)]
        return SGraph(tuple(kernel for kernels in found for kernel in kernels))

    def ids(self, single: bool | None = None) -> Iterator[str]:
        """Ids of a program in one piece; of graphs of one kernel only, or of all others only."""
        (piece,) = self.pieces
        for family, count in enumerate(piece.counts):
            if single is None or piece.single(family) == single:
                yield from (f"{family}.{number}" for number in range(count))

    def draw(self, count: int, seed: int, single: bool | None = None) -> list[str]:
        """Ids of at most `count` different graphs, uniform over those asked for; all, in order,
        where there are no more."""
        rng = random.Random(seed)
        chosen = [self._bounds(piece, single) for piece in self.pieces]
        total = prod(bounds[-1] if bounds else 0 for _, bounds in chosen)
        if total <= count:
            numbers: Sequence[int] = range(total)
        else:
            numbers = sorted({rng.randrange(total) for _ in range(count)})
        return [self._id(chosen, number) for number in numbers]

    def _bounds(self, piece: Piece, single: bool | None) -> tuple[list[int], list[int]]:
        kept = [
            f
            for f in range(len(piece.graphs))
            if single is None or (piece.single(f) and len(self.pieces) == 1) == single
        ]
        return kept, list(accumulate(piece.counts[f] for f in kept))

    def _id(self, chosen: list[tuple[list[int], list[int]]], number: int) -> str:
        parts = []
        for kept, bounds in reversed(chosen):
            number, at = divmod(number, bounds[-1])
            where = bisect_right(bounds, at)
            parts.append(f"{kept[where]}.{at - (bounds[where - 1] if where else 0)}")
        return "+".join(reversed(parts))

    def to_json(self) -> list:
        """Plain data; `from_json` gives an equal space back."""
        return [piece.to_json() for piece in self.pieces]

    @staticmethod
    def from_json(data: list) -> Space:
        """Raises PrismError for data that is no space of graphs."""
        return Space(tuple(Piece.from_json(item) for item in data))
