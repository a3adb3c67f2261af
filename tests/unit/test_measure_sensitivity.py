"""The gate sees a tail that a kernel leaves out, the fault that ragged sizes invite."""

import numpy as np
import pytest

from prism.files import write_json
from prism.measure.eager_case import prepare_case
from prism.measure.gate import Gate
from prism.measure.inputs import deviation, make_inputs, round_to, widen, write_case
from prism.measure.spread import MOST, spread_logits
from prism.measure.torch_program import from_torch, to_torch, torch_callable
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


def with_eager(case):
    """The case with PyTorch eager's output O, which shares in the gate's bound."""
    tensors = [to_torch(x.copy(), case.dtype) for x in case.inputs().values()]
    (output,) = torch_callable(case.program)(*tensors)
    from_torch(output).tofile(case.folder / "eager.O.raw")
    write_json(case.folder / "eager.json", {"seconds": 0.0})
    return case


def scaled(sizes, dtype="fp32", logits="matmul(Q, K, d) / sqrt(d)", **masks):
    axes = {"Q": ["s", "d"], "K": ["h", "d"], "V": ["h", "e"], **masks}
    formula = f"O = matmul(softmax({logits}, h), V, h)"
    return parse("scaled", formula, axes, sizes, {}, dtype)


SIZES = {"s": 4, "h": 1000, "d": 64, "e": 64}


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("s, h", [(1, 1000), (1, 4096), (4, 1000)])
def test_a_kernel_that_does_not_rescale_fails(tmp_path, dtype, s, h):
    program, seen = scaled(SIZES | {"s": s, "h": h}, dtype), 0
    for seed in range(10):
        case = with_eager(write_case(program, tmp_path / str(seed), seed, 1))
        q, k, v = (widen(x, dtype) for x in case.inputs().values())
        logits = q @ k.T / 8
        first, top = logits[:, : h // 2].max(1, keepdims=True), logits.max(1, keepdims=True)
        right = np.exp(logits - top)
        wrong = np.exp(logits - np.where(np.arange(h) < h // 2, first, top))
        passed = [
            Gate(case).check({"O": round_to(e / e.sum(1, keepdims=True) @ v, dtype)}).passed
            for e in (right, wrong)
        ]
        assert passed[0]
        if (top - first).max() > 0.05:  # else the first half is wrong by no more than bf16 rounds
            seen += 1
            assert not passed[1], seed
    assert seen >= 3  # of the seeds, those where the second half has the larger maximum


@pytest.mark.parametrize(
    "logits, scale, masks",
    [
        ("matmul(Q, K, d)", 1, {}),
        ("matmul(Q, K, d) / sqrt(d)", 1 / 8, {}),
        ("matmul(Q, K, d) / sqrt(d) + M", 1 / 8, {"M": ["s", "h"]}),
        ("M + matmul(Q * 0.5, K, d) * 0.1", 0.05, {"M": ["s", "h"]}),
    ],
)
def test_logits_spread_whatever_scale_a_program_has(logits, scale, masks):
    x = make_inputs(scaled(SIZES, logits=logits, **masks), 0)
    plain = make_inputs(scaled(SIZES, logits="matmul(Q, K, d) * 3"), 0)
    assert np.std(scale * (x["Q"].astype(float) @ x["K"].T)) == pytest.approx(1, abs=1e-5)
    np.testing.assert_array_equal(x["K"], plain["K"])
    np.testing.assert_array_equal(x["V"], plain["V"])


def test_nothing_changes_where_logits_spread_or_no_input_is_found():
    wide = scaled(SIZES, logits="matmul(Q, K, d) * 3")
    for program in (wide, scaled(SIZES, logits="silu(matmul(Q, K, d)) / sqrt(d)")):
        for name, node in program.inputs.items():
            values = widen(make_inputs(program, 0)[name], "fp32")
            assert np.std(values) == pytest.approx(deviation(program, node), rel=0.1)
    square = parse(
        "square", "O = exp(matmul(X, X, m) / 9)", {"X": ["n", "m"]}, {"n": 3, "m": 4}, {}, "fp32"
    )
    x = {"X": np.arange(12, dtype=np.float32).reshape(3, 4) / 12}
    assert spread_logits(square, x)["X"] is x["X"]


def test_an_input_grows_by_64_at_most_and_generated_masks_do_not():
    program = parse(
        "causal",
        "O = softmax(matmul(Q, K, d) / 1000 + causal(s, h), h)",
        {"Q": ["s", "d"], "K": ["h", "d"]},
        {"s": 8, "h": 8, "d": 16},
        {},
        "fp32",
    )
    x = make_inputs(program, 0)
    assert set(x) == {"Q", "K"}
    rng = {n: np.std(a) / deviation(program, program.inputs[n]) for n, a in x.items()}
    assert rng["Q"] == pytest.approx(MOST, rel=0.2) and rng["K"] == pytest.approx(1, rel=0.2)
