"""The space of the search: brute force, numbers, and the reference search."""

from dataclasses import replace
from itertools import chain, combinations, permutations, product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from searching import SINGLE, keys, search_module, splits
from workloads import PROGRAMS, symbolic

from prism.program.node import BINARY, Node, Op, topological
from prism.program.program import Program
from prism.search import Bounds, search
from prism.search.actions import MAX, REPL, SUM, Lemma, State, proposed
from prism.search.placements import placements
from prism.sgraph import GRID_DIMS, BlockGraph, Kernel, SGraph, make_mapping
from prism.sgraph.constraints import constraints
from prism.verify import Outcome, Refuter, Verdict, encode

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


def test_a_lemma_that_numbers_refute_later_is_no_gap_and_not_used(monkeypatch):
    """What agreed by chance and is not proved is tried on more numbers."""
    unlucky = lambda lemma, seed: lemma.op is Op.MATMUL and seed != 0  # noqa: E731
    monkeypatch.setattr(Lemma, "refuted", unlucky)
    real, unknown = search_module.prove_all, Verdict(Outcome.UNKNOWN, "axiom gap at pair 0")

    def weak(goals, limits):
        proofs = real(goals, limits)
        open_ = [any(a.op in (Op.MATMUL, Op.RED) for a, _ in goal) for goal in goals]
        verdicts = [unknown if o else v for o, v in zip(open_, proofs.verdicts, strict=True)]
        return replace(proofs, verdicts=verdicts)

    monkeypatch.setattr(search_module, "prove_all", weak)
    result = search(PROGRAMS["two"], SINGLE)
    assert not any(gap.what.startswith("matmul") for gap in result.gaps)
    assert all(not graph.kernels[0].block.grid for _, graph in result.graphs())


def test_an_e_class_cut_short_is_not_exhaustive(monkeypatch):
    real = search_module.saturated_table

    def stopped(roots, limits):
        classes, ids, saturation = real(roots, limits)
        saturation.ended = "e-node limit"
        return classes, ids, saturation

    monkeypatch.setattr(search_module, "saturated_table", stopped)
    assert search(PROGRAMS["two"]).ended == "members: e-node limit"


def test_gaps_of_pieces_are_gaps_of_the_program(monkeypatch):
    real, unknown = search_module.prove_all, Verdict(Outcome.UNKNOWN, "axiom gap at pair 0")

    def weak(goals, limits):
        proofs = real(goals, limits)
        return replace(proofs, verdicts=[unknown, *proofs.verdicts[1:]])

    monkeypatch.setattr(search_module, "prove_all", weak)
    result = search(PROGRAMS["rmsnorm"], Bounds(piece=4))
    assert len(result.space.pieces) == 2 == len(result.gaps)


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


@pytest.mark.parametrize("name", ["swiglu", "softmax_matmul", "apart"])
def test_no_axis_is_partitioned_by_two_grid_dimensions(name):
    """Equation (2), of kernels that leave partial results too: one dimension may split the sum of
    X and partition Y, another partition both."""
    inputs = {"X": "n d", "Y": "n"}
    apart = symbolic("apart", "S = sum(X, d)\nT = exp(Y)", inputs, outputs=["S", "T"])
    for _, graph in search(PROGRAMS.get(name, apart)).graphs():
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
