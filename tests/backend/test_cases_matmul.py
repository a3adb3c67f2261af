"""Matmul, layout and structure from the field, and what the program language cannot say."""

import numpy as np
import pytest
import torch
from field_cases import FieldCase
from one_source import compiled
from plans import graphs_of, plans

from prism.codegen.interpreter import run
from prism.codegen.lower import lower
from prism.errors import PrismError
from prism.measure.gate import bound_of, check
from prism.measure.inputs import widen, write_case
from prism.program import Builder, evaluate, parse

XW = {"X": "n d", "W": "d f"}


def linear(name, issue, sizes, bias="", axes=None, right=0.0, **fields):
    inputs = XW | ({"B": axes} if axes is not None else {})
    return FieldCase(
        name,
        issue,
        f"O = matmul(X, W, d){bias}",
        inputs,
        sizes,
        lambda X, W, B=right: X @ W + B,
        **fields,
    )


def integers(arrays):
    rng = np.random.default_rng(0)
    return {name: rng.integers(-2, 3, array.shape).astype(float) for name, array in arrays.items()}


def mlp(X, G, U, D):
    return (torch.nn.functional.silu(X @ G) * (X @ U)) @ D


CASES = [
    linear("512 cubed in IEEE fp32", "triton#1800", "n=512 d=512 f=512"),
    linear("bias: a scalar", "pytorch#197107", "n=5 d=33 f=18", " + 0.25", right=0.25),
    linear("bias: no axes", "pytorch#197107", "n=5 d=33 f=18", " + B", ""),
    linear("bias: full", "pytorch#197107", "n=5 d=33 f=18", " + B", "n f"),
    linear("bias: a row for all", "pytorch#197107", "n=5 d=33 f=18", " + B", "f", dtype="bf16"),
    FieldCase(
        "bias: a column for all",
        "pytorch#197107",
        "O = matmul(X, W, d) + B",
        XW | {"B": "n"},
        "n=5 d=33 f=18",
        lambda X, W, B: X @ W + B[:, None],
    ),
    linear("integers", "triton#11584", "n=16 d=16 f=16", make=integers, dtype="bf16"),
    linear("one row, one column", "pytorch#63352", "n=1 d=1 f=1"),
    FieldCase(
        "gated MLP with down projection",
        "mirage#377",
        "H = silu(matmul(X, G, d)) * matmul(X, U, d)\nO = matmul(H, D, f)",
        {"X": "n d", "G": "d f", "U": "d f", "D": "f e"},
        "n=1 d=96 f=200 e=72",
        mlp,
        dtype="fp16",
    ),
]


def test_a_chain_of_matmuls_has_its_source_plan():
    """What the program says, operator by operator, is among what is found (mirage#377, #735)."""
    (case,) = (c for c in CASES if c.issue == "mirage#377")
    counts = [sum(k.library for k in g.kernels) for g in graphs_of(case.program)]
    assert max(counts) == 3


def test_tf32_would_fail():
    """512 cubed with its inputs rounded to 10 bits of fraction, as TF32 has (triton#1800)."""
    case = CASES[0]
    wide = {n: a.astype(float) for n, a in case.stored(case.program).items()}
    right = case.expected(wide)["O"]
    rounded = {n: a.astype(np.float16).astype(float) for n, a in wide.items()}
    wrong = case.expected(rounded)["O"].astype(np.float32)
    bound, _ = bound_of(None, "fp32", 512)
    assert check("O", right.astype(np.float32), right, "fp32", bound).passed
    assert not check("O", wrong, right, "fp32", bound).passed


@pytest.mark.backend
def test_small_integers_are_exact_in_bf16(tmp_path):
    """triton#11584, where there is a bf16 product to compute."""
    (case,) = (c for c in CASES if c.name == "integers")
    inputs = case.stored(case.program)
    expected = case.expected({n: widen(a, "bf16") for n, a in inputs.items()})["O"]
    found = {plan: concretes[0] for plan, concretes in plans(case.program).items()}
    tiles = [lower(concrete) for concrete in found.values()]
    for library in compiled(tiles, tmp_path):
        outputs = {"O": np.zeros((16, 16), np.uint16)}
        assert library.bind(inputs, outputs)() == 0
        assert np.array_equal(widen(outputs["O"], "bf16"), expected)


# What is refused, in one line that names it ------------------------------------------------------


def one_line(error, *words):
    text = str(error.value)
    assert "\n" not in text and all(word in text for word in words), text


@pytest.mark.parametrize(
    ("formula", "name"),
    [
        ("O = topk(softmax(X, d), 8)", "topk"),  # vLLM-metax#270
        ("O = rope(X, d)", "rope"),
        ("O = where(X, X, X)", "where"),
        ("O = softmax(sliding_window(X, 4), d)", "sliding_window"),
        ("O = tanh(X)", "tanh"),
        ("O = gelu_tanh(X)", "gelu_tanh"),  # tt-metal#56517: no other form under GELU's name
        ("O = maximum(X, X)", "maximum"),
        ("O = layer_norm(X, d)", "layer_norm"),
        ("O = merge_states(X, X)", "merge_states"),  # flashinfer#4051
        ("O = log(X)", "log"),
    ],
)
def test_an_operator_that_the_language_lacks_is_named_with_those_it_has(formula, name):
    with pytest.raises(PrismError) as error:
        parse("p", formula, {"X": ["n", "d"]}, {"n": 4, "d": 8}, {})
    one_line(error, f"line 1: unknown operator '{name}'", "known are", "softmax")


@pytest.mark.parametrize("formula", ["O = X > 0", "O = X[0]", "O = X if X else X", "O = X ** 2"])
def test_what_is_no_formula_is_named(formula):
    with pytest.raises(PrismError) as error:
        parse("p", formula, {"X": ["n"]}, {"n": 4}, {})
    one_line(error, "line 1", "not understood")


@pytest.mark.parametrize("dtype", ["fp64", "float64", "bool", "int8", "fp8"])
def test_a_dtype_that_kernels_lack_is_named(dtype):
    """fp64 is not computed in fp32 (triton#1800), bool not as numbers (pytorch PR#196874)."""
    with pytest.raises(PrismError) as error:
        Builder("p", {"n": 4}, dtype)
    one_line(error, repr(dtype), "bf16, fp16, fp32")


@pytest.mark.parametrize("size", [0, -1, 2.5, True, None])
def test_an_axis_without_elements_is_refused(size):
    """Empty shapes are no programs here, so none is ever misread (pytorch#63352)."""
    with pytest.raises(PrismError) as error:
        parse(
            "p",
            "O = matmul(X, W, d)",
            {"X": ["n", "d"], "W": ["d", "f"]},
            {"n": 3, "d": size, "f": 2},
            {},
        )
    one_line(error, f"size d={size!r} must be a positive integer")


@pytest.mark.parametrize("wrong", [(2, 256, 4096), (2, 256), (256, 2, 64), (2, 64, 256)])
def test_inputs_of_another_shape_than_declared_are_refused(wrong, tmp_path):
    """mirage#735."""
    program = parse(
        "p", "O = softmax(Q, d)", {"Q": ["b", "s", "d"]}, {"b": 2, "s": 256, "d": 64}, {}, "fp16"
    )
    given = {"Q": np.zeros(wrong, np.float16)}
    tile = lower(plans(program)["whole"][0])
    for call in (
        lambda: evaluate(program, given),
        lambda: run(tile, given),
        lambda: write_case(program, tmp_path / "case", 0, 100, given),
    ):
        with pytest.raises(PrismError) as error:
            call()
        one_line(error, "'Q'", str((2, 256, 64)))
    assert not (tmp_path / "case").exists()
