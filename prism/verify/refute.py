"""Refutation by numbers (paper section 4): a mismatch at small random sizes is a certain NO."""

from __future__ import annotations

import numpy as np

from prism.program.node import Node
from prism.program.numeric import Named, aligned
from prism.program.program import Program
from prism.sgraph.graph import SGraph
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
