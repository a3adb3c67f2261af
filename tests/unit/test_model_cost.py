"""The modelled time: a bound from below, and an order that follows from bytes, waves and work."""

from dataclasses import replace
from itertools import pairwise

import pytest
import yaml
from codegen_graphs import (
    attention,
    flash_decoding,
    graph,
    library,
    load,
    op,
    rmsnorm,
    rmsnorm_library,
)

from prism.codegen.lower import lower
from prism.codegen.triton.axes import Axes
from prism.config import root
from prism.errors import PrismError
from prism.instantiate.concrete import Concrete
from prism.model import Device
from prism.model.cost import cost
from prism.model.fit import fit
from prism.model.roofline import compulsory_bytes, least_us, product_flops, roofline_us
from prism.model.traffic import traffic
from prism.model.work import work
from prism.program import Builder, Op

OPTIONS = {"num_warps": 4, "num_stages": 3}


def device(name="a100") -> Device:
    data = yaml.safe_load((root() / f"conf/device/{name}.yaml").read_text())
    return Device.from_json({key: data[key] for key in ("name", "backend", "gpu")})


A100, H200 = device().gpu, device("h200").gpu


def lowered(pair, *sizes, **options):
    program, graph = pair
    return lower(Concrete(program, graph, sizes, OPTIONS | options))


# The roofline ---------------------------------------------------------------------------------


def test_roofline_of_a_product_that_memory_limits():
    program, _ = rmsnorm(8, 4096, 4096, "fp16")
    moved = 2 * (8 * 4096 + 4096 * 4096 + 8 * 4096)
    assert compulsory_bytes(program) == moved
    assert roofline_us(program, A100) == pytest.approx(moved / 1555e3)
    assert roofline_us(program, H200) == pytest.approx(moved / 4800e3)


@pytest.mark.parametrize(("dtype", "rate"), [("fp16", 312e6), ("bf16", 312e6), ("fp32", 19.5e6)])
def test_roofline_of_a_product_that_arithmetic_limits(dtype, rate):
    b = Builder("square", {"n": 4096, "d": 4096, "f": 4096}, dtype)
    program = b.build(O=b.matmul(b.input("X", "n d"), b.input("W", "d f"), "d"))
    assert product_flops(program) == 2 * 4096**3
    assert roofline_us(program, A100) == pytest.approx(2 * 4096**3 / rate)


def test_roofline_of_elementwise_work_on_few_bytes():
    b = Builder("outer", {"n": 4096, "f": 4096}, "fp32")
    x = b.mul(b.input("A", "n"), b.input("B", "f"))
    for _ in range(8):
        x = b.exp(x)
    program = b.build(O=b.sum(x, "f"))
    assert roofline_us(program, A100) == pytest.approx(10 * 4096**2 / 19.5e6)


def test_the_least_time_is_below_what_algebra_and_the_cache_may_save():
    b = Builder("chain", {"n": 4096, "k": 4096, "j": 4096, "m": 8}, "fp16")
    a = b.matmul(b.input("A", "n k"), b.input("B", "k j"), "k")
    program = b.build(O=b.matmul(a, b.input("X", "j m"), "j"))
    inputs = 2 * (2 * 4096**2 + 8 * 4096)
    assert least_us(program, H200) == pytest.approx(inputs / 4800e3)
    assert least_us(program, H200) < roofline_us(program, H200) / 5  # products from the right
    b = Builder("outer", {"n": 1 << 14, "m": 1 << 12}, "fp16")
    wide = b.build(O=b.mul(b.input("X", "n"), b.input("Y", "m")))
    beyond = 2 * (1 << 26) - 50 * 2**20  # what 50 MiB of L2 cannot hold back
    assert least_us(wide, H200) == pytest.approx((beyond + 2 * ((1 << 14) + (1 << 12))) / 4800e3)


def test_roofline_needs_sizes():
    b = Builder("open", {"n": "n"}, "fp16")
    with pytest.raises(PrismError, match="still symbolic"):
        roofline_us(b.build(O=b.exp(b.input("X", "n"))), A100)


# Traffic and work -----------------------------------------------------------------------------


def test_traffic_counts_each_views_tile():
    tile = lowered(rmsnorm(8, 1024, 2048, "fp16"), {"x": 16, "i": 8})
    found = traffic(tile.kernels[0], tile.tensors, A100)
    x, w, o = 2 * 8 * 1024, 2 * 1024 * 2048, 2 * 8 * 2048
    assert found.memory == x + w + o  # X comes from the cache for all blocks but the first
    assert found.cache == 16 * x + w + o
    assert (found.first, found.step) == (0, (x + w / 16) / 8)


def test_traffic_comes_again_when_the_cache_is_full():
    """A block reads all of V for each of its rows; V is more than the cache holds."""
    tile = lowered(attention(1, 1, 64, 65536, 128, 128, "fp16"), {"x": 1, "y": 1, "i": 64})
    kernel = tile.kernels[0]
    found = traffic(kernel, tile.tensors, A100)
    assert found.memory == 2 * 2 * 65536 * 128 + 2 * 2 * 64 * 128
    spread = replace(kernel, grid=(("z", 2), *kernel.grid))  # cuts no view
    assert traffic(spread, tile.tensors, A100).cache == 2 * found.cache
    doubled = 2 * (found.memory - 2 * 64 * 128) + 2 * 64 * 128
    assert traffic(spread, tile.tensors, replace(A100, l2_mib=16)).memory == doubled
    assert traffic(spread, tile.tensors, replace(A100, l2_mib=64)).memory == found.memory


def test_traffic_moves_whole_sectors():
    """8 columns of 2 bytes a row take the 32 bytes of a sector."""
    tile = lowered(rmsnorm(8, 64, 64, "fp16"), {"x": 8, "i": 1})
    found = traffic(tile.kernels[0], tile.tensors, A100)
    assert found.cache == 8 * 2 * 8 * 64 + 2 * 2 * 64 * 64 + 2 * 2 * 8 * 64


def test_work_counts_padding():
    """8 rows are held as the 16 that a product has at least."""
    tile = lowered(rmsnorm(8, 1024, 2048, "fp16"), {"x": 16, "i": 8})
    found = work(tile.kernels[0], Axes(tile.kernels[0]))
    assert found.products == 2 * 16 * 1024 * 128
    assert found.chain == 8 * 2  # a product and a sum an iteration
    assert 16 * 1024 < found.others < 10 * 16 * 1024


# Cost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", [A100, H200], ids=["a100", "h200"])
@pytest.mark.parametrize(
    "tile",
    [
        lowered(rmsnorm(8, 4096, 4096, "fp16"), {"x": 64, "i": 64}),
        lowered(attention(2, 8, 1, 1024, 128, 128, "fp16"), {"x": 2, "y": 8, "i": 32}),
    ],
    ids=["rmsnorm", "attention"],
)
def test_cost_is_above_the_roofline(tile, gpu):
    program = {"rmsnorm": rmsnorm(8, 4096, 4096, "fp16")}.get(
        tile.name, attention(2, 8, 1, 1024, 128, 128, "fp16")
    )[0]
    found = cost(tile, gpu)
    assert found.us > roofline_us(program, gpu) + gpu.launch_us
    assert found.bytes >= compulsory_bytes(program)
    assert found.flops >= product_flops(program)


def test_cost_reports_waves_and_occupancy():
    found = cost(lowered(rmsnorm(8, 4096, 4096, "fp16"), {"x": 64, "i": 64}), A100)
    assert found.launches == 1
    held = found.occupancy * 2048 / 128  # blocks of four warps a multiprocessor
    assert held == int(held) >= 1
    assert found.waves == pytest.approx(64 / (108 * held))


def test_more_blocks_on_an_idle_gpu_are_faster():
    times = [
        cost(lowered(rmsnorm(8, 4096, 4096, "fp16"), {"x": x, "i": 64}), H200).us
        for x in (16, 32, 64, 128)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.3 * times[-1]


def test_a_tail_costs_a_wave():
    """One block more than fills the GPU leaves it almost idle once."""
    pair = rmsnorm(16, 4096, 109 * 64, "fp16")
    tile = lowered(pair, {"x": 109, "i": 64}, num_warps=8)
    crowded = replace(A100, shared_sm_kib=1)  # one block a multiprocessor
    one = cost(tile, replace(crowded, sms=109)).us
    assert cost(tile, crowded).us > 1.3 * one
    assert cost(tile, replace(crowded, sms=55)).us < 2.2 * one


def test_stages_hide_latency():
    pair = rmsnorm(8, 4096, 4096, "fp16")
    times = [cost(lowered(pair, {"x": 128, "i": 64}, num_stages=n), H200).us for n in (1, 2, 3, 4)]
    assert times[0] > times[1] > times[2] >= times[3]


def test_memory_is_as_fast_as_what_is_in_flight():
    """Little's law: few and small loads ahead draw their share of the bandwidth."""
    pair = rmsnorm(8, 4096, 4096, "fp16")
    times = [
        cost(lowered(pair, {"x": 64, "i": 256}, num_stages=n), H200).us - H200.launch_us
        for n in (2, 3, 4)
    ]
    assert times[0] > 1.8 * times[1] and times[1] > 1.4 * times[2]


def test_spilled_registers_pass_through_the_cache():
    """256 rows of K and V fit the registers of four warps, but not of one."""
    pair = attention(2, 8, 1, 1024, 128, 128, "fp16")
    quick = replace(A100, fp32_tflops=1e6)  # no time for arithmetic
    one, four = (cost(lowered(pair, {"x": 2, "y": 8, "i": 4}, num_warps=n), quick) for n in (1, 4))
    assert one.us > 1.3 * four.us and one.bytes == four.bytes


def test_stages_do_not_hide_what_statements_wait_for_each_other():
    """Two products and a sum an iteration, on little data: a fourth stage gains almost nothing."""
    pair = attention(1, 8, 16, 2048, 64, 64, "fp16")
    three, four = (
        cost(lowered(pair, {"x": 1, "y": 8, "i": 128}, num_stages=n), A100) for n in (3, 4)
    )
    assert four.bound == "latency" and 0.9 * three.us < four.us <= three.us


def test_half_the_rows_are_no_slower_without_hoppers_instructions():
    """32 rows are too few for wgmma; the older instructions still are faster than memory."""
    few, more = (
        cost(lowered(rmsnorm(n, 4096, 132 * 64, "fp16"), {"x": 132, "i": 64}), H200)
        for n in (32, 64)
    )
    assert few.us <= more.us and few.bound == "memory"


def test_functions_cost_more_than_sums():
    """By how many instructions they take, on the same data."""
    times = []
    for kind in (Op.SQUARE, Op.EXP, Op.SILU, Op.GELU):
        b = Builder("outer", {"n": 1024, "f": 1024}, "fp32")
        value = b.mul(b.input("A", "n"), b.input("B", "f"))
        mapped = op(Op.MUL, load("A", "n"), load("B", "f"))
        for _ in range(3):
            value, mapped = getattr(b, kind.value)(value), op(kind, mapped)
        pair = (
            b.build(O=b.sum(value, "f")),
            graph(op(Op.SAVE, op(Op.SUM, mapped, arg="f"), arg="O"), grid="x", ones="A.n.x O.n.x"),
        )
        times.append(cost(lowered(pair, {"x": 512}), A100).us)
    assert all(1.3 * less < more for less, more in pairwise(times)), times


def test_every_kernel_is_launched():
    one = lowered(attention(1, 2, 1, 256, 64, 64, "fp16"), {"x": 1, "y": 2, "i": 8})
    split = flash_decoding(1, 2, 1, 256, 64, 64, "fp16")
    two = lowered(split, {"x": 1, "y": 2, "z": 4, "i": 2}, {"x": 1, "y": 2})
    slow = replace(A100, launch_us=1000)
    assert [cost(t, slow).launches for t in (one, two)] == [1, 2]
    assert cost(two, slow).us - cost(two, A100).us == pytest.approx(2 * (1000 - 2.5))
    assert cost(two, slow).bound == "launch"


def test_library_operators_have_a_cost():
    tile = lowered(rmsnorm_library(8, 1024, 1024, "fp16"), {}, {"x": 1, "y": 16})
    found = cost(tile, A100)
    assert found.launches == 3  # the operator's, the copy of its result, and the second kernel's
    assert 2 * 8 * 1024 * 1024 <= found.flops < 2.1 * 8 * 1024 * 1024
    assert found.bytes >= 2 * (2 * 8 * 1024 + 1024 * 1024)
    assert fit(tile, A100).reason == ""


def test_a_library_result_is_copied_to_where_it_belongs():
    """A vendor's product with a large result loses to a generated one that stores it in place."""
    b = Builder("outer", {"n": 8192, "d": 32, "f": 8192}, "fp16")
    program = b.build(O=b.matmul(b.input("X", "n d"), b.input("W", "d f"), "d"))
    product = op(Op.MATMUL, load("X", "n d"), load("W", "d f"), arg="d")
    own = graph(op(Op.SAVE, product, arg="O"), grid="xy", ones="X.n.x W.f.y O.n.x O.f.y")
    generated = cost(lowered((program, own), {"x": 128, "y": 128}), A100)
    vendors = cost(lowered((program, library(product, "O")), {}), A100)
    assert vendors.us > 1.5 * generated.us and vendors.bytes > 2.9 * generated.bytes
