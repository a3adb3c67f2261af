"""What a search returns: the graphs it proved, and an account of the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from prism.program.program import Program
from prism.program.serial import program_to_json
from prism.search.bounds import Bounds
from prism.sgraph.family import Space
from prism.sgraph.graph import SGraph
from prism.verify.prove import Proofs

EXHAUSTED, INTERRUPTED = "exhausted", "interrupted"  # how a search ended, if at no limit
STAGES = ("generate", "map", "refute", "prove")


@dataclass(frozen=True)
class Gap:
    """What agrees on numbers and was not proved, for want of an axiom or by a limit; not used."""

    what: str
    reason: str


@dataclass
class SearchResult:
    """Every graph found is PROVED; `gaps` are what was not, and `rejected` counts why.

    `candidates` counts what enters and leaves a stage: generate, cuts into kernels, then distinct
    functions of kernels; map, assignments of one kernel's mapping variables as far as they were
    made, then whole ones that are right; refute and prove, what is to be shown. Of a program in
    pieces, all of these and the seconds of stages are sums, whatever ran at once.
    """

    program: Program
    bounds: Bounds
    space: Space = field(default_factory=lambda: Space(()))
    gaps: list[Gap] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    candidates: dict[str, dict[str, int]] = field(
        default_factory=lambda: {stage: {"in": 0, "out": 0} for stage in STAGES}
    )
    rejected: Counter = field(default_factory=Counter)
    rules: dict[str, dict[str, float]] = field(default_factory=dict)
    ended: str = EXHAUSTED
    total: float = 0.0
    peak_mib: float = 0.0

    def graphs(self, single: bool | None = None) -> Iterator[tuple[str, SGraph]]:
        """Id and sGraph of every proved graph; of single-kernel graphs, or of all others, only."""
        for name in self.space.ids(single):
            yield name, self.space.graph(name)

    def count(self, stage: str, entered: int, left: int) -> None:
        """Adds to a stage's candidates."""
        self.candidates[stage]["in"] += entered
        self.candidates[stage]["out"] += left

    def account(self, proofs: Proofs) -> None:
        """Adds what an e-graph cost."""
        self.rule_costs(proofs.saturation.matches, proofs.rule_seconds)
        self.peak_mib = max(self.peak_mib, proofs.peak_mib)

    def rule_costs(self, matches: dict[str, int], seconds: dict[str, float]) -> None:
        """Adds matches and seconds of rules, by name."""
        for name in matches.keys() | seconds.keys():
            rule = self.rules.setdefault(name, {"matches": 0, "seconds": 0.0})
            rule["matches"] += matches.get(name, 0)
            rule["seconds"] += seconds.get(name, 0.0)

    def to_json(self) -> dict:
        """Plain data; `Space.from_json` of its `space` gives the graphs back."""
        rules = sorted(self.rules.items(), key=lambda item: (-item[1]["matches"], item[0]))
        return {
            "workload": self.program.name,
            "program": program_to_json(self.program),
            "bounds": vars(self.bounds) | {"library": list(self.bounds.library)},
            "ended": self.ended,
            "seconds": {**self.seconds, "total": self.total},
            "peak_mib": self.peak_mib,
            "candidates": self.candidates,
            "rejected": {cause: n for cause, n in self.rejected.most_common() if n},
            "gaps": [vars(gap) for gap in self.gaps],
            "rules": {name: cost for name, cost in rules if cost["matches"]},
            "graphs": {"all": self.space.count, "single_kernel": self.space.single_kernel},
            "space": self.space.to_json(),
        }


def combined(
    program: Program, bounds: Bounds, results: Sequence[SearchResult], total: float
) -> SearchResult:
    """The result of a program from those of its pieces, in order."""
    whole = SearchResult(program, bounds, total=total)
    whole.space = Space(tuple(piece for r in results for piece in r.space.pieces))
    for result in results:
        whole.gaps += result.gaps
        whole.rejected += result.rejected
        whole.peak_mib = max(whole.peak_mib, result.peak_mib)
        if result.ended != EXHAUSTED and not whole.ended.endswith(INTERRUPTED):
            whole.ended = f"{result.program.name}: {result.ended}"
        for stage in STAGES:
            whole.seconds[stage] += result.seconds[stage]
            counts = result.candidates[stage]
            whole.count(stage, counts["in"], counts["out"])
        for name, cost in result.rules.items():
            whole.rule_costs({name: cost["matches"]}, {name: cost["seconds"]})
    return whole
