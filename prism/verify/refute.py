"""Refutation by numbers (paper section 4): a mismatch at small random sizes is a certain NO."""

from __future__ import annotations

import math

import numpy as np

from prism.program.node import Node
from prism.program.numeric import Named, aligned
from prism.program.program import Program
from prism.sgraph.graph import SGraph
from prism.verify.encode import marks
from prism.verify.semantics import Interpreter, ShapeError
from prism.verify.verdict import Outcome, Verdict

# Sizes of the parallel dimensions of the first kernel, and of later ones: they differ, so that what
# holds for equal sizes alone is refuted, and so is a fresh axis that a later kernel partitions.
_FIRST = {"x": 2, "y": 2, "z": 2, "i": 3}
_LATER = {"x": 3, "y": 3, "z": 3, "i": 2}
_CHUNK = 2  # elements of the smallest piece: with one, a sum and a maximum over it look alike
_TOLERANCE = 1e-9


class Refuter:
    """Compares candidates with the program at small random sizes, in exact semantics.

    A mismatch is a certain NO for the mapping, because a correct one must hold for all sizes
    (Definition 2.1). Extents are the least that the mapping can split, so arrays stay tiny.
    """

    def __init__(self, program: Program, seed: int = 0):
        self.program, self.seed = program, seed
        self._interpreters: dict[tuple[frozenset, int], Interpreter] = {}

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
            (v.axis, v.par, mark)
            for k, mark in zip(graph.kernels, marks(graph), strict=True)
            if k.mapping
            for v in k.mapping.ones
            if v.axis in self.program.sizes
        )
        key = (splits, len(graph.kernels))
        if key not in self._interpreters:
            least: dict[tuple[str, str], int] = {}  # by axis and kernel
            for axis, par, mark in splits:
                size = (_LATER if mark else _FIRST)[par]
                least[axis, mark] = least.get((axis, mark), 1) * size
            axes = dict.fromkeys(self.program.sizes, _CHUNK)
            for (axis, _), size in least.items():
                axes[axis] = math.lcm(axes[axis], _CHUNK * size)
            self._interpreters[key] = self._interpreter(axes, marks(graph))
        return self._interpreters[key]

    def _interpreter(self, axes: dict[str, int], names: list[str]) -> Interpreter:
        """Inputs of both signs and negative constants, as far as the program has values there."""
        pars = {p + m: size for m in names for p, size in (_LATER if m else _FIRST).items()}
        for low, negative in ((-1.25, True), (-1.25, False), (0.25, False)):
            found = Interpreter(self.program, axes, pars, self.seed, low, negative)
            values = [found.value(node).array for _, node in self.program.outputs]
            if all(np.isfinite(v).all() for v in values):
                break
        return found


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
