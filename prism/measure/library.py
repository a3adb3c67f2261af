"""A compiled kernel in this process: the C ABI, the gate, and the call to time.

`extern "C" int prism_run(const void* const* inputs, void* const* outputs, int threads)`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from prism.measure.gate import Gate, Outputs, Verdict
from prism.measure.gate_kernel import gate_kernel
from prism.measure.inputs import STORAGE, Case, Rotation
from prism.measure.timers import Call


class Library:
    """A loaded library. Raises OSError when it cannot be loaded or lacks `prism_run`."""

    def __init__(self, path: Path, threads: int):
        self.threads = threads
        self._library = ctypes.CDLL(str(path))
        try:
            self.run = self.entry(self._library)
        except AttributeError:
            raise OSError(f"{path.name}: has no function prism_run") from None
        pointers = ctypes.POINTER(ctypes.c_void_p)
        self.run.argtypes, self.run.restype = [pointers, pointers, ctypes.c_int], ctypes.c_int

    def entry(self, library: ctypes.CDLL):
        """The function of the C ABI."""
        return library.prism_run

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
    """Gates a library on the first copy of the inputs."""
    case, inputs = gate.case, rotation.sets[0]
    outputs = Outputs(case.shapes(), case.dtype)

    def overwritten() -> str:
        for name, original in case.inputs().items():
            if inputs[name].tobytes() != original.tobytes():
                return f"input {name}: overwritten"
        return ""

    return gate_kernel(gate, outputs, library.bind(inputs, outputs.arrays), overwritten)
