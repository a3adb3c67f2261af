"""A compiled kernel in this process: the C ABI, the gate, and the timed call.

`extern "C" int prism_run(const void* const* inputs, void* const* outputs, int threads)`.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from prism.measure.gate import POISONS, Gate, Outputs, Verdict, worst
from prism.measure.inputs import STORAGE, Case, Rotation

TIMER = "time.perf_counter_ns around one call"
Call = Callable[[], object]


class Library:
    """A loaded library. Raises OSError when it cannot be loaded or lacks `prism_run`."""

    def __init__(self, path: Path, threads: int):
        self.threads = threads
        self._library = ctypes.CDLL(str(path))
        try:
            self.run = self._library.prism_run
        except AttributeError:
            raise OSError(f"{path.name}: has no function prism_run") from None
        pointers = ctypes.POINTER(ctypes.c_void_p)
        self.run.argtypes, self.run.restype = [pointers, pointers, ctypes.c_int], ctypes.c_int

    def bind(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> Call:
        """A call on fixed arrays, with its arguments converted beforehand; returns the status."""
        sources = (ctypes.c_void_p * len(inputs))(*(a.ctypes.data for a in inputs.values()))
        targets = (ctypes.c_void_p * max(1, len(outputs)))(
            *(a.ctypes.data for a in outputs.values())
        )
        run, threads = self.run, self.threads
        kept = (dict(inputs), dict(outputs))
        return lambda kept=kept: run(sources, targets, threads)

    def rotating_calls(self, case: Case, rotation: Rotation) -> list[Call]:
        """One call a copy of the inputs, each with outputs of its own.

        They are allocated and written to beforehand, so that no page fault falls into a timed call.
        """
        zeros = {n: np.zeros(shape, STORAGE[case.dtype]) for n, shape in case.shapes().items()}
        outputs = Rotation(zeros, len(rotation.sets)).sets
        return [self.bind(*pair) for pair in zip(rotation.sets, outputs, strict=True)]


def gate_library(library: Library, gate: Gate, rotation: Rotation) -> Verdict:
    """Runs the kernel once per poison pattern and checks all it wrote, and what it must not."""
    case = gate.case
    inputs = rotation.sets[0]
    outputs = Outputs(case.shapes(), case.dtype)
    call = library.bind(inputs, outputs.arrays)
    verdicts, untouched = [], []

    def failed(reason: str) -> Verdict:
        zero = verdicts[0] if verdicts else gate.check(outputs.arrays)
        return Verdict("FAILED", zero.output, zero.error, zero.bound, reason)

    for pattern in POISONS:
        outputs.poison(pattern)
        if status := call():
            return failed(f"the kernel returned {status}")
        if reason := outputs.overrun(pattern):
            return failed(reason)
        untouched.append(outputs.untouched(pattern))
        verdicts.append(gate.check(outputs.arrays))
    for name in outputs.arrays:
        missed = untouched[0][name] & untouched[1][name]
        if missed.any():
            return failed(
                f"output {name}: {int(missed.sum())} of {missed.size} elements were never written"
            )
    for name, original in case.inputs().items():
        if inputs[name].tobytes() != original.tobytes():
            return failed(f"input {name}: overwritten by the kernel")
    return worst(verdicts)


def time_calls(
    calls: list[Call], seconds: float, at_least: int, at_most: int, first: int = 0
) -> list[float]:
    """Microseconds of single calls, going round `calls` from `first`, until the time is used up.

    What a call returns is freed outside the timed region.
    """
    samples: list[float] = []
    clock = time.perf_counter_ns
    collecting = gc.isenabled()
    gc.disable()
    try:
        end = clock() + int(seconds * 1e9)
        while len(samples) < at_most and (len(samples) < at_least or clock() < end):
            call = calls[(first + len(samples)) % len(calls)]
            start = clock()
            kept = call()
            stop = clock()
            samples.append(round((stop - start) / 1e3, 3))
            del kept
    finally:
        if collecting:
            gc.enable()
    return samples
