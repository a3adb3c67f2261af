"""Lowering and interpretation give what the program's evaluator gives."""

import numpy as np
import pytest
from codegen_graphs import attention, random_graph, random_inputs, random_program, rmsnorm
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.codegen.interpreter import run
from prism.codegen.lower import lower
from prism.instantiate import Concrete, sample
from prism.program import evaluate


def check(concrete, seed=0, dtype=np.float64, tolerance=1e-9):
    inputs = random_inputs(concrete.program, seed)
    want = evaluate(concrete.program, inputs)
    got = run(lower(concrete), inputs, dtype)
    for name, value in want.items():
        scale = np.abs(value).max() + 1e-30
        assert got[name].dtype == dtype
        assert np.abs(got[name] - value).max() <= tolerance * scale, concrete.sizes


@pytest.mark.parametrize(
    "fixture", [rmsnorm(5, 100, 70), rmsnorm(1, 64, 1), attention(2, 3, 1, 50, 24, 20)]
)
def test_fixtures_at_many_sizes(fixture):
    program, graph = fixture
    points = sample([("g", graph)], program, 40, 0, {})
    assert any(max(c.sizes[0].values()) > 1 for _, c in points)
    for _, concrete in points:
        check(concrete)


def test_float32_arithmetic_is_the_default_and_close():
    program, graph = rmsnorm(4, 300, 37)
    check(Concrete(program, graph, ({"x": 3, "i": 7},)), dtype=np.float32, tolerance=1e-5)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6))
def test_random_graphs(seed):
    program = random_program(seed)
    graph = random_graph(program, seed)
    for _, concrete in sample([("g", graph)], program, 4, seed, {}):
        check(concrete, seed)


def test_nan_and_infinity_survive():
    program, graph = attention(1, 2, 1, 9, 4, 5)
    inputs = random_inputs(program, 0)
    inputs["Q"][0, 1] = np.inf
    inputs["V"][0, 0, 3, 2] = np.nan
    want = evaluate(program, inputs)["O"]
    got = run(lower(Concrete(program, graph, ({"x": 1, "y": 2, "i": 5},))), inputs)["O"]
    assert np.isnan(want).any() and np.isfinite(want).any()
    assert np.array_equal(np.isnan(got), np.isnan(want))
