"""Systems that do not read their inputs anew."""

import numpy as np
import pytest

from prism.measure.freshness import stale_input
from prism.measure.gate import Gate
from prism.measure.inputs import write_case
from prism.program import Builder


@pytest.fixture
def gate(tmp_path):
    b = Builder("rows", {"n": 3, "d": 4, "f": 5}, "fp32")
    x, w = b.input("X", "n d"), b.input("W", "d f")
    return Gate(write_case(b.build(O=b.matmul(x, w, "d")), tmp_path / "case", 0, 100))


def test_a_system_that_reads_all_inputs_is_fresh(gate):
    assert stale_input(gate, lambda t: {"O": t["X"] @ t["W"]}) == ""


def test_frozen_weights_and_replayed_outputs_are_named(gate):
    w = np.array(gate.case.inputs()["W"])
    assert "input W" in stale_input(gate, lambda t: {"O": t["X"] @ w})
    kept = np.array(gate.case.inputs()["X"]) @ w
    assert "input X" in stale_input(gate, lambda t: {"O": kept})


def test_an_input_that_cannot_matter_is_no_fault(tmp_path):
    b = Builder("zero", {"n": 3}, "fp32")
    program = b.build(O=b.scale(b.input("X", "n"), 0))
    gate = Gate(write_case(program, tmp_path / "case", 0, 100))
    assert stale_input(gate, lambda t: {"O": np.zeros(3, np.float32)}) == ""


def test_an_output_of_which_only_a_part_is_computed_anew_is_replayed(gate):
    kept = np.array(gate.case.inputs()["X"]) @ np.array(gate.case.inputs()["W"])

    def replays(t):
        out = kept.copy()
        out[0] = t["X"][0] @ t["W"]
        return {"O": out}

    reason = stale_input(gate, replays)
    assert "not all of which are read anew: output O" in reason and "\n" not in reason


def test_a_second_output_that_is_replayed_is_found(tmp_path):
    b = Builder("two", {"n": 3, "d": 4}, "fp32")
    x, y = b.input("X", "n d"), b.input("Y", "d")
    program = b.build(O=b.scale(x, 3), P=b.add(x, y))
    gate = Gate(write_case(program, tmp_path / "case", 0, 100))
    kept = np.array(gate.case.inputs()["X"])
    assert stale_input(gate, lambda t: {"O": t["X"] * 3, "P": t["X"] + t["Y"]}) == ""
    assert "output P" in stale_input(gate, lambda t: {"O": t["X"] * 3, "P": kept + t["Y"]})
