"""Exact numeric meaning of expressions: what part, comb, red and repl do to arrays (Figure 4).

A parallel dimension p is an array dimension named "@p". Every other operator is the program
language's own, applied to arrays that happen to have these extra dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from prism.program.node import Node, Op, topological
from prism.program.numeric import Named, apply
from prism.program.program import Program


class ShapeError(ValueError):
    """An expression whose parts do not fit together at the given sizes."""


class Interpreter:
    """Values of expressions at fixed sizes, memoized by node: candidates share most of theirs.

    `axes` gives the extent of each data axis, `pars` that of each parallel dimension; an axis must
    be divisible by the product of the dimensions that split it. Inputs are uniform, `low` to 1.25;
    constants are positive, unless they are to be `negative`.
    """

    def __init__(
        self,
        program: Program,
        axes: Mapping[str, int],
        pars: Mapping[str, int],
        seed: int,
        low: float = 0.25,
        negative: bool = False,
    ):
        self.pars, self._negative = dict(pars), negative
        self._rng = np.random.default_rng(seed)
        self._numbers: dict[str, float] = {}
        self._values: dict[Node, Named | ShapeError] = {}
        for node in program.inputs.values():
            shape = tuple(axes[a] for a in node.axes)
            self._values[node] = Named(self._rng.uniform(low, 1.25, shape), node.axes)

    def number(self, text: str) -> float:
        """The value of a constant: any will do, as no axiom looks into one."""
        if text not in self._numbers:
            size = self._rng.uniform(0.5, 2)
            self._numbers[text] = -size if self._negative else size
        return self._numbers[text]

    def value(self, root: Node) -> Named:
        """The array of `root`. Raises ShapeError when the expression has no value."""
        found = self._values.get(root)
        if found is None:
            for node in topological([root], self._values):
                self._values[node] = self._step(node)
            found = self._values[root]
        if isinstance(found, ShapeError):
            raise found
        return found

    def _step(self, node: Node) -> Named | ShapeError:
        sources = [self._values[s] for s in node.src]
        for source in sources:
            if isinstance(source, ShapeError):
                return source
        try:
            with np.errstate(all="ignore"):
                if node.op in _PARALLEL:
                    return _PARALLEL[node.op](sources[0], node.arg, self.pars)
                return apply(node.op, node.arg, sources, self.number)
        except (ValueError, KeyError) as error:
            return ShapeError(f"{node.op.value}: {error}")


def _part(t: Named, arg, pars) -> Named:
    axis, par = arg
    where = t.axes.index(axis)
    size = t.array.shape[where]
    if f"@{par}" in t.axes:
        raise ShapeError(f"part: already partitioned along {par}")
    if size % pars[par]:
        raise ShapeError(f"part: {axis} of {size} into {pars[par]}")
    shape = t.array.shape[:where] + (pars[par], size // pars[par]) + t.array.shape[where + 1 :]
    return Named(t.array.reshape(shape), t.axes[:where] + (f"@{par}",) + t.axes[where:])


def _comb(t: Named, arg, pars) -> Named:
    axis, par = arg
    source = t.axes.index(f"@{par}")
    if axis not in t.axes:  # a fresh axis: one element a block
        return Named(t.array, (*t.axes[:source], axis, *t.axes[source + 1 :]))
    array = np.moveaxis(t.array, source, 0)
    axes = t.axes[:source] + t.axes[source + 1 :]
    where = axes.index(axis)
    array = np.moveaxis(array, 0, where)
    shape = array.shape[:where] + (-1,) + array.shape[where + 2 :]
    return Named(array.reshape(shape), axes)


def _red(t: Named, arg, pars) -> Named:
    kind, par = arg
    where = t.axes.index(f"@{par}")
    reduce = {"sum": np.sum, "max": np.max}[kind]
    return Named(reduce(t.array, axis=where), t.axes[:where] + t.axes[where + 1 :])


def _repl(t: Named, par, pars) -> Named:
    if f"@{par}" in t.axes:
        raise ShapeError(f"repl: already parallel along {par}")
    shape = (pars[par],) + t.array.shape
    return Named(np.broadcast_to(t.array, shape), (f"@{par}",) + t.axes)


_PARALLEL = {Op.PART: _part, Op.COMB: _comb, Op.RED: _red, Op.REPL: _repl}
