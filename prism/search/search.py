"""The symbolic search: generate, map, refute, prove (paper sections 3 and 4)."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from prism.errors import PrismError
from prism.program.node import Node, Op
from prism.program.program import Program
from prism.program.serial import program_to_json
from prism.search.exhaustive import block_graphs, by_operators
from prism.search.mappings import Choice, combine, grid_choices, loop_choices, variables
from prism.search.members import members
from prism.search.placements import loop_free, placements, without_accumulators
from prism.sgraph.graph import GRID_DIMS, BlockGraph, Kernel, Mapping, SGraph
from prism.verify.egraph import Limits, Saturation
from prism.verify.encode import encode_kernel
from prism.verify.prove import Refuter, prove
from prism.verify.verdict import Verdict

GENERATORS = ("guided", "exhaustive")


@dataclass(frozen=True)
class Bounds:
    """The space that is searched, and the budget.

    `generator` is "guided" (from the e-class down) or "exhaustive" (the paper's, from the loaders
    up): they explore the same space, the second for reference and in small spaces only.
    `extra_operators` is how many operators a graph may have beyond the program's own (loaders,
    accumulators and savers are not counted); `grid` the most grid dimensions; `seconds` the time
    after which the search returns what it has; `nodes` the e-nodes of one e-graph.
    """

    generator: str = "guided"
    extra_operators: int = 1
    grid: int = 3
    loop: bool = True
    seconds: float = 60.0
    nodes: int = 400_000
    batch: int = 2048
    seed: int = 0


@dataclass(frozen=True)
class Found:
    """One graph of the result with its verdict (PROVED or UNKNOWN)."""

    graph: SGraph
    verdict: Verdict

    @property
    def id(self) -> str:
        """A digest of operators and mapping: the paper's notion of a unique graph."""
        text = json.dumps(self.graph.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]


@dataclass
class SearchResult:
    """Everything a search found, with seconds and counts per stage, and causes of rejection."""

    program: Program
    bounds: Bounds
    found: list[Found] = field(default_factory=list)
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("generate", "map", "refute", "prove"), 0.0)
    )
    candidates: dict[str, dict[str, int]] = field(
        default_factory=lambda: {
            stage: {"in": 0, "out": 0} for stage in ("generate", "map", "refute", "prove")
        }
    )
    rejected: Counter = field(default_factory=Counter)
    ended: str = "exhausted"
    total: float = 0.0
    saturations: list[Saturation] = field(default_factory=list)

    @property
    def proved(self) -> list[Found]:
        """The graphs that may be used."""
        return [f for f in self.found if f.verdict.proved]

    def to_json(self) -> dict:
        """Plain data; `SGraph.from_json` reads each graph back."""
        matches: Counter = Counter()
        for saturation in self.saturations:
            matches.update(saturation.matches)
        return {
            "workload": self.program.name,
            "program": program_to_json(self.program),
            "bounds": vars(self.bounds),
            "ended": self.ended,
            "seconds": {**self.seconds, "total": self.total},
            "candidates": self.candidates,
            "rejected": {cause: n for cause, n in self.rejected.items() if n},
            "rule_matches": {name: n for name, n in matches.most_common() if n},
            "graphs": [
                {
                    "id": f.id,
                    "verdict": f.verdict.outcome.value,
                    "reason": f.verdict.reason,
                    "kernels": len(f.graph.kernels),
                    "operators": f.graph.operators,
                    "graph": f.graph.to_json(),
                }
                for f in self.found
            ],
        }


class _OutOfTime(Exception):
    pass


class _Search:
    def __init__(self, program: Program, bounds: Bounds, progress: Callable[[str, int], None]):
        self.program, self.bounds, self.progress = program, bounds, progress
        self.result = SearchResult(program, bounds)
        self.outputs = tuple(name for name, _ in program.outputs)
        self.rejected = self.result.rejected
        self.start = time.perf_counter()
        self.refuter = Refuter(program, bounds.seed)
        self.pending: list[tuple[SGraph, dict[str, Node]]] = []

    def clock(self, stage: str, since: float) -> float:
        now = time.perf_counter()
        self.result.seconds[stage] += now - since
        self.check()
        return now

    def check(self) -> None:
        """Raises _OutOfTime when the budget is spent, though not before there is any graph."""
        spent = time.perf_counter() - self.start > self.bounds.seconds
        if spent and (self.pending or self.result.found):
            raise _OutOfTime

    def run(self) -> SearchResult:
        result = self.result
        try:
            for family in self.families():
                self.family(family)
        except _OutOfTime:
            result.ended = f"time limit of {self.bounds.seconds:g} s"
        except KeyboardInterrupt:
            result.ended = "interrupted"
        self.prove_pending()
        result.found.sort(key=lambda f: (f.graph.operators, len(f.graph.kernels[0].block.nodes)))
        result.total = time.perf_counter() - self.start
        return result

    def families(self) -> Iterator[Iterable[BlockGraph]]:
        """Block graphs as they are generated, those that differ in accumulators only together."""
        since = time.perf_counter()
        own = sum(n.op is not Op.INPUT for n in self.program.nodes)
        bound, limits = own + self.bounds.extra_operators, self.limits()
        own_roots = tuple(node for _, node in self.program.outputs)
        if self.bounds.generator == "exhaustive":
            source = loop_free(own_roots, self.outputs)
            yield [source]  # whatever the budget, the program itself is in the result
            found = block_graphs(self.program, bound, limits, self.check) - {source}
            self.clock("generate", since)
            yield from by_operators(found).values()
            return
        yield placements(own_roots, self.outputs, self.check)
        since = time.perf_counter()
        found, saturation = members(self.program, bound, limits, self.check)
        self.result.saturations.append(saturation)
        if saturation.ended != "saturated":
            self.result.ended = f"members: {saturation.ended}"
        self.clock("generate", since)
        for roots in found:
            yield placements(roots, self.outputs, self.check)

    def limits(self) -> Limits:
        """What is left of the budget for one e-graph, a second at least."""
        left = self.bounds.seconds - (time.perf_counter() - self.start)
        return Limits(nodes=self.bounds.nodes, seconds=max(1.0, left))

    def family(self, blocks: Iterable[BlockGraph]) -> None:
        """All mappings of block graphs that differ in their accumulators only."""
        grids: list[tuple[Choice, ...]] | None = None
        since = time.perf_counter()
        self.count("generate", 1, 0)
        for block in blocks:
            if block.loop and not self.bounds.loop:
                break  # the loop-free one comes first
            self.count("generate", 0, 1)
            since = self.clock("generate", since)
            if grids is None:
                grids, correct = self.grids(without_accumulators(block))
            self.block(block, len(grids), correct)
            since = time.perf_counter()
        self.clock("generate", since)

    def grids(self, flat: BlockGraph) -> tuple[list[tuple[Choice, ...]], list[tuple[Choice, ...]]]:
        """All grid mappings of a block graph, and those of which each dimension alone is right."""
        since = time.perf_counter()
        choices = grid_choices(flat)
        grids = list(combine(choices, self.bounds.grid))
        since = self.clock("map", since)
        self.refuter.forget()
        alone = {c for c in choices if self.agrees(flat, (c,), frozenset())}
        self.clock("refute", since)
        return grids, [grid for grid in grids if alone.issuperset(grid)]

    def block(self, block: BlockGraph, grids: int, correct: list[tuple[Choice, ...]]) -> None:
        """All mappings of one block graph: of its `grids` grid mappings, those still standing."""
        since = time.perf_counter()
        loops = loop_choices(block)
        self.count("map", 1, len(loops) * grids)
        if not loops:
            self.rejected["shapes: no mapping satisfies the constraints"] += 1
        since = self.clock("map", since)
        self.count("refute", len(loops) * grids, 0)
        for loop in loops:
            if block.loop and not self.agrees(block, (), loop):
                self.rejected["refuted: wrong with the loop alone"] += grids
                continue
            self.rejected["refuted: wrong with a grid dimension alone"] += grids - len(correct)
            for grid in correct:
                graph = _graph(block, grid, loop)
                self.pending.append((graph, self.encoded(graph)))
            self.count("refute", 0, len(correct))
        self.clock("refute", since)
        if len(self.pending) >= self.bounds.batch:
            self.prove_pending()

    def agrees(self, block: BlockGraph, grid: tuple[Choice, ...], loop: Choice) -> bool:
        """Whether the choice holds while every other parallel dimension has size 1.

        A correct mapping is correct for all sizes, so this is necessary, and it is shared by
        every combination with the other dimensions.
        """
        graph = _graph(block, grid, loop)
        return self.refuter.refute(graph, self.encoded(graph)) is None

    def encoded(self, graph: SGraph) -> dict[str, Node]:
        kernel = graph.kernels[0]
        return encode_kernel(kernel, kernel.mapping, self.program.inputs)

    def prove_pending(self) -> None:
        since = time.perf_counter()
        batch, self.pending = self.pending, []
        if not batch:
            return
        proofs = prove(self.program, [e for _, e in batch], self.limits())
        self.result.saturations.append(proofs.saturation)
        for (graph, expressions), verdict in zip(batch, proofs.verdicts, strict=True):
            if not verdict.proved and self.refuter.refute(graph, expressions):
                self.rejected["refuted: wrong with grid and loop together"] += 1
                self.count("refute", 0, -1)
                self.count("prove", -1, 0)
                continue
            self.result.found.append(Found(graph, verdict))
            if not verdict.proved:
                self.rejected[f"not proved: {verdict.reason}"] += 1
        self.count("prove", len(batch), sum(v.proved for v in proofs.verdicts))
        self.result.seconds["prove"] += time.perf_counter() - since
        self.progress("proved", len(self.result.found))

    def count(self, stage: str, entered: int, left: int) -> None:
        counts = self.result.candidates[stage]
        counts["in"] += entered
        counts["out"] += left


def _graph(block: BlockGraph, grid: tuple[Choice, ...], loop: Choice) -> SGraph:
    mapped = replace(block, grid=GRID_DIMS[: len(grid)])
    mapping = Mapping(variables(grid, loop, block.loop))
    return SGraph((Kernel(mapped, mapping),))


def _quiet(_what: str, _count: int) -> None:
    pass


def search(
    program: Program, bounds: Bounds | None = None, progress: Callable[[str, int], None] = _quiet
) -> SearchResult:
    """All single-kernel sGraphs within the bounds, each PROVED or UNKNOWN with its reason.

    Sizes play no part: a program with symbolic sizes gives the same result. Anytime: when the
    budget ends, what was found so far is proved and returned, and `ended` says so. Raises
    PrismError for a program whose output is one of its inputs.
    """
    if any(node.op is Op.INPUT for _, node in program.outputs):
        raise PrismError(f"program {program.name}: an output is an input; nothing to search")
    bounds = bounds or Bounds()
    if bounds.generator not in GENERATORS:
        raise PrismError(f"search: generator {bounds.generator!r} is not one of {GENERATORS}")
    return _Search(program, bounds, progress).run()
