"""Stable softmax: which exponentials may be shifted, and kernels of the shifted ones."""

import json
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from codegen_graphs import attention, flash_decoding, graph, joined, library, load, op, two_outputs
from workloads import PROGRAMS, symbolic

from prism.codegen import BACKENDS, LoweringError
from prism.codegen.interpreter import run
from prism.codegen.lower import lower
from prism.errors import PrismError
from prism.instantiate import Concrete, sample
from prism.instantiate.stable import kernels_of, refused
from prism.program import Builder, Op, evaluate, program_from_json, program_to_json
from prism.program.homogeneous import shifts
from prism.program.node import topological
from prism.search import Bounds, search
from prism.sgraph import SGraph

SOFTMAX = symbolic("softmax", "O = softmax(X, c)", {"X": "r c"})
SCALED = symbolic(
    "scaled", "S = scale(X, 3)\nO = matmul(softmax(S, c), W, c)", {"X": "r c", "W": "c w"}
)
MASKED = symbolic(
    "masked",
    "O = matmul(softmax(matmul(Q, K, d) + M, h), V, h)",
    {"Q": "s d", "K": "h d", "V": "h e", "M": "s h"},
)
LARGEST = symbolic("largest", "E = exp(X)\nO = max(E, c) / sum(E, c)", {"X": "r c"})
ROOTS = symbolic("roots", "E = exp(X)\nO = sqrt(sum(square(E), c)) / sum(E, c)", {"X": "r c"})
BOTH = symbolic(
    "both", "E = exp(X)\nO = sum(matmul(E, W, c), r) / sum(sum(E, c), r)", {"X": "r c", "W": "c w"}
)
SOFT = [PROGRAMS[n] for n in ("attention", "qk_attention", "softmax_matmul")] + [
    SOFTMAX,
    SCALED,
    MASKED,
    LARGEST,
    ROOTS,
    BOTH,
]


def rows(formula, inputs):
    """Of each exponential of a program the axes of its rows; those that may not be shifted lack."""
    program = symbolic("p", formula, inputs)
    found = shifts([[node for _, node in program.outputs]])
    return sorted(found.rows.values()), len(found.raw)


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("O = softmax(X, c)", ([("r",)], 0)),
        ("O = softmax(softmax(X, c), r)", ([("c",), ("r",)], 0)),
        ("E = exp(X)\nO = sum(relu(E * X), c) / sum(E, c)", ([("r",)], 0)),
        ("E = exp(X)\nO = X / sum(scale(E, 3), c) * sum(E, c)", ([("r",)], 0)),
        ("E = exp(X)\nO = sqrt(sum(square(E), c)) / max(E, c)", ([("r",)], 0)),
        ("E = exp(X)\nO = sum(sum(E, c), r) / sum(sum(E, r), c)", ([()], 0)),
        ("E = exp(X)\nO = E / (sum(E, c) + sum(scale(E, 2), c))", ([("r",)], 0)),
        ("E = exp(X)\nO = (E - max(E, c)) / sum(E, c)", ([("r",)], 0)),
        # No degree, or another one than 0 in what is returned.
        ("O = exp(X)", ([], 1)),
        ("O = sum(exp(X), c)", ([], 1)),
        ("E = exp(X)\nO = E / (sum(E, c) + 1)", ([], 1)),
        ("E = exp(X)\nO = E / (sum(E, c) + sum(X, c))", ([], 1)),
        ("E = exp(X)\nO = silu(E) / sum(E, c)", ([], 1)),
        ("E = exp(X)\nO = square(E) / sum(E, c)", ([], 1)),
        ("E = exp(X)\nO = exp(E) / sum(E, c)", ([], 2)),
        # A divisor that is not of whole rows: 0 for a row far below the maximum.
        ("E = exp(X)\nO = E / sum(E, c) + E / sum(E, r)", ([], 1)),
        ("O = softmax(exp(X), c)", ([("r",)], 1)),
        ("E = exp(X)\nO = matmul(E, W, c) / matmul(E, V, c)", ([], 1)),
        ("E = exp(X)\nO = matmul(E, W, c) / sum(E, c)", ([("r",)], 0)),
        ("E = exp(X)\nF = exp(Y)\nO = matmul(E, F, c) / sum(E, c)", ([], 2)),
        # A divisor in which a weight may hide the maximum.
        ("E = exp(X)\nO = E / sum(E * X, c)", ([], 1)),
        ("E = exp(X)\nO = E / max(scale(E, -1), c)", ([], 1)),
        ("E = exp(X)\nO = E / sum(sum(E, c) - E, c)", ([], 1)),
        # Two of them reduced together: their maxima may be far apart.
        ("P = exp(X) * exp(Y)\nO = P / sum(P, c)", ([], 2)),
    ],
)
def test_what_may_be_shifted(formula, expected):
    inputs = {"X": "r c"} | ({"Y": "r c"} if "Y" in formula else {})
    inputs |= {name: "c w" for name in "WV" if f"{name}," in formula}
    assert rows(formula, inputs) == expected


def test_a_raw_exponential_elsewhere_does_not_let_others_stay_raw():
    """max(exp(x)) is also exp(max(x)), of which no shift cancels alone."""
    inputs = {"X": "r c", "Y": "r"}
    formula = "E = exp(X)\nO = max(E, c) / sum(E, c)\nP = exp(Y)"
    program = symbolic("p", formula, inputs, outputs=["O", "P"])
    drawn = drawn_from(program, 60, 60)
    kept = [(i, g) for i, g in drawn if not refused(program, [g])]
    assert 0 < len(kept) < len(drawn)
    bound, rng = program.bind(r=5, c=7), random.Random(0)
    numbers = np.random.default_rng(0)
    values = {"X": 200 * numbers.normal(size=(5, 7)), "Y": numbers.normal(size=5)}
    expected, ran = evaluate(bound, values), 0
    for graph_id, concrete in concretes(bound, kept, rng):
        try:
            tile = lower(concrete)
        except LoweringError as error:
            assert "different" in str(error), error
            continue
        for name, value in run(tile, values, np.float32).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-4, err_msg=graph_id)
        ran += 1
    assert ran > 20


@pytest.mark.parametrize("logit", [11.2, 88.8, 151.0, 1e4])
def test_the_reference_of_a_softmax_is_finite(logit):
    """executorch PR#18407, mirage#210."""
    program = SOFTMAX.bind(r=2, c=5)
    x = np.array([[logit, 0, 0, 0, logit], [-logit, -logit, -logit, -logit, -logit]])
    value = evaluate(program, {"X": x})["O"]
    np.testing.assert_allclose(value.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(value[1], 0.2)


def test_the_reference_keeps_the_exponentials_of_the_program_that_are_none_of_a_softmax():
    program = symbolic("p", "O = exp(X) / (1 + exp(X))", {"X": "n"}).bind(n=2)
    with np.errstate(all="ignore"):
        value = evaluate(program, {"X": np.array([0.0, 800.0])})["O"]
    assert value[0] == 0.5 and np.isnan(value[1])


def concretes(program, drawn, rng, each=1):
    """Random points of graphs, most of whose sizes divide nothing."""
    for graph_id, mapped in drawn:
        left = each
        for _ in range(12 * each):
            sizes = [{p: rng.randint(1, 4) for p in k.block.pars} for k in mapped.kernels]
            concrete = Concrete(program, mapped, sizes, {"schedule": "static"})
            if concrete.problem() is None:
                yield graph_id, concrete
                left -= 1
            if not left:
                break


def drawn_from(program, single, several):
    space = search(program, Bounds(grid=2)).space
    ids = [*space.draw(single, 0, True), *space.draw(several, 0, False)]
    return [(i, space.graph(i)) for i in ids]


@pytest.mark.parametrize("program", SOFT, ids=lambda p: p.name)
@pytest.mark.parametrize("size", [1.0, 40.0])
def test_stable_forms_compute_their_program(program, size):
    """Of one kernel and of several, with loops and splits, at logits of a few and of thousands: the
    raw exponential overflows there. Rows of which parts, or all, are masked, among them."""
    rng = random.Random(program.name)
    numbers = np.random.default_rng(1)
    drawn = drawn_from(program, 60, 160)
    kept = [(i, g) for i, g in drawn if not refused(program, [g])]
    assert len(kept) >= 30  # of max(exp(x)) = exp(max(x)) the other form has none
    ran = Counter()
    bound = program.bind(**{axis: rng.choice((3, 5, 7, 13)) for axis in program.sizes})
    inputs = {n: size * numbers.normal(size=bound.shape(x)) for n, x in bound.inputs.items()}
    if "M" in inputs:
        inputs["M"] = np.where(numbers.random(inputs["M"].shape) < 0.5, -np.inf, 0.0)
        inputs["M"][0], inputs["M"][1, :-1] = -np.inf, -np.inf
    expected = evaluate(bound, inputs)
    for graph_id, concrete in concretes(bound, kept, rng):
        try:
            tile = lower(concrete)
        except LoweringError as error:  # refused with a reason, never wrong
            assert "different" in str(error), error
            continue
        exact, single = run(tile, inputs, np.float64), run(tile, inputs, np.float32)
        for name, value in expected.items():
            message = f"{graph_id} {concrete.sizes}"
            scale = 1e-9 * max(1.0, np.nanmax(np.abs(value)))
            np.testing.assert_allclose(exact[name], value, rtol=1e-9, atol=scale, err_msg=message)
            assert (np.isfinite(single[name]) == np.isfinite(value)).all(), message
        ran["points"] += 1
        ran["loops"] += any(n.op is Op.BEFORE for k in concrete.kernels for n in k.block.nodes)
        ran["parts"] += any(
            n.op is Op.RESCALE
            for n in concrete.kernels[-1].block.nodes
            if all(s.op is not Op.BEFORE for s in n.src)
        )
    assert ran["points"] > 0.4 * len(kept)
    # Of a softmax alone nothing is summed up later; splits of qk_attention are rare.
    assert ran["loops"] or program is SOFTMAX
    assert ran["parts"] or program.name in ("softmax", "qk_attention", "roots")


def test_every_graph_of_one_kernel_has_a_stable_form():
    for name in ("attention", "qk_attention", "softmax_matmul"):
        space = search(PROGRAMS[name], Bounds()).space
        graphs = [space.graph(i) for i in space.draw(1000, 0, True)]
        assert not refused(PROGRAMS[name], graphs)


def test_graphs_without_exponentials_stay_as_they_are():
    space = search(PROGRAMS["rmsnorm_mlp"], Bounds()).space
    for i in space.draw(50, 0, True):
        mapped = space.graph(i)
        assert kernels_of(PROGRAMS["rmsnorm_mlp"], mapped) is mapped.kernels


def test_the_paper_s_numerics_keep_the_raw_exponential():
    program, mapped = attention(1, 2, 3, 16, 4, 5)
    raw = replace(program, numerics="paper")
    sizes = ({"x": 1, "y": 2, "i": 4},)
    large = {name: np.full(program.shape(node), 8.0) for name, node in program.inputs.items()}
    for shown, finite in ((program, True), (raw, False)):
        found = run(lower(Concrete(shown, mapped, sizes)), large, np.float32)["O"]
        assert np.isfinite(found).all() == finite
    digests = {Concrete(p, mapped, sizes).digest() for p in (program, raw)}
    assert len(digests) == 2


def test_numerics_travel_with_the_program():
    for numerics in ("stable", "paper"):
        program = replace(SOFTMAX.bind(r=2, c=3), numerics=numerics)
        assert program_from_json(json.loads(json.dumps(program_to_json(program)))) == program
    data = program_to_json(SOFTMAX)
    del data["numerics"]  # as stored before there were others
    assert program_from_json(data).numerics == "paper"


def test_the_loop_s_sums_are_rescaled_by_a_running_maximum():
    program, mapped = attention(1, 2, 3, 16, 4, 5)
    (kernel,) = Concrete(program, mapped, ({"x": 1, "y": 2, "i": 4},)).kernels
    ops = Counter(node.op for node in kernel.block.nodes)
    assert (ops[Op.RUNNING], ops[Op.BEFORE], ops[Op.RESCALE], ops[Op.EXP_SHIFTED]) == (1, 1, 1, 1)
    assert [len(n.src) for n in kernel.block.nodes if n.op is Op.ACCUM] == [2, 2]
    assert Op.EXP not in ops


def test_parts_of_a_split_carry_their_maxima():
    program, mapped = flash_decoding(2, 3, 1, 50, 24, 20)
    first, second = kernels_of(program, mapped)
    assert set(first.writes) - set(mapped.kernels[0].writes) == {"maxima0"}
    assert "maxima0" in second.reads
    loaded = next(n for n in second.block.loaders if n.arg == "maxima0")
    assert loaded.axes[0] in first.fresh


def test_what_several_blocks_leave_of_a_row_has_no_stable_form():
    _, mapped = two_outputs(7, 90)
    program = replace(two_outputs(7, 90)[0], numerics="stable")
    assert list(refused(program, [mapped])) == [
        "no stable form: exponentials of one row are saved by several blocks"
    ]
    concrete = Concrete(program, mapped, ({"x": 1, "y": 2}, {"x": 1}))
    with pytest.raises(LoweringError, match="saved by several blocks"):
        lower(concrete)
    assert sample([("g", mapped)], program, 5, 0, {}) == []


def test_a_library_operator_shifts_nothing():
    b = Builder("softmax", {"r": 4, "c": 6}, "fp32")
    program = b.build(O=b.softmax(b.input("X", "r c"), "c"))
    e = load("E", "r c")
    second = graph(op(Op.SAVE, op(Op.DIV, e, op(Op.SUM, e, arg="c")), arg="O"))
    mapped = joined(library(op(Op.EXP, load("X", "r c")), "E"), second)
    with pytest.raises(PrismError, match="library operator"):
        kernels_of(program, mapped)
    first = graph(op(Op.SAVE, op(Op.EXP, load("X", "r c")), arg="E"))  # its own kernel does
    whole = Concrete(program, joined(first, second), ({}, {}))
    x = np.random.default_rng(0).normal(size=(4, 6)) * 400
    np.testing.assert_allclose(
        run(lower(whole), {"X": x}, np.float64)["O"], evaluate(program, {"X": x})["O"]
    )


def test_operators_of_numerics_are_no_part_of_a_graph_that_is_read():
    program, mapped = attention(1, 2, 3, 16, 4, 5)
    data = SGraph(kernels_of(program, mapped)).to_json()
    with pytest.raises(PrismError, match="not legal here|takes 1 operand"):
        SGraph.from_json(data)


@pytest.mark.parametrize("backend", BACKENDS)
def test_names_of_maxima_avoid_the_program_s(backend):
    """An input that is called as the maxima are: both are arguments of a kernel."""
    program, mapped = flash_decoding(2, 3, 1, 50, 24, 20)
    names = {"Q": "maxima0", "K": "maxima1"}

    def renamed(node, new):
        arg = names.get(node.arg, node.arg) if node.op in (Op.LOAD, Op.INPUT) else node.arg
        src = [new[s] for s in node.src]
        return type(node)(node.op, src, arg, None if src else node.axes)

    kernels = []
    for kernel in mapped.kernels:
        new = {}
        for node in topological(kernel.block.savers):
            new[node] = renamed(node, new)
        block = replace(kernel.block, savers=tuple(new[s] for s in kernel.block.savers))
        ones = frozenset(
            v._replace(tensor=names.get(v.tensor, v.tensor)) for v in kernel.mapping.ones
        )
        kernels.append(replace(kernel, block=block, mapping=replace(kernel.mapping, ones=ones)))
    first, second = kernels_of(program, SGraph(tuple(kernels)))
    assert set(first.writes) - set(mapped.kernels[0].writes) == {"maxima2"}
    assert {"maxima0", "maxima1"} < set(first.reads)
    assert BACKENDS[backend].source(
        lower(
            Concrete(
                program,
                mapped,
                ({"x": 1, "y": 1, "z": 2, "i": 2}, {"x": 1, "y": 1}),
                {"num_warps": 4, "num_stages": 2} if backend == "triton" else {},
            )
        )
    )


def test_powers_that_are_summed_up_in_parts_have_no_stable_form():
    found = refused(ROOTS, [g for _, g in drawn_from(ROOTS, 100, 200)])
    reasons = {reason.removeprefix("no stable form: ") for reason in found}
    assert {
        "a power of an exponential is accumulated",
        "a power of an exponential is saved in parts",
    } <= reasons
