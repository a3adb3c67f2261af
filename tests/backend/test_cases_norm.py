"""Norms and activations from the field: on the reference, the interpreter, the CPU and Triton."""

import numpy as np
import pytest
import torch
from field_cases import FieldCase, check_reference
from plans import plans

from prism.codegen.interpreter import run
from prism.codegen.lower import lower

EPS = {"eps": 1e-5}
INF, NAN = float("inf"), float("nan")


def rms(X, eps=1e-5):
    """RMSNorm by its definition; eps is added to the mean square as it is."""
    return X / (X.square().mean(-1, keepdim=True) + eps).sqrt()


def no_root(X):
    return X / (X.square().mean(-1, keepdim=True) + 1e-5)


NORM = {"no root": no_root}
# Where values are small enough for eps to matter.
SMALL = NORM | {
    "eps left out": lambda X: rms(X, 0.0),
    "eps after the root": lambda X: X / (X.square().mean(-1, keepdim=True).sqrt() + 1e-5),
    "eps times d": lambda X: rms(X, 1e-5 * X.shape[-1]),
    "eps over d": lambda X: rms(X, 1e-5 / X.shape[-1]),
}


def rms_norm(name, issue, sizes, make, dtype="fp32", wrong=None):
    formula, axes = "O = rms_norm(X, d)", {"X": "n d"}
    return FieldCase(name, issue, formula, axes, sizes, rms, make, dtype, EPS, wrong=wrong or NORM)


def add_norm(X, R):
    """The variance sees the sum as it is, not as it is rounded for the first output."""
    return X + R, rms(X + R)


def layer_norm(mean, centred, exact):
    """16 values mean + i / 1000; `centred` says how C comes from X."""

    def right(X):
        C = X - X.mean(-1, keepdim=True)
        return C / (C.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    def make(arrays):
        return {"X": 0 * arrays["X"] + mean + 1e-3 * np.arange(16)}

    formula = f"{centred}\nO = C / sqrt(sum(square(C), d) * (1 / d) + eps)"
    sizes = "n=5 d=16"
    return FieldCase(
        f"layer norm, mean {mean}",
        "burn#5607",
        formula,
        {"X": "n d"},
        sizes,
        right,
        make,
        params=EPS,
        exact=exact,
    )


ONCE = "C = X - sum(X, d) * (1 / d)"  # as near as fp32 holds the mean
TWICE = "D = X - sum(X, d) * (1 / d)\nC = D - sum(D, d) * (1 / d)"  # the second mean is near 0


def elementwise(name, issue, operator, right, values, dtype="fp32", wrong=None):
    """An activation of given values, beside ordinary ones in rows of their own."""

    def make(arrays):
        x = arrays["X"].copy()
        x[0, : len(values)] = values
        return {"X": x}

    axes, sizes = {"X": "n d"}, f"n=3 d={max(16, len(values))}"
    formula = f"O = {operator}(X)"
    return FieldCase(name, issue, formula, axes, sizes, right, make, dtype, wrong=wrong or {})


def gelu(X):
    return 0.5 * X * torch.special.erfc(-X / 2**0.5)


TANH = {"tanh": lambda X: torch.nn.functional.gelu(X, approximate="tanh")}


def silu(X):
    return torch.where(X == -INF, 0.0, X / (1 + torch.exp(-X)))  # its limit


def magnitudes(*scales):
    """Row n is of magnitude scales[n]."""
    return lambda a: {"X": a["X"] * np.resize(scales, len(a["X"]))[:, None]}


def spike_and_zeros(arrays):
    x = np.full_like(arrays["X"], 1e-2)
    x[0, 5], x[1] = 1e3, 0.0
    return {"X": x}


def with_nan(arrays):
    x = np.resize(np.array([-3, -2, -1, -0.0, 0, 1, 2, 3, NAN, INF, -INF]), arrays["X"].shape)
    return {"X": x.astype(float)}


CASES = [
    rms_norm("values to 1000", "tiny-llm PR#18", "n=4 d=5120", magnitudes(1000, 300), "fp16"),
    rms_norm("one spike, a row of zeros", "coremltools PR#2822", "n=3 d=64", spike_and_zeros),
    rms_norm(
        "1e-4 beside eps",
        "tt-metal#55347",
        "n=3 d=512",
        lambda a: {"X": 0 * a["X"] + 1e-4},
        wrong=SMALL,
    ),
    rms_norm(
        "magnitudes",
        "tt-metal#55347",
        "n=6 d=96",
        magnitudes(1e4, 1, 1e-2, 1e-4, 1e-8, 30),
        wrong=SMALL,
    ),
    FieldCase(
        "residual add, two outputs",
        "vllm#52104",
        "P = X + R\nO = rms_norm(P, d)",
        {"X": "n d", "R": "n d"},
        "n=7 d=4096",
        add_norm,
        dtype="bf16",
        params=EPS,
        outputs=("P", "O"),
    ),
    *(layer_norm(mean, TWICE, 1e-9) for mean in (100, 1000, 10000)),
    elementwise("silu", "tt-metal#55711", "silu", silu, [-87.5, -INF, -88.8, -104, 0, INF, NAN]),
    elementwise("silu in fp16", "tt-metal#55711", "silu", silu, [-12, -17, -INF, 6e4], "fp16"),
    elementwise("gelu by erf", "tt-metal#56517", "gelu", gelu, np.linspace(-6, -4, 33), wrong=TANH),
    elementwise(
        "relu", "pytorch#93784", "relu", lambda X: torch.relu(X), [-3, -0.0, 0, 3, NAN, INF, -INF]
    ),
    FieldCase(
        "maximum with NaN on either side",
        "pytorch#93784",
        "O = max(X, d)",
        {"X": "n d"},
        "n=40 d=2",
        lambda X: X.amax(-1),
        lambda a: {"X": with_nan(a)["X"] * np.where(np.arange(40) % 2, 1, -1)[:, None]},
    ),
    FieldCase(
        "relu then maximum",
        "pytorch#93784",
        "O = max(relu(X), d)",
        {"X": "n d"},
        "n=40 d=3",
        lambda X: torch.relu(X).amax(-1),
        with_nan,
    ),
]


def test_right_values_as_they_were_reported():
    """Numbers of the issues, so that the definitions above are theirs."""
    assert float(rms(torch.full((512,), 1e-4, dtype=torch.double))[0]) == pytest.approx(
        0.0316, 1e-2
    )
    spike = torch.full((64,), 1e-2, dtype=torch.double)
    spike[5] = 1e3
    assert float(rms(spike)[5]) == pytest.approx(8.0) and not rms(torch.zeros(64)).any()
    x = torch.tensor([-4.0], dtype=torch.double)
    assert float(gelu(x)) == pytest.approx(-1.2668e-4, 1e-3)  # tanh: -7.0e-5


@pytest.mark.parametrize("mean", [100, 1000, 10000])
def test_layer_norm_centred_once_is_as_near_as_fp32_holds_the_mean(mean):
    """Unlike a program that centres twice (above): so the gate passes no system on it."""
    case = layer_norm(mean, ONCE, 1e-9)
    check_reference(case)
    x = {"X": case.stored(case.program)["X"].astype(float)}
    right = case.expected(x)["O"]
    for concretes in plans(case.program).values():
        error = run(lower(concretes[0]), x, np.float32)["O"] - right
        assert np.abs(error).max() <= 4 * 2.0**-24 * mean / x["X"].std()
