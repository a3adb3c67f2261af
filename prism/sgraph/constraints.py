"""Symbolic shapes and the constraints on mapping variables (paper section 2, equations 1 to 4).

The per-block size of an axis is D / sigma(T, d), where T is the loaded tensor that the axis comes
from. Two sizes match for *all* values of the parallel sizes only if their mapping variables are
equal parameter by parameter (section 3.2), so matching shapes yields equalities of variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from prism.program.node import Node, Op, accum_kind
from prism.sgraph.graph import BlockGraph, MapVar, after_loop

if TYPE_CHECKING:
    import sympy


class Dim(NamedTuple):
    """Where an axis of a block tensor comes from: m[tensor, axis, p] for p in `pars`."""

    tensor: str
    axis: str
    pars: tuple[str, ...]

    def var(self, par: str) -> MapVar:
        """The mapping variable of one parallel dimension."""
        return MapVar(self.tensor, self.axis, par)


@dataclass(frozen=True)
class Constraints:
    """What an assignment of the variables of one block graph must satisfy.

    `at_most_one` are equations (1) and (2), for every tensor of the block, intermediate ones too;
    `equal` is equation (4) by coefficient matching; matching fixes the variables `zero` and `one`.
    `varies` lists, for each accumulator, the loop variables of which at least one must be 1: an
    accumulator over a loop invariant would count it d_i times.
    """

    variables: tuple[MapVar, ...]
    at_most_one: frozenset[frozenset[MapVar]]
    equal: tuple[tuple[MapVar, MapVar], ...]
    zero: frozenset[MapVar]
    one: frozenset[MapVar]
    varies: tuple[frozenset[MapVar], ...]

    def satisfied(self, ones: frozenset[MapVar]) -> bool:
        """Whether setting exactly `ones` to 1 satisfies every constraint."""
        return (
            self.one <= ones
            and not self.zero & ones
            and all((a in ones) == (b in ones) for a, b in self.equal)
            and all(len(group & ones) <= 1 for group in self.at_most_one)
            and all(group & ones for group in self.varies)
        )


def dims(block: BlockGraph) -> dict[Node, dict[str, Dim]]:
    """For each node of the block, the origin of each of its axes."""
    return walk(block.nodes, block.grid, block.loop)[0]


def constraints(block: BlockGraph) -> Constraints:
    """The constraints that the graph's structure puts on its mapping variables."""
    return walk(block.nodes, block.grid, block.loop)[1]


def size(dim: Dim, extent: sympy.Expr) -> sympy.Expr:
    """D / sigma(T, d) with sigma(T, d) = prod over p of (m*d_p + 1 - m), equation (3)."""
    import sympy

    sigma = sympy.Integer(1)
    for par in dim.pars:
        m = sympy.Symbol(str(dim.var(par)), integer=True, nonnegative=True)
        sigma *= m * sympy.Symbol(f"d_{par}", integer=True, positive=True) + 1 - m
    return extent / sigma


def walk(
    nodes: Sequence[Node], grid: tuple[str, ...], loop: str | None
) -> tuple[dict[Node, dict[str, Dim]], Constraints]:
    """Origins of all axes, and the constraints, of a block graph that may still be partial.

    `nodes` lists sources before their readers.
    """
    pars = (*grid, loop) if loop else grid
    after = after_loop(nodes)
    shapes: dict[Node, dict[str, Dim]] = {}
    equal: dict[tuple[MapVar, MapVar], None] = {}
    zero: set[MapVar] = set()
    one: set[MapVar] = set()
    groups: set[frozenset[MapVar]] = set()
    varies: list[frozenset[MapVar]] = []
    variables: dict[MapVar, None] = {}
    loop_vars: dict[Node, frozenset[MapVar]] = {}  # loop variables a node's value depends on

    def match(a: Dim, b: Dim) -> Dim:
        both = tuple(p for p in a.pars if p in b.pars)
        for par in both:
            if a.var(par) != b.var(par):
                equal[a.var(par), b.var(par)] = None
        zero.update(a.var(p) for p in a.pars if p not in b.pars)
        zero.update(b.var(p) for p in b.pars if p not in a.pars)
        return Dim(a.tensor, a.axis, both)

    for node in nodes:
        if node.op is Op.LOAD:
            shape = {axis: Dim(node.arg, axis, pars) for axis in node.axes}
            variables.update((d.var(p), None) for d in shape.values() for p in d.pars)
            loop_vars[node] = frozenset(d.var(loop) for d in shape.values() if loop)
        elif node.op is Op.ACCUM:
            shape = dict(shapes[node.src[0]])
            kind, axis = accum_kind(node)
            if kind == "concat":
                one.add(shape[axis].var(loop))
                left = tuple(p for p in shape[axis].pars if p != loop)
                shape[axis] = shape[axis]._replace(pars=left)
            varies.append(loop_vars[node.src[0]])
            loop_vars[node] = frozenset()
        elif node.op is Op.SAVE:
            shape = {}
            for axis, dim in shapes[node.src[0]].items():
                shape[axis] = Dim(node.arg, axis, grid)
                variables.update((shape[axis].var(p), None) for p in grid)
                match(shape[axis], dim)
            zero |= loop_vars[node.src[0]]
        else:
            shape = _operator(node, shapes, match)
            loop_vars[node] = frozenset().union(*(loop_vars[s] for s in node.src))
            if node in after:  # what it reads from inside the loop must be invariant
                zero.update(*(loop_vars[s] for s in node.src))
                loop_vars[node] = frozenset()
        shapes[node] = shape
        groups.update(_linear(shape.values(), grid, pars))
    return shapes, Constraints(
        tuple(variables),
        frozenset(g for g in groups if len(g) > 1),
        tuple(equal),
        frozenset(zero),
        frozenset(one),
        tuple(varies),
    )


def _operator(node: Node, shapes: dict[Node, dict[str, Dim]], match) -> dict[str, Dim]:
    merged: dict[str, Dim] = {}
    for source in node.src:
        for axis, dim in shapes[source].items():
            merged[axis] = match(merged[axis], dim) if axis in merged else dim
    return {axis: merged[axis] for axis in node.axes}


def _linear(
    shape: Iterable[Dim], grid: tuple[str, ...], pars: tuple[str, ...]
) -> Iterable[frozenset[MapVar]]:
    """Equations (1), per parallel dimension, and (2), per axis over the grid."""
    shape = list(shape)
    for par in pars:
        yield frozenset(d.var(par) for d in shape if par in d.pars)
    for dim in shape:
        yield frozenset(dim.var(p) for p in grid if p in dim.pars)
