"""Configurations in the order of their modelled time, and the strategy that tries them so."""

from dataclasses import asdict, replace

import yaml
from codegen_graphs import rmsnorm

from prism.codegen.lower import lower
from prism.config import root
from prism.instantiate.concrete import Concrete
from prism.measure.strategy import RankedStrategy, Space
from prism.measure.tune import modelled
from prism.model import CPU, Device
from prism.model.cost import cost
from prism.model.fit import fit
from prism.model.host import host_us
from prism.model.rank import rank

OPTIONS = {"num_warps": 4, "num_stages": 3}


def device() -> Device:
    data = yaml.safe_load((root() / "conf/device/a100.yaml").read_text())
    return Device.from_json({key: data[key] for key in ("name", "backend", "gpu")})


A100 = device().gpu


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


def test_the_record_of_a_winner_has_all_that_the_model_says():
    _, concrete = points(7)[-1]
    found = modelled(concrete, device())
    assert found == asdict(cost(lower(concrete, "torch"), A100))
    assert found["launches"] == 1 and found["bound"] and found["bytes"] > 2 * 4096**2
    assert modelled(concrete, CPU) is None


def test_rank_leaves_out_what_cannot_be_lowered():
    program, graph = rmsnorm(8, 4096, 4096, "fp16")
    bad = Concrete(program, graph, ({"x": 128, "i": 4095},), OPTIONS)
    assert rank([("bad", bad)], device()) == []


def test_rank_on_a_cpu_uses_its_threads_and_its_own_model():
    drawn = points(8)
    tiles = {name: lower(concrete) for name, concrete in drawn}
    for threads in (1, 2, 64):
        ranked = rank(drawn, CPU, threads)
        assert [us for us, *_ in ranked] == sorted(host_us(t, threads) for t in tiles.values())
    assert rank(drawn, CPU, 2)[0][1] == "x2", "one block a thread, and the norm computed twice"
    assert host_us(tiles["x2"], 64) > host_us(tiles["x64"], 64)
    assert host_us(tiles["x2"], 1) > 1.5 * host_us(tiles["x2"], 2)


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


def test_ranked_strategy_spreads_over_kinds_even_where_each_has_many_options():
    every = {"num_warps": (1, 2, 4, 8), "num_stages": (1, 2, 3, 4)}
    here = replace(space(limit=64), options=every)
    first = [concrete for _, concrete in RankedStrategy().propose(here, [], 16)]
    ranked = [tuple(c.sizes[0].values()) for at, c in enumerate(first) if at % 4 != 3]
    assert len(set(ranked)) >= 9, "at most every fourth is of a kind that came before"


def test_ranked_strategy_on_a_cpu():
    here = space(device=CPU, threads=2)
    strategy = RankedStrategy()
    proposed = strategy.propose(here, [], 40)
    times = [host_us(lower(concrete), 2) for _, concrete in proposed]
    others = [us for at, us in enumerate(times) if at % 4 == 3]
    assert times[0] == min(times) and min(others) > times[0]
    assert len({concrete.digest() for _, concrete in proposed}) == 40
    assert strategy.pruned == 0
