"""Inputs and outputs as tensors, in the layout that a device gets, here in the host's memory."""

import numpy as np
import pytest
import torch

from prism.measure.gate import Gate, Outputs
from prism.measure.gate_kernel import gate_kernel
from prism.measure.inputs import Rotation, write_case
from prism.measure.tensors import Copies, TensorOutputs, _spread, gate_timed, octets, strided
from prism.program import Builder

DTYPES = ["bf16", "fp16", "fp32"]


def case(folder, dtype="fp32"):
    b = Builder("scale", {"n": 5, "d": 7}, dtype)
    x, r = b.input("X", "n d"), b.input("R", "n")
    return write_case(b.build(O=b.mul(x, r)), folder, 0, 1 << 10)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_device_s_copies_are_views_of_one_allocation(tmp_path, dtype):
    made = case(tmp_path, dtype)
    spread = _spread(Rotation(made.inputs(), 1), dtype, 3, "cpu")
    shared = Copies(made, 2, "cpu")
    assert len(spread) == 3 and len(shared.sets) == 2
    for tensors in (*spread, *shared.sets):
        for name, array in made.inputs().items():
            assert tensors[name].shape == array.shape and tensors[name].is_contiguous()
            assert octets(tensors[name]).numpy().tobytes() == array.tobytes()
            assert tensors[name].data_ptr() % 64 == 0
    assert len({t["X"].data_ptr() for t in spread}) == 3
    assert len({t["X"].untyped_storage().data_ptr() for t in spread}) == 1


def test_what_overwrites_an_input_is_seen_and_undone(tmp_path):
    copies = Copies(case(tmp_path), 2, "cpu")
    assert copies.overwritten(0) == copies.overwritten(1) == ""
    copies.sets[1]["R"][4] = -0.0 if copies.sets[1]["R"][4] else 1.0
    assert copies.overwritten(1) == "input R: overwritten" and copies.overwritten(0) == ""
    copies.fill(0, {"X": np.zeros((5, 7), np.float32)})
    assert copies.overwritten(0) == "input X: overwritten"
    copies.restore()
    assert copies.overwritten(0) == copies.overwritten(1) == ""


def test_other_strides_hold_the_same_values():
    given = {"X": torch.arange(24.0).reshape(2, 3, 4), "R": torch.arange(5.0), "c": torch.ones(())}
    made = strided(given)
    for name, tensor in given.items():
        assert torch.equal(made[name], tensor)
        assert made[name].data_ptr() != tensor.data_ptr()
    assert made["X"].stride() == (12, 1, 3) and made["R"].stride() == (2,)


@pytest.mark.parametrize("dtype", DTYPES)
def test_outputs_on_a_device_mirror_those_of_the_host(dtype):
    outputs = TensorOutputs({"O": (3, 4), "P": ()}, dtype, "cpu")
    outputs.poison(0x55)
    outputs.fetch()
    assert outputs.untouched(0x55)["O"].all() and outputs.overrun(0x55) == ""
    outputs.tensors["O"][:2] = 1
    outputs.fetch()
    assert outputs.untouched(0x55)["O"].sum() == 4 and outputs.untouched(0x55)["P"].all()
    guard = outputs._device["O"][4096 + outputs.arrays["O"].nbytes :]
    guard[0] = 0
    assert outputs.overrun(0x55) == ""  # not before it is fetched
    outputs.fetch()
    assert outputs.overrun(0x55) == "output O: written out of bounds"


def test_a_kernel_must_not_read_what_it_did_not_write(tmp_path):
    """Intermediates are poisoned too, in both patterns."""
    made = case(tmp_path)
    gate, outputs = Gate(made), Outputs(made.shapes(), "fp32")
    right, seen = made.references()["O"], []

    def call():
        outputs.arrays["O"][...] = right

    verdict = gate_kernel(gate, outputs, call, lambda: "", seen.append)
    assert verdict.passed and seen == [0xFF, 0x55]
    verdict = gate_kernel(gate, outputs, call, lambda: "input X: overwritten")
    assert verdict.reason == "input X: overwritten by the kernel"


def test_the_calls_that_are_timed_are_gated_with_inputs_that_change_in_place(tmp_path):
    copies = Copies(case(tmp_path), 3, "cpu")
    gate = Gate(copies.case)

    def calls(function):
        return [lambda t=t: [function(**t)] for t in copies.sets]

    assert gate_timed(gate, copies, calls(lambda X, R: X * R[:, None])).passed
    assert all(copies.overwritten(n) == "" for n in range(3))
    kept = [lambda o=t["X"] * t["R"][:, None]: [o] for t in copies.sets]
    assert "do not change with input X" in gate_timed(gate, copies, kept).reason
    frozen = copies.sets[0]["R"].clone()
    verdict = gate_timed(gate, copies, calls(lambda X, R: X * frozen[:, None]))
    assert not verdict.passed and "do not change with input R" in verdict.reason
    verdict = gate_timed(gate, copies, calls(lambda X, R: X.mul_(R[:, None])))
    assert verdict.reason == "input X: overwritten"
