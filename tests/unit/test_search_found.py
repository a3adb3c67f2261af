"""What the search finds: the paper's graphs, splits, library calls, all proved as wholes."""

import json
from collections import Counter

import pytest
from searching import SINGLE, splits, whole_proof, with_fresh
from workloads import PROGRAMS, figure_1, symbolic

from prism.program.node import Op
from prism.program.program import Program
from prism.search import Bounds, search
from prism.search.members import members, operators
from prism.sgraph import SGraph
from prism.verify import Refuter, encode
from prism.verify.egraph import Limits
from prism.verify.prove import saturated_table

# What is found ------------------------------------------------------------------------------------


def test_members_are_the_operator_orders():
    program = PROGRAMS["rmsnorm"]
    roots = tuple(node for _, node in program.outputs)
    classes, ids, saturation = saturated_table(roots, Limits())
    found = list(members(classes, ids, program.inputs, operators(roots) + 1))
    assert saturation.ended == "saturated" and roots in found
    assert {r[0].op for r in found} == {Op.DIV, Op.MATMUL}  # normalise after the product, or before
    assert len(set(found)) == len(found)
    goals = Program("members", tuple((f"O{i}", r[0]) for i, r in enumerate(found)), program.sizes)
    refuter = Refuter(goals)
    graph = SGraph(())
    same = {name: roots[0] for name, _ in goals.outputs}
    assert refuter.refute(graph, same) is None  # each computes the program


def test_figure_1_is_found():
    """Softmax then matmul: the fused graph of Figure 1, proved."""
    mappings = [
        {tuple(v) for v in g.kernels[0].mapping.ones}
        for _, g in search(PROGRAMS["softmax_matmul"], SINGLE).graphs()
        if g.kernels[0].block == figure_1()
    ]
    assert {("X", "r", "x"), ("O", "r", "x"), ("X", "c", "i"), ("W", "c", "i")} in mappings


def test_flash_style_attention_is_found():
    """Loop over the keys, two accumulators, division after the loop; batch and head on the grid."""
    found = [
        g.kernels[0]
        for _, g in search(PROGRAMS["attention"], SINGLE).graphs()
        if g.kernels[0].mapping.axis("K", "i") == "h"
        and g.kernels[0].mapping.axis("Q", "i") is None
        and sum(n.op is Op.ACCUM and n.arg == "sum" for n in g.kernels[0].block.nodes) == 2
    ]
    assert {k.block.grid for k in found} == {(), ("x",), ("x", "y"), ("x", "y", "z")}


@pytest.mark.parametrize("workload", ["attention", "qk_attention"])
def test_flash_decoding_is_found_and_proved_whole(workload):
    """Keys split over the grid, partial numerator and denominator in memory, a second kernel sums
    both and divides; the first kernel loops over its share of the keys."""
    program = PROGRAMS[workload]
    found = []
    bounds = Bounds(library=(), grid=1, extra_operators=0)
    for _, graph in splits(search(program, bounds)):
        first, second = graph.kernels
        (par,) = first.fresh.values()
        if (
            first.mapping.axis("K", par) == first.mapping.axis("V", par) == "h"
            and first.mapping.axis("K", "i") == "h"
            and len(first.writes) == 2
            and sum(n.op is Op.SUM for n in second.block.nodes) == 2
            and second.block.savers[0].src[0].op is Op.DIV
        ):
            found.append(graph)
    assert found
    verdicts = whole_proof(program, found[:40])
    assert all(v.proved for v in verdicts)
    graph = found[0]
    for seed in (3, 4):
        refuter = Refuter(with_fresh(program, graph), seed)
        assert refuter.refute(graph, encode(graph, program.inputs)) is None


@pytest.mark.parametrize("name", ["rmsnorm", "swiglu", "rmsnorm_mlp", "softmax_matmul"])
def test_split_k_is_found(name):
    """The contracted axis split over the grid, the partial products summed by a second kernel."""
    bounds = Bounds(library=(), grid=1, loop=False)
    graphs = [g for _, g in splits(search(PROGRAMS[name], bounds))]
    matmuls = [
        g
        for g in graphs
        if any(n.op is Op.MATMUL for n in g.kernels[0].block.nodes)
        and not any(n.op is Op.MATMUL for n in g.kernels[1].block.nodes)
    ]
    assert matmuls
    assert all(v.proved for v in whole_proof(PROGRAMS[name], matmuls[:40]))


def test_a_program_of_one_matmul_is_split_too():
    program = symbolic("gemm", "O = matmul(A, B, k)", {"A": "m k", "B": "k n"})
    graphs = [g for _, g in splits(search(program))]
    assert graphs
    for graph in graphs:
        (last,) = graph.kernels[1].block.savers
        assert (
            graph.kernels[0].mapping.axis("A", next(iter(graph.kernels[0].fresh.values()))) == "k"
        )
        assert any(n.op is Op.SUM for n in graph.kernels[1].block.nodes) and last.arg == "O"


def test_library_calls_stand_beside_generated_kernels():
    result = search(PROGRAMS["swiglu"])
    kinds = Counter()
    for _, graph in result.graphs(False):
        kinds[tuple(k.library for k in graph.kernels)] += 1
        for kernel in graph.kernels:
            if kernel.library:
                (operator,) = (
                    n for n in kernel.block.nodes if n.op not in (Op.LOAD, Op.SAVE, Op.ACCUM)
                )
                assert operator.op is Op.MATMUL
                assert not kernel.mapping.ones and kernel.block.loop is None
    assert kinds[True, True, False] and kinds[False, True, False]
    assert max(map(len, kinds)) <= 5
    assert max(sum(not called for called in kind) for kind in kinds) == 2
    without = search(PROGRAMS["swiglu"], Bounds(library=()))
    assert not any(k.library for _, g in without.graphs(False) for k in g.kernels)


@pytest.mark.parametrize("name", PROGRAMS)
def test_drawn_graphs_are_proved_whole(name):
    """The composition of lemmas against proofs of complete graphs, which know nothing of them."""
    program = PROGRAMS[name]
    space = search(program).space
    for single in (True, False):
        graphs = [space.graph(i) for i in space.draw(60, 5, single)]
        assert graphs
        assert all(v.proved for v in whole_proof(program, graphs))
        for graph in graphs[::4]:
            refuter = Refuter(with_fresh(program, graph), 11)
            assert refuter.refute(graph, encode(graph, program.inputs)) is None


@pytest.mark.parametrize(
    ("name", "least"),
    [("rmsnorm", 9), ("rmsnorm_mlp", 23), ("swiglu", 12), ("attention", 14), ("qk_attention", 14)],
)
def test_at_least_the_published_number_of_graphs(name, least):
    result = search(PROGRAMS[name])
    assert result.ended == "exhausted"
    single = Counter(json.dumps(g.to_json(), sort_keys=True) for _, g in result.graphs(True))
    assert len(single) == sum(single.values()) == result.space.single_kernel >= least
    assert result.space.count > result.space.single_kernel


def test_several_outputs_share_a_kernel():
    both = symbolic("both", "P = exp(X)\nO = sum(P, d)", {"X": "n d"})
    outputs = (("P", both.outputs[0][1].src[0]), *both.outputs)
    two = Program("two", outputs, both.sizes, both.dtype, {}, ("X",))
    result = search(two)
    single = [g for _, g in result.graphs(True)]
    assert single and all(len(g.kernels[0].writes) == 2 for g in single)
    assert {"n"} == {g.kernels[0].mapping.axis("O", "x") for g in single if g.kernels[0].block.grid}
    for _, graph in result.graphs(False):
        assert {"O", "P"} <= {name for k in graph.kernels for name in k.writes}
    assert all(v.proved for v in whole_proof(two, [g for _, g in result.graphs()][:200]))
