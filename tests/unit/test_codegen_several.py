"""Graphs of several kernels: split reductions, library operators, what is refused."""

import numpy as np
import pytest
from codegen_graphs import (
    flash_decoding,
    graph,
    joined,
    library,
    load,
    op,
    random_inputs,
    random_program,
    rmsnorm_library,
    split_graph,
    split_k,
    two_outputs,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.codegen import LoweringError
from prism.codegen.cpu.printer import kernels
from prism.codegen.interpreter import run
from prism.codegen.lower import lower
from prism.codegen.tile import Contract, Reduce
from prism.errors import PrismError
from prism.instantiate import Concrete, sample
from prism.instantiate.library import schedule
from prism.instantiate.space import problem
from prism.program import Builder, Op, evaluate
from prism.sgraph import SGraph


def check(concrete, seed=0):
    inputs = random_inputs(concrete.program, seed)
    got = run(lower(concrete), inputs, np.float64)
    for name, want in evaluate(concrete.program, inputs).items():
        scale = np.abs(want).max(initial=1e-30)
        assert np.abs(got[name] - want).max() <= 1e-9 * scale, concrete.sizes


@pytest.mark.parametrize("loop", [None, "i"])
@pytest.mark.parametrize("split", [1, 2, 5, 7, 25, 50])
def test_split_k_at_even_and_ragged_splits(split, loop):
    program, mapped = split_k(3, 50, 40, loop=loop)
    iterations = {"i": min(2, 50 // split)} if loop else {}
    concrete = Concrete(program, mapped, ({"x": 3, "y": split, **iterations}, {"x": 4}))
    assert [p.sizes.get("split") for p in concrete.bound] == [split, split]
    assert "split" not in concrete.program.sizes
    check(concrete)
    tensor = lower(concrete).tensors["t1"]
    assert (tensor.axes, tensor.shape) == (("split", "n", "f"), (split, 3, 40))
    assert (tensor.dtype, tensor.role) == ("fp32", "temp")


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 1, 5, 2), (1, 3, 7, 1), (2, 3, 10, 5)])
def test_flash_decoding(sizes):
    x, y, z, i = sizes
    program, mapped = flash_decoding(2, 3, 1, 50, 24, 20)
    check(Concrete(program, mapped, ({"x": x, "y": y, "z": z, "i": i}, {"x": 2, "y": 1})))


@pytest.mark.parametrize(
    "fixture",
    [
        split_k(2, 96, 33),
        split_k(4, 130, 20, loop="i"),
        flash_decoding(2, 3, 1, 70, 24, 20),
        rmsnorm_library(5, 100, 70),
        two_outputs(7, 90),
    ],
)
def test_points_of_the_space(fixture):
    program, mapped = fixture
    points = sample([("g", mapped)], program, 25, 0, {})
    assert len(points) >= 16
    for _, concrete in points:
        check(concrete)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6))
def test_random_split_programs(seed):
    program = random_program(seed)
    mapped = split_graph(program, seed)
    for _, concrete in sample([("g", mapped)], program, 3, seed, {}):
        check(concrete, seed)


def test_a_library_operator_runs_at_its_own_schedule():
    program, mapped = rmsnorm_library(16, 64, 1024)
    concrete = Concrete(program, mapped, ({}, {"x": 1, "y": 2}))
    own, sizes = schedule(program, mapped.kernels[0])
    assert sizes == {"x": 16} and str(own.mapping) == "m[W,f,x] m[t1,f,x]"
    first, second = lower(concrete).kernels
    assert first.operator is Op.MATMUL and second.operator is None
    assert first.blocks == 16 and [type(s) for s in first.pre if isinstance(s, Contract)]
    assert "// Library operator matmul: this backend's own kernel" in kernels(lower(concrete))
    check(concrete)


@pytest.mark.parametrize(
    ("operator", "sizes", "counts"),
    [
        (op(Op.MATMUL, load("A", "n d"), load("W", "d f"), arg="d"), (8, 512, 4096), {"f": 64}),
        (op(Op.MATMUL, load("A", "n d"), load("W", "d f"), arg="d"), (512, 64, 1024), "f8 n8"),
        (op(Op.MATMUL, load("A", "n d"), load("W", "d f"), arg="d"), (4096, 64, 16), {"n": 64}),
        (op(Op.MATMUL, load("A", "n d"), load("W", "d f"), arg="d"), (5, 7, 3), {}),
        (op(Op.MATMUL, load("A", "n d f"), load("W", "d f"), arg="d"), (5, 7, 90), {"f": 90}),
        (op(Op.SUM, load("A", "n d"), arg="d"), (16, 512, 1), {"n": 16}),
        (op(Op.MUL, load("A", "n f"), load("W", "f")), (16, 1, 4096), {"f": 64}),
    ],
)
def test_the_fixed_schedule(operator, sizes, counts):
    b = Builder("p", dict(zip("ndf", sizes, strict=True)), "fp32")
    for leaf in operator.src:
        b.input(leaf.arg, leaf.axes)
    program = b.build(O=_as_program(b, operator))
    mapped = library(operator, "O")
    own, found = schedule(program, mapped.kernels[0])
    axes = {own.mapping.axis("O", par): count for par, count in found.items()}
    if isinstance(counts, str):
        counts = {word[0]: int(word[1:]) for word in counts.split()}
    assert axes == counts
    check(Concrete(program, mapped, ({},)))


def _as_program(b, operator):
    leaves = [b._inputs[leaf.arg] for leaf in operator.src]
    return b._node(operator.op, tuple(leaves), operator.arg)


def test_split_partials_are_bounded_in_memory():
    program, mapped = split_k(512, 4096, 512)
    kernel = mapped.kernels[0]
    most = 64 * 2**20 // (512 * 512 * 4)
    for split, fits in ((1, True), (most, True), (most * 2, False)):
        concrete = Concrete(program, mapped, ({"x": 8, "y": split}, {"x": 1}))
        why = problem(concrete.bound[0], kernel, concrete.sizes[0])
        assert why is None if fits else "bytes along 'split'" in why
    huge, _ = split_k(8192, 64, 4096)  # what the program needs anyway is no reason
    concrete = Concrete(huge, mapped, ({"x": 64, "y": 1}, {"x": 64}))
    assert problem(concrete.bound[0], kernel, concrete.sizes[0]) is None


def test_two_kernels_may_use_the_same_name_for_their_fresh_axes():
    """Pieces of a program are searched apart: `split` of one is not that of another."""
    b = Builder("chain", {"n": 2, "d": 30, "f": 44, "o": 6}, "fp32")
    x = b.input("X", "n d")
    program = b.build(O=b.matmul(b.matmul(x, b.input("W", "d f"), "d"), b.input("U", "f o"), "f"))
    parts = []
    for source, weight, contracted, free, partial, made in (
        ("X", "W", "d", "f", "t1", "t2"),
        ("t2", "U", "f", "o", "t3", "O"),
    ):
        loads = load(source, f"n {contracted}"), load(weight, f"{contracted} {free}")
        ones = f"{source}.{contracted}.x {weight}.{contracted}.x {partial}.split.x"
        product = op(Op.SAVE, op(Op.MATMUL, *loads, arg=contracted), arg=partial)
        total = op(Op.SUM, load(partial, f"n {free} split"), arg="split")
        parts += [graph(product, grid="x", ones=ones), graph(op(Op.SAVE, total, arg=made))]
    concrete = Concrete(program, joined(*parts), ({"x": 3}, {}, {"x": 4}, {}))
    assert [p.sizes["split"] for p in concrete.bound] == [3, 3, 4, 4]
    check(concrete)
    assert concrete == Concrete.from_json(concrete.to_json())
    assert concrete.bound == Concrete.from_json(concrete.to_json()).bound


PROGRAM, SPLIT = split_k(3, 50, 40)
FIRST, SECOND = (SGraph((kernel,)) for kernel in SPLIT.kernels)
TAKEN = graph(*FIRST.kernels[0].block.savers, grid="xy", ones="W.f.x t1.f.x X.d.y W.d.y t1.d.y")
CUT = graph(*SECOND.kernels[0].block.savers, grid="x", ones="t1.split.x")
DIRECT = graph(
    op(Op.SAVE, FIRST.kernels[0].block.savers[0].src[0], arg="O"),
    grid="xy",
    ones="W.f.x O.f.x X.d.y W.d.y O.split.y",
)
FLAT = graph(op(Op.SAVE, op(Op.SUM, load("t1", "n f"), arg="n"), arg="O"))


@pytest.mark.parametrize(
    ("mapped", "sizes", "why"),
    [
        (joined(TAKEN, SECOND), ({"x": 1, "y": 2}, {"x": 1}), "fresh axis 'd' exists already"),
        (joined(FIRST, CUT), ({"x": 1, "y": 2}, {"x": 1}), "x partitions the fresh axis 'split'"),
        (DIRECT, ({"x": 1, "y": 2},), "the output \\['n', 'f'\\]"),
        (joined(FIRST, FLAT), ({"x": 1, "y": 2}, {}), "load t1: has axes"),
        (joined(FIRST, SECOND), ({"x": 1, "y": 51}, {"x": 1}), "empty chunk of axis 'd'"),
    ],
)
def test_refused_with_a_reason(mapped, sizes, why):
    with pytest.raises(PrismError, match=why):
        lower(Concrete(PROGRAM, mapped, sizes))


def test_a_split_without_a_fresh_axis_is_refused():
    """The dimension would write the same elements from several blocks."""
    ones = "W.f.x t1.f.x X.d.y W.d.y"
    first = graph(*FIRST.kernels[0].block.savers, grid="xy", ones=ones)
    total = op(Op.SAVE, load("t1", "n f"), arg="O")
    concrete = Concrete(PROGRAM, joined(first, graph(total)), ({"x": 1, "y": 2}, {}))
    with pytest.raises(LoweringError, match="grid dimension y cuts none of its axes"):
        lower(concrete)


def test_partial_results_are_summed_row_by_row():
    """The fresh axis is outermost in memory, so that the second kernel reads whole rows."""
    tile = lower(Concrete(PROGRAM, SPLIT, ({"x": 1, "y": 5}, {"x": 1})))
    (total,) = [s for s in tile.kernels[1].pre + tile.kernels[1].post if isinstance(s, Reduce)]
    assert total.axis.axis == "split" and total.axis.size == 5
    assert tile.tensors["t1"].strides == {"split": 120, "n": 40, "f": 1}
