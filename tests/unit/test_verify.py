"""Axioms on random instances, wrong axioms, proofs, and a corpus of wrong graphs."""
# ruff: noqa: E501

import random
from dataclasses import replace

import pytest
from workloads import PROGRAMS, symbolic

from prism.errors import PrismError
from prism.program.node import BINARY, UNARY, WITH_CONSTANT, Node, Op
from prism.search import Bounds, search
from prism.sgraph import BlockGraph, Kernel, Mapping, MapVar, SGraph, make_mapping
from prism.verify import Outcome, Refuter, encode, prove
from prism.verify.axiom import Axiom, differ, lacks, within
from prism.verify.axioms import ALGEBRA, PARALLEL
from prism.verify.egraph import Limits
from prism.verify.instances import agrees, instance, layout

AXIOMS = ALGEBRA + PARALLEL
SUM = '"sum"'


def test_axiom_names_are_unique():
    assert len({a.name for a in AXIOMS}) == len(AXIOMS)


@pytest.mark.parametrize("axiom", AXIOMS, ids=lambda a: a.name)
def test_axiom_holds_on_random_instances(axiom):
    rng = random.Random(axiom.name)
    for seed in range(100):
        sides = instance(axiom, rng)
        assert agrees(sides, seed), sides
        assert layout(sides.right)[0] == layout(sides.left)[0]


WRONG = [
    Axiom("red of repl is identity", "", f"(Merge {SUM} (Repl t p) p)", "t"),
    Axiom("red of part is identity", "", f"(Merge {SUM} (Part t d p) p)", "t"),
    Axiom("comb along another axis", "", "(Comb (Part t d p) e p)", "t"),
    Axiom("nested parts of one axis commute", "", "(Part (Part t d p) d q)", "(Part (Part t d q) d p)"),
    Axiom("sum over the partitioned axis", "", f"(Fold {SUM} (Part t k p) k)", f"(Repl (Fold {SUM} t k) p)"),
    Axiom("matmul of parts without red", "", "(Mat (Part s k p) (Part t k p) k)", "(Repl (Mat s t k) p)"),
    Axiom("unary moves through red", "", f'(Merge {SUM} (Un "exp" t) p)', f'(Un "exp" (Merge {SUM} t p))'),
    Axiom("square moves through red", "", f'(Un "square" (Merge {SUM} t p))', f'(Merge {SUM} (Un "square" t) p)'),
    Axiom("mul of two reds", "", f'(Bin "mul" (Merge {SUM} s p) (Merge {SUM} t p))', f'(Merge {SUM} (Bin "mul" s t) p)'),
    Axiom("div by a red", "", f'(Bin "div" (Merge {SUM} s p) (Merge {SUM} t p))', f'(Merge {SUM} (Bin "div" s t) p)'),
    Axiom("red of add with a replicated term", "", f'(Merge {SUM} (Bin "add" t (Repl v p)) p)', f'(Bin "add" (Merge {SUM} t p) v)'),
    Axiom("max of a scaled term", "", '(Merge "max" (Scale c t) p)', '(Merge "sum" (Scale c t) p)'),
    Axiom("matmul of max", "", '(Merge "max" (Mat (Part s k p) (Part t k p) k) p)', "(Mat s t k)"),
    Axiom("max of products", "", '(Merge "max" (Bin "mul" t (Repl v p)) p)', '(Bin "mul" (Merge "max" t p) t)'),
    Axiom("binary of part and repl, axis not lacked", "", "(Bin o (Part s d p) (Part t e p))", "(Part (Bin o s t) d p)", (differ("d", "e"), lacks("s", "e"), lacks("t", "d"))),
    Axiom("sum commutes with div by the summed axis", "", f'(Fold {SUM} (Bin "div" t v) k)', f'(Bin "div" (Fold {SUM} t k) v)', (within("v", "t"),)),
    Axiom("sum of products", "", f'(Fold {SUM} (Bin "mul" s t) k)', f'(Bin "mul" (Fold {SUM} s k) (Fold {SUM} t k))'),
    Axiom("sum of an add that broadcasts", "", f'(Fold {SUM} (Bin "add" s t) k)', f'(Bin "add" (Fold {SUM} s k) t)', (lacks("t", "k"),)),
    Axiom("div is associative", "", '(Bin "div" (Bin "div" s t) v)', '(Bin "div" s (Bin "div" t v))'),
    Axiom("sub commutes", "", '(Bin "sub" s t)', '(Bin "sub" t s)'),
    Axiom("matmul loses an axis of the factor", "", '(Mat (Bin "mul" s v) t k)', '(Mat s t k)'),
    Axiom("scale moves through a nonlinear operator", "", '(Un "exp" (Scale c t))', '(Scale c (Un "exp" t))'),
    Axiom("scale of a matmul counted twice", "", "(Mat (Scale c s) (Scale c t) k)", "(Scale c (Mat s t k))"),
]  # fmt: skip


@pytest.mark.parametrize("axiom", WRONG, ids=lambda a: a.name)
def test_plausible_mistakes_fail(axiom):
    rng = random.Random(axiom.name)
    outcomes = []
    for seed in range(60):
        outcomes.append(agrees(instance(axiom, rng), seed))
    assert not all(outcomes)


# Graphs -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results():
    return {name: search(p, Bounds(grid=2)) for name, p in PROGRAMS.items()}


def test_every_surviving_candidate_is_proved(results):
    for name, result in results.items():
        assert result.found, name
        gaps = [f for f in result.found if not f.verdict.proved]
        assert not gaps, (name, gaps[0])


def test_proved_graphs_agree_with_other_numbers(results):
    for name, result in results.items():
        for found in result.proved[:: max(1, len(result.proved) // 150)]:
            candidate = encode(found.graph, PROGRAMS[name].inputs)
            for seed in (11, 12):
                assert Refuter(PROGRAMS[name], seed).refute(found.graph, candidate) is None


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


def wrong_graphs(results, per_program, seed=0):
    rng = random.Random(seed)
    for name, result in results.items():
        made = 0
        graphs = [f.graph for f in result.proved]
        while made < per_program:
            for why, graph in mutations(rng.choice(graphs), rng):
                if graph is not None:
                    yield name, why, graph
                    made += 1


@pytest.mark.parametrize("per_program", [80, pytest.param(1500, marks=pytest.mark.slow)])
def test_no_wrong_graph_is_proved(results, per_program):
    """What numbers refute is never proved: interpreter and proof do not disagree."""
    refuted = 0
    batches = {}
    for name, why, graph in wrong_graphs(results, per_program):
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


def test_a_maximum_in_place_of_a_sum_inside_a_tile_is_refuted(results):
    """Pieces have more than one element, so reductions inside them are told apart."""
    program = PROGRAMS["softmax_matmul"]
    for found in results["softmax_matmul"].proved:
        kernel = found.graph.kernels[0]
        for node in kernel.block.nodes:
            if node.op is Op.SUM:
                wrong = rewritten(kernel, node, lambda n, src: Node(Op.MAX, src, n.arg))
                assert Refuter(program).refute(wrong, encode(wrong, program.inputs)) is not None


# Operands of well-typed sides agree on how axes are split, which implies these; what they keep out
# are ill-typed sides, of which the wrong graphs below have many.
IMPLIED = {
    ("matmul is associative", differ("k", "e")),
    ("parallel matmul (row partition)", differ("d", "k")),
    ("parallel matmul (row partition)", lacks("t", "d")),
    ("binary of part and repl", lacks("t", "d")),
    ("part and repl commute", differ("p", "q")),
    ("repl and repl commute", differ("p", "q")),
    ("nested part commute", differ("p", "q")),
    ("nested comb commute", differ("p", "q")),
}


@pytest.mark.parametrize("axiom", [a for a in AXIOMS if a.guards], ids=lambda a: a.name)
def test_every_guard_that_soundness_needs_is_needed(axiom):
    """Without it the law fails somewhere; `within` guards only keep broadcasts from growing."""
    for guard in axiom.guards:
        if guard.kind == "within" or (axiom.name.partition(",")[0], guard) in IMPLIED:
            continue
        loose = replace(axiom, guards=tuple(g for g in axiom.guards if g != guard))
        rng = random.Random(axiom.name)
        assert not all(agrees(instance(loose, rng), seed) for seed in range(400)), guard


def test_the_kinds_of_mistake_are_all_in_the_corpus(results):
    whys = {why for _, why, _ in wrong_graphs(results, 80)}
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
        assert search(program).proved


def test_a_limit_is_unknown_never_refuted(results):
    program = PROGRAMS["attention"]
    graph = results["attention"].proved[-1].graph
    proofs = prove(program, [encode(graph, program.inputs)], Limits(iterations=1))
    assert proofs.verdicts[0].outcome is Outcome.UNKNOWN
    assert proofs.verdicts[0].reason == "iteration limit"


def test_refutation_carries_its_seed(results):
    program = PROGRAMS["rmsnorm"]
    graph = next(f.graph for f in results["rmsnorm"].proved if f.graph.kernels[0].mapping.ones)
    kernel = graph.kernels[0]
    broken = replace(kernel, mapping=Mapping(frozenset()))
    wrong = SGraph((broken,))
    verdict = Refuter(program, 7).refute(wrong, encode(wrong, program.inputs))
    assert verdict.outcome is Outcome.REFUTED and verdict.seed == 7 and verdict.reason
