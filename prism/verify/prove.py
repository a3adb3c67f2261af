"""Refutation by numbers, then proof by the e-graph (paper section 4)."""

from __future__ import annotations

from collections.abc import Mapping as MappingT
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prism.program.node import Node
from prism.program.numeric import Named, aligned
from prism.program.program import Program
from prism.sgraph.graph import SGraph
from prism.verify.axioms import ALGEBRA, PARALLEL
from prism.verify.egraph import ENode, Limits, Saturation, Session
from prism.verify.semantics import Interpreter, ShapeError
from prism.verify.verdict import Outcome, Verdict

_PARS = {"x": 2, "y": 2, "z": 2, "i": 3}
_CHUNK = 2  # elements of the smallest piece: with one, a sum and a maximum over it look alike
_TOLERANCE = 1e-9


class Refuter:
    """Compares candidates with the program at small random sizes, in exact semantics.

    A mismatch is a certain NO for the mapping, because a correct one must hold for all sizes
    (Definition 2.1). Extents are the least that the mapping can split, so arrays stay tiny.
    """

    def __init__(self, program: Program, seed: int = 0):
        self.program, self.seed = program, seed
        self._interpreters: dict[frozenset, Interpreter] = {}

    def forget(self) -> None:
        """Drops the memoized values; call it between groups of candidates that share little."""
        self._interpreters.clear()

    def refute(self, graph: SGraph, candidate: dict[str, Node]) -> Verdict | None:
        """A REFUTED verdict, or None when the numbers agree. `candidate` is `encode(graph)`."""
        interpreter = self._at(graph)
        for name, node in self.program.outputs:
            try:
                found = interpreter.value(candidate[name])
            except ShapeError as error:
                return Verdict(Outcome.REFUTED, f"{name}: shapes: {error}", self.seed)
            if reason := _difference(found, interpreter.value(node)):
                return Verdict(Outcome.REFUTED, f"{name}: {reason}", self.seed)
        return None

    def _at(self, graph: SGraph) -> Interpreter:
        """The interpreter for the extents that this graph's mapping needs."""
        splits = frozenset(
            (v.axis, v.par) for k in graph.kernels if k.mapping for v in k.mapping.ones
        )
        if splits not in self._interpreters:
            axes = dict.fromkeys(self.program.sizes, _CHUNK)
            for axis, par in splits:
                axes[axis] *= _PARS[par]
            self._interpreters[splits] = self._interpreter(axes)
        return self._interpreters[splits]

    def _interpreter(self, axes: dict[str, int]) -> Interpreter:
        """Inputs of both signs, unless the program has no value there (roots of negatives)."""
        signed = Interpreter(self.program, axes, _PARS, self.seed, low=-1.25)
        values = [signed.value(node).array for _, node in self.program.outputs]
        if all(np.isfinite(v).all() for v in values):
            return signed
        return Interpreter(self.program, axes, _PARS, self.seed)


def _difference(found: Named, expected: Named) -> str | None:
    if set(found.axes) != set(expected.axes):
        return f"axes {sorted(found.axes)}, not {sorted(expected.axes)}"
    a, b = aligned(found, expected.axes), expected.array
    if a.shape != b.shape:
        return f"shape {a.shape}, not {b.shape}"
    scale = np.max(np.abs(b[np.isfinite(b)]), initial=1e-30)
    if not np.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True):
        return "values differ"
    return None


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
    session = Session({"algebra": ALGEBRA, "parallel": PARALLEL})
    pairs = {pair: None for goal in goals for pair in goal}
    numbers = {pair: n for n, pair in enumerate(pairs)}
    session.goals((n, a, b) for (a, b), n in numbers.items())
    saturation = session.saturate(limits or Limits())
    proved = session.proved()
    verdicts = []
    for goal in goals:
        gaps = [n for n, pair in enumerate(goal) if numbers[pair] not in proved]
        if not gaps:
            verdicts.append(Verdict(Outcome.PROVED, "e-graph"))
        elif saturation.ended == "saturated":
            verdicts.append(Verdict(Outcome.UNKNOWN, f"axiom gap at pair {gaps[0]}"))
        else:
            verdicts.append(Verdict(Outcome.UNKNOWN, saturation.ended))
    return Proofs(verdicts, saturation, session.size())


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
    """The e-graph of `roots` under ordinary algebra: its e-classes, and those of the roots."""
    session = Session({"algebra": ALGEBRA})
    session.insert(roots)
    saturation = session.saturate(limits or Limits())
    return *session.table(roots), saturation
