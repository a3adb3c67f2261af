"""Mapping enumeration by constraints (paper section 3.4): a choice per class of equal variables.

For the reference search, which tries each choice on numbers; `kernels` combines choices of grid
dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

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
