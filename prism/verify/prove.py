"""Proof by the e-graph (paper section 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingT
from dataclasses import dataclass, replace
from typing import Any

from prism.program.node import Node, topological
from prism.program.program import Program
from prism.verify.axioms import ALGEBRA, PARALLEL
from prism.verify.child import call
from prism.verify.egraph import ENode, Limits, Saturation, Session
from prism.verify.refute import Refuter
from prism.verify.verdict import Outcome, Verdict

__all__ = ["Goal", "Proofs", "Refuter", "prove", "prove_all", "saturated_table"]

_GRACE = 0.5  # seconds that an e-graph may need to reach the end of its iteration
_FINISHED = ("saturated", "every goal proved")

Table = tuple[dict[int, list[ENode]], list[int]]


@dataclass(frozen=True)
class Proofs:
    """Verdicts of a batch, and what saturating its e-graph cost."""

    verdicts: list[Verdict]
    saturation: Saturation
    nodes: int

    @property
    def rule_seconds(self) -> dict[str, float]:
        """Seconds that each rule took to search and apply."""
        return self.saturation.rule_seconds

    @property
    def peak_mib(self) -> float:
        """Peak memory of the process that ran the e-graph, in MiB."""
        return self.saturation.peak_mib


Goal = Sequence[tuple[Node, Node]]


def prove_all(goals: Sequence[Goal], limits: Limits | None = None) -> Proofs:
    """PROVED or UNKNOWN for each goal, all of them in one e-graph (shared parts prove once).

    A goal is a sequence of pairs (expression, specification); it is proved when the members of
    every pair are equal.
    """
    limits = limits or Limits()
    pairs = {pair: None for goal in goals for pair in goal}
    numbers = {pair: n for n, pair in enumerate(pairs)}
    (proved, nodes), saturation = _run(lambda: _prove(numbers, limits), limits, (set(), 0))
    verdicts = []
    for goal in goals:
        gaps = [n for n, pair in enumerate(goal) if numbers[pair] not in proved]
        if not gaps:
            verdicts.append(Verdict(Outcome.PROVED, "e-graph"))
        elif saturation.ended in _FINISHED:
            verdicts.append(Verdict(Outcome.UNKNOWN, f"axiom gap at pair {gaps[0]}"))
        else:
            verdicts.append(Verdict(Outcome.UNKNOWN, saturation.ended))
    return Proofs(verdicts, saturation, nodes)


def _prove(
    numbers: MappingT[tuple[Node, Node], int], limits: Limits
) -> tuple[tuple[set[int], int], Saturation]:
    """The goals that hold, the number of e-nodes, and the cost."""
    session = Session()
    session.goals((n, a, b) for (a, b), n in numbers.items())
    session.rules("algebra", ALGEBRA)
    session.rules("parallel", PARALLEL)
    saturation = session.saturate(limits)
    return (session.proved(), session.size()), saturation


def _run(work: Callable[[], tuple[Any, Saturation]], limits: Limits, otherwise: Any):
    """What `work` finds in a child process, or `otherwise` when that is stopped."""
    ending = call(work, limits.seconds + _GRACE, limits.memory_mib)
    if ending.stopped:
        cost = Saturation(ending.stopped, 0, limits.seconds, peak_mib=ending.peak_mib)
        return otherwise, cost
    found, saturation = ending.value
    return found, replace(saturation, peak_mib=ending.peak_mib)


def prove(
    program: Program,
    candidates: Sequence[MappingT[str, Node]],
    limits: Limits | None = None,
) -> Proofs:
    """`prove_all` for graphs of `program`: every output must equal its expression."""
    return prove_all(
        [[(found[name], node) for name, node in program.outputs] for found in candidates], limits
    )


def saturated_table(
    roots: Sequence[Node], limits: Limits | None = None
) -> tuple[dict[int, list[ENode]], list[int], Saturation]:
    """The e-graph of `roots` under ordinary algebra: its e-classes, and those of the roots.

    When it is stopped by time or memory, the table holds the roots' own nodes alone.
    """
    limits = limits or Limits()
    (classes, ids), saturation = _run(lambda: _table(roots, limits), limits, ({}, []))
    if not ids:  # nothing is known but the roots themselves
        classes, ids = _as_table(roots)
    return classes, ids, saturation


def _table(roots: Sequence[Node], limits: Limits) -> tuple[Table, Saturation]:
    session = Session()
    session.insert(roots)
    session.rules("algebra", ALGEBRA)
    saturation = session.saturate(limits)
    return session.table(roots), saturation


def _as_table(roots: Sequence[Node]) -> Table:
    """The roots' own nodes, each in a class of its own."""
    number = {node: n for n, node in enumerate(topological(roots))}
    classes = {
        n: [ENode(node.op, tuple(number[s] for s in node.src), node.arg)]
        for node, n in number.items()
    }
    return classes, [number[root] for root in roots]
