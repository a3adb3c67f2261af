"""Rounding, deterministic inputs, cases on disk and the rotation beyond the cache."""

import numpy as np
import pytest
import torch

from prism.errors import PrismError
from prism.measure.inputs import (
    Case,
    Rotation,
    copies_for,
    from_bf16,
    make_inputs,
    round_to,
    to_bf16,
    widen,
    write_case,
)
from prism.program import Builder, evaluate


def double_sum(dtype="bf16"):
    b = Builder("double_sum", {"n": 3, "d": 5}, dtype)
    x = b.input("X", "n d")
    return b.build(O=b.sum(b.scale(x, 2), "d"))


def hard_floats():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32)
    ties = (np.arange(0, 2**16, 7, dtype=np.uint32) << 16) | 0x8000
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1e-45], np.float32)
    return np.concatenate([bits.view(np.float32), ties.view(np.float32), special])


def test_bf16_rounds_float32_as_torch_does():
    x = hard_floats()
    ours = to_bf16(x)
    theirs = torch.from_numpy(x).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    nan = np.isnan(x)
    np.testing.assert_array_equal(ours[~nan], theirs[~nan])
    assert np.isnan(from_bf16(ours[nan])).all()


def test_bf16_from_float64_is_rounded_once():
    # Just above a tie of bfloat16, by less than float32 can see: must go up, not to even.
    tie = 1 + 2.0**-8
    assert from_bf16(to_bf16(np.array([tie + 2.0**-40])))[0] == 1 + 2.0**-7
    assert from_bf16(to_bf16(np.array([tie - 2.0**-40])))[0] == 1
    assert from_bf16(to_bf16(np.array([tie])))[0] == 1
    assert np.isposinf(from_bf16(to_bf16(np.array([1e300])))[0])


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_widen_and_round_are_inverse_on_representable_values(dtype):
    x = round_to(np.random.default_rng(1).standard_normal((4, 7)), dtype)
    np.testing.assert_array_equal(round_to(widen(x, dtype), dtype), x)


def test_inputs_depend_on_seed_and_name_only():
    program = double_sum()
    a, b = make_inputs(program, 3)["X"], make_inputs(program, 3)["X"]
    np.testing.assert_array_equal(a, b)
    assert (make_inputs(program, 4)["X"] != a).any()
    assert a.dtype == np.uint16 and a.shape == (3, 5)


def test_case_on_disk_holds_rounded_inputs_and_their_exact_reference(tmp_path):
    program = double_sum()
    write_case(program, tmp_path / "case", seed=0, cache_bytes=1000)
    case = Case(tmp_path / "case")
    np.testing.assert_array_equal(case.inputs()["X"], make_inputs(program, 0)["X"])
    exact = evaluate(program, {"X": widen(case.inputs()["X"], "bf16")})["O"]
    np.testing.assert_array_equal(case.references()["O"], exact)
    assert case.data["copies"] == copies_for(30, 1000) == 134
    assert case.eager() is None


def test_case_names_the_folder_it_cannot_write(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PrismError, match="cannot write the inputs of double_sum to .*file"):
        write_case(double_sum(), tmp_path / "file" / "case", 0, 1000)


def test_rotation_exceeds_the_cache_and_is_aligned():
    assert copies_for(32 << 20, 32 << 20) == 4
    assert copies_for(1 << 30, 32 << 20) == 3
    arrays = {"A": np.arange(5, dtype=np.float32), "B": np.arange(33, dtype=np.uint16)}
    rotation = Rotation(arrays, 3)
    assert len(rotation.sets) == 3
    for copy in rotation.sets:
        for name, array in copy.items():
            np.testing.assert_array_equal(array, arrays[name])
            assert array.ctypes.data % 64 == 0
    rotation.sets[0]["A"][:] = 9
    np.testing.assert_array_equal(rotation.sets[1]["A"], arrays["A"])
