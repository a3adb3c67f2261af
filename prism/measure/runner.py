"""A process of its own for a system of a benchmark, or for candidates: commands come over pipes.

`python -m prism.measure.runner JOB.json` answers one JSON line on its first standard output for
each line it is sent: {"do": "start"}, {"do": "prepare"}, {"do": "turn", "state": "cold" | "warm",
"seconds": s, "samples": n or null}, {"do": "finish"}. An answer bears the "number" of its command.
It ends when its input ends. All that libraries print goes to standard error.

Job: see `systems`. A job with `candidates` is instead given one tuning candidate after another:
{"do": "start"}, then {"do": "candidate", ...} (see `resident`).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from prism.measure.baseline import Unavailable
from prism.measure.children import die_with_parent, one_line
from prism.measure.systems import system_of
from prism.measure.timers import Turns, timer_for
from prism.model.device import Device

Answer = Callable[[Mapping], dict]


def benchmark(job: Mapping) -> Answer:
    """Answers the commands to a system of a benchmark."""
    timer = timer_for(Device.from_json(job["device"]))
    system = system_of(job)
    turns: Turns | None = None

    def answer(command: Mapping) -> dict:
        nonlocal turns
        if command["do"] == "start":  # imports and inputs are there by now
            return {}
        if command["do"] == "prepare":
            found = system.prepare(timer)
            turns = Turns(system.calls, timer)
            return {**found, "timer": timer.name}
        if command["do"] == "turn":
            wanted = command["state"], command["seconds"], command["samples"]
            return {"samples_us": turns.run(*wanted)}
        return {"evidence": {**timer.facts(), **system.finish()}}

    return answer


def tuning(job: Mapping) -> Answer:
    """Answers the commands to candidates."""
    from prism.measure.resident import Candidates

    candidates = Candidates(job)

    def answer(command: Mapping) -> dict:
        return {} if command["do"] == "start" else {"result": candidates.run(command)}

    return answer


def serve(job: Mapping, source, sink) -> None:
    """Answers commands until the input ends; the first makes what the job asks for."""
    answer: Answer | None = None
    for line in source:
        command = json.loads(line)
        try:
            answer = answer or (tuning if job.get("candidates") else benchmark)(job)
            found = answer(command)
        except Unavailable as error:
            found = {"unavailable": one_line(error)}
        except Exception as error:  # whatever a system raises becomes its row's reason
            found = {"failed": one_line(error)}
        sink.write(json.dumps({**found, "number": command.get("number")}) + "\n")
        sink.flush()


def main(argv: list[str]) -> int:
    """Entry point of the child."""
    die_with_parent()
    sink = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not end up among the answers
    serve(json.loads(Path(argv[0]).read_text()), sys.stdin, sink)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
