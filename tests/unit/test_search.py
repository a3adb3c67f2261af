"""The search: its space against brute force, its result, its budget."""

import time
from itertools import chain, combinations, permutations

import pytest
from workloads import PROGRAMS, figure_1, symbolic

from prism.errors import PrismError
from prism.program.node import Op
from prism.search import Bounds, search
from prism.search.mappings import combine, grid_choices, loop_choices, variables
from prism.search.members import members
from prism.search.placements import placements
from prism.sgraph import GRID_DIMS, BlockGraph, Kernel, SGraph, make_mapping
from prism.sgraph.constraints import constraints
from prism.verify import Outcome, Refuter, encode
from prism.verify.egraph import Limits


def subsets(items):
    return chain.from_iterable(combinations(items, k) for k in range(len(items) + 1))


def canonical(ones, grid):
    """The lexicographically smallest relabelling of the grid dimensions (section 3.4)."""
    relabelled = []
    for order in permutations(grid):
        names = dict(zip(grid, order, strict=True))
        relabelled.append(tuple(sorted((t, d, names.get(p, p)) for t, d, p in ones)))
    return min(relabelled)


@pytest.mark.parametrize("name", ["bare_norm", "softmax_matmul", "outer", "row_max"])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_mapping_enumeration_equals_brute_force(name, count):
    """All that satisfies the constraints and leaves no grid dimension idle, up to symmetry."""
    program = PROGRAMS[name]
    grid = GRID_DIMS[:count]
    roots = tuple(node for _, node in program.outputs)
    for block in placements(roots, ("O",)):
        wide = BlockGraph(grid, block.loop, block.savers)
        found = constraints(wide)
        if len(found.variables) > 14:
            continue
        expected = {
            canonical(ones, grid)
            for ones in map(frozenset, subsets(found.variables))
            if found.satisfied(ones)
            and all(any(v.tensor == "O" and v.par == p for v in ones) for p in grid)
        }
        made = [
            variables(g, loop, block.loop)
            for loop in loop_choices(block)
            for g in combine(grid_choices(block), count)
            if len(g) == count
        ]
        assert {canonical(ones, grid) for ones in made} == expected
        assert len(made) == len(expected)  # no orbit twice


def test_members_are_the_operator_orders():
    program = PROGRAMS["rmsnorm"]
    found, saturation = members(program, 8, Limits())
    found = [tuple(node for _, node in program.outputs), *found]
    assert saturation.ended == "saturated"
    last = {roots[0].op for roots in found}
    assert last == {Op.DIV, Op.MATMUL}  # normalise after the product, or before it
    assert len(set(found)) == len(found)
    refuter = Refuter(program)
    for roots in found:  # each computes the program
        graph = SGraph((Kernel(next(placements(roots, ("O",))), make_mapping(())),))
        assert refuter.refute(graph, encode(graph, program.inputs)) is None


def test_figure_1_is_found():
    """Softmax then matmul: the fused graph of Figure 1, proved."""
    result = search(PROGRAMS["softmax_matmul"])
    mappings = [
        {tuple(v) for v in f.graph.kernels[0].mapping.ones}
        for f in result.proved
        if f.graph.kernels[0].block == figure_1()
    ]
    assert {("X", "r", "x"), ("O", "r", "x"), ("X", "c", "i"), ("W", "c", "i")} in mappings


def test_flash_style_attention_is_found():
    """Loop over the keys, two accumulators, division after the loop; batch and head on the grid."""
    result = search(PROGRAMS["attention"])
    found = [
        f.graph.kernels[0]
        for f in result.proved
        if f.graph.kernels[0].mapping.axis("K", "i") == "h"
        and f.graph.kernels[0].mapping.axis("Q", "i") is None
        and sum(n.op is Op.ACCUM and n.arg == "sum" for n in f.graph.kernels[0].block.nodes) == 2
    ]
    grids = {k.block.grid for k in found}
    assert grids == {(), ("x",), ("x", "y"), ("x", "y", "z")}


@pytest.mark.parametrize(
    ("name", "least"),
    [("rmsnorm", 9), ("rmsnorm_mlp", 23), ("swiglu", 12), ("attention", 14)],
)
def test_at_least_the_published_number_of_graphs(name, least):
    result = search(PROGRAMS[name])
    assert result.ended == "exhausted"
    ids = [f.id for f in result.proved]
    assert len(ids) == len(set(ids)) >= least


def test_counts_add_up():
    result = search(PROGRAMS["attention"])
    counts, rejected = result.candidates, result.rejected
    assert counts["generate"]["out"] == counts["map"]["in"]
    assert counts["map"]["out"] == counts["refute"]["in"]
    assert counts["refute"]["out"] == counts["prove"]["in"] == len(result.found)
    assert counts["prove"]["out"] == len(result.proved)
    gone = sum(n for cause, n in rejected.items() if cause.startswith("refuted"))
    assert counts["refute"]["in"] - counts["refute"]["out"] == gone > 0


def test_search_is_deterministic():
    first, second = (search(PROGRAMS["swiglu"]).to_json() for _ in range(2))
    assert first["graphs"] == second["graphs"] and first["candidates"] == second["candidates"]


def test_bounds_shrink_the_space():
    program = PROGRAMS["rmsnorm"]
    whole = len(search(program).found)
    assert len(search(program, Bounds(grid=1)).found) < whole
    result = search(program, Bounds(loop=False))
    flat = result.found
    assert 0 < len(flat) < whole
    assert result.candidates["generate"]["out"] == result.candidates["map"]["in"] == 4
    assert all(f.graph.kernels[0].block.loop is None for f in flat)


def test_a_spent_budget_returns_what_was_found():
    result = search(PROGRAMS["rmsnorm_mlp"], Bounds(seconds=0.3))
    assert result.ended.startswith("time limit")
    assert result.found and all(f.verdict.outcome is not Outcome.REFUTED for f in result.found)


def test_a_program_too_large_to_exhaust_still_gives_graphs_in_time():
    """Eight terms: the cuts alone are exponential, the budget holds and the source is there."""
    names = [f"T{k}" for k in range(8)]
    formula = "O = " + " + ".join(f"exp({n})" for n in names)
    program = symbolic("terms", formula, dict.fromkeys(names, "n d"))
    start = time.perf_counter()
    result = search(program, Bounds(seconds=2))
    assert time.perf_counter() - start < 10
    assert result.ended.startswith("time limit")
    assert any(f.graph.kernels[0].block.loop is None for f in result.proved)


def test_several_outputs_share_a_kernel():
    program = symbolic(
        "residual",
        "P = X + R\nN = rms_norm(P, d)\nO = matmul(N, W, d)",
        {"X": "n d", "R": "n d", "W": "d f"},
        {"eps": 1e-5},
    )
    both = symbolic("both", "P = exp(X)\nO = sum(P, d)", {"X": "n d"})
    assert search(program).proved
    outputs = tuple((n, v) for n, v in [("P", both.outputs[0][1].src[0]), *both.outputs])
    two = type(both)("two", outputs, both.sizes, both.dtype, {}, ("X",))
    found = search(two).proved
    assert found and all(len(f.graph.kernels[0].writes) == 2 for f in found)
    assert {"n"} == {
        f.graph.kernels[0].mapping.axis("O", "x") for f in found if f.graph.kernels[0].block.grid
    }


def test_identity_program_is_refused():
    program = symbolic("echo", "O = exp(X)", {"X": "n"})
    echo = type(program)("echo", (("O", program.inputs["X"]),), program.sizes)
    with pytest.raises(PrismError, match="nothing to search"):
        search(echo)


@pytest.mark.parametrize(
    "name",
    ["outer", "row_max", "two", "swiglu"]
    + [pytest.param(n, marks=pytest.mark.slow) for n in ("softmax_matmul", "bare_norm")],
)
def test_both_generators_find_the_same_graphs(name):
    """The guided generator misses nothing that adding operators one by one would find."""
    guided, exhaustive = (
        search(PROGRAMS[name], Bounds(generator=g, grid=2, seconds=300))
        for g in ("guided", "exhaustive")
    )
    assert guided.ended == exhaustive.ended == "exhausted"
    assert {f.id for f in guided.proved} == {f.id for f in exhaustive.proved} != set()
    assert len(guided.found) == len(exhaustive.found)


def test_unknown_generator_is_refused():
    with pytest.raises(PrismError, match="generator 'random'"):
        search(PROGRAMS["outer"], Bounds(generator="random"))
