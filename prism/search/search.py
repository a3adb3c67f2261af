"""The symbolic search: generate, map, refute, prove (paper sections 3 and 4).

Members of the program's e-class are cut into kernels; equal kernels of different cuts are one
function, whose mappings are found once. What is proved are lemmas about operators and one parallel
dimension (`actions`), and that every member equals the program: a graph of kernels that are right
computes its member, kernel by kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from prism.errors import PrismError
from prism.program.node import Node, Op, topological
from prism.program.program import Program
from prism.search.actions import Lemma, Transitions
from prism.search.bounds import Bounds
from prism.search.budget import Budget, OutOfBudget
from prism.search.cuts import Function, cuts
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
from prism.search.plans import Plan, in_one_kernel, names, plan_of, split, unique
from prism.search.result import INTERRUPTED, Gap, SearchResult, combined
from prism.search.workers import run
from prism.sgraph.family import NO_LOOP, KernelFamily, Loop, Piece, Space, Step
from prism.verify.prove import prove_all, saturated_table
from prism.verify.verdict import Outcome, Verdict

SEEDS = 8  # choices of numbers on which something must agree to count as an axiom gap


class Search:
    """The guided search of one program in one piece. Raises nothing for a spent budget.

    `piece` distinguishes the names that it makes up, which are never among `taken`.
    """

    members_share = 0.25  # of the time, so that what is found can still be cut and mapped

    def __init__(
        self,
        program: Program,
        bounds: Bounds,
        piece: str = "",
        taken: frozenset[str] = frozenset(),
    ):
        self.program, self.bounds, self.piece = program, bounds, piece
        self.result = SearchResult(program, bounds)
        self.rejected = self.result.rejected
        self.budget = Budget(bounds, self.result)
        self.roots = tuple(node for _, node in program.outputs)
        self.outputs = tuple(name for name, _ in program.outputs)
        self.taken = taken | names_of(program)
        self.fresh = unique(f"split{piece}", self.taken)
        maximum = any(n.op is Op.MAX for n in program.nodes)
        self.found = Transitions(frozenset({self.fresh}), maximum)
        self.choices: dict[tuple[Node, ...], list[GridChoice]] = {}
        self.loops: dict[tuple[Node, ...], tuple[Loop, ...]] = {}

    # Stages -------------------------------------------------------------------------------

    def run(self) -> SearchResult:
        """The search, and its result."""
        result = self.result
        plans = [in_one_kernel(self.roots)]  # whatever the budget, the program itself is there
        try:
            self.stages(plans)
            result.space = self.assembled(plans)
        except KeyboardInterrupt:  # between two stages
            self.budget.stop(INTERRUPTED)
        if not result.space.pieces:
            result.space = self.source()
        result.total = self.budget.spent
        result.peak_mib = max(result.peak_mib, self.budget.peak)
        return result

    def stages(self, plans: list[Plan]) -> None:
        """Generates, maps, refutes and proves; each stage leaves what it has when it is ended."""
        found: list[tuple[Node, ...]] = []
        stage, share = self.budget.stage, self.members_share
        with stage("generate", share):
            self.members(found)
        with stage("generate", share + 0.25):
            found.sort(key=lambda member: (operators(member), str(member)))
            self.plan([self.roots, *found], plans)
        distinct = {f.roots for plan in plans for f in plan.functions}
        self.result.count("generate", len(plans), len(distinct))
        with stage("map", share + 0.35):
            self.add(plans)
            if self.bounds.split and self.bounds.generated > 1:
                self.add_splits(plans)
        self.show(plans)
        with stage("map", 0.95):
            self.map(plans)

    def members(self, found: list[tuple[Node, ...]]) -> None:
        """What equals the program by algebra and has few enough operators."""
        bound = operators(self.roots) + self.bounds.extra_operators
        classes, roots, saturation = saturated_table(self.roots, self.budget.limits())
        self.result.rule_costs(saturation.matches, saturation.rule_seconds)
        if saturation.ended != "saturated":
            self.budget.stop(f"members: {saturation.ended}")
        allowed = self.bounds.allowed(self.program)
        for member in members(classes, roots, self.program.inputs, bound):
            self.budget.check()
            if member != self.roots and all(n.op in allowed for n in topological(member)):
                found.append(member)

    def plan(self, members: Sequence[tuple[Node, ...]], plans: list[Plan]) -> None:
        """Every cut of every member."""
        bounds, library = self.bounds, frozenset(map(Op, self.bounds.library))
        for roots in members:
            for cut in cuts(roots, library, bounds.kernels, bounds.generated, self.budget.check):
                plan = plan_of(roots, cut)
                if plan != plans[0]:
                    plans.append(plan)

    def add_splits(self, plans: list[Plan]) -> None:
        """Kernel graphs whose first generated kernel leaves partial results for the second."""
        for plan in list(plans):
            first = next((i for i, part in enumerate(plan.parts) if not part.library), None)
            if first is None:
                continue
            for merges in self.merges(plan.functions[first].roots):
                made = split(plan, merges, self.fresh, self.bounds.kernels)
                if made is not None:
                    self.add([made])
                    plans.append(made)

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
                roots, self.found, self.fresh, self.rejected, self.budget.check
            )
        return self.choices[roots]

    def show(self, plans: list[Plan]) -> None:
        """Refutes or proves all lemmas, and that each member equals the program."""
        lemmas, members = list(self.found.lemmas), list(dict.fromkeys(p.member for p in plans))
        wrong: set[Lemma] = set()
        with self.budget.stage("refute", 1.0):
            for lemma in lemmas:
                self.budget.check()
                if lemma.refuted(self.bounds.seed):
                    wrong.add(lemma)
        self.result.count("refute", len(lemmas), len(lemmas) - len(wrong))
        for lemma in wrong:
            self.found.drop(lemma, f"refuted: {lemma}")
        lemmas = [lemma for lemma in lemmas if lemma not in wrong]
        verdicts = [Verdict(Outcome.UNKNOWN, "not tried")] * (len(lemmas) + len(members))
        with self.budget.stage("prove", 1.0):
            goals = [[lemma.goal()] for lemma in lemmas]
            goals += [list(zip(member, self.roots, strict=True)) for member in members]
            proofs = prove_all(goals, self.budget.limits())
            verdicts = proofs.verdicts
            self.result.account(proofs)
        self.result.count("prove", len(verdicts), sum(v.proved for v in verdicts))
        for what, verdict in zip((*lemmas, *members), verdicts, strict=True):
            if verdict.proved:
                continue
            limited = not verdict.reason.startswith("axiom gap")
            if isinstance(what, Lemma) and not limited and self.refuted_after_all(what):
                self.found.drop(what, f"refuted: {what}")
                continue
            if limited:
                self.budget.stop(f"proof: {verdict.reason}")
            self.result.gaps.append(Gap(str(what), verdict.reason))
            if isinstance(what, Lemma):
                self.found.drop(what, f"not proved: {what}")
            else:
                plans[1:] = [p for p in plans[1:] if p.member != what]
        if self.found.dropped:
            self.choices.clear()  # some were made of transitions that are gone

    def refuted_after_all(self, lemma: Lemma) -> bool:
        """What is not proved may have agreed on one choice of numbers by chance."""
        return any(lemma.refuted(self.bounds.seed + k) for k in range(1, SEEDS))

    def map(self, plans: list[Plan]) -> None:
        """Grids and loops of every function; those that the time does not suffice for have none."""
        generated = dict.fromkeys(
            f.roots
            for plan in plans
            for f, part in zip(plan.functions, plan.parts, strict=True)
            if not part.library
        )
        axes = any_axis if self.bounds.loop else no_axis
        try:
            for roots in generated:
                self.grid_choices(roots)
            for roots in generated:
                finder = Loops(roots, self.found, self.rejected, self.budget.check, axes)
                try:
                    finder.run()
                finally:
                    self.loops[roots] = tuple(finder.result) or (NO_LOOP,)
        finally:
            made = sum(map(len, (*self.choices.values(), *self.loops.values())))
            self.result.count("map", made + self.rejected.total(), made)

    def family(self, function: Function, merges: Merges, library: bool) -> KernelFamily | None:
        """The kernels of one function; None when there are none."""
        if library:
            return KernelFamily(function.roots, library=True)
        choices = self.choices.get(function.roots, [])
        try:
            found = grids(choices, merges, self.bounds.grid, self.budget.check)
        except OutOfBudget as spent:
            self.budget.stop(f"{spent}, while maps were combined")
            found = () if merges else ((),)
        if not found:
            return None
        return KernelFamily(function.roots, self.loops.get(function.roots, (NO_LOOP,)), found)

    # The result ---------------------------------------------------------------------------

    def assembled(self, plans: list[Plan]) -> Space:
        """Families of graphs out of families of kernels, each of which is made once."""
        numbers: dict[tuple, int | None] = {}
        kernels: list[KernelFamily] = []
        graphs: list[tuple[Step, ...]] = []
        try:
            for plan in plans:
                steps = [self.number(plan, i, numbers, kernels) for i in range(len(plan.parts))]
                if None not in steps:
                    named = names(plan, self.outputs, self.taken, self.piece)
                    graphs.append(tuple(map(Step, steps, named)))
        except KeyboardInterrupt:
            self.budget.stop(INTERRUPTED)
        return Space((Piece(tuple(kernels), tuple(graphs)),) if graphs else ())

    def source(self) -> Space:
        """The program itself, in one kernel."""
        plan = in_one_kernel(self.roots)
        step = Step(0, names(plan, self.outputs, self.taken, self.piece)[0])
        return Space((Piece((KernelFamily(plan.functions[0].roots),), ((step,),)),))

    def number(
        self, plan: Plan, i: int, numbers: dict[tuple, int | None], kernels: list[KernelFamily]
    ) -> int | None:
        """The place in `kernels` of the kernels of part `i`; None where there are none."""
        merges = plan.merges if i == plan.first else ()
        key = plan.functions[i].roots, merges, plan.parts[i].library
        if key not in numbers:
            family = self.family(plan.functions[i], merges, plan.parts[i].library)
            numbers[key] = None if family is None else len(kernels)
            kernels += [] if family is None else [family]
        return numbers[key]


def names_of(program: Program) -> frozenset[str]:
    """All names of a program: tensors and axes."""
    return frozenset((*program.inputs, *(name for name, _ in program.outputs), *program.sizes))


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
    cut = pieces(program, bounds.piece)
    if len(cut) == 1:
        return _search_piece(program, bounds, "", frozenset())
    start = time.perf_counter()
    workers = min(workers, len(cut))
    share = replace(bounds, seconds=bounds.seconds * workers / len(cut))
    taken = names_of(program).union(*map(names_of, cut))
    jobs = [(piece, share, f"_{i}", taken) for i, piece in enumerate(cut, 1)]
    results: list[SearchResult] = []
    for job, found in zip(jobs, run(_search_piece, jobs, workers), strict=True):
        results.append(_unsearched(job, found) if isinstance(found, str) else found)
        progress("pieces", len(results))
    return combined(program, bounds, results, time.perf_counter() - start)


def _search_piece(
    program: Program, bounds: Bounds, piece: str, taken: frozenset[str]
) -> SearchResult:
    if bounds.generator == "exhaustive":
        from prism.search.reference import ReferenceSearch

        return ReferenceSearch(program, bounds, piece, taken).run()
    return Search(program, bounds, piece, taken).run()


def _unsearched(job: tuple, reason: str) -> SearchResult:
    """The result of a piece that was left out: the piece itself, in one kernel."""
    program, bounds, *rest = job
    result = _search_piece(program, replace(bounds, seconds=1e-3), *rest)
    result.ended = reason
    return result
