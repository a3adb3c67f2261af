"""The modelled time: a bound from below, and an order that follows from bytes, waves and work."""

from dataclasses import replace

import pytest
import yaml
from codegen_graphs import attention, flash_decoding, rmsnorm, rmsnorm_library

from prism.codegen.lower import lower
from prism.codegen.triton.axes import Axes
from prism.config import root
from prism.errors import PrismError
from prism.instantiate.concrete import Concrete
from prism.measure.strategy import RankedStrategy, Space
from prism.model import CPU, Device
from prism.model.cost import cost
from prism.model.fit import fit
from prism.model.rank import rank
from prism.model.roofline import compulsory_bytes, product_flops, roofline_us
from prism.model.traffic import traffic
from prism.model.work import work
from prism.program import Builder

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


# Ranking --------------------------------------------------------------------------------------


def points(count=5):
    program, graph = rmsnorm(8, 4096, 4096, "fp16")
    return [
        (f"x{2**k}", Concrete(program, graph, ({"x": 2**k, "i": 64},), OPTIONS))
        for k in range(1, count + 1)
    ]


def test_rank_orders_by_modelled_time_and_leaves_out_what_does_not_fit():
    drawn = points(7)
    unfit = [name for name, concrete in drawn if fit(lower(concrete), A100).reason]
    assert "x2" in unfit and "x64" not in unfit
    ranked = rank(drawn, device())
    times = [us for us, _, _ in ranked]
    assert times == sorted(times)
    assert {name for _, name, _ in ranked} == {name for name, _ in drawn} - set(unfit)
    assert ranked[0][1] == "x128"
    assert all(us == cost(lower(concrete), A100).us for us, _, concrete in ranked)


def test_rank_leaves_out_what_cannot_be_lowered():
    program, graph = rmsnorm(8, 4096, 4096, "fp16")
    bad = Concrete(program, graph, ({"x": 128, "i": 4095},), OPTIONS)
    assert rank([("bad", bad)], device()) == []


def test_rank_needs_a_gpu():
    with pytest.raises(PrismError) as error:
        rank(points(), CPU)
    assert str(error.value) == (
        "device cpu: configurations are ranked by a model of GPUs; use tune=random on this device"
    )


def space(**changes) -> Space:
    program, graph = rmsnorm(8, 4096, 4096, "fp16")
    options = {"num_warps": (4, 8), "num_stages": (2, 3)}
    given = {"limit": 12, "seed": 0, "scratch_bytes": 1 << 20, "device": device()}
    return Space(program, [("g", graph)], options, **given | changes)


def test_ranked_strategy_proposes_the_fastest_and_every_fourth_at_random():
    strategy, here = RankedStrategy(), space()
    proposed = []
    while batch := strategy.propose(here, [{}] * len(proposed), 7):
        proposed += batch
    times = [cost(lower(concrete), here.device.gpu).us for _, concrete in proposed]
    ranked = [us for at, us in enumerate(times) if at % 4 != 3]
    assert len(proposed) > 40
    first, kinds = [], set()  # times of the first of each kind
    for at, (us, (_, concrete)) in enumerate(zip(times, proposed, strict=True)):
        kind = tuple(concrete.sizes[0].values())
        if at % 4 != 3 and kind not in kinds:
            first.append(us)
        kinds.add(kind)
    assert len(first) > 6 and first == sorted(first)
    assert ranked[0] == min(times) and times != sorted(times)
    assert not any(fit(lower(concrete), here.device.gpu).reason for _, concrete in proposed)
    assert len({concrete.digest() for _, concrete in proposed}) == len(proposed)
    assert strategy.pruned > 0
    again = RankedStrategy()
    assert again.propose(here, [], 7) == proposed[:7]


def test_ranked_strategy_does_not_try_all_options_of_one_kind_first():
    strategy, here = RankedStrategy(), space()
    first = [concrete for _, concrete in strategy.propose(here, [], 12)]
    kinds = {tuple(concrete.sizes[0].values()) for concrete in first}
    points = [("g", concrete) for concrete in first]
    plain = {tuple(c.sizes[0].values()) for *_, c in rank(points, device())[:4]}
    assert len(kinds) > 6 > len(plain)


def test_ranked_strategy_needs_a_gpu():
    with pytest.raises(PrismError, match="use tune=random"):
        RankedStrategy().propose(space(device=CPU), [], 4)
