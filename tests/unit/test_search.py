"""The search: its space against brute force and against the reference, its result, its budget."""

import json
import math
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import chain, combinations, permutations, product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from workloads import PROGRAMS, figure_1, symbolic

from prism.errors import PrismError
from prism.program.node import BINARY, Node, Op, topological
from prism.program.program import Program
from prism.search import Bounds, search
from prism.search.actions import MAX, REPL, SUM, Lemma, State, Transitions, proposed
from prism.search.cuts import cuts, function
from prism.search.members import members, operators
from prism.search.pieces import pieces
from prism.search.placements import placements
from prism.sgraph import GRID_DIMS, BlockGraph, Kernel, SGraph, make_mapping
from prism.sgraph.constraints import constraints
from prism.sgraph.family import Space
from prism.verify import Outcome, Refuter, Verdict, encode, prove
from prism.verify.egraph import Limits
from prism.verify.prove import saturated_table

search_module = sys.modules["prism.search.search"]  # the package exports a function of that name
SINGLE = Bounds(generated=1, kernels=1, library=(), split=False)


def keys(result):
    """Every graph of a result, as text; two graphs alike would count twice."""
    return Counter(json.dumps(g.to_json(), sort_keys=True) for _, g in result.graphs())


def with_fresh(program, graph):
    """The program with an entry for the fresh axes of a graph, which the refuter asks for."""
    fresh = {axis for k in graph.kernels for axis in k.fresh}
    return Program(
        program.name, program.outputs, {**program.sizes, **dict.fromkeys(fresh, "p")}, "bf16"
    )


def whole_proof(program, graphs):
    """Verdicts of complete graphs in one e-graph, without any lemma of the search."""
    return prove(program, [encode(g, program.inputs) for g in graphs]).verdicts


# The space ----------------------------------------------------------------------------------------


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
def test_single_kernels_are_what_brute_force_finds(name, count):
    """All assignments that satisfy the constraints, leave no grid dimension idle and agree with the
    program on numbers, up to symmetry; of every placement of accumulators that shapes allow."""
    program, grid = PROGRAMS[name], GRID_DIMS[:count]
    found = {}
    for _, graph in search(program, SINGLE).graphs():
        (kernel,) = graph.kernels
        if len(kernel.block.grid) == count:
            block = BlockGraph((), kernel.block.loop, kernel.block.savers)
            found.setdefault(block, []).append(canonical(kernel.mapping.ones, grid))
    roots = tuple(node for _, node in program.outputs)
    refuter, maximum = Refuter(program), any(n.op is Op.MAX for n in program.nodes)
    tried = 0
    for block in placements(roots, ("O",), maximum=maximum):
        wide = BlockGraph(grid, block.loop, block.savers)
        rules = constraints(wide)
        if len(rules.variables) > 12:
            continue
        right = set()
        for ones in map(frozenset, subsets(rules.variables)):
            if not rules.satisfied(ones) or not all(
                any(v.tensor == "O" and v.par == p for v in ones) for p in grid
            ):
                continue
            graph = SGraph((Kernel(wide, make_mapping(ones)),))
            if refuter.refute(graph, encode(graph, program.inputs)) is None:
                right.add(canonical(ones, grid))
        made = found.get(block, [])
        assert len(made) == len(set(made)) and set(made) == right
        tried += len(right)
    assert tried or (count == 2 and name in ("bare_norm", "row_max"))  # these have one axis


STATES = [REPL, SUM, MAX] + [State(k, a) for k in ("part", "fold-sum", "fold-max") for a in "ab"]
LEAVES = [Node(Op.INPUT, arg="".join(axes).upper(), axes=axes) for axes in (("a", "b"), ("a",))]


def operators_of(leaves):
    for leaf in leaves:
        yield from (Node(op, (leaf,)) for op in (Op.EXP, Op.SQUARE, Op.SQRT, Op.SILU, Op.RELU))
        yield Node(Op.SCALE, (leaf,), "c")
        yield Node(Op.SHIFT, (leaf,), "c")
        yield from (Node(op, (leaf,), "a") for op in (Op.SUM, Op.MAX))
    for left, right in product(leaves, repeat=2):
        yield from (Node(op, (left, right)) for op in sorted(BINARY, key=str))
        yield Node(Op.MATMUL, (left, right), "a")


def kinds_fit(node, states):
    """States that can occur together: of axes that there are, and on one side of the loop."""
    if any(s.axis and s.axis not in n.axes for s, n in zip(states, node.src, strict=True)):
        return False
    sides = {s.kind.startswith("fold") for s in states if s != REPL}
    return len(sides) == 1


@pytest.mark.parametrize("node", list(operators_of(LEAVES)), ids=repr)
def test_transitions_are_exactly_those_that_numbers_allow(node):
    """For every operator and states of its operands: a state that holds is proposed, no other."""
    for states in product(STATES, repeat=len(node.src)):
        if not kinds_fit(node, states):
            continue
        axes = tuple(n.axes for n in node.src)
        fold = any(s.kind.startswith("fold") for s in states)
        after = [s for s in STATES if s == REPL or s.kind.startswith("fold") == fold]
        after = [s for s in after if s.axis is None or s.axis in node.axes]
        holds = [
            s
            for s in after
            if not any(Lemma(node.op, node.arg, axes, states, s).refuted(n) for n in range(6))
        ]
        if node.op is Op.SQRT and states[0].kind.endswith("max"):
            holds = []  # what has a root is positive here; see the test of roots of maxima
        state = proposed(node, states)
        if isinstance(state, str):
            assert not holds or state.startswith("shapes"), (states, holds)
        else:
            assert holds == [state], states


@pytest.mark.parametrize("inner", [Op.EXP, Op.RELU, Op.SQUARE, Op.SILU, Op.SCALE])
def test_roots_of_maxima_are_right_of_what_is_never_negative(inner):
    """The maximum of parts may have a root where a part has none."""
    leaf = Node(Op.INPUT, arg="A", axes=("a", "b"))
    node = Node(Op.SQRT, (Node(inner, (leaf,), "c" if inner is Op.SCALE else None),))
    found = proposed(node, (MAX,))
    if inner in (Op.EXP, Op.RELU, Op.SQUARE):
        assert found == MAX
        assert not Lemma(Op.SQRT, None, (leaf.axes,), (MAX,), MAX, ((inner, None),)).refuted(1)
    else:
        assert found == "sqrt of a max"


def test_every_transition_of_the_workloads_is_proved():
    for name, program in PROGRAMS.items():
        result = search(program)
        if name == "root_of_max":  # of arbitrary parts no law says it, though of whole graphs some
            assert {gap.what.partition(",")[0] for gap in result.gaps} == {"sqrt of max"}
            continue
        assert not result.gaps, (name, result.gaps)
        assert result.candidates["refute"]["in"] == result.candidates["refute"]["out"] > 0


def test_a_lemma_that_is_not_proved_is_used_nowhere(monkeypatch):
    """Without the laws of matmul nothing partitions one, and each gap is listed."""
    real, unknown = search_module.prove_all, Verdict(Outcome.UNKNOWN, "axiom gap")

    def weak(goals, limits):
        proofs = real(goals, limits)
        open_ = [any(a.op in (Op.MATMUL, Op.RED) for a, _ in goal) for goal in goals]
        verdicts = [unknown if o else v for o, v in zip(open_, proofs.verdicts, strict=True)]
        return replace(proofs, verdicts=verdicts)

    program = PROGRAMS["two"]
    whole = search(program, SINGLE).space.count
    monkeypatch.setattr(search_module, "prove_all", weak)
    result = search(program, SINGLE)
    assert result.gaps and all(gap.reason == "axiom gap" for gap in result.gaps)
    assert any("matmul[d] of part(n)" in gap.what for gap in result.gaps)
    assert 0 < result.space.count < whole
    assert all(not graph.kernels[0].block.grid for _, graph in result.graphs())
    assert any(cause.startswith("not proved") for cause in result.rejected)


def test_without_a_lemma_nothing_is_split_either(monkeypatch):
    """Choices that were made before the proof, to know what may be split, are made anew."""
    real = search_module.prove_all

    def weak(goals, limits):
        proofs = real(goals, limits)
        open_ = [any(a.op in (Op.MATMUL, Op.RED) for a, _ in goal) for goal in goals]
        unknown = Verdict(Outcome.UNKNOWN, "axiom gap")
        verdicts = [unknown if o else v for o, v in zip(open_, proofs.verdicts, strict=True)]
        return replace(proofs, verdicts=verdicts)

    assert list(splits(search(PROGRAMS["two"])))
    monkeypatch.setattr(search_module, "prove_all", weak)
    assert not list(splits(search(PROGRAMS["two"])))


def test_a_refuted_lemma_is_used_nowhere(monkeypatch):
    monkeypatch.setattr(Lemma, "refuted", lambda lemma, _seed: lemma.op is Op.MATMUL)
    result = search(PROGRAMS["two"])
    assert not result.gaps and any(c.startswith("refuted: matmul") for c in result.rejected)
    assert not list(splits(result))
    for _, graph in result.graphs(True):
        assert not graph.kernels[0].block.grid


def test_a_member_that_is_not_proved_is_left_out(monkeypatch):
    real = search_module.prove_all
    program = PROGRAMS["rmsnorm"]
    own = tuple(node for _, node in program.outputs)

    def weak(goals, limits):
        proofs = real(goals, limits)
        unknown = Verdict(Outcome.UNKNOWN, "axiom gap")
        others = [goal[0][1] == own[0] and goal[0][0] != own[0] for goal in goals]
        verdicts = [unknown if o else v for o, v in zip(others, proofs.verdicts, strict=True)]
        return replace(proofs, verdicts=verdicts)

    monkeypatch.setattr(search_module, "prove_all", weak)
    result = search(program, SINGLE)
    assert len(result.gaps) == 3  # the other three of its four members
    (piece,) = result.space.pieces
    assert len(piece.kernels) == 1 and piece.kernels[0].roots[0].op is Op.MATMUL


def test_what_is_left_in_parts_is_read_by_the_second_kernel_alone():
    """A call of the library takes whole operands; so does every kernel but the one that reduces."""
    program = symbolic("chain", "O = exp(matmul(matmul(X, A, a), B, b))",
                       {"X": "n a", "A": "a b", "B": "b c"})  # fmt: skip
    found = list(splits(search(program), most=10**6))
    assert found
    for _, graph in found:
        fresh = {a for k in graph.kernels for a in k.fresh}
        readers = [k for k in graph.kernels if any(fresh & set(n.axes) for n in k.block.loaders)]
        assert len(readers) == 1 and not readers[0].library


@pytest.mark.parametrize("name", ["swiglu", "softmax_matmul"])
def test_no_axis_is_partitioned_by_two_grid_dimensions(name):
    """Equation (2), of kernels that leave partial results too."""
    for _, graph in search(PROGRAMS[name]).graphs():
        for kernel in graph.kernels:
            for tensor, axis, _ in kernel.mapping.ones:
                pars = set(kernel.mapping.pars(tensor, axis)) & set(kernel.block.grid)
                assert len(pars) <= 1


# Two generators, one space ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["outer", "row_max", "two", "swiglu", "softmax_matmul", "two_outputs"]
    + [pytest.param("bare_norm", marks=pytest.mark.slow)],
)
def test_both_generators_find_the_same_graphs(name):
    """The guided search misses nothing that adding operators one by one and trying every mapping
    would find: single kernels, two kernels, splits and library calls, with the same mappings."""
    guided, reference = (
        search(PROGRAMS[name], Bounds(generator=g, grid=2, seconds=300))
        for g in ("guided", "exhaustive")
    )
    assert guided.ended == reference.ended == "exhausted"
    assert not guided.gaps
    assert not reference.gaps
    found = keys(guided)
    assert found == keys(reference) and max(found.values()) == 1
    assert sum(found.values()) == guided.space.count == reference.space.count


@st.composite
def small_programs(draw):
    """Up to four operators on up to three tensors of one or two axes."""
    leaves = {"A": ("a", "b"), "B": ("b", "c"), "V": ("b",)}
    values = [Node(Op.INPUT, arg=name, axes=axes) for name, axes in leaves.items()]
    for _ in range(draw(st.integers(1, 4))):
        left = draw(st.sampled_from(values))
        options = [Node(op, (left,)) for op in (Op.EXP, Op.SQUARE, Op.SILU, Op.RELU)]
        options += [Node(Op.SCALE, (left,), "k"), Node(Op.SHIFT, (left,), "k")]
        options += [Node(op, (left,), axis) for op in (Op.SUM, Op.MAX) for axis in left.axes]
        for right in values:
            options += [Node(op, (left, right)) for op in (Op.ADD, Op.MUL)]
            if left is not right:  # x - x = 0 and x / x = 1 are no axioms, as in the paper
                options += [Node(op, (left, right)) for op in (Op.SUB, Op.DIV)]
            shared = [axis for axis in left.axes if axis in right.axes]
            options += [Node(Op.MATMUL, (left, right), axis) for axis in shared]
        values.append(draw(st.sampled_from(options)))
    made = [v for v in values[3:] if v.op is not Op.INPUT]
    roots = {made[-1]: "O"}
    if draw(st.booleans()):
        roots.setdefault(made[draw(st.integers(0, len(made) - 1))], "P")
    axes = {a for n in topological(roots) if n.op is Op.INPUT for a in n.axes}
    return Program("small", tuple((name, n) for n, name in roots.items()), {a: a for a in axes})


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(small_programs())
def test_both_generators_agree_on_random_programs(program):
    check_generators(program)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(small_programs())
def test_both_generators_agree_on_many_random_programs(program):
    check_generators(program)


def check_generators(program):
    guided, reference = (
        search(program, Bounds(generator=g, grid=1, extra_operators=0, seconds=60))
        for g in ("guided", "exhaustive")
    )
    assert guided.ended == "exhausted"
    assert not guided.gaps, guided.gaps
    if reference.ended != "exhausted":  # few programs are beyond it; none is beyond the guided one
        return
    assert keys(guided) == keys(reference)  # gaps as of max(x) + max(x), no law, are in neither


def test_a_result_that_all_blocks_share_is_not_left_in_parts():
    """max(A) does not depend on a dimension that partitions B alone, so a maximum of equal copies
    would be right; but it is an idle dimension, and no graph of either generator."""
    a = Node(Op.INPUT, arg="A", axes=("a", "b"))
    b = Node(Op.INPUT, arg="B", axes=("b", "c"))
    root = Node(Op.MUL, (Node(Op.MAX, (a,), "a"), Node(Op.SUB, (b, a))))
    check_generators(Program("shared", (("O", root),), {x: x for x in "abc"}))


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


def splits(result, most=300):
    """Graphs of two generated kernels of which the first leaves partial results, some a family."""
    (piece,) = result.space.pieces
    for family, steps in enumerate(piece.graphs):
        if piece.kernels[steps[0].family].kernel(0, {}).fresh:
            step = max(1, piece.counts[family] // most)
            for number in range(0, piece.counts[family], step):
                name = f"{family}.{number}"
                yield name, result.space.graph(name)


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


# Cuts and pieces ----------------------------------------------------------------------------------


def test_cuts_are_all_convex_partitions():
    """Against brute force: every assignment of operators to two kernels and calls that can run."""
    program = PROGRAMS["attention"]
    roots = tuple(node for _, node in program.outputs)
    nodes = [n for n in topological(roots) if n.op is not Op.INPUT]
    found = {
        frozenset((part.nodes, part.library) for part in cut)
        for cut in cuts(roots, frozenset({Op.MATMUL}), 5)
    }
    expected = set()
    for places in product(("first", "second", "call"), repeat=len(nodes)):
        if any(p == "call" and n.op is not Op.MATMUL for n, p in zip(nodes, places, strict=True)):
            continue
        groups = {}
        for node, place in zip(nodes, places, strict=True):
            groups.setdefault((place, node if place == "call" else None), set()).add(node)
        parts = [frozenset(g) for g in groups.values()]
        together = len(parts) == 1 or all(map(hangs_together, parts))
        if len(parts) <= 5 and runs(parts) and together:
            expected.add(frozenset((frozenset(g), key[0] == "call") for key, g in groups.items()))
    assert found == expected and len(found) > 10


def hangs_together(part):
    """Whether one can walk from any operator to any other over values that are made or read."""
    start, *rest = part
    seen, reached = {start}, {start, *start.src}
    for _ in rest:
        for node in part:
            if reached & {node, *node.src}:
                seen.add(node)
                reached |= {node, *node.src}
    return len(seen) == len(part)


def runs(parts):
    """Whether the parts can run one after another, each whole."""
    left, done = list(parts), set()
    while left:
        ready = [
            p
            for p in left
            if all(s in p or s in done or s.op is Op.INPUT for n in p for s in n.src)
        ]
        if not ready:
            return False
        done |= ready[0]
        left.remove(ready[0])
    return True


def test_equal_kernels_of_different_graphs_are_one_function():
    x = Node(Op.INPUT, arg="X", axes=("n",))
    a, b = Node(Op.EXP, (Node(Op.SQUARE, (x,)),)), Node(Op.EXP, (Node(Op.SILU, (x,)),))
    last = [
        function(cut[-1])
        for root in (a, b)
        for cut in cuts((root,), frozenset(), 2)
        if len(cut) == 2
    ]
    assert len(last) == 2 and last[0].roots == last[1].roots


def test_a_large_program_is_cut_into_pieces():
    names = [f"W{i}" for i in range(9)]
    lines = ["T0 = X"] + [f"T{i + 1} = silu(matmul(T{i}, W{i}, {'ab'[i % 2]}))" for i in range(9)]
    inputs = {"X": "n a"} | {w: "a b" if i % 2 == 0 else "b a" for i, w in enumerate(names)}
    text = "\n".join(lines[1:]).replace("T0", "X")
    program = symbolic("chain", text, inputs)
    cut = pieces(program, 5)
    assert [operators(tuple(n for _, n in p.outputs)) for p in cut] == [4, 4, 5, 5]
    assert all(len(p.outputs) == 1 for p in cut)  # one value crosses
    result = search(program, Bounds(piece=5, grid=1, loop=False))
    assert result.space.count == math.prod(p.count for p in result.space.pieces) > 1000
    graph = result.space.graph(result.space.draw(1, 0)[0])
    assert len(graph.kernels) >= 4
    assert whole_proof(program, [graph])[0].proved
    assert Space.from_json(json.loads(json.dumps(result.space.to_json()))) == result.space


def test_pieces_are_searched_by_several_processes():
    formula = "T = silu(matmul(X, A, a))\nO = silu(matmul(T, B, b))"
    program = symbolic("chain", formula, {"X": "n a", "A": "a b", "B": "b c"})
    one, two = (search(program, Bounds(piece=2), workers=n) for n in (1, 2))
    assert len(one.space.pieces) == 2
    assert one.space == two.space and one.candidates == two.candidates


# The result ---------------------------------------------------------------------------------------


def test_result_survives_json():
    result = search(PROGRAMS["softmax_matmul"])
    data = json.loads(json.dumps(result.to_json()))
    again = Space.from_json(data["space"])
    assert again == result.space and data["graphs"]["all"] == again.count
    for name in again.draw(50, 1):
        assert SGraph.from_json(again.graph(name).to_json()) == result.space.graph(name)


@pytest.mark.parametrize("name", ["", "x", "1", "0.-1", "99999.0", "0.99999999", "0.0+0.0", "a.b"])
def test_unknown_graph_ids_are_refused(name):
    with pytest.raises(PrismError, match="graph"):
        search(PROGRAMS["outer"]).space.graph(name)


def test_draws_are_uniform_over_graphs():
    space = search(PROGRAMS["swiglu"]).space
    drawn = space.draw(3000, 0, single=False)
    assert drawn == space.draw(3000, 0, single=False) and len(set(drawn)) == len(drawn) > 2000
    (piece,) = space.pieces
    per_family = Counter(int(name.partition(".")[0]) for name in drawn)
    largest = max(range(len(piece.counts)), key=lambda f: piece.counts[f])
    share = piece.counts[largest] / sum(
        n for f, n in enumerate(piece.counts) if not piece.single(f)
    )
    assert per_family[largest] / len(drawn) == pytest.approx(share, rel=0.2)
    assert space.draw(10**6, 0, single=True) == list(space.ids(single=True))


def test_counts_add_up():
    result = search(PROGRAMS["attention"])
    counts, (piece,) = result.candidates, result.space.pieces
    families = {json.dumps(k.to_json()["nodes"]) + str(k.library) for k in piece.kernels}
    assert counts["generate"]["out"] <= len(families) + 10
    assert counts["map"]["in"] - counts["map"]["out"] > 0
    assert result.rejected.total() == counts["map"]["in"] - counts["map"]["out"]
    assert counts["prove"]["in"] == counts["prove"]["out"] >= counts["refute"]["out"] > 0
    assert result.rules and all(rule["matches"] >= 0 for rule in result.rules.values())
    assert 0 < sum(result.seconds.values()) <= result.total * 1.01
    assert 10 < result.peak_mib < 2048


def test_rejections_say_why():
    rejected = search(PROGRAMS["attention"], SINGLE).rejected
    assert rejected["shapes: operands are cut differently"] > 0
    assert rejected["exp of a sum"] > 0  # the exponential of part of a contraction
    assert rejected["loop: an output is not whole after it"] > 0


def test_search_is_deterministic():
    first, second = (search(PROGRAMS["swiglu"]).to_json() for _ in range(2))
    assert first["space"] == second["space"] and first["candidates"] == second["candidates"]


def test_bounds_shrink_the_space():
    program = PROGRAMS["rmsnorm"]
    whole = search(program).space
    assert search(program, Bounds(grid=1)).space.count < whole.count
    assert search(program, Bounds(split=False)).space.count < whole.count
    assert search(program, Bounds(library=())).space.count < whole.count
    assert search(program, Bounds(kernels=2)).space.count < whole.count
    assert search(program, SINGLE).space.count == whole.single_kernel
    mlp = PROGRAMS["rmsnorm_mlp"]
    fewer, more = (search(mlp, Bounds(extra_operators=n, grid=1)).space.count for n in (0, 1))
    assert 0 < fewer < more
    flat = search(program, Bounds(loop=False, generated=1, kernels=1, library=()))
    assert 0 < flat.space.count < whole.single_kernel
    assert all(g.kernels[0].block.loop is None for _, g in flat.graphs())


@pytest.mark.parametrize("generator", ["guided", "exhaustive"])
def test_operators_outside_the_set_are_not_used(generator):
    """t/v/w may become t/(v*w), unless there is no multiplication to use."""
    program = symbolic("twice", "O = T / V / W", {"T": "n", "V": "n", "W": "n"})
    bounds = Bounds(generator=generator, generated=1, kernels=1, library=(), grid=1, split=False)
    used = [
        {n.op for _, g in search(program, b).graphs() for n in g.kernels[0].block.nodes}
        for b in (bounds, replace(bounds, operators=("exp",)))
    ]
    assert Op.MUL in used[0] and Op.MUL not in used[1] and Op.DIV in used[1]


def test_a_spent_budget_returns_what_was_found():
    result = search(PROGRAMS["rmsnorm_mlp"], Bounds(seconds=0.3))
    assert result.ended.startswith("time limit")
    assert result.space.count > 0
    graphs = [result.space.graph(i) for i in result.space.draw(20, 0)]
    assert all(v.proved for v in whole_proof(PROGRAMS["rmsnorm_mlp"], graphs))


def test_no_time_at_all_still_gives_the_program_itself():
    result = search(PROGRAMS["rmsnorm"], Bounds(seconds=1e-6))
    assert result.ended.startswith("time limit")
    graph = result.space.graph("0.0")
    assert len(graph.kernels) == 1 and not graph.kernels[0].mapping.ones
    assert whole_proof(PROGRAMS["rmsnorm"], [graph])[0].proved


def test_a_spent_memory_budget_returns_what_was_found(monkeypatch):
    """What memory the search takes beyond what its process had; here, more at every look."""
    grown = iter(range(100, 10**6))
    monkeypatch.setattr("prism.search.budget.memory_mib", lambda: float(next(grown)))
    result = search(PROGRAMS["rmsnorm_mlp"], Bounds(memory=4))
    assert result.ended.startswith("memory limit of 4 MiB, ")
    assert result.space.count > 0


@pytest.mark.parametrize(
    "where",
    ["saturated_table", "cuts", "grid_choices", "prove_all", "Loops", "grids", "names", "refuted"],
)
def test_an_interrupt_in_any_stage_returns_proved_graphs(monkeypatch, where):
    """Ctrl-C at the first, or a later, call of each stage; what comes after changes no reason."""
    program = PROGRAMS["two_outputs"]
    owner, name = (Lemma, where) if where == "refuted" else (search_module, where)
    real = getattr(owner, name)
    for last in (1, 3):
        calls = []

        def interrupted(*args, real=real, calls=calls, last=last, **more):
            calls.append(1)
            if len(calls) == last:
                raise KeyboardInterrupt
            return real(*args, **more)

        monkeypatch.setattr(owner, name, interrupted)
        result = search(program)
        monkeypatch.undo()
        if len(calls) < last:  # called once a search
            continue
        assert result.ended == "interrupted"
        graphs = [result.space.graph(i) for i in result.space.draw(30, 0)]
        assert graphs and all(v.proved for v in whole_proof(program, graphs))


def test_an_interrupt_returns_what_was_found(monkeypatch):
    calls = []

    class Interrupting(search_module.Loops):
        def run(self):
            calls.append(1)
            if len(calls) == 20:
                raise KeyboardInterrupt
            return super().run()

    monkeypatch.setattr(search_module, "Loops", Interrupting)
    result = search(PROGRAMS["rmsnorm"])
    assert result.ended == "interrupted"
    graphs = [result.space.graph(i) for i in result.space.draw(50, 0)]
    assert len(graphs) > 20 and all(v.proved for v in whole_proof(PROGRAMS["rmsnorm"], graphs))


def test_a_program_too_large_to_exhaust_still_gives_graphs_in_time():
    """Twenty terms: cuts and loops alone are exponential; the budget holds, the source is there."""
    names = [f"T{k}" for k in range(10)]
    formula = "O = " + " + ".join(f"exp({n})" for n in names)
    program = symbolic("terms", formula, dict.fromkeys(names, "n d"))
    start = time.perf_counter()
    result = search(program, Bounds(seconds=3, piece=30))
    assert time.perf_counter() - start < 10
    assert result.ended.startswith("time limit")
    assert not result.space.graph("0.0").kernels[0].mapping.ones


def test_identity_program_is_refused():
    program = symbolic("echo", "O = exp(X)", {"X": "n"})
    echo = Program("echo", (("O", program.inputs["X"]),), program.sizes)
    with pytest.raises(PrismError, match="nothing to search"):
        search(echo)
    twice = Program(
        "twice", (("O", program.outputs[0][1]), ("P", program.outputs[0][1])), {"n": "n"}
    )
    with pytest.raises(PrismError, match="two outputs are the same value"):
        search(twice)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"generator": "random"}, "generator 'random' is not one of"),
        ({"generated": 3}, "generated=3 must be from 1 to 2"),
        ({"generated": 0}, "generated=0"),
        ({"kernels": 0}, "kernels=0 must be from 1"),
        ({"grid": 7}, "grid=7 must be from 0 to 3"),
        ({"piece": 0}, "piece=0"),
        ({"library": ("nonsense",)}, "library: 'nonsense' is none of"),
        ({"operators": ("load",)}, "operators: 'load'"),
    ],
)
def test_bounds_that_mean_nothing_are_refused(wrong, message):
    with pytest.raises(PrismError, match=message):
        Bounds(**wrong)


def test_names_of_the_user_do_not_collide_with_ours():
    program = symbolic("names", "split = exp(t1)\nO = matmul(split, t2, split)",
                       {"t1": "n split", "t2": "split f"})  # fmt: skip
    result = search(program)
    assert result.space.count > result.space.single_kernel
    graphs = [g for _, g in result.graphs()][:300]
    assert all(v.proved for v in whole_proof(program, graphs))
    assert all(axis != "split" for g in graphs for k in g.kernels for axis in k.fresh)


def test_names_of_other_pieces_do_not_collide_with_ours():
    """t1_1 and split_1 are what the first piece would call its own."""
    inputs = {"X": "n d", "t1_1": "n d", "W": "d split_1"}
    program = symbolic("names", "T = silu(exp(X) * X) + t1_1\nO = matmul(T, W, d)", inputs)
    result = search(program, Bounds(piece=2, grid=1))
    assert len(result.space.pieces) > 1
    graphs = [result.space.graph(i) for i in result.space.draw(150, 0)]
    assert all(v.proved for v in whole_proof(program, graphs))
    fresh = [axis for g in graphs for k in g.kernels for axis in k.fresh]
    assert fresh and "split_1" not in fresh


def test_every_graph_writes_every_output():
    for name in ("two_outputs", "rmsnorm_mlp"):
        program = PROGRAMS[name]
        outputs = {name for name, _ in program.outputs}
        for _, graph in search(program, Bounds(grid=1, loop=False)).graphs():
            assert outputs <= {name for k in graph.kernels for name in k.writes}


def test_a_proof_that_a_limit_stopped_is_not_exhaustive():
    result = search(PROGRAMS["rmsnorm"], Bounds(nodes=50))
    assert result.gaps and result.ended != "exhausted"
    graphs = [result.space.graph(i) for i in result.space.draw(50, 0)]
    assert all(v.proved for v in whole_proof(PROGRAMS["rmsnorm"], graphs))


def test_transitions_of_axes_that_stay_whole():
    x = Node(Op.INPUT, arg="X", axes=("n", "split"))
    found = Transitions(frozenset({"split"}))
    found.add(topological([Node(Op.SUM, (x,), "split")]))
    assert all(s.axis != "split" for key in found.table for s in key[1])
