"""Candidate after candidate in one process, where starting one takes seconds (a GPU's context).

Inputs, references and timer stay. A candidate that fails leaves the process usable, or the process
says that it is not and is started anew: an illegal access, for one, ends a CUDA context.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from prism.errors import PrismError
from prism.measure.children import one_line
from prism.measure.gate import Gate
from prism.measure.inputs import Case
from prism.measure.tensors import Copies, gate_timed, set_up
from prism.measure.timers import timer_for
from prism.measure.triton_kernel import TritonKernel
from prism.model.device import Device

ROTATION = 8  # copies that a candidate is captured and timed on; before each the L2 is flushed


class Unwell(PrismError):
    """The device or the process cannot go on after a candidate; says what happened."""


class Candidates:
    """Gates and times the modules of one case. Job: `case`, `threads`, `copies`, `device`."""

    def __init__(self, job: Mapping):
        set_up(job["threads"])
        device = Device.from_json(job["device"])
        self._device = device.torch
        self._case = Case(Path(job["case"]))
        self._gate = Gate(self._case)
        self._copies = Copies(self._case, job["copies"], device.torch)
        self._timer = timer_for(device)
        self._most = ROTATION if device.torch == "cuda" else None

    def run(self, command: Mapping) -> dict:
        """Gate, then cold times; the result as `executor.Executor.run` has it, and `unwell` when no
        candidate should follow in this process: a failed capture leaves PyTorch's allocator and
        generators as they are during one.

        Command: `library`, `seconds`, `at_least`, `at_most`, `give_up_us`, and `thorough`, which
        adds inputs with other strides and that outputs follow inputs. Raises Unwell.
        """
        try:
            result = self._run(command)
        except Exception as error:  # whatever a candidate raises is its failure
            result = _failed(error)
        if result["status"] != "ok":
            self._recover(result["reason"])
        return {**result, "unwell": self._timer.facts().get("captured") is False}

    def _run(self, command: Mapping) -> dict:
        kernel = TritonKernel(Path(command["library"]), self._case, self._device)
        verdict = kernel.gate(self._gate, self._copies, command["thorough"])
        result = {"verdict": verdict.to_json(), "samples_us": [], "cause": "gate"}
        if not verdict.passed:
            return {**result, "status": "failed", "reason": verdict.reason}
        calls = self._timer.prepare(kernel.rotating_calls(self._copies, self._most))
        if command["thorough"]:
            verdict = gate_timed(self._gate, self._copies, calls)
            result["verdict"] = verdict.to_json()
            if not verdict.passed:
                return {**result, "status": "failed", "reason": verdict.reason}
        samples = self._timer.time(calls, 0.0, 3, 3)
        if min(samples) <= command["give_up_us"]:
            limits = command["seconds"], command["at_least"], command["at_most"]
            samples += self._timer.time(calls, *limits, first=3)
        for number in range(len(self._copies.sets[: self._most])):  # not the next one's fault
            if reason := self._copies.overwritten(number):
                reason = f"{reason} while it was timed"
                return {**result, "status": "failed", "reason": reason}
        return {
            **result,
            "status": "ok",
            "reason": "",
            "cause": "",
            "samples_us": samples,
            "timer": self._timer.name,
        }

    def _recover(self, reason: str) -> None:
        """Memory and inputs as they were. Raises Unwell when the device does no more."""
        try:
            self._copies.synchronize()
            if self._device == "cuda":
                torch.cuda.empty_cache()
            self._copies.restore()
        except Exception:
            raise Unwell(reason) from None


def _failed(error: Exception) -> dict:
    """What a candidate raised, with its cause."""
    if isinstance(error, PrismError | ImportError | SyntaxError):
        cause = "load"
    elif isinstance(error, torch.OutOfMemoryError | MemoryError):
        cause = "memory"
    elif type(error).__name__ == "OutOfResources":  # Triton's: more than the device has
        cause = "launch"
    else:
        cause = "crash"
    reason = one_line(error)
    return {
        "status": "failed",
        "cause": cause,
        "reason": reason,
        "verdict": None,
        "samples_us": [],
    }
