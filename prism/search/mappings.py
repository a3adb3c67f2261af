"""Mapping enumeration (paper section 3.4): a choice per class of equal variables.

Grid dimensions are interchangeable, so their assignments are enumerated as *sets* of choices, one
choice per dimension: symmetry is broken by construction and only the lexicographically smallest
member of each orbit is ever made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from prism.sgraph.constraints import Constraints, constraints
from prism.sgraph.graph import GRID_DIMS, BlockGraph, MapVar

Choice = frozenset[tuple[str, str]]  # (tensor, axis) pairs that one parallel dimension partitions


def grid_choices(block: BlockGraph) -> list[Choice]:
    """What one grid dimension may partition in `block`, as far as shapes go.

    Accumulators change nothing here, so the choices of a loop-free block hold for all placements.
    """
    par = GRID_DIMS[0]
    return list(assignments(constraints(replace(block, grid=(par,))), par))


def loop_choices(block: BlockGraph) -> list[Choice]:
    """What the loop of `block` may partition; one empty choice when there is no loop."""
    if block.loop is None:
        return [frozenset()]
    return list(assignments(constraints(block), block.loop))


def combine(grid: Sequence[Choice], limit: int) -> Iterator[tuple[Choice, ...]]:
    """Sets of at most `limit` choices, one per grid dimension, that respect equation (2)."""
    for count in range(min(limit, len(GRID_DIMS)) + 1):
        for chosen in combinations(grid, count):
            if all(not a & b for a, b in combinations(chosen, 2)):
                yield chosen


def variables(grid: Sequence[Choice], loop: Choice, loop_dim: str | None) -> frozenset[MapVar]:
    """The variables that are 1 under these choices."""
    ones = {MapVar(t, d, p) for p, choice in zip(GRID_DIMS, grid, strict=False) for t, d in choice}
    return frozenset(ones | {MapVar(t, d, loop_dim) for t, d in loop})


def assignments(found: Constraints, par: str) -> Iterator[Choice]:
    """All assignments of the variables of one parallel dimension, in lexicographic order."""
    if found.zero & found.one:
        return
    classes = _classes([v for v in found.variables if v.par == par], found)
    groups = [g for g in found.at_most_one if all(v.par == par for v in g)]
    varies = found.varies if par not in GRID_DIMS else ()
    one = frozenset(v for v in found.one if v.par == par)
    allowed = [c for c in classes if not c & found.zero]
    if any(not any(g & c for c in allowed) for g in varies):
        return

    def extend(i: int, ones: frozenset[MapVar]) -> Iterator[Choice]:
        if i == len(allowed):
            if one <= ones and all(g & ones for g in varies):
                yield frozenset((v.tensor, v.axis) for v in ones)
            return
        if not allowed[i] & one:
            yield from extend(i + 1, ones)
        more = ones | allowed[i]
        if all(len(g & more) <= 1 for g in groups):
            yield from extend(i + 1, more)

    yield from extend(0, frozenset())


def _classes(variables: list[MapVar], found: Constraints) -> list[frozenset[MapVar]]:
    """Variables grouped by the equalities among them."""
    parent = {v: v for v in variables}

    def root(v: MapVar) -> MapVar:
        while parent[v] != v:
            v = parent[v]
        return v

    for a, b in found.equal:
        if a in parent and b in parent:
            parent[root(a)] = root(b)
    classes: dict[MapVar, list[MapVar]] = {}
    for v in variables:
        classes.setdefault(root(v), []).append(v)
    return sorted((frozenset(c) for c in classes.values()), key=min)
