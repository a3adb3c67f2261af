"""The symbolic search: generate, map, refute, prove (paper sections 3 and 4).

Members of the program's e-class are cut into kernels; equal kernels of different cuts are one
function, whose mappings are found once. What is proved are lemmas about operators and one parallel
dimension (`actions`), that every member equals the program, and nothing else: a graph of kernels
that are right computes its member, kernel by kernel.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, count

from prism.errors import PrismError
from prism.program.node import Node, Op, topological
from prism.program.program import Program
from prism.search.actions import Lemma, Transitions
from prism.search.bounds import GENERATORS, Bounds
from prism.search.cuts import Cut, Function, Part, cuts, function
from prism.search.kernels import (
    GridChoice,
    Loops,
    Merges,
    any_axis,
    grid_choices,
    grids,
    no_axis,
)
from prism.search.members import members, operators
from prism.search.pieces import pieces
from prism.search.result import Gap, SearchResult, combined
from prism.search.workers import run
from prism.sgraph.family import NO_LOOP, KernelFamily, Loop, Piece, Space, Step
from prism.verify.egraph import Limits
from prism.verify.prove import prove_all, saturated_table
from prism.verify.verdict import Outcome, Verdict

SEEDS = 8  # choices of numbers on which something must agree to count as an axiom gap


class OutOfBudget(Exception):
    """Time or memory is spent; what was found so far is the result."""


@dataclass(frozen=True)
class Plan:
    """One kernel graph of a member before its kernels are mapped.

    With `merges`, part `first` leaves these of its results in parts for the next generated one.
    """

    member: tuple[Node, ...]
    parts: Cut
    functions: tuple[Function, ...]
    merges: Merges = ()
    first: int = -1


class Search:
    """The guided search of one program in one piece. Raises nothing for a spent budget."""

    members_share = 0.25  # of the time, so that what is found can still be cut and mapped

    def __init__(self, program: Program, bounds: Bounds, piece: str = ""):
        self.program, self.bounds, self.piece = program, bounds, piece
        self.result = SearchResult(program, bounds)
        self.rejected = self.result.rejected
        self.roots = tuple(node for _, node in program.outputs)
        self.outputs = tuple(name for name, _ in program.outputs)
        self.fresh = unique(f"split{piece}", program.sizes)
        maximum = any(n.op is Op.MAX for n in program.nodes)
        self.found = Transitions(frozenset({self.fresh}), maximum)
        self.choices: dict[tuple[Node, ...], list[GridChoice]] = {}
        self.loops: dict[tuple[Node, ...], tuple[Loop, ...]] = {}
        self.start = time.perf_counter()
        self.deadline = bounds.seconds

    # Budget -------------------------------------------------------------------------------

    @contextmanager
    def stage(self, name: str, share: float) -> Iterator[None]:
        """Counts the seconds of a stage, which ends when `share` of the whole time is spent."""
        since = time.perf_counter()
        self.deadline = share * self.bounds.seconds
        try:
            yield
        except OutOfBudget as spent:
            self.result.ended = f"{spent}, in stage {name}"
        except KeyboardInterrupt:
            self.result.ended = "interrupted"
        finally:
            self.result.seconds[name] += time.perf_counter() - since

    def check(self) -> None:
        """Raises OutOfBudget when the stage's time or the memory is spent."""
        if time.perf_counter() - self.start > self.deadline:
            raise OutOfBudget(f"time limit of {self.bounds.seconds:g} s")
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        if used > self.bounds.memory:
            raise OutOfBudget(f"memory limit of {self.bounds.memory} MiB")

    def limits(self) -> Limits:
        """What is left of the budget for one e-graph, a second at least."""
        left = self.bounds.seconds - (time.perf_counter() - self.start)
        return Limits(
            nodes=self.bounds.nodes, seconds=max(1.0, left), memory_mib=self.bounds.memory
        )

    # Stages -------------------------------------------------------------------------------

    def run(self) -> SearchResult:
        """The search, and its result."""
        result = self.result
        plans = [self.whole()]  # whatever the budget, the program itself is in the result
        found: list[tuple[Node, ...]] = []
        with self.stage("generate", self.members_share):
            self.members(found)
        found.sort(key=lambda member: (operators(member), str(member)))
        with self.stage("generate", self.members_share + 0.25):
            self.plan([self.roots, *found], plans)
        distinct = {f.roots for plan in plans for f in plan.functions}
        result.count("generate", len(plans), len(distinct))
        with self.stage("map", self.members_share + 0.35):
            self.add(plans)
            if self.bounds.split and self.bounds.generated > 1:
                self.add_splits(plans)
        self.show(plans)
        with self.stage("map", 0.95):
            self.map(plans)
        result.space = Space((self.assemble(plans),))
        result.total = time.perf_counter() - self.start
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        result.peak_mib = max(result.peak_mib, own)
        return result

    def whole(self) -> Plan:
        """The program in one kernel."""
        nodes = frozenset(n for n in self.program.nodes if n.op is not Op.INPUT)
        part = Part(nodes, tuple(n for n in self.program.nodes if n in self.roots), False)
        return Plan(self.roots, (part,), (function(part),))

    def members(self, found: list[tuple[Node, ...]]) -> None:
        """What equals the program by algebra and has few enough operators."""
        bound = operators(self.roots) + self.bounds.extra_operators
        classes, roots, saturation = saturated_table(self.roots, self.limits())
        self.result.rule_costs(saturation.matches, saturation.rule_seconds)
        if saturation.ended != "saturated":
            self.result.ended = f"members: {saturation.ended}"
        allowed = self.bounds.allowed(self.program)
        for member in members(classes, roots, self.program.inputs, bound):
            self.check()
            if member != self.roots and all(n.op in allowed for n in topological(member)):
                found.append(member)

    def plan(self, members: Sequence[tuple[Node, ...]], plans: list[Plan]) -> None:
        """Every cut of every member."""
        bounds, known = self.bounds, {(self.roots, plans[0].parts)}
        library = frozenset(map(Op, bounds.library))
        for roots in members:
            for cut in cuts(roots, library, bounds.kernels, bounds.generated, self.check):
                if (roots, cut) not in known:
                    known.add((roots, cut))
                    plans.append(Plan(roots, cut, tuple(map(function, cut))))

    def add_splits(self, plans: list[Plan]) -> None:
        """Kernel graphs whose first generated kernel leaves partial results for the second."""
        for plan in list(plans):
            generated = [i for i, part in enumerate(plan.parts) if not part.library]
            if not generated:
                continue
            first, *second = generated
            for merges in self.merges(plan.functions[first].roots):
                split = self.split(plan, first, second[0] if second else None, merges)
                if split is not None:
                    plans.append(split)
        self.add(plans)

    def add(self, plans: Sequence[Plan]) -> None:
        """The transitions that the functions of the plans may need."""
        self.found.add(topological(r for plan in plans for f in plan.functions for r in f.roots))

    def merges(self, roots: tuple[Node, ...]) -> list[Merges]:
        """What one grid dimension of a kernel may leave as partial results."""
        choices = self.grid_choices(roots)
        return sorted({c.merges for c in choices if c.merges})

    def grid_choices(self, roots: tuple[Node, ...]) -> list[GridChoice]:
        """Right choices for one grid dimension of a function, found once."""
        if roots not in self.choices:
            self.choices[roots] = grid_choices(
                roots, self.found, self.fresh, self.rejected, self.check
            )
        return self.choices[roots]

    def split(self, plan: Plan, first: int, second: int | None, merges: Merges) -> Plan | None:
        """The plan with part `first` leaving partial results, or None where another reads them."""
        saved = plan.parts[first].saved
        partial = {saved[i]: (kind, self.fresh) for i, kind in merges}
        for i, part in enumerate(plan.parts):
            if i not in (first, second) and any(s in partial for n in part.nodes for s in n.src):
                return None
        ends = tuple(node for node in partial if node in self.roots)
        parts, functions = list(plan.parts), list(plan.functions)
        if second is None:
            if len(ends) < len(partial) or len(parts) == self.bounds.kernels:
                return None
            parts.append(Part(frozenset(), ends, False))
            functions.append(function(parts[-1], partial))
        else:
            part = parts[second]
            parts[second] = replace(part, saved=part.saved + ends)
            functions[second] = function(parts[second], partial)
        return Plan(plan.member, tuple(parts), tuple(functions), merges, first)

    def show(self, plans: list[Plan]) -> None:
        """Refutes or proves all lemmas, and that each member equals the program."""
        lemmas, members = list(self.found.lemmas), list(dict.fromkeys(p.member for p in plans))
        with self.stage("refute", 1.0):
            wrong = {lemma for lemma in lemmas if lemma.refuted(self.bounds.seed)}
            self.result.count("refute", len(lemmas), len(lemmas) - len(wrong))
            for lemma in wrong:
                self.found.drop(lemma, f"refuted: {lemma}")
        lemmas = [lemma for lemma in lemmas if lemma not in wrong]
        goals = [[lemma.goal()] for lemma in lemmas]
        goals += [list(zip(member, self.roots, strict=True)) for member in members]
        verdicts = [Verdict(Outcome.UNKNOWN, "not tried")] * len(goals)
        with self.stage("prove", 1.0):
            proofs = prove_all(goals, self.limits())
            verdicts = proofs.verdicts
            self.result.account(proofs)
        self.result.count("prove", len(goals), sum(v.proved for v in verdicts))
        for what, verdict in zip((*lemmas, *members), verdicts, strict=True):
            if verdict.proved:
                continue
            if isinstance(what, Lemma) and self.refuted_after_all(what):
                self.found.drop(what, f"refuted: {what}")
                continue
            self.result.gaps.append(Gap(str(what), verdict.reason))
            if what in members:
                plans[1:] = [p for p in plans[1:] if p.member != what]
            else:
                self.found.drop(what, f"not proved: {what}")

    def refuted_after_all(self, lemma: Lemma) -> bool:
        """What is not proved may have agreed on one choice of numbers by chance."""
        return any(lemma.refuted(self.bounds.seed + k) for k in range(1, SEEDS))

    def map(self, plans: list[Plan]) -> None:
        """Grids and loops of every function; those that the time does not suffice for have none."""
        if self.result.gaps or any(v.startswith("refuted") for v in self.found.causes.values()):
            self.choices.clear()  # some transitions are gone
        before = self.rejected.total()
        generated = dict.fromkeys(
            f.roots
            for plan in plans
            for f, part in zip(plan.functions, plan.parts, strict=True)
            if not part.library
        )
        for roots in generated:
            self.grid_choices(roots)
        axes = any_axis if self.bounds.loop else no_axis
        for roots in generated:
            finder = Loops(roots, self.found, self.rejected, self.check, axes)
            try:
                finder.run()
            finally:
                self.loops[roots] = tuple(finder.result) or (NO_LOOP,)
        made = sum(len(self.choices[r]) + len(self.loops[r]) for r in generated)
        self.result.count("map", made + self.rejected.total() - before, made)

    def family(self, function: Function, merges: Merges, library: bool) -> KernelFamily | None:
        """The kernels of one function; None when there are none."""
        if library:
            return KernelFamily(function.roots, library=True)
        choices = self.choices.get(function.roots, [])
        try:
            found = grids(choices, merges, self.bounds.grid, self.check)
        except OutOfBudget as spent:
            self.result.ended = f"{spent}, while maps were combined"
            found = () if merges else ((),)
        if not found:
            return None
        return KernelFamily(function.roots, self.loops.get(function.roots, (NO_LOOP,)), found)

    # The result ---------------------------------------------------------------------------

    def assemble(self, plans: list[Plan]) -> Piece:
        """Families of graphs out of families of kernels, each of which is made once."""
        numbers: dict[tuple, int | None] = {}
        kernels: list[KernelFamily] = []
        graphs = []
        for plan in plans:
            steps = []
            for i, part in enumerate(plan.parts):
                merges = plan.merges if i == plan.first else ()
                key = plan.functions[i].roots, merges, part.library
                if key not in numbers:
                    family = self.family(plan.functions[i], merges, part.library)
                    numbers[key] = None if family is None else len(kernels)
                    kernels += [] if family is None else [family]
                steps.append(numbers[key])
            if None not in steps:
                names = self.names(plan)
                graphs.append(tuple(map(Step, steps, names)))
        return Piece(tuple(kernels), tuple(graphs))

    def names(self, plan: Plan) -> list[tuple[tuple[str, str], ...]]:
        """Tensor names of each part's leaves and results: outputs keep theirs, others are t1..."""
        taken = {*self.program.inputs, *(name for name, _ in self.program.outputs)}
        temporary = (t for t in (f"t{i}{self.piece}" for i in count(1)) if t not in taken)
        output = {node: name for name, node in zip(self.outputs, plan.member, strict=True)}
        whole: dict[Node, str] = {}
        partial: dict[Node, str] = {}
        names = []
        for i, (part, found) in enumerate(zip(plan.parts, plan.functions, strict=True)):
            pairs = [(f"in:{k}", partial.get(v) or whole[v]) for k, v in enumerate(found.reads)]
            left = dict(plan.merges) if i == plan.first else {}
            for k, value in enumerate(part.saved):
                known = partial if k in left else whole
                named = value in output and k not in left
                known[value] = output[value] if named else next(temporary)
                pairs.append((f"out:{k}", known[value]))
            names.append(tuple(pairs))
        return names


def unique(name: str, taken: Container[str]) -> str:
    """`name`, with a number behind it if it is taken."""
    return next(n for n in chain([name], (f"{name}{i}" for i in count(2))) if n not in taken)


def search(
    program: Program,
    bounds: Bounds | None = None,
    progress: Callable[[str, int], None] = lambda _stage, _count: None,
    workers: int = 1,
) -> SearchResult:
    """All sGraphs within the bounds, each PROVED.

    Sizes play no part: a program with symbolic sizes gives the same result. Anytime: when the
    budget ends or the user interrupts, what was found so far is returned, and `ended` says so. A
    program of more than `bounds.piece` operators is cut into pieces, which are searched by up to
    `workers` processes. Raises PrismError for a program whose output is one of its inputs or of its
    other outputs.
    """
    if any(node.op is Op.INPUT for _, node in program.outputs):
        raise PrismError(f"program {program.name}: an output is an input; nothing to search")
    if len({node for _, node in program.outputs}) < len(program.outputs):
        raise PrismError(f"program {program.name}: two outputs are the same value; keep one")
    bounds = bounds or Bounds()
    if bounds.generator not in GENERATORS:
        raise PrismError(f"search: generator {bounds.generator!r} is not one of {GENERATORS}")
    cut = pieces(program, bounds.piece)
    if len(cut) == 1:
        return _search_piece(program, bounds, "")
    start = time.perf_counter()
    workers = min(workers, len(cut))
    share = replace(bounds, seconds=bounds.seconds * workers / len(cut))
    jobs = [(piece, share, f"_{i}") for i, piece in enumerate(cut, 1)]
    results: list[SearchResult] = []
    for job, found in zip(jobs, run(_search_piece, jobs, workers), strict=True):
        results.append(found or _unsearched(*job))
        progress("pieces", len(results))
    return combined(program, bounds, results, time.perf_counter() - start)


def _search_piece(program: Program, bounds: Bounds, piece: str) -> SearchResult:
    if bounds.generator == "exhaustive":
        from prism.search.reference import ReferenceSearch

        return ReferenceSearch(program, bounds, piece).run()
    return Search(program, bounds, piece).run()


def _unsearched(program: Program, bounds: Bounds, piece: str) -> SearchResult:
    """The result of a piece that an interrupt left out: the piece itself, in one kernel."""
    result = _search_piece(program, replace(bounds, seconds=1e-3), piece)
    result.ended = "interrupted"
    return result
