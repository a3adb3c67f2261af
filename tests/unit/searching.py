"""What tests of the search share."""

import json
import sys
from collections import Counter

from prism.program.program import Program
from prism.search import Bounds
from prism.verify import encode, prove

search_module = sys.modules["prism.search.search"]  # the package exports a function of that name
SINGLE = Bounds(generated=1, kernels=1, library=(), split=False)


def keys(result):
    """Every graph of a result, as text; two graphs alike would count twice."""
    return Counter(json.dumps(g.to_json(), sort_keys=True) for _, g in result.graphs())


def with_fresh(program, graph):
    """The program with an entry for the fresh axes of a graph, which the refuter asks for."""
    fresh = {axis for k in graph.kernels for axis in k.fresh}
    return Program(
        program.name, program.outputs, {**program.sizes, **dict.fromkeys(fresh, "p")}, "bf16"
    )


def whole_proof(program, graphs):
    """Verdicts of complete graphs in one e-graph, without any lemma of the search."""
    return prove(program, [encode(g, program.inputs) for g in graphs]).verdicts


def splits(result, most=300):
    """Graphs of two generated kernels of which the first leaves partial results, some a family."""
    (piece,) = result.space.pieces
    for family, steps in enumerate(piece.graphs):
        if piece.kernels[steps[0].family].kernel(0, {}).fresh:
            step = max(1, piece.counts[family] // most)
            for number in range(0, piece.counts[family], step):
                name = f"{family}.{number}"
                yield name, result.space.graph(name)
