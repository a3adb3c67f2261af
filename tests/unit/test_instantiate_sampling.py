"""Sampling from graphs of one kernel and of several together: shares, repeats, speed."""

import time
from collections import Counter
from itertools import product

from codegen_graphs import (
    graph,
    joined,
    library,
    load,
    op,
    rmsnorm,
    rmsnorm_library,
    split_k,
)

from prism.instantiate import sample, sizes
from prism.instantiate.sampling import OTHERS
from prism.program import Op
from prism.sgraph import SGraph

PROGRAM, SPLIT = split_k(4, 96, 48)
PRODUCT = op(Op.MATMUL, load("X", "n d"), load("W", "d f"), arg="d")
PLAIN = graph(op(Op.SAVE, PRODUCT, arg="O"), grid="xy", ones="W.f.x O.f.x X.n.y O.n.y")
LIBRARY = library(PRODUCT, "O")


def names(points):
    return [name for name, _ in points]


def test_every_fourth_point_is_of_the_others():
    graphs = [("split", SPLIT), ("plain", PLAIN), ("library", LIBRARY)]
    for count in (1, 3, 4, 8, 20):
        found = names(sample(graphs, PROGRAM, count, 3, {}))
        assert [name == "plain" for name in found] == [i % OTHERS != 3 for i in range(count)]
    found = sample(graphs, PROGRAM, 20, 3, {})
    assert found == sample(graphs, PROGRAM, 20, 3, {}) != sample(graphs, PROGRAM, 20, 4, {})
    assert sample(graphs, PROGRAM, 7, 3, {}) == found[:7]


def test_one_kind_alone_takes_all_draws_and_an_exhausted_one_leaves_them():
    assert set(names(sample([("split", SPLIT)], PROGRAM, 10, 0, {}))) == {"split"}
    assert set(names(sample([("plain", PLAIN)], PROGRAM, 10, 0, {}))) == {"plain"}
    assert names(sample([("library", LIBRARY)], PROGRAM, 10, 0, {})) == ["library"]
    found = Counter(names(sample([("p", PLAIN), ("s", SPLIT)], PROGRAM, 10**6, 0, {})))
    assert found["p"] == len(sample([("p", PLAIN)], PROGRAM, 10**6, 0, {}))
    assert found["s"] == len(sample([("s", SPLIT)], PROGRAM, 10**6, 0, {}))
    few = names(sample([("l", LIBRARY), ("p", PLAIN)], PROGRAM, 12, 0, {}))
    assert few == ["p"] * 3 + ["l"] + ["p"] * 8


def test_many_graphs_of_several_kernels_do_not_drown_one_kernel():
    """Products of sizes: the split graph alone has far more points than the fused one."""
    program, fused = rmsnorm(4, 96, 48)
    _, beside = rmsnorm_library(4, 96, 48)
    many = [(f"m{i}", joined(beside, tail(i))) for i in range(50)]
    found = names(sample([*many, ("fused", fused)], program, 40, 0, {}))
    assert found.count("fused") == 30
    assert len(set(found)) == 11  # a graph each: not the one with the most points ten times


def tail(number):
    """A kernel that copies t2 to O, after others that made it."""
    value = op(Op.SCALE, load("O", "n f"), arg=str(number))
    return graph(op(Op.SAVE, value, arg=f"u{number}"), grid="x", ones=f"O.n.x u{number}.n.x")


def test_all_points_of_a_split_graph_once():
    """Sizes of the second kernel never depend on the split, whose size is one like any other."""
    first, second = (sizes(PROGRAM, kernel) for kernel in SPLIT.kernels)
    assert first["y"] == (1, 2, 3, 4, 6) and max(first["y"]) * 16 == 96
    everything = sample([("s", SPLIT)], PROGRAM, 10**6, 0, {"schedule": ("static", "dynamic")})
    pairs = {tuple((*a.items(), *b.items())) for _, c in everything for a, b in [c.sizes]}
    wanted = product(first["x"], first["y"], second["x"])
    assert pairs == {(("x", x), ("y", y), ("x", z)) for x, y, z in wanted}
    assert len(everything) == 2 * len(pairs)


def test_a_library_operator_is_not_the_generated_kernel_of_its_operator():
    bare = graph(*LIBRARY.kernels[0].block.savers)
    found = names(sample([("l", LIBRARY), ("g", bare)], PROGRAM, 10, 0, {}))
    assert sorted(found) == ["g", "l"]


def test_renamed_grid_dimensions_of_several_kernels_are_one_graph():
    first = graph(
        *SPLIT.kernels[0].block.savers, grid="xy", ones="W.f.y t1.f.y X.d.x W.d.x t1.split.x"
    )
    renamed = SGraph((first.kernels[0], SPLIT.kernels[1]))
    both = sample([("s", SPLIT), ("r", renamed)], PROGRAM, 10**6, 0, {})
    assert len(both) == len(sample([("s", SPLIT)], PROGRAM, 10**6, 0, {}))


def test_large_lists_of_graphs_are_sampled_quickly():
    program, _ = rmsnorm(16, 1024, 4096, "bf16")

    def scaled(number, name):
        value = op(Op.ACCUM, PRODUCT, arg="sum")
        return op(Op.SAVE, op(Op.SCALE, value, arg=str(number)), arg=name)

    ones = "W.f.x {0}.f.x X.n.y {0}.n.y X.d.i W.d.i"
    graphs = [
        (f"s{i}", graph(scaled(i, "O"), grid="xy", loop="i", ones=ones.format("O")))
        for i in range(20_000)
    ]
    last = graph(
        op(Op.SAVE, op(Op.RELU, load("t1", "n f")), arg="O"), grid="x", ones="t1.n.x O.n.x"
    )
    graphs += [
        (f"o{i}", joined(graph(scaled(i, "t1"), grid="xy", loop="i", ones=ones.format("t1")), last))
        for i in range(2_000)
    ]
    start = time.process_time()
    found = names(sample(graphs, program, 64, 0, {"schedule": ("static", "dynamic")}))
    assert time.process_time() - start < 3  # about half a second
    assert len(found) == len(set(found)) == 64 and sum(n[0] == "o" for n in found) == 16
