"""One system of a benchmark in its own process, given turns by the coordinator over pipes.

`python -m prism.measure.runner JOB.json` answers one JSON line on its first standard output for
each line it is sent: {"do": "prepare"}, {"do": "turn", "state": "cold" | "warm", "seconds": s},
{"do": "finish"}. It ends when its input ends. All that libraries print goes to standard error.

Job: `case`, `threads`, `copies`, and either `library` (with `gated`) or `adapter`, `name`,
`options`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from prism.errors import PrismError
from prism.measure.baseline import BaselineSpec, Unavailable, load_adapter
from prism.measure.children import die_with_parent
from prism.measure.freshness import stale_input
from prism.measure.gate import Gate, Outputs, Verdict, worst
from prism.measure.inputs import Case, Rotation
from prism.measure.library import TIMER, Call, Library, gate_library, time_calls

AT_MOST = 100  # samples a turn
GATE_RUNS = 2


class LibrarySystem:
    """A compiled kernel: Prism's winner, or the reading kernel, which has nothing to gate."""

    def __init__(self, job: dict):
        self.case = Case(Path(job["case"]))
        self.rotation = Rotation(self.case.inputs(), job["copies"])
        self.library = Library(Path(job["library"]), job["threads"])
        self.gated = job["gated"]

    def prepare(self) -> dict:
        """Gates the library that will be timed."""
        verdict = None
        if self.gated:
            gate = Gate(self.case)
            verdict = gate_library(self.library, gate, self.rotation)
            if verdict.passed and (reason := stale_input(gate, self._run)):
                verdict = replace(verdict, status="FAILED", reason=reason)
        self.calls = self.library.rotating_calls(self.case, self.rotation)
        return {"verdict": verdict and verdict.to_json(), "versions": {}, "compile_seconds": None}

    def _run(self, inputs):
        outputs = Outputs(self.case.shapes(), self.case.dtype).arrays
        self.library.bind(inputs, outputs)()
        return outputs

    def finish(self) -> dict:
        """Nothing to add."""
        return {}


class TorchSystem:
    """An adapter of a baseline, called with torch tensors that share the rotating memory."""

    def __init__(self, job: dict):
        import torch

        from prism.measure.torch_program import to_torch

        torch.set_num_threads(job["threads"])
        torch.set_grad_enabled(False)
        self.case = Case(Path(job["case"]))
        self.rotation = Rotation(self.case.inputs(), job["copies"])
        self.tensors = [
            {name: to_torch(array, self.case.dtype) for name, array in arrays.items()}
            for arrays in self.rotation.sets
        ]
        spec = BaselineSpec(job["name"], job["adapter"], job["options"])
        self.adapter = load_adapter(spec)

    def prepare(self) -> dict:
        """Compiles what the system compiles, then gates the very callable that will be timed."""
        start = time.perf_counter()
        call = self.adapter.prepare(self.case.program, self.tensors[0])
        seconds = time.perf_counter() - start
        gate = Gate(self.case)
        verdict = worst([self._check(gate, call, i) for i in range(GATE_RUNS)])
        if verdict.passed and (reason := stale_input(gate, partial(self._run, call))):
            verdict = replace(verdict, status="FAILED", reason=reason)
        self.calls: list[Call] = [lambda t=tensors: call(t) for tensors in self.tensors]
        for number in range(min(3, len(self.calls))):
            self.calls[number]()
        if hasattr(self.adapter, "started"):
            self.adapter.started()
        return {
            "verdict": verdict.to_json(),
            "versions": self.adapter.version(),
            "compile_seconds": seconds,
        }

    def _run(self, call, inputs) -> dict:
        from prism.measure.torch_program import from_torch, to_torch

        outputs = call({name: to_torch(array, self.case.dtype) for name, array in inputs.items()})
        names = list(self.case.shapes())
        if len(outputs) != len(names):
            raise PrismError(f"{len(outputs)} outputs instead of {len(names)}")
        return {n: from_torch(o) for n, o in zip(names, outputs, strict=True)}

    def _check(self, gate: Gate, call, number: int) -> Verdict:
        """One run; its inputs must be as they were."""
        number %= len(self.rotation.sets)
        verdict = gate.check(self._run(call, self.rotation.sets[number]))
        for name, original in self.case.inputs().items():
            if self.rotation.sets[number][name].tobytes() != original.tobytes():
                reason = f"input {name}: overwritten"
                return Verdict("FAILED", verdict.output, verdict.error, verdict.bound, reason)
        return verdict

    def finish(self) -> dict:
        """The adapter's evidence, such as compiled graphs and recompilations."""
        return self.adapter.evidence() if hasattr(self.adapter, "evidence") else {}


class Turns:
    """Timed calls of a prepared system; the rotation goes on where the last turn ended."""

    def __init__(self, calls: list[Call]):
        self.calls, self.next = calls, 0

    def run(self, state: str, seconds: float) -> list[float]:
        """Samples in microseconds. One untimed call wakes the threads, or fills the cache."""
        if state == "warm":
            call = self.calls[0]
            time_calls([call], 0.0, 2, 2)
            return time_calls([call], seconds, 3, AT_MOST)
        first = time_calls(self.calls, 0.0, 1, 1, first=self.next)
        self.next += 1
        slow = first[0] / 1e6 > seconds
        samples = time_calls(self.calls, seconds, 1 if slow else 3, AT_MOST, first=self.next)
        self.next = (self.next + len(samples)) % len(self.calls)
        return samples


def serve(job: dict, source, sink) -> None:
    """Answers commands until the input ends."""
    system, turns = None, None
    for line in source:
        command = json.loads(line)
        try:
            if command["do"] == "prepare":
                system = LibrarySystem(job) if "library" in job else TorchSystem(job)
                answer = {**system.prepare(), "timer": TIMER}
                turns = Turns(system.calls)
            elif command["do"] == "turn":
                answer = {"samples_us": turns.run(command["state"], command["seconds"])}
            else:
                answer = {"evidence": system.finish()}
        except Unavailable as error:
            answer = {"unavailable": one_line(error)}
        except Exception as error:  # whatever a system raises becomes its row's reason
            answer = {"failed": one_line(error)}
        sink.write(json.dumps(answer) + "\n")
        sink.flush()


def one_line(error: BaseException) -> str:
    """An exception as one line; a PrismError by its message alone."""
    text = " ".join(str(error).split())[:400]
    return text if isinstance(error, PrismError) else f"{type(error).__name__}: {text}"


def main(argv: list[str]) -> int:
    """Entry point of the child."""
    die_with_parent()
    sink = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not end up among the answers
    serve(json.loads(Path(argv[0]).read_text()), sys.stdin, sink)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
