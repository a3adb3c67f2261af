"""Proofs and refutations of single-kernel graphs, and a corpus of wrong ones."""

import random
from dataclasses import replace
from itertools import islice

import pytest
from workloads import PROGRAMS, symbolic

from prism.errors import PrismError
from prism.program.node import BINARY, UNARY, WITH_CONSTANT, Node, Op
from prism.search import Bounds, search
from prism.sgraph import BlockGraph, Kernel, Mapping, MapVar, SGraph, make_mapping
from prism.verify import Limits, Outcome, Refuter, encode, prove


@pytest.fixture(scope="module")
def graphs():
    """The single-kernel graphs of each program; all of them were proved as products of lemmas."""
    found = {}
    for name, program in PROGRAMS.items():
        result = search(program, Bounds(grid=2, kernels=1, generated=1))
        assert result.ended == "exhausted", name
        assert not result.gaps or name == "root_of_max", name  # see the tests of the search
        found[name] = [graph for _, graph in result.graphs(single=True)]
        assert found[name], name
    return found


def test_every_graph_that_the_search_composes_is_proved_as_a_whole(graphs):
    for name, found in graphs.items():
        proofs = prove(PROGRAMS[name], [encode(g, PROGRAMS[name].inputs) for g in found])
        assert all(v.proved for v in proofs.verdicts), name


def test_proved_graphs_agree_with_other_numbers(graphs):
    for name, found in graphs.items():
        for graph in found[:: max(1, len(found) // 150)]:
            candidate = encode(graph, PROGRAMS[name].inputs)
            for seed in (11, 12):
                assert Refuter(PROGRAMS[name], seed).refute(graph, candidate) is None


@pytest.mark.parametrize("name", ["rmsnorm", "swiglu", "attention", "softmax_matmul", "two"])
def test_composed_graphs_of_several_kernels_are_proved_as_wholes(name):
    """Lemmas on one parallel dimension compose: the whole graph's own proof agrees."""
    program = PROGRAMS[name]
    space = search(program, Bounds(grid=2)).space
    step = max(1, (space.count - space.single_kernel) // 150)
    found = [space.graph(i) for i in islice(space.ids(False), 0, None, step)]
    candidates = [encode(graph, program.inputs) for graph in found]
    assert len(found) >= 100 and {len(g.kernels) for g in found} > {2}
    refuter = Refuter(program, 5)
    assert not any(refuter.refute(g, c) for g, c in zip(found, candidates, strict=True))
    assert all(v.proved for v in prove(program, candidates).verdicts)


def mutations(graph: SGraph, rng: random.Random):
    """Wrong-looking relatives of a graph: mappings, operators, accumulators, axes of reductions."""
    kernel = graph.kernels[0]
    block, ones = kernel.block, kernel.mapping.ones
    tensors = [(n.arg, n.axes) for n in block.loaders]
    tensors += [(s.arg, s.axes) for s in block.savers]

    def mapped(new_ones):
        """None where one parallel dimension would partition two axes: there is no such mapping."""
        try:
            return SGraph((Kernel(block, make_mapping(new_ones)),))
        except PrismError:
            return None

    if ones:
        gone = rng.choice(sorted(ones))
        yield "a mapping variable dropped", mapped(ones - {gone})
        tensor, axes = next((t, a) for t, a in tensors if t == gone.tensor)
        other = MapVar(tensor, rng.choice(axes), gone.par)
        yield "another axis mapped", mapped(ones - {gone} | {other})
        yield (
            "another parallel dimension",
            mapped(ones - {gone} | {gone._replace(par=rng.choice(block.pars))}),
        )
    if block.pars:
        tensor, axes = rng.choice(tensors)
        yield (
            "a mapping variable added",
            mapped(ones | {MapVar(tensor, rng.choice(axes), rng.choice(block.pars))}),
        )
    inner = [n for n in block.nodes if n.src and n.op is not Op.SAVE]
    target = rng.choice(inner)
    yield "an operator swapped", rewritten(kernel, target, swap_operator(target, rng))
    accumulators = [n for n in inner if n.op is Op.ACCUM]
    if accumulators:
        target = rng.choice(accumulators)
        yield "an accumulator dropped", rewritten(kernel, target, lambda n, src: src[0])
        kinds = ["sum", "max", *(f"concat:{a}" for a in target.axes)]
        kind = rng.choice([k for k in kinds if k != target.arg])
        yield (
            "an accumulator's kind",
            rewritten(kernel, target, lambda n, src: Node(Op.ACCUM, src, kind)),
        )
    plain = [n for n in inner if n.op is not Op.ACCUM and n not in block.after_loop]
    if block.loop and plain:
        target = rng.choice(plain)
        yield (
            "an accumulator added",
            rewritten(
                kernel,
                target,
                lambda n, src: Node(Op.ACCUM, (Node(n.op, src, n.arg),), "sum"),
            ),
        )


def swap_operator(target, rng):
    pools = [BINARY, UNARY - WITH_CONSTANT, {Op.SUM, Op.MAX}]
    pool = next((p for p in pools if target.op in p), None)
    if pool is None:  # matmul, constants: sources exchanged or the operator doubled
        return lambda n, src: Node(Op.SCALE, (Node(n.op, src, n.arg),), "2")
    op = rng.choice(sorted(pool - {target.op}, key=str))
    return lambda n, src: Node(op, src, n.arg)


def rewritten(kernel, target, change) -> SGraph:
    new = {}
    for node in kernel.block.nodes:
        src = tuple(new[s] for s in node.src)
        if node is target:
            new[node] = change(node, src)
        else:
            new[node] = Node(node.op, src, node.arg, None if src else node.axes)
    savers = tuple(new[s] for s in kernel.block.savers)
    return SGraph(
        (Kernel(BlockGraph(kernel.block.grid, kernel.block.loop, savers), kernel.mapping),)
    )


def wrong_graphs(graphs, per_program, seed=0):
    rng = random.Random(seed)
    for name, found in graphs.items():
        made = 0
        while made < per_program:
            for why, graph in mutations(rng.choice(found), rng):
                if graph is not None:
                    yield name, why, graph
                    made += 1


@pytest.mark.parametrize("per_program", [80, pytest.param(1500, marks=pytest.mark.slow)])
def test_no_wrong_graph_is_proved(graphs, per_program):
    """What numbers refute is never proved: interpreter and proof do not disagree."""
    refuted = 0
    batches = {}
    for name, why, graph in wrong_graphs(graphs, per_program):
        candidate = encode(graph, PROGRAMS[name].inputs)
        batches.setdefault(name, []).append((why, graph, candidate))
    for name, batch in batches.items():
        refuters = [Refuter(PROGRAMS[name], seed) for seed in (0, 1)]
        verdicts = [next((v for r in refuters if (v := r.refute(g, c))), None) for _, g, c in batch]
        proofs = prove(PROGRAMS[name], [c for _, _, c in batch]).verdicts
        for (why, graph, _), no, proof in zip(batch, verdicts, proofs, strict=True):
            if no is not None:
                refuted += 1
                assert proof.outcome is not Outcome.PROVED, (name, why, no, graph)
    assert refuted >= 3 * per_program  # the corpus is mostly wrong graphs, not renamed right ones


def test_a_maximum_in_place_of_a_sum_inside_a_tile_is_refuted(graphs):
    """Pieces have more than one element, so reductions inside them are told apart."""
    program = PROGRAMS["softmax_matmul"]
    for graph in graphs["softmax_matmul"]:
        kernel = graph.kernels[0]
        for node in kernel.block.nodes:
            if node.op is Op.SUM:
                wrong = rewritten(kernel, node, lambda n, src: Node(Op.MAX, src, n.arg))
                assert Refuter(program).refute(wrong, encode(wrong, program.inputs)) is not None


def test_the_kinds_of_mistake_are_all_in_the_corpus(graphs):
    whys = {why for _, why, _ in wrong_graphs(graphs, 80)}
    assert len(whys) == 8


def test_signs_are_told_apart():
    """relu(x) - y and relu(x - y) agree on positive numbers with small y; not on all."""
    program = symbolic("signs", "O = relu(X) - Y", {"X": "n", "Y": "n"})
    x, y = (Node(Op.LOAD, arg=n, axes=("n",)) for n in "XY")
    save = Node(Op.SAVE, (Node(Op.SUB, (x, y)),), "O")
    wrong = SGraph((Kernel(BlockGraph((), None, (save,)), make_mapping(())),))
    assert Refuter(program).refute(wrong, encode(wrong, program.inputs)) is not None


def test_constants_may_have_any_value():
    """A constant that has no value at the refuter's tiny sizes does not stop the search."""
    for text in ("1/(d-2)", "1/(d-3)", "1/sqrt(d-4)"):
        program = symbolic("odd", f"O = scale(X, {text})", {"X": "n d"})
        graph = next(g for _, g in search(program).graphs())
        assert Refuter(program).refute(graph, encode(graph, program.inputs)) is None


def test_a_limit_is_unknown_never_refuted(graphs):
    program = PROGRAMS["attention"]
    graph = graphs["attention"][-1]
    proofs = prove(program, [encode(graph, program.inputs)], Limits(iterations=1))
    assert proofs.verdicts[0].outcome is Outcome.UNKNOWN
    assert proofs.verdicts[0].reason == "iteration limit"


def test_refutation_carries_its_seed(graphs):
    program = PROGRAMS["rmsnorm"]
    graph = next(g for g in graphs["rmsnorm"] if g.kernels[0].mapping.ones)
    kernel = graph.kernels[0]
    broken = replace(kernel, mapping=Mapping(frozenset()))
    wrong = SGraph((broken,))
    verdict = Refuter(program, 7).refute(wrong, encode(wrong, program.inputs))
    assert verdict.outcome is Outcome.REFUTED and verdict.seed == 7 and verdict.reason
