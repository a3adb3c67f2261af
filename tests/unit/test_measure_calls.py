"""Timed calls: which copy of the inputs each one gets, cold and warm, and what lies outside."""

import ctypes
import resource

import numpy as np
import pytest

from prism.measure.inputs import Rotation, write_case
from prism.measure.library import Library
from prism.measure.timers import AT_MOST, Turns, time_calls
from prism.program import Builder

COPIES = 4


def case(folder, elements):
    b = Builder("p", {"n": elements}, "fp32")
    return write_case(b.build(O=b.scale(b.input("X", "n"), 2)), folder, 0, 1)


def library(run):
    """A library whose `prism_run` is a Python function."""
    made = object.__new__(Library)
    made.threads, made.run = 3, run
    return made


def test_each_rotating_call_has_the_next_copy_and_outputs_of_its_own(tmp_path):
    seen = []

    def run(inputs, outputs, threads):
        seen.append((inputs[0], outputs[0], threads))
        return 0

    made = case(tmp_path, 100)
    rotation = Rotation(made.inputs(), COPIES)
    calls = library(run).rotating_calls(made, rotation)
    assert [call() for call in calls] == [0] * COPIES
    inputs, outputs, threads = zip(*seen, strict=True)
    assert list(inputs) == [copy["X"].ctypes.data for copy in rotation.sets]
    assert len(set(inputs)) == len(set(outputs)) == COPIES and set(threads) == {3}
    assert all(address % 64 == 0 for address in outputs)


def test_no_page_of_the_outputs_is_touched_for_the_first_time_within_a_call(tmp_path):
    elements = 4 << 20  # 16 MiB: even in pages of 2 MiB a copy has eight

    def run(inputs, outputs, threads):
        ctypes.memset(outputs[0], 1, 4 * elements)

    made = case(tmp_path, elements)
    rotation = Rotation({"X": np.zeros(1, np.float32)}, COPIES)
    calls = library(run).rotating_calls(made, rotation)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for call in calls:
        call()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 16


@pytest.fixture
def order():
    return []


@pytest.fixture
def calls(order):
    return [lambda n=n: order.append(n) for n in range(COPIES)]


def test_samples_go_round_the_copies(order, calls):
    assert len(time_calls(calls, 0.0, 6, 6, first=3)) == 6
    assert order == [3, 0, 1, 2, 3, 0]
    assert len(time_calls(calls, 0.0, 2, 100)) == 2  # at least two, then the time is used up


def test_cold_turns_go_on_where_the_last_one_ended_and_warm_ones_stay(order, calls):
    turns = Turns(calls)
    samples = turns.run("cold", 0.0)
    assert 1 <= len(samples) <= 3 and len(order) == len(samples) + 1  # the first is not timed
    assert len(turns.run("cold", 1.0)) == AT_MOST
    assert order == [n % COPIES for n in range(len(order))]
    order.clear()
    assert len(turns.run("warm", 1.0)) == AT_MOST
    assert order == [0] * (AT_MOST + 2)
