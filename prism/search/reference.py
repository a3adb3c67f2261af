"""The reference search: the paper's generator, and candidates tried one by one.

It explores the space of the guided search without its shortcuts. Members, and single kernels, come
from block graphs built from the loaders up. Of the kernels of a larger graph, which are cut from
members as in the guided search, it tries accumulators wherever shapes allow them. Every mapping
that satisfies the constraints is a candidate, refuted by numbers or proved as a whole, in one
e-graph with others. For small programs only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

from prism.program.node import Node, Op, topological
from prism.program.program import Program
from prism.search.budget import OutOfBudget
from prism.search.cuts import Function
from prism.search.exhaustive import block_graphs, by_operators
from prism.search.kernels import GridChoice, Merges, grids
from prism.search.mappings import grid_choices, loop_choices
from prism.search.members import operators
from prism.search.placements import loop_free, placements
from prism.search.plans import Plan
from prism.search.result import Gap
from prism.search.search import SEEDS, Search
from prism.sgraph.family import Choice, KernelFamily, ListedKernels
from prism.sgraph.graph import GRID_DIMS, LOOP_DIM, BlockGraph, Kernel, Mapping, MapVar, SGraph
from prism.verify.encode import encode_kernel
from prism.verify.prove import Refuter, prove_all

Key = tuple[tuple[Node, ...], Merges]
Goal = list[tuple[Node, Node]]
_BATCH = 2048  # candidates proved in one e-graph


class ReferenceSearch(Search):
    """The exhaustive search of one program. Raises nothing for a spent budget."""

    members_share = 0.5  # here block graphs are built from the loaders up

    def __init__(self, *args):
        super().__init__(*args)
        self.blocks: dict[tuple[Node, ...], list[BlockGraph]] = {}
        self.proved: dict[Key, list[Kernel]] = {}
        self.pending: list[tuple[Key, Kernel, Goal]] = []

    def members(self, found: list[tuple[Node, ...]]) -> None:
        """Block graphs from the loaders up; those that differ in accumulators are one member."""
        bound = operators(self.roots) + self.bounds.extra_operators
        allowed = self.bounds.allowed(self.program)
        blocks = block_graphs(self.program, bound, allowed, self.budget.limits(), self.budget.check)
        for flat, same in by_operators(blocks).items():
            roots = tuple(_value(saver.src[0]) for saver in flat.savers)
            saved = tuple(node for node in topological(roots) if node in roots)
            order = [roots.index(node) for node in saved]
            self.blocks[saved] = [_saving(block, order) for block in same]
            if roots != self.roots:
                found.append(roots)

    def grid_choices(self, roots: tuple[Node, ...]) -> list[GridChoice]:
        """Right choices for one grid dimension, tried alone."""
        if roots not in self.choices:
            refuter, flat = self.refuter(roots), loop_free(roots, _outputs(roots))
            found = []
            for choice in grid_choices(flat):
                self.budget.check()
                for named in self._completed(choice, roots):
                    if self.agrees(refuter, flat, roots, [named], frozenset()):
                        found.append(named)
            self.choices[roots] = found
        return self.choices[roots]

    def _completed(self, choice: frozenset, roots: tuple[Node, ...]) -> Iterator[GridChoice]:
        """A choice, and ways to reduce the outputs of which it partitions no axis."""
        tensors, outputs = {tensor for tensor, _ in choice}, _outputs(roots)
        if tensors <= set(outputs) or any(axis == self.fresh for _, axis in choice):
            return  # an idle dimension, or one that partitions what must be loaded whole
        left = [i for i, name in enumerate(outputs) if name not in tensors]
        if any(tensors.isdisjoint(n.arg for n in topological([roots[i]])) for i in left):
            return  # every block has the same result, which a maximum of them would hide
        reductions = ("sum", "max") if self.found.maximum else ("sum",)
        for kinds in product(reductions, repeat=len(left)):
            pairs = [*choice, *((f"out:{i}", self.fresh) for i in left)]
            yield GridChoice(tuple(sorted(pairs)), tuple(zip(left, kinds, strict=True)))

    def show(self, plans: list[Plan]) -> None:
        """Candidates are shown one by one in `map`; here, that each member equals the program."""
        self.found.lemmas.clear()
        super().show(plans)

    def map(self, plans: list[Plan]) -> None:
        """All candidates of every function and of what it leaves as partial results."""
        keys: dict[Key, None] = {}
        for plan in plans:
            for i, (function, part) in enumerate(zip(plan.functions, plan.parts, strict=True)):
                if not part.library:
                    keys[function.roots, plan.merges if i == plan.first else ()] = None
        try:
            for key in keys:
                self.candidates(key)
        except OutOfBudget as spent:
            self.budget.stop(f"{spent}, in stage map")
        self.prove_pending()

    def candidates(self, key: Key) -> None:
        """Refutes what is wrong by itself of one function; the rest is pending."""
        roots, merges = key
        refuter, whole = self.refuter(roots), frozenset({self.fresh})
        combined = grids(self.grid_choices(roots), merges, self.bounds.grid)
        blocks = self.blocks.get(roots) or placements(
            roots, _outputs(roots), self.budget.check, whole, self.found.maximum
        )
        for block in blocks:
            if block.loop and not self.bounds.loop:
                continue
            for loop in loop_choices(block):
                self.budget.check()
                if any(axis == self.fresh for _, axis in loop):
                    continue
                self.result.count("map", 1, 1)
                self.result.count("refute", 1, 0)
                if block.loop and not self.agrees(refuter, block, roots, [], loop):
                    self.rejected["refuted: wrong with the loop alone"] += 1
                    continue
                self.result.count("refute", 0, 1)
                for grid in combined:
                    kernel = _kernel(block, grid, loop)
                    self.pending.append((key, kernel, self.goal(kernel, roots, merges)))
            if len(self.pending) >= _BATCH:
                self.prove_pending()

    def agrees(self, refuter, block, roots, grid: list[GridChoice], loop) -> bool:
        """Whether the choice holds while all other parallel dimensions have size 1.

        A correct mapping is correct for all sizes, so this is necessary.
        """
        kernel = _kernel(block, tuple(c.pairs for c in grid), loop)
        goal = self.goal(kernel, roots, grid[0].merges if grid else ())
        candidate = {name: a for name, (a, _) in zip(_outputs(roots), goal, strict=True)}
        return refuter.refute(SGraph((kernel,)), candidate) is None

    def goal(self, kernel: Kernel, roots: tuple[Node, ...], merges: Merges) -> Goal:
        """What each saved tensor must equal, partial results after their reduction."""
        inputs = {n.arg: n for n in topological(roots) if n.op is Op.INPUT}
        saved = encode_kernel(kernel, kernel.mapping, inputs)
        kinds = dict(merges)
        pairs = []
        for i, (name, root) in enumerate(zip(_outputs(roots), roots, strict=True)):
            found = saved[name]
            if i in kinds:
                found = Node(Op(kinds[i]), (found,), self.fresh)
            pairs.append((found, root))
        return pairs

    def refuter(self, roots: tuple[Node, ...], seed: int = 0) -> Refuter:
        """Compares candidates for a function with it on numbers."""
        axes = {a for n in topological(roots) if n.op is Op.INPUT for a in n.axes}
        outputs = tuple(zip(_outputs(roots), roots, strict=True))
        sizes = {a: a for a in (*axes, self.fresh)}
        return Refuter(Program("kernel", outputs, sizes), self.bounds.seed + seed)

    def prove_pending(self) -> None:
        """Proves what is pending; what stays open and agrees on numbers is a gap."""
        batch, self.pending = self.pending, []
        if not batch:
            return
        proofs = prove_all([goal for _, _, goal in batch], self.budget.limits())
        self.result.account(proofs)
        self.result.count("prove", len(batch), sum(v.proved for v in proofs.verdicts))
        for (key, kernel, goal), verdict in zip(batch, proofs.verdicts, strict=True):
            if verdict.proved:
                self.proved.setdefault(key, []).append(kernel)
                continue
            candidate = {n: a for n, (a, _) in zip(_outputs(key[0]), goal, strict=True)}
            graph = SGraph((kernel,))
            if any(self.refuter(key[0], seed).refute(graph, candidate) for seed in range(SEEDS)):
                self.rejected["refuted: wrong with grid and loop together"] += 1
            else:
                self.result.gaps.append(Gap(str(kernel.mapping), verdict.reason))

    def family(
        self, function: Function, merges: Merges, library: bool
    ) -> KernelFamily | ListedKernels | None:
        """The kernels of one function; None when there are none."""
        if library:
            return KernelFamily(function.roots, library=True)
        found = self.proved.get((function.roots, merges), ())
        return ListedKernels(tuple(found)) if found else None


def _outputs(roots: Iterable[Node]) -> tuple[str, ...]:
    return tuple(f"out:{i}" for i, _ in enumerate(roots))


def _saving(block: BlockGraph, order: Iterable[int]) -> BlockGraph:
    """The block graph with its savers in another order, and named as a function's outputs."""
    values = [block.savers[i].src[0] for i in order]
    savers = tuple(
        Node(Op.SAVE, (v,), name) for v, name in zip(values, _outputs(values), strict=True)
    )
    return BlockGraph(block.grid, block.loop, savers)


def _value(node: Node) -> Node:
    """A loop-free block node as a node of the program."""
    if node.op is Op.LOAD:
        return Node(Op.INPUT, arg=node.arg, axes=node.axes)
    return Node(node.op, [_value(s) for s in node.src], node.arg)


def _kernel(block: BlockGraph, grid: tuple[Choice, ...], loop: Iterable) -> Kernel:
    ones = {MapVar(t, a, p) for p, pairs in zip(GRID_DIMS, grid, strict=False) for t, a in pairs}
    ones |= {MapVar(t, a, LOOP_DIM) for t, a in loop}
    return Kernel(replace(block, grid=GRID_DIMS[: len(grid)]), Mapping(frozenset(ones)))
