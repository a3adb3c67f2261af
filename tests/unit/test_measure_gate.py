"""The correctness gate: what passes, what must fail, and what it says."""

import math

import numpy as np
import pytest

from prism.measure.gate import (
    CONTROLS,
    Error,
    Gate,
    Outputs,
    bound_of,
    check,
    control,
    measure_error,
)
from prism.measure.inputs import round_to, widen, write_case
from prism.measure.rows import quantile, summary
from prism.program import Builder

DTYPES = ["bf16", "fp16", "fp32"]


@pytest.fixture
def reference():
    return np.random.default_rng(0).standard_normal((6, 40)) * 10.0 ** np.arange(-3, 3)[:, None]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_rounded_reference_passes_and_all_controls_fail(reference, dtype):
    bound = bound_of(None, dtype, 64)
    assert check("O", round_to(reference, dtype), reference, dtype, bound).passed
    for label in CONTROLS:
        verdict = check("O", control(label, reference, dtype), reference, dtype, bound)
        assert verdict.status == "FAILED" and "error" in verdict.reason, label


def test_a_wrong_row_is_seen_however_small_its_values_are(reference):
    wrong = reference.copy()
    wrong[0] = -wrong[0]  # a hundred-thousandth of the largest row's
    verdict = check("O", round_to(wrong, "bf16"), reference, "bf16", bound_of(None, "bf16", 64))
    assert not verdict.passed and "max error" in verdict.reason


def test_one_row_is_permuted_along_itself():
    row = np.random.default_rng(0).standard_normal((1, 50))
    bound = bound_of(None, "fp32", 1)
    assert not check("O", control("permuted rows", row, "fp32"), row, "fp32", bound).passed


def test_zeros_fail_on_a_softmax_over_a_very_long_row():
    x = np.random.default_rng(0).standard_normal((2, 393216))
    e = np.exp(x - x.max(axis=1, keepdims=True))
    reference = e / e.sum(axis=1, keepdims=True)  # values near 1e-6
    bound = bound_of(Error(0.02, 0.003), "bf16", 393216)
    assert not check("O", control("zeros", reference, "bf16"), reference, "bf16", bound).passed
    assert check("O", round_to(reference, "bf16"), reference, "bf16", bound).passed


def test_error_is_relative_to_the_row():
    reference = np.array([[3.0, 4.0], [30.0, 40.0]])
    scale = math.sqrt(12.5)
    error = measure_error(reference + np.array([[0.1, 0.0], [0.0, 0.1]]), reference)
    assert error.max == pytest.approx(0.1 / scale)  # 3 is smaller than its row's scale
    assert error.rms == pytest.approx(math.sqrt(((0.1 / scale) ** 2 + (0.1 / 40) ** 2) / 4))


def test_bound_is_twice_eager_plus_a_floor():
    bound = bound_of(Error(0.1, 0.02), "bf16", 4096)
    floor = 2.0**-8 + 64 * 2.0**-24
    assert bound.max == pytest.approx(0.2 + 4 * floor)
    assert bound.rms == pytest.approx(0.04 + floor)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_masks_must_be_equal_and_the_first_difference_is_named(reference, bad):
    bound = bound_of(None, "fp32", 64)
    wrong = reference.copy()
    wrong[2, 7] = bad
    verdict = check("O", round_to(wrong, "fp32"), reference, "fp32", bound)
    assert not verdict.passed and "[2, 7]" in verdict.reason and "1 of 240" in verdict.reason
    # and the other way round: where the program gives it, finite is wrong
    verdict = check("O", round_to(reference, "fp32"), wrong, "fp32", bound)
    assert not verdict.passed
    assert check("O", round_to(wrong, "fp32"), wrong, "fp32", bound).passed


def test_overflow_of_the_dtype_is_not_a_fault():
    reference = np.array([[1e6, 1.0]])  # beyond fp16
    bound = bound_of(None, "fp16", 1)
    assert check("O", np.array([[np.inf, 1.0]], np.float16), reference, "fp16", bound).passed
    assert not check("O", np.array([[6e4, 1.0]], np.float16), reference, "fp16", bound).passed


def test_where_eager_overflows_inside_its_mask_is_right_too():
    reference = np.array([[0.5, 0.5]])
    eager = np.array([[np.nan, np.nan]], np.float32)
    bound = bound_of(None, "fp32", 1)
    assert check("O", eager, reference, "fp32", bound, eager).passed
    assert check("O", np.float32(reference), reference, "fp32", bound, eager).passed
    assert not check("O", np.array([[np.inf, 0.5]], np.float32), reference, "fp32", bound).passed


def test_a_case_whose_controls_cannot_fail_is_reported(tmp_path):
    b = Builder("rows", {"n": 4, "d": 8}, "fp32")
    program = b.build(O=b.scale(b.input("X", "n d"), 1))
    same = {"X": np.tile(np.arange(1, 9, dtype=np.float32), (4, 1))}
    gate = Gate(write_case(program, tmp_path / "same", 0, 100, same))
    found = gate.controls()
    assert found["permuted rows"].startswith("passed") and found["zeros"] == "failed"
    gate = Gate(write_case(program, tmp_path / "random", 0, 100))
    assert set(gate.controls().values()) == {"failed"}


def test_wrong_shape_fails(reference):
    verdict = check("O", np.zeros((6, 39)), reference, "fp32", bound_of(None, "fp32", 1))
    assert "shape" in verdict.reason and verdict.to_json()["error"]["max"] is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_shows_what_was_not_written_and_what_was_overrun(dtype):
    outputs = Outputs({"O": (3, 4), "P": ()}, dtype)
    outputs.poison(0xFF)
    assert np.isnan(widen(outputs.arrays["O"], dtype)).all()
    outputs.poison(0x55)
    outputs.arrays["O"][:2] = 1
    outputs.arrays["P"][...] = 1
    assert outputs.untouched(0x55)["O"].sum() == 4 and not outputs.untouched(0x55)["P"].any()
    assert outputs.overrun(0x55) == ""
    flat = outputs._raw["O"]
    flat[4096 + outputs.arrays["O"].nbytes] = 0
    assert "out of bounds" in outputs.overrun(0x55)


def test_quantiles():
    assert quantile([4, 1, 3, 2], 0.5) == 2.5
    assert summary([5.0]) == (5.0, 5.0, 5.0, 1)
    assert summary([]) == (None, None, None, 0)
