"""The gate sees a tail that a kernel leaves out, the fault that ragged sizes invite."""

import numpy as np
import pytest

from prism.measure.eager_case import prepare_case
from prism.measure.gate import Gate
from prism.measure.inputs import deviation, round_to, widen
from prism.program import parse


def attention(h):
    axes = {"Q": list("bgsd"), "K": list("bghd"), "V": list("bghe")}
    sizes = {"b": 2, "g": 4, "s": 1, "h": h, "d": 64, "e": 64}
    formula = "O = matmul(softmax(matmul(Q, K, d), h), V, h)"
    return parse("attention", formula, axes, sizes, {}, "bf16")


@pytest.mark.parametrize("dropped", [1, 16])
def test_dropped_keys_fail(tmp_path, dropped):
    case = prepare_case(attention(1000), tmp_path, 0, 1)
    q, k, v = (widen(x, "bf16") for x in case.inputs().values())
    weights = np.exp(np.einsum("bgsd,bghd->bgsh", q, k))

    def verdict(weights):
        weights = weights / weights.sum(-1, keepdims=True)
        return Gate(case).check({"O": round_to(np.einsum("bgsh,bghe->bgse", weights, v), "bf16")})

    assert verdict(weights).passed
    weights[..., -dropped:] = 0
    assert not verdict(weights).passed


def test_inputs_are_scaled_by_what_is_contracted():
    program = attention(1000)
    found = {name: deviation(program, node) for name, node in program.inputs.items()}
    assert found == {"Q": 64**-0.25, "K": 1000**-0.25, "V": 1000**-0.25}
