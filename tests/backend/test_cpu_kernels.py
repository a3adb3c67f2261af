"""Compiled C++ kernels give what the interpreter gives."""

import ctypes
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import torch
from codegen_graphs import (
    attention,
    flash_decoding,
    graph,
    load,
    op,
    random_graph,
    random_inputs,
    random_program,
    rmsnorm,
    rmsnorm_library,
    split_graph,
    split_k,
    two_outputs,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prism.codegen import BACKENDS
from prism.codegen.interpreter import run
from prism.codegen.lower import lower
from prism.instantiate import Concrete, sample
from prism.instantiate.stable import refused
from prism.program import Builder, Op, evaluate
from prism.sgraph import SGraph

pytestmark = pytest.mark.backend
TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# Of the largest value: fp32 rounding; in half precision, rounded operands and one rounded result.
TOLERANCE = {"bf16": 2e-2, "fp16": 3e-3, "fp32": 2e-5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


def start(tile, folder):
    """Compiles in the background; returns what `finish` needs."""
    cpu = BACKENDS["cpu"]
    name = f"k{len(list(folder.iterdir()))}"
    path, library = folder / f"{name}.cpp", folder / f"{name}.so"
    path.write_text(cpu.source(tile))
    command = cpu.build([(path, library)], None, 1, 60.0)
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True), library


def finish(tile, started, inputs, threads=2):
    process, library = started
    assert process.wait() == 0, process.stderr.read()
    tensors = [torch.from_numpy(inputs[n]).to(TORCH[tile.tensors[n].dtype]) for n in tile.inputs]
    outputs = [
        torch.full(tile.tensors[n].shape, torch.nan, dtype=TORCH[tile.tensors[n].dtype])
        for n in tile.outputs
    ]
    pointers = [(ctypes.c_void_p * len(x))(*[t.data_ptr() for t in x]) for x in (tensors, outputs)]
    assert ctypes.CDLL(str(library)).prism_run(*pointers, threads) == 0
    pairs = zip(tile.outputs, outputs, strict=True)
    return {name: out.to(torch.float64).numpy() for name, out in pairs}


def check(concretes, folder, seed=0, inputs=None):
    inputs = inputs or random_inputs(concretes[0].program, seed)
    tiles = [lower(c) for c in concretes]
    started = [start(tile, folder) for tile in tiles]
    exact = evaluate(concretes[0].program, inputs)
    for concrete, tile, process in zip(concretes, tiles, started, strict=True):
        want = run(tile, inputs, np.float64)
        got = finish(tile, process, inputs)
        for name, value in want.items():
            assert np.allclose(value, exact[name], 1e-9, 1e-9, equal_nan=True)
            finite = np.isfinite(value)
            assert np.array_equal(got[name][~finite], value[~finite], equal_nan=True)
            want_finite, got_finite = value[finite], got[name][finite]
            bound = TOLERANCE[tile.tensors[name].dtype] * np.abs(want_finite).max(initial=1e-30)
            assert np.abs(got_finite - want_finite).max(initial=0) <= bound, concrete.sizes


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_fixtures(dtype, folder):
    schedules = {"schedule": ("static", "dynamic")}
    for program, mapped in (
        rmsnorm(7, 130, 75, dtype),
        attention(2, 3, 2, 70, 24, 20, dtype),
        attention(1, 2, 1, 64, 32, 48, dtype),
    ):
        check([c for _, c in sample([("g", mapped)], program, 2, 3, schedules)], folder)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10**6), dtype=st.sampled_from(["fp32", "fp32", "bf16"]))
def test_random_graphs(seed, dtype, folder):
    program = random_program(seed, dtype)
    points = sample([("g", random_graph(program, seed))], program, 2, seed, {})
    check([c for _, c in points], folder, seed)


def test_max_accumulator_relu_and_nan(folder):
    """NaN and -inf go through relu, max over the contiguous and the strided axis, and the loop."""
    b = Builder("nan", {"n": 4, "k": 90}, "fp32")
    x = b.input("X", "n k")
    program = b.build(O=b.max(b.relu(x), "k"), P=b.max(x, "n"))
    value = load("X", "n k")
    rows = op(Op.ACCUM, op(Op.MAX, op(Op.RELU, value), arg="k"), arg="max")
    cols = op(Op.ACCUM, op(Op.MAX, value, arg="n"), arg="concat:k")
    savers = op(Op.SAVE, rows, arg="O"), op(Op.SAVE, cols, arg="P")
    mapped = graph(*savers, loop="i", ones="X.k.i")
    inputs = random_inputs(program, 1)
    inputs["X"][1, 7] = np.nan
    inputs["X"][2] = -np.inf
    inputs["X"][:, 41] = -np.inf
    check([Concrete(program, mapped, ({"i": i},)) for i in (1, 2, 7)], folder, inputs=inputs)


def test_no_grid_no_loop_and_more_threads_than_blocks(folder):
    b = Builder("plain", {"n": 3, "d": 33, "f": 17}, "bf16")
    program = b.build(O=b.silu(b.matmul(b.input("X", "n d"), b.input("W", "f d"), "d")))
    product = op(Op.MATMUL, load("X", "n d"), load("W", "f d"), arg="d")
    mapped = graph(op(Op.SAVE, op(Op.SILU, product), arg="O"))
    concrete = Concrete(program, mapped, ({},))
    inputs, tile = random_inputs(program, 2), lower(concrete)
    want = run(tile, inputs, np.float64)["O"]
    got = finish(tile, start(tile, folder), inputs, threads=5)["O"]
    assert np.abs(got - want).max() <= TOLERANCE["bf16"] * np.abs(want).max()


def test_two_kernels_with_a_tensor_between(folder):
    """The second kernel reads, with its axes in another order, what the first one wrote."""
    b = Builder("two", {"n": 5, "d": 40, "f": 21}, "fp32")
    x, w = b.input("X", "n d"), b.input("W", "d f")
    program = b.build(O=b.matmul(b.exp(x), w, "d"))
    first = graph(op(Op.SAVE, op(Op.EXP, load("X", "n d")), arg="T"), grid="x", ones="X.d.x T.d.x")
    product = op(Op.ACCUM, op(Op.MATMUL, load("T", "d n"), load("W", "d f"), arg="d"), arg="sum")
    ones = "W.f.x O.f.x T.d.i W.d.i"
    second = graph(op(Op.SAVE, product, arg="O"), grid="x", loop="i", ones=ones)
    both = SGraph(first.kernels + second.kernels)
    check([Concrete(program, both, ({"x": 3}, {"x": 2, "i": 7}))], folder)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_split_reductions(dtype, folder):
    """One block to many a split, even and ragged, with a loop inside and without."""
    program, mapped = split_k(3, 130, 75, dtype)
    points = [({"x": 3, "y": y}, {"x": 2}) for y in (1, 2, 9)]
    check([Concrete(program, mapped, sizes) for sizes in points], folder)
    program, mapped = split_k(3, 130, 75, dtype, loop="i")
    points = [({"x": 1, "y": y, "i": 3}, {"x": 4}) for y in (1, 4)]
    check([Concrete(program, mapped, sizes) for sizes in points], folder)
    program, mapped = flash_decoding(2, 2, 1, 70, 24, 20, dtype)
    points = [({"x": 2, "y": 1, "z": z, "i": 2}, {"x": 1, "y": 2}) for z in (1, 3, 7)]
    check([Concrete(program, mapped, sizes) for sizes in points], folder)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_library_operators_and_several_outputs(dtype, folder):
    program, mapped = rmsnorm_library(70, 50, 300, dtype)
    check([Concrete(program, mapped, ({}, {"x": 2, "y": 3}))], folder)
    program, mapped = two_outputs(9, 50, dtype)
    check([Concrete(program, mapped, ({"x": 2, "y": y}, {"x": 5})) for y in (1, 4)], folder)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10**6), dtype=st.sampled_from(["fp32", "fp32", "bf16"]))
def test_random_split_programs(seed, dtype, folder):
    program = random_program(seed, dtype)
    mapped = split_graph(program, seed)
    if refused(program, [mapped]):
        program = replace(program, numerics="paper")
    points = sample([("g", mapped)], program, 2, seed, {})
    check([c for _, c in points], folder, seed)


def test_every_kernel_uses_all_threads_and_memory_is_allocated_once(folder):
    """More threads than blocks, and calls again: results stay, whatever was left in memory."""
    program, mapped = flash_decoding(1, 2, 1, 96, 16, 16)
    concrete = Concrete(program, mapped, ({"x": 1, "y": 2, "z": 6, "i": 1}, {"x": 1, "y": 2}))
    tile = lower(concrete)
    source = BACKENDS["cpu"].source(tile)
    assert source.count("#pragma omp parallel num_threads(threads)") == 1
    assert source.count("#pragma omp for schedule(static)") == 2
    assert source.count("prism::Scratch memory") == source.count("prism::Scratch between") == 1
    started = start(tile, folder)
    inputs = random_inputs(program, 0)
    want = run(tile, inputs, np.float64)["O"]
    for threads in (1, 7, 2, 7):
        got = finish(tile, started, inputs, threads)["O"]
        assert np.abs(got - want).max() <= 2e-5 * np.abs(want).max()


def test_names_that_look_like_generated_ones(folder):
    """Axes and tensors named like loop variables, parallel dimensions and C++ keywords."""
    b = Builder('odd "name"\n', {"i": 5, "f": 3, "i_f": 7, "x_i": 6, "long": 50}, "fp32")
    program = b.build(**{"new": b.sum(b.exp(b.input("int", "i f i_f x_i long")), "long")})
    total = op(Op.SUM, op(Op.EXP, load("int", "i f i_f x_i long")), arg="long")
    saver = op(Op.SAVE, op(Op.ACCUM, total, arg="sum"), arg="new")
    ones = "int.i_f.x new.i_f.x int.i.y new.i.y int.long.i"
    mapped = graph(saver, grid="xy", loop="i", ones=ones)
    check([Concrete(program, mapped, ({"x": 3, "y": 2, "i": 7},))], folder)


def test_no_thread_is_an_error_code(folder):
    program, mapped = rmsnorm(2, 8, 8)
    tile = lower(Concrete(program, mapped, ({"x": 1, "i": 1},)))
    process, library = start(tile, folder)
    assert process.wait() == 0, process.stderr.read()
    assert ctypes.CDLL(str(library)).prism_run(None, None, 0) == 2
