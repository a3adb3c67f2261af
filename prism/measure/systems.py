"""The systems of a benchmark, as their own processes hold them.

Each has `prepare(timer)`, which makes it ready, gates it and leaves in `calls` what is timed, and
`finish()`, which returns evidence for its row. Job: `case`, `threads`, `copies`, `device`, and
either `library` (with `gated`) or `adapter`, `name`, `options`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from prism.measure.baseline import BaselineSpec, load_adapter
from prism.measure.environment import half_reductions
from prism.measure.freshness import stale_input
from prism.measure.gate import Gate, Outputs
from prism.measure.inputs import Case, Rotation
from prism.measure.library import Library, gate_library
from prism.measure.timers import Call, Timer
from prism.model.device import Device


class LibrarySystem:
    """A compiled library: Prism's winner, or the reading kernel, which has nothing to gate."""

    def __init__(self, job: Mapping):
        self.case = Case(Path(job["case"]))
        self.rotation = Rotation(self.case.inputs(), job["copies"])
        self.library = Library(Path(job["library"]), job["threads"])
        self.gated = job["gated"]
        self.calls: list[Call] = []

    def prepare(self, timer: Timer) -> dict:
        """Gates the library that will be timed."""
        verdict = None
        if self.gated:
            gate = Gate(self.case)
            verdict = gate_library(self.library, gate, self.rotation)
            if verdict.passed and (reason := stale_input(gate, self._run)):
                verdict = replace(verdict, status="FAILED", reason=reason)
        self.calls = timer.prepare(self.library.rotating_calls(self.case, self.rotation))
        return {"verdict": verdict and verdict.to_json(), "versions": {}, "compile_seconds": None}

    def _run(self, inputs):
        outputs = Outputs(self.case.shapes(), self.case.dtype).arrays
        self.library.bind(inputs, outputs)()
        return outputs

    def finish(self) -> dict:
        """Nothing to add."""
        return {}


class ModuleSystem:
    """A generated Triton module: Prism's winner, or the reading kernel."""

    def __init__(self, job: Mapping):
        from prism.measure.tensors import Copies, set_up
        from prism.measure.triton_kernel import TritonKernel

        set_up(job["threads"])
        self.gated, self.calls = job["gated"], []
        case, device = Case(Path(job["case"])), Device.from_json(job["device"]).torch
        self.copies = Copies(case, job["copies"], device)
        self.kernel = TritonKernel(Path(job["library"]), case, device, not self.gated)

    def prepare(self, timer: Timer) -> dict:
        """Gates the kernel, its use of strides, and then the calls that will be timed."""
        from prism.measure.tensors import gate_timed

        gate, verdict = Gate(self.copies.case), None
        if self.gated:
            verdict = self.kernel.gate(gate, self.copies, other_strides=True)
        if verdict is None or verdict.passed:
            self.calls = timer.prepare(self.kernel.rotating_calls(self.copies))
        if verdict is not None and verdict.passed:
            verdict = gate_timed(gate, self.copies, self.calls)
        return {
            "verdict": verdict and verdict.to_json(),
            "versions": {},
            "environment": half_reductions(),
            "compile_seconds": None,
        }

    def finish(self) -> dict:
        """Nothing to add."""
        return {}


class TorchSystem:
    """An adapter of a baseline, called with tensors on the device that is measured."""

    def __init__(self, job: Mapping):
        from prism.measure.tensors import Copies, set_up

        set_up(job["threads"])
        case = Case(Path(job["case"]))
        device = Device.from_json(job["device"])
        self.copies = Copies(case, job["copies"], device.torch)
        self.environment = half_reductions() if device.gpu is not None else {}
        spec = BaselineSpec(job["name"], job["adapter"], job["options"])
        self.adapter = load_adapter(spec)
        self.calls: list[Call] = []

    def prepare(self, timer: Timer) -> dict:
        """Compiles what the system compiles, then gates the very calls that will be timed."""
        from prism.measure.tensors import gate_timed

        start = time.perf_counter()
        call = self.adapter.prepare(self.copies.case.program, self.copies.sets[0])
        self.copies.synchronize()
        seconds = time.perf_counter() - start
        self.calls = timer.prepare([lambda t=tensors: call(t) for tensors in self.copies.sets])
        verdict = gate_timed(Gate(self.copies.case), self.copies, self.calls)
        if verdict.passed:
            for ready in self.calls[:3]:
                ready()
            if hasattr(self.adapter, "started"):
                self.adapter.started()
        return {
            "verdict": verdict.to_json(),
            "versions": self.adapter.version(),
            "environment": self.environment,
            "compile_seconds": seconds,
        }

    def finish(self) -> dict:
        """The adapter's evidence, such as compiled graphs and recompilations."""
        return self.adapter.evidence() if hasattr(self.adapter, "evidence") else {}


KINDS: dict[str, Callable[[Mapping], LibrarySystem | ModuleSystem]] = {
    ".so": LibrarySystem,
    ".py": ModuleSystem,
}


def system_of(job: Mapping) -> LibrarySystem | ModuleSystem | TorchSystem:
    """The system of a job."""
    if "library" not in job:
        return TorchSystem(job)
    return KINDS[Path(job["library"]).suffix](job)
