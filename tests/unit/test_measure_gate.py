"""The correctness gate: what passes, what must fail, and what it says."""

import math

import numpy as np
import pytest

from prism.measure.gate import (
    CONTROLS,
    ROUNDOFF,
    Error,
    Gate,
    Outputs,
    blind,
    bound_of,
    check,
    control,
    measure_error,
)
from prism.measure.inputs import round_to, widen, write_case, write_json
from prism.measure.rows import summary
from prism.program import Builder

DTYPES = ["bf16", "fp16", "fp32"]


def rounding_bound(dtype, longest_reduction):
    return bound_of(None, dtype, longest_reduction)[0]


@pytest.fixture
def reference():
    return np.random.default_rng(0).standard_normal((6, 40)) * 10.0 ** np.arange(-3, 3)[:, None]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_rounded_reference_passes_and_all_controls_fail(reference, dtype):
    bound = rounding_bound(dtype, 64)
    assert check("O", round_to(reference, dtype), reference, dtype, bound).passed
    for label in CONTROLS:
        verdict = check("O", control(label, reference, dtype), reference, dtype, bound)
        assert verdict.status == "FAILED" and "error" in verdict.reason, label


def test_a_wrong_row_is_seen_however_small_its_values_are(reference):
    wrong = reference.copy()
    wrong[0] = -wrong[0]  # a hundred-thousandth of the largest row's
    verdict = check("O", round_to(wrong, "bf16"), reference, "bf16", rounding_bound("bf16", 64))
    assert not verdict.passed and "max error" in verdict.reason


def test_one_row_is_permuted_along_itself():
    row = np.random.default_rng(0).standard_normal((1, 50))
    bound = rounding_bound("fp32", 1)
    assert not check("O", control("permuted rows", row, "fp32"), row, "fp32", bound).passed


def test_zeros_fail_on_a_softmax_over_a_very_long_row():
    x = np.random.default_rng(0).standard_normal((2, 393216))
    e = np.exp(x - x.max(axis=1, keepdims=True))
    reference = e / e.sum(axis=1, keepdims=True)  # values near 1e-6
    bound, _ = bound_of(Error(0.02, 0.003), "bf16", 393216)
    assert not check("O", control("zeros", reference, "bf16"), reference, "bf16", bound).passed
    assert check("O", round_to(reference, "bf16"), reference, "bf16", bound).passed


def test_error_is_relative_to_the_row():
    reference = np.tile([[3.0, 4.0], [30.0, 40.0]], 8)
    wrong = reference.copy()
    wrong[0, 0] += 0.1
    wrong[1, 1] += 0.1
    scale = math.sqrt(12.5)
    error = measure_error(wrong, reference)
    assert error.max == pytest.approx(0.1 / scale)  # 3 is smaller than its row's scale
    assert error.rms == pytest.approx(math.sqrt(((0.1 / scale) ** 2 + (0.1 / 40) ** 2) / 32))


def test_a_short_row_is_measured_by_the_whole_output():
    reference = np.array([[1e-4], [1.0], [-1.0]])  # the first may be what is left of a cancellation
    error = measure_error(reference + np.array([[1e-4], [0.0], [0.0]]), reference)
    assert error.max == pytest.approx(1e-4 / math.sqrt(2 / 3), rel=1e-3)


@pytest.mark.parametrize("size", [1, 15, 16])
def test_of_a_few_elements_the_largest_error_alone_is_judged(size):
    reference = np.ones(size)
    bound = rounding_bound("fp32", 1)
    wrong = np.float32(reference * (1 + (bound.max + bound.rms) / 2))
    assert check("O", wrong, reference, "fp32", bound).passed == (size < 16)
    wrong = np.float32(reference * (1 + 2 * bound.max))
    assert not check("O", wrong, reference, "fp32", bound).passed
    assert not check("O", control("zeros", reference, "fp32"), reference, "fp32", bound).passed


def test_bound_is_twice_eager_plus_a_floor():
    bound, reason = bound_of(Error(0.1, 0.02), "bf16", 4096)
    floor = 2.0**-8 + 64 * 2.0**-24
    assert bound.max == pytest.approx(0.2 + 4 * floor)
    assert bound.rms == pytest.approx(0.04 + floor)
    assert reason == ""


@pytest.mark.parametrize("dtype", DTYPES)
def test_eager_s_share_in_the_bound_is_capped(dtype):
    unit = ROUNDOFF[dtype] + 8 * 2.0**-24
    inside, reason = bound_of(Error(95 * unit, 23 * unit), dtype, 64)
    assert reason == "" and inside.max < 1 and inside.rms < 0.2
    for error, norm in ((Error(97 * unit, unit), "max"), (Error(unit, 25 * unit), "rms")):
        bound, reason = bound_of(error, dtype, 64)
        assert bound == rounding_bound(dtype, 64) and f"eager's {norm} error" in reason
    bound, reason = bound_of(Error(math.nan, 0.0), dtype, 64)
    assert bound == rounding_bound(dtype, 64) and reason


def case_with_eager(folder, eager, rows=4):
    """The case O = 2 X whose eager run is said to have given `eager(2 X)`."""
    b = Builder("double", {"n": rows, "d": 8}, "fp32")
    case = write_case(b.build(O=b.scale(b.input("X", "n d"), 2)), folder, 0, 100)
    eager(case.references()["O"]).astype(np.float32).tofile(folder / "eager.O.raw")
    write_json(folder / "eager.json", {"seconds": 1.0})
    return case


def test_a_wrong_eager_does_not_let_wrong_outputs_pass(tmp_path):
    gate = Gate(case_with_eager(tmp_path, lambda right: right * 1.5))
    assert "eager's max error 0.5 is over" in gate.without_eager["O"]
    assert gate.bounds["O"] == rounding_bound("fp32", 1)
    right = gate.references["O"].astype(np.float32)
    assert gate.check({"O": right}).passed and not gate.check({"O": right * 1.2}).passed
    assert Gate(case_with_eager(tmp_path / "right", np.array)).without_eager == {}


def test_nan_everywhere_fails_even_where_eager_has_it_too(tmp_path):
    gate = Gate(case_with_eager(tmp_path, lambda right: np.full_like(right, np.nan)))
    assert gate.without_eager == {"O": "eager gave no element to compare"}
    verdict = gate.check({"O": np.full((4, 8), np.nan, np.float32)})
    assert not verdict.passed and "no element is finite" in verdict.reason
    assert gate.check({"O": gate.references["O"].astype(np.float32)}).passed
    gate = Gate(write_case(gate.case.program, tmp_path / "none", 0, 100))
    assert gate.without_eager == {"O": "eager gave no element to compare"}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_masks_must_be_equal_and_the_first_difference_is_named(reference, bad):
    bound = rounding_bound("fp32", 64)
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
    bound = rounding_bound("fp16", 1)
    assert check("O", np.array([[np.inf, 1.0]], np.float16), reference, "fp16", bound).passed
    assert not check("O", np.array([[6e4, 1.0]], np.float16), reference, "fp16", bound).passed


def test_where_eager_overflows_inside_its_mask_is_right_too():
    reference = np.array([[0.5, 0.5]])
    eager = np.array([[np.nan, 0.5]], np.float32)
    bound = rounding_bound("fp32", 1)
    assert check("O", eager, reference, "fp32", bound, eager).passed
    assert check("O", np.float32(reference), reference, "fp32", bound, eager).passed
    assert not check("O", np.array([[np.inf, 0.5]], np.float32), reference, "fp32", bound).passed


def test_an_output_that_a_control_is_right_for_is_named(tmp_path):
    b = Builder("rows", {"n": 4, "d": 8}, "fp32")
    program = b.build(O=b.scale(b.input("X", "n d"), 1))
    same = {"X": np.tile(np.arange(1, 9, dtype=np.float32), (4, 1))}
    controls = Gate(write_case(program, tmp_path / "same", 0, 100, same)).controls()
    assert controls["permuted rows"] == "no control for O" and controls["zeros"] == "failed"
    assert blind(controls) == ""
    controls = Gate(write_case(program, tmp_path / "random", 0, 100)).controls()
    assert controls == dict.fromkeys(CONTROLS, "failed")


def test_a_control_that_passes_for_one_of_two_outputs_is_a_blind_gate(tmp_path):
    b = Builder("two", {"n": 4, "d": 8}, "fp32")
    x = b.input("X", "n d")
    gate = Gate(write_case(b.build(O=b.scale(x, 2), P=b.scale(x, 0)), tmp_path / "case", 0, 100))
    assert gate.controls()["zeros"] == "no control for P" and blind(gate.controls()) == ""
    gate.bounds["O"] = Error(10.0, 10.0)  # P alone still fails for noise
    controls = gate.controls()
    assert controls["permuted rows"] == "passed for O; no control for P"
    assert "control zeros passed for O; no control for P" in blind(controls)


def test_wrong_shape_fails(reference):
    verdict = check("O", np.zeros((6, 39)), reference, "fp32", rounding_bound("fp32", 1))
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
    flat = outputs.raw["O"]
    flat[4096 + outputs.arrays["O"].nbytes] = 0
    assert "out of bounds" in outputs.overrun(0x55)


def test_quantiles():
    assert summary([4, 1, 3, 2]) == pytest.approx((2.5, 1.6, 3.4, 4))
    assert summary([5.0]) == (5.0, 5.0, 5.0, 1)
    assert summary([]) == (None, None, None, 0)
