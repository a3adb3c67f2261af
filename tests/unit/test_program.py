"""The program language: construction errors, formulas, the reference evaluator."""

import json
import math

import numpy as np
import pytest

from prism.errors import PrismError
from prism.program import Builder, Node, Op, evaluate, parse, program_from_json, program_to_json

SIZES = {"n": 3, "d": 4, "f": 5}


def norm(**changes):
    arguments = {
        "name": "norm",
        "formula": "N = rms_norm(X, d, eps)\nO = matmul(N, W, d)",
        "inputs": {"X": ["n", "d"], "W": ["d", "f"]},
        "sizes": SIZES,
        "params": {"eps": 1e-5},
    } | changes
    return parse(**arguments)


def test_nodes_are_hash_consed_and_immutable():
    a = Node(Op.INPUT, arg="A", axes=("n", "d"))
    assert Node(Op.EXP, (a,)) is Node(Op.EXP, (a,))
    assert Node(Op.INPUT, arg="A", axes=("n",)) is not a
    with pytest.raises(AttributeError):
        a.op = Op.EXP


def test_reference_equals_direct_numpy():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(3, 4)), rng.normal(size=(4, 5))
    expected = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5) @ w
    np.testing.assert_allclose(evaluate(norm(), {"X": x, "W": w})["O"], expected, rtol=1e-12)


def test_attention_reference_with_group_and_different_value_size():
    sizes = {"b": 2, "g": 3, "s": 4, "h": 5, "d": 6, "e": 7}
    program = parse(
        "attention",
        "O = matmul(softmax(matmul(Q, K, d), h), V, h)",
        {"Q": list("bgsd"), "K": list("bghd"), "V": list("bghe")},
        sizes,
        {},
    )
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=program.shape(node)) for node in program.inputs.values())
    scores = np.exp(q @ k.swapaxes(-1, -2))
    expected = scores / scores.sum(-1, keepdims=True) @ v
    found = evaluate(program, {"Q": q, "K": k, "V": v})["O"]
    assert found.shape == (2, 3, 4, 7)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("operator", "value", "expected"),
    [
        ("silu", -np.inf, 0.0),
        ("silu", -87.5, -87.5 * math.exp(-87.5)),
        ("gelu", -5.0, -5.0 * 0.5 * math.erfc(5 / math.sqrt(2))),
        ("gelu", -np.inf, 0.0),
        ("relu", -3.0, 0.0),
        ("relu", np.nan, np.nan),
        ("exp", -np.inf, 0.0),
    ],
)
def test_activations_at_their_edges(operator, value, expected):
    program = parse("one", f"O = {operator}(X)", {"X": ["n"]}, {"n": 1}, {})
    found = evaluate(program, {"X": np.array([value])})["O"][0]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sizes": SIZES | {"d": 0}}, ["d=0", "positive"]),
        ({"sizes": SIZES | {"d": -4}}, ["d=-4"]),
        ({"sizes": SIZES | {"d": 2.5}}, ["d=2.5"]),
        ({"sizes": SIZES | {"d": True}}, ["d=True"]),
        ({"sizes": {"n": 3, "d": 4}}, ["'W'", "'f'"]),
        ({"dtype": "fp64"}, ["fp64", "bf16"]),
        ({"inputs": {"X": ["n", "d"], "W": ["d", "f"], "Z": ["n"]}}, ["'Z'", "not used"]),
        ({"formula": "O = matmul(X, W, n)"}, ["line 1", "matmul", "'n'", "right operand"]),
        ({"formula": "O = sum(X, q)"}, ["'q'"]),
        ({"formula": "O = X + Y"}, ["'Y'"]),
        ({"formula": "O = conv(X, W)"}, ["conv", "known are"]),
        ({"formula": "O = X +"}, ["line 1", "not readable"]),
        ({"formula": "O = rms_norm(X, d, other)"}, ["other"]),
        ({"formula": "import os"}, ["line 1"]),
        ({"formula": "O = __import__('os')"}, ["line 1"]),
        ({"formula": ""}, ["empty"]),
        ({"params": {"eps": float("nan")}}, ["eps", "finite"]),
        ({"params": {"eps": "x"}}, ["eps", "number"]),
        ({"outputs": ["P"]}, ["'P'"]),
        ({"formula": "X = exp(W)"}, ["'X'", "twice"]),
        ({"formula": "O = 1 / X"}, ["constant by a tensor"]),
        ({"inputs": {"X": ["n", "n"], "W": ["d", "f"]}}, ["twice"]),
    ],
)
def test_bad_programs_name_what_is_wrong(changes, words):
    with pytest.raises(PrismError) as error:
        norm(**changes)
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text


def test_constants_are_bounded():
    with pytest.raises(PrismError, match="constant"):
        norm(formula="O = matmul(scale(X, 9**9**9**9), W, d)")
    with pytest.raises(PrismError, match="division by zero"):
        norm(formula="O = matmul(scale(X, 1/(d-4)), W, d)")


def test_input_of_another_dtype_is_refused():
    builder = Builder("p", {"n": 2}, "bf16")
    with pytest.raises(PrismError, match="fp32"):
        builder.input("X", "n", dtype="fp32")


def test_integral_float_size_is_accepted():
    assert norm(sizes=SIZES | {"d": 7e3}).sizes["d"] == 7000


def test_symbolic_sizes_bind_later():
    program = norm(sizes={"n": "n", "d": "d", "f": "f"})
    with pytest.raises(PrismError, match="symbolic"):
        program.size("d")
    bound = program.bind(n=3, d=4, f=5, eps=1e-3)
    assert bound.env == {"n": 3, "d": 4, "f": 5, "eps": 1e-3}
    with pytest.raises(PrismError, match="'q'"):
        program.bind(q=3)


def test_wrong_input_shape_is_an_error():
    with pytest.raises(PrismError, match="'X'.*declared"):
        evaluate(norm(), {"X": np.zeros((3, 5)), "W": np.zeros((4, 5))})


def test_json_round_trip():
    program = norm()
    assert program_from_json(json.loads(json.dumps(program_to_json(program)))) == program
    with pytest.raises(PrismError, match="JSON"):
        program_from_json({"name": "x"})


def test_constants_and_infix_operators():
    program = parse("c", "O = -(X * 2 + 1) / (d * 2) - X", {"X": ["n", "d"]}, {"n": 2, "d": 4}, {})
    x = np.arange(8.0).reshape(2, 4)
    np.testing.assert_allclose(evaluate(program, {"X": x})["O"], -(x * 2 + 1) / 8 - x)
