"""Programs with masks, and concrete graphs of them that a search found, for several tests."""

from prism.instantiate.concrete import Concrete
from prism.instantiate.stable import stable_graphs
from prism.program import parse
from prism.search import Bounds, search

INPUTS = {"Q": ["b", "g", "s", "d"], "K": ["b", "g", "h", "d"], "V": ["b", "g", "h", "e"]}
FORMULA = "O = matmul(softmax(matmul(Q, K, d) / sqrt(d) + MASK, h), V, h)"
MASKS = {"last": "causal(s, h)", "first": "causal(s, h, first)", "additive": "M"}


def masked(mask="last", dtype="fp32", **sizes):
    """Attention under one of MASKS; a size that is not given is a symbol."""
    inputs = INPUTS | ({"M": ["s", "h"]} if mask == "additive" else {})
    extents = {axis: sizes.get(axis, axis) for axis in "bgshde"}
    formula = FORMULA.replace("MASK", MASKS[mask])
    return parse("masked", formula, inputs, extents, {}, dtype)


def graphs(mask, count, numerics="stable"):
    """The program with symbols, and graphs of one kernel and of several that have its numerics."""
    program = masked(mask)
    space = search(program, Bounds(grid=2)).space
    named = [(i, space.graph(i)) for single in (True, False) for i in space.draw(count, 0, single)]
    kept = stable_graphs(program, named) if numerics == "stable" else named
    return program, [graph for _, graph in kept]


def points(program, graph, rng, count, most=5, options=None):
    """Concrete graphs at random sizes of the parallel dimensions, most of which divide nothing."""
    for _ in range(count * 20):
        sizes = [{p: rng.randint(1, most) for p in kernel.block.pars} for kernel in graph.kernels]
        concrete = Concrete(program, graph, sizes, options or {})
        if concrete.problem() is None:
            count -= 1
            yield concrete
        if count == 0:
            return
