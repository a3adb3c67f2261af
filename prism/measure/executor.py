"""Where tuning candidates run: each in a process of its own, or one after another in a worker.

A process for each is safest and costs tens of milliseconds on a CPU. On a GPU importing PyTorch and
making a context takes seconds, so one worker goes on from candidate to candidate, and is started
anew after one that crashed, hung or left the device unusable.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from prism.errors import PrismError
from prism.files import write_json
from prism.measure import children
from prism.measure.gpu import child_environment
from prism.measure.inputs import Case
from prism.measure.worker import Failure, Worker
from prism.model.device import Device

GIB = 1 << 30
START = {"do": "start"}
START_TIMEOUT = 180.0  # seconds for a worker to import PyTorch and hold the inputs


@dataclass(frozen=True)
class Trial:
    """How long a candidate is timed; one whose first samples are over `give_up_us` gets no more."""

    seconds: float = 0.5
    at_least: int = 5
    at_most: int = 1000
    give_up_us: float = 1e18
    timeout: float = 20.0


class Executor(Protocol):
    """Results are plain data: `status` ("ok" or "failed"), `cause`, `reason`, `verdict` and
    `samples_us`. A crash, a hang and too much memory are failures like any other.
    """

    def start(self) -> None:
        """Begins what takes long, and does not wait for it."""

    def run(self, library: Path, trial: Trial) -> dict:
        """Gates and times what was compiled. Raises PrismError when no candidate could run."""

    def verify(self, library: Path, trial: Trial) -> dict:
        """As `run`, with checks that would take too long for each candidate."""

    def close(self) -> None:
        """Ends what was started."""


def executor_for(case: Case, device: Device, work: Path, threads: int) -> Executor:
    """The executor of a device."""
    made = ProcessExecutor if device.backend == "cpu" else WorkerExecutor
    return made(case, device, work, threads)


class ProcessExecutor:
    """A compiled library in a process of its own (`prism.measure.library_child`)."""

    def __init__(self, case: Case, device: Device, work: Path, threads: int):
        self._case, self._work, self._threads = case, work, threads

    def start(self) -> None:
        """Nothing takes long."""

    def run(self, library: Path, trial: Trial) -> dict:
        """See Executor."""
        result = self._work / "result.json"
        result.unlink(missing_ok=True)
        write_json(self._work / "job.json", self._job(library, trial, result))
        ended = children.run(
            [sys.executable, "-m", "prism.measure.library_child", str(self._work / "job.json")],
            trial.timeout,
            children.environment_for_child(self._threads),
            "hung: no result",
        )
        if ended.returncode is None:
            return {"status": "failed", "cause": "hang", "reason": ended.reason}
        if ended.reason or not result.exists():
            cause = "memory" if children.out_of_memory(ended.stderr) else "crash"
            reason = ended.reason or "ended without a result"
            return {"status": "failed", "cause": cause, "reason": reason}
        found = json.loads(result.read_text())
        if found["status"] != "ok":
            cause = "gate" if found["verdict"] else "load"
            found["cause"] = "memory" if found["reason"] == "out of memory" else cause
        return found

    def verify(self, library: Path, trial: Trial) -> dict:
        """Nothing beyond what every run checks."""
        return {"status": "ok"}

    def close(self) -> None:
        """Nothing stays."""

    def _job(self, library: Path, trial: Trial, result: Path) -> dict:
        data = self._case.data
        outputs = sum(r.nbytes for r in self._case.references().values())
        size = data["input_bytes"] + outputs
        return {
            "case": str(self._case.folder),
            "library": str(library),
            "threads": self._threads,
            "copies": data["copies"],
            **asdict(trial),
            "memory_bytes": (data["copies"] + 8) * size + 4 * GIB + self._threads * GIB // 4,
            "result": str(result),
        }


class WorkerExecutor:
    """Generated modules in one worker (`prism.measure.resident`), which outlives them."""

    def __init__(self, case: Case, device: Device, work: Path, threads: int):
        self._device, self._work, self._threads = device, work, threads
        self._env = child_environment(device, work)
        self._job = {
            "case": str(case.folder),
            "threads": threads,
            "copies": case.data["copies"],
            "device": device.to_json(),
            "candidates": True,
        }
        self._worker: Worker | None = None
        self._ready = False

    def start(self) -> None:
        """Starts the worker, which imports PyTorch while something else is done."""
        if self._worker is None:
            worker = Worker(self._job, self._work, "candidates", self._threads, self._env)
            self._worker, self._ready = worker, False
            try:
                worker.send(START)
            except Failure as failure:
                raise self._dead(failure) from None

    def run(self, library: Path, trial: Trial) -> dict:
        """See Executor."""
        return self._ask(library, trial, thorough=False)

    def verify(self, library: Path, trial: Trial) -> dict:
        """Adds inputs with other strides, and outputs that must follow inputs."""
        return self._ask(library, trial, thorough=True)

    def close(self) -> None:
        """Ends the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _ask(self, library: Path, trial: Trial, thorough: bool, again: bool = True) -> dict:
        self.start()
        worker = self._worker
        if not self._ready:
            try:
                worker.answer(START, START_TIMEOUT)
            except Failure as failure:
                raise self._dead(failure) from None
            self._ready = True
        command = {"do": "candidate", "library": str(library), **asdict(trial)}
        try:
            result = worker.ask({**command, "thorough": thorough}, trial.timeout)["result"]
        except Failure as failure:
            self._worker = None
            if failure.cause != "astray":
                return {"status": "failed", "cause": failure.cause, "reason": str(failure)}
            if again:  # what a candidate before left: this one has a worker of its own
                return self._ask(library, trial, thorough, again=False)
            return {"status": "failed", "cause": "crash", "reason": str(failure)}
        if result.pop("unwell", False):
            self.close()  # the next candidate gets a worker of its own
        return result

    def _dead(self, failure: Failure) -> PrismError:
        self._worker = None
        return PrismError(f"device {self._device.name}: no kernel can run: {failure}")
