"""Every proved graph of one kernel has a Triton form."""

import ast
from dataclasses import replace

import pytest
from workloads import PROGRAMS

from prism.codegen import BACKENDS
from prism.codegen.lower import lower
from prism.instantiate import Concrete
from prism.search import Bounds, search

TRITON = BACKENDS["triton"]
PAPER = {"rmsnorm": 140, "rmsnorm_mlp": 2428, "swiglu": 44, "attention": 735, "qk_attention": 4230}


@pytest.mark.parametrize("name", PAPER)
def test_every_proved_graph_of_one_kernel_is_printed(name):
    program = PROGRAMS[name]
    program = replace(program.bind(**dict.fromkeys(program.sizes, 32)), dtype="fp16")
    space = search(PROGRAMS[name], Bounds()).space
    drawn = space.draw(10_000, 0, True)
    assert len(drawn) >= PAPER[name]  # more is a wider space; each has a stable form
    texts = set()
    for number, graph_id in enumerate(drawn):
        graph = space.graph(graph_id)
        sizes = [dict.fromkeys(kernel.block.pars, 2) for kernel in graph.kernels]
        concrete = Concrete(program, graph, sizes, {"num_warps": 4, "num_stages": 3})
        text = TRITON.source(lower(concrete, TRITON.library))
        texts.add(text)
        if number % 50 == 0:
            ast.parse(text)
    assert len(texts) > 0.9 * len(drawn)
