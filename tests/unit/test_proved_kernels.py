"""Proved graphs, lowered at ragged sizes, compute their program.

The proof speaks of equal chunks; a kernel's last tile may be shorter. So proved graphs of one
kernel and of several, with split reductions and library operators, are also run, by the
interpreter in float64, at sizes that nothing divides.
"""

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from workloads import PROGRAMS, symbolic

from prism.codegen import LoweringError
from prism.codegen.interpreter import run
from prism.codegen.lower import lower
from prism.instantiate.concrete import Concrete
from prism.program import Op, evaluate
from prism.program.node import REDUCE
from prism.search import Bounds, search

MORE = [
    symbolic("sum_of_max", "O = sum(max(X, k), n)", {"X": "n k m"}),
    symbolic("max_of_sum", "O = max(sum(X, k), n)", {"X": "n k m"}),
    symbolic("chain", "O = matmul(relu(X @ A), B, f)", {"X": "n d", "A": "d f", "B": "f e"}),
    symbolic("batched", "O = gelu(matmul(X, A, d) - C)", {"X": "b n d", "A": "b d f", "C": "f"}),
    symbolic("centered", "O = square(X - scale(sum(X, d), 1/d))", {"X": "n d"}),
]
ALL = {p.name: p for p in (*PROGRAMS.values(), *MORE)}


def points(program, graph, rng, count):
    """Random sizes of every parallel dimension, most of which divide nothing."""
    for _ in range(count * 20):
        sizes = [{p: rng.randint(1, 5) for p in kernel.block.pars} for kernel in graph.kernels]
        concrete = Concrete(program, graph, sizes, {"schedule": "static"})
        if concrete.problem() is None:
            count -= 1
            yield concrete
        if count == 0:
            return


@pytest.mark.parametrize("name", ALL)
def test_proved_graphs_compute_their_program_at_ragged_sizes(name):
    """As the paper has them; test_stable.py does the same for stable forms."""
    rng = random.Random(name)
    space = search(ALL[name], Bounds(grid=2)).space
    drawn = [space.graph(i) for single in (True, False) for i in space.draw(40, 0, single)]
    assert drawn
    ran = Counter()
    for graph in drawn:
        sizes = {axis: rng.choice((3, 5, 7, 11, 13)) for axis in ALL[name].sizes}
        program = replace(ALL[name].bind(**sizes), numerics="paper")
        numbers = np.random.default_rng(rng.randrange(2**32))
        inputs = {n: numbers.normal(size=program.shape(x)) for n, x in program.inputs.items()}
        expected = evaluate(program, inputs)
        for concrete in points(program, graph, rng, 2):
            try:
                tile = lower(concrete)
            except LoweringError as error:  # refused with a reason, never wrong
                assert "ragged" in str(error) or "different numbers" in str(error), error
                continue
            found = run(tile, inputs, np.float64)
            ran.update({"points": 1, "kernels": len(graph.kernels)})
            ran["splits"] += any(kernel.fresh for kernel in graph.kernels)
            ran["library"] += any(kernel.library for kernel in graph.kernels)
            for output, value in expected.items():
                np.testing.assert_allclose(found[output], value, rtol=1e-9, atol=1e-9)
    assert ran["points"] >= len(drawn)
    reduces = any(node.op in REDUCE | {Op.MATMUL} for node in ALL[name].nodes)
    assert (ran["splits"] > 0) == reduces and ran["kernels"] > ran["points"]
    assert (ran["library"] > 0) == any(node.op is Op.MATMUL for node in ALL[name].nodes)
