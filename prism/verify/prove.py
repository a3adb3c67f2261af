"""Proof by the e-graph (paper section 4)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingT
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from prism.program.node import Node, topological
from prism.program.program import Program
from prism.verify.axiom import Axiom
from prism.verify.axioms import ALGEBRA, PHASES
from prism.verify.child import call
from prism.verify.egraph import ENode, Limits, Saturation, Session
from prism.verify.refute import Refuter
from prism.verify.verdict import Outcome, Verdict

__all__ = ["Goal", "Proofs", "Refuter", "prove", "prove_all", "saturated_table"]

_GRACE = 0.5  # seconds that an e-graph may need to reach the end of its iteration

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
    start = time.perf_counter()
    pairs = {pair: n for n, pair in enumerate(dict.fromkeys(p for goal in goals for p in goal))}
    found = _Found(set(), Saturation("saturated", 0, 0.0), 0)
    axioms: tuple[Axiom, ...] = ()
    for phase in PHASES:  # each in an e-graph of its own that holds the goals still open
        axioms += phase
        still = {pair: n for pair, n in pairs.items() if n not in found.proved}
        if not still or found.cost.ended != "saturated":
            break
        left = replace(limits, seconds=limits.seconds - (time.perf_counter() - start))
        later = _run(partial(_prove, still, axioms, left), left)
        if isinstance(later, Saturation):
            later = _Found(set(), later, 0)
        found = _Found(
            found.proved | later.proved,
            found.cost.plus(later.cost),
            max(found.nodes, later.nodes),
        )
    return Proofs([_verdict(goal, pairs, found) for goal in goals], found.cost, found.nodes)


_PROVED = Verdict(Outcome.PROVED, "e-graph")


@dataclass
class _Found:
    """Numbers of the pairs that are equal; what it cost; e-nodes of the largest e-graph."""

    proved: set[int]
    cost: Saturation
    nodes: int


def _verdict(goal: Goal, pairs: MappingT[tuple[Node, Node], int], found: _Found) -> Verdict:
    gaps = [n for n, pair in enumerate(goal) if pairs[pair] not in found.proved]
    if not gaps:
        return _PROVED
    if found.cost.ended == "saturated":
        return Verdict(Outcome.UNKNOWN, f"axiom gap at pair {gaps[0]}")
    return Verdict(Outcome.UNKNOWN, found.cost.ended)


def _prove(
    pairs: MappingT[tuple[Node, Node], int], axioms: tuple[Axiom, ...], limits: Limits
) -> _Found:
    session = Session()
    session.goals((n, *pair) for pair, n in pairs.items())
    session.rules(axioms)
    cost = session.saturate(limits)
    return _Found(session.proved(), cost, session.size())


def _run(work: Callable[[], Any], limits: Limits) -> Any:
    """What `work` finds in a child process, or the Saturation that says why it was stopped."""
    ending = call(work, limits.seconds + _GRACE, limits.memory_mib)
    if ending.stopped:
        return Saturation(ending.stopped, 0, limits.seconds, peak_mib=ending.peak_mib)
    ending.value.cost.peak_mib = ending.peak_mib
    return ending.value


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
    found = _run(partial(_table, roots, limits), limits)
    if isinstance(found, Saturation):  # nothing is known but the roots themselves
        return *_as_table(roots), found
    return *found.table, found.cost


@dataclass
class _Tabled:
    """A frozen e-graph and its cost."""

    table: Table
    cost: Saturation


def _table(roots: Sequence[Node], limits: Limits) -> _Tabled:
    session = Session()
    session.insert(roots)
    session.rules(ALGEBRA)
    cost = session.saturate(limits)
    return _Tabled(session.table(roots), cost)


def _as_table(roots: Sequence[Node]) -> Table:
    """The roots' own nodes, each in a class of its own."""
    number = {node: n for n, node in enumerate(topological(roots))}
    classes = {
        n: [ENode(node.op, tuple(number[s] for s in node.src), node.arg)]
        for node, n in number.items()
    }
    return classes, [number[root] for root in roots]
