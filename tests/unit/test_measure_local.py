"""Local search in tuning: what it proposes, on a synthetic landscape of times."""

import math
import statistics

import pytest
from workloads import PROGRAMS

from prism.codegen import BACKENDS
from prism.instantiate.distinct import identity
from prism.measure.local import START, LocalStrategy
from prism.measure.strategy import RandomStrategy, RankedStrategy, Space
from prism.search import Bounds, search

CPU = BACKENDS["cpu"]


@pytest.fixture(scope="module")
def space():
    program = PROGRAMS["attention"].bind(b=2, g=4, s=4, d=64, h=512, e=64)
    graphs = search(PROGRAMS["attention"], Bounds()).space
    drawn = [*graphs.draw(200, 0, True), *graphs.draw(100, 0, False)]
    named = [(i, graphs.graph(i)) for i in drawn]
    return Space(program, named, CPU.options, 0, 200, CPU.scratch_bytes)


def time_of(concrete) -> float:
    """Microseconds that grow with the distance from 32 blocks and 8 iterations a kernel."""
    found = 10.0 * len(concrete.sizes)
    for kernel, chosen in zip(concrete.kernels, concrete.sizes, strict=True):
        blocks = math.prod(chosen[p] for p in kernel.block.grid)
        found += 40 * abs(math.log2(blocks / 32)) ** 2
        found += 10 * abs(math.log2(chosen.get(kernel.block.loop, 1) / 8)) ** 2
    return found + 30 * (concrete.options["schedule"] == "dynamic")


def play(strategy, space, total, batch=4, fails=()):
    """The records of a tuning with synthetic times."""
    history, concretes = [], []
    while len(history) < total:
        proposed = strategy.propose(space, history, min(batch, total - len(history)))
        if not proposed:
            break
        for graph_id, concrete in proposed:
            ok = len(history) not in fails
            history.append(
                {
                    **{"graph_id": graph_id, "digest": concrete.digest()},
                    **{"sizes": [dict(s) for s in concrete.sizes], "options": concrete.options},
                    "status": "ok" if ok else "failed",
                    "median_us": time_of(concrete) if ok else None,
                }
            )
            concretes.append(concrete)
    return history, concretes


def test_it_starts_as_the_ranked_strategy_does(space):
    local, _ = play(LocalStrategy(), space, START)
    ranked, _ = play(RankedStrategy(), space, START)
    assert [r["digest"] for r in local] == [r["digest"] for r in ranked]


def test_proposals_are_valid_new_and_the_same_again(space):
    history, concretes = play(LocalStrategy(), space, 80, fails=range(0, 80, 7))
    keys = {(identity(c.graph, c.sizes), c.options["schedule"]) for c in concretes}
    assert len(keys) == len(history) == 80
    for c in concretes:
        assert c.problem(space.scratch_bytes) is None
    again, _ = play(LocalStrategy(), space, 80, fails=range(0, 80, 7))
    assert again == history
    resumed = LocalStrategy().propose(space, history[:60], 4)  # by another process
    assert [c.digest() for _, c in resumed] == [r["digest"] for r in history[60:64]]


def test_it_finds_good_points_where_the_model_sees_none(space):
    """Of those times the model knows nothing: what it has first is not good."""
    best, later = {}, {}
    for strategy in (LocalStrategy(), RandomStrategy(), RankedStrategy()):
        times = [r["median_us"] for r in play(strategy, space, 80)[0]]
        best[type(strategy)], later[type(strategy)] = min(times), statistics.median(times[START:])
    assert best[LocalStrategy] == min(best.values())
    assert later[LocalStrategy] < min(later[RandomStrategy], later[RankedStrategy]) / 2


def test_a_space_that_is_used_up_ends(space):
    small = Space(space.program, space.graphs[:1], {"schedule": ("static",)}, 0, 10**4, 1 << 20)
    history, _ = play(LocalStrategy(), small, 10**4)
    everything, _ = play(RandomStrategy(), small, 10**4)
    assert 0 < len(history) == len(everything) < 10**4
