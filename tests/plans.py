"""Concrete graphs of a program, one for each way in which the search plans it."""

import random
from dataclasses import replace
from math import prod

from prism.codegen import LoweringError
from prism.codegen.lower import lower
from prism.instantiate import Concrete
from prism.instantiate.space import sizes
from prism.instantiate.stable import refused
from prism.program import Program
from prism.search import Bounds, search
from prism.sgraph import SGraph

DRAWN = 400  # graphs of one kernel, and as many others, among which plans are looked for
TRIES = 40

PLANS = {
    "whole": lambda g: len(g.kernels) == 1 and not g.kernels[0].block.loop,
    "loop": lambda g: len(g.kernels) == 1 and bool(g.kernels[0].block.loop),
    "two": lambda g: len(g.kernels) == 2 and not any(k.fresh or k.library for k in g.kernels),
    "split": lambda g: any(k.fresh for k in g.kernels) and not any(k.library for k in g.kernels),
    "library": lambda g: any(k.library for k in g.kernels),
}
_found: dict[tuple, list[SGraph]] = {}


def graphs_of(program: Program) -> list[SGraph]:
    """Proved graphs, drawn from all that the search finds whatever the sizes; of both strata."""
    key = program.outputs, tuple(program.params.items())
    if key not in _found:
        symbolic = replace(program, sizes={axis: axis for axis in program.sizes})
        space = search(symbolic, Bounds(grid=2)).space
        names = [name for single in (True, False) for name in space.draw(DRAWN, 0, single)]
        _found[key] = [space.graph(name) for name in names]
    return _found[key]


def plans(program: Program, library: str = "own", options=()) -> dict[str, list[Concrete]]:
    """Concrete graphs for each of PLANS of which there are proved graphs that can be lowered.

    Those first that have most parallel dimensions of more than one chunk and leave most tensors,
    partial results and their maxima among them; of equals, those of fewest chunks. `library` and
    `options` are the backend's.
    """
    found = {}
    for plan, is_one in PLANS.items():
        rng = random.Random(f"{program.name} {plan}")
        graphs = [g for g in graphs_of(program) if is_one(g) and not refused(program, [g])]
        rng.shuffle(graphs)
        drawn = [point(program, mapped, rng, dict(options)) for mapped in graphs[:TRIES]]
        valid = [c for c in drawn if c is not None and can_be_lowered(c, library)]
        if valid:
            found[plan] = sorted(valid, key=_weight, reverse=True)
    return found


def _weight(concrete: Concrete) -> tuple[int, int]:
    left = sum(len(kernel.block.savers) for kernel in concrete.kernels)
    chunks = [n for chosen in concrete.sizes for n in chosen.values()]
    return left + sum(n > 1 for n in chunks), -prod(chunks)


def point(program: Program, mapped: SGraph, rng: random.Random, options=None) -> Concrete | None:
    """The graph with random sizes; None when a few draws give no valid ones."""
    values = [sizes(program, kernel) for kernel in mapped.kernels]
    for _ in range(5):
        chosen = [{p: rng.choice(v[:12]) for p, v in each.items()} for each in values]
        concrete = Concrete(program, mapped, chosen, options or {})
        if concrete.problem() is None:
            return concrete
    return None


def can_be_lowered(concrete: Concrete, library: str = "own") -> bool:
    """Whether lowering takes these sizes; what it refuses, it refuses with a reason."""
    try:
        lower(concrete, library)
    except LoweringError:
        return False
    return True
