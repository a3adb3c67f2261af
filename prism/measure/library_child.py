"""One compiled candidate in its own process: `python -m prism.measure.library_child JOB.json`.

Imports numpy and ctypes only, to start fast. The result file appears whole or not at all; a crash
or a hang leaves none, and the parent puts the reason in words.

Job: `case` (folder), `library`, `threads`, `copies`, `seconds`, `at_least`, `at_most`,
`give_up_us` (stop after few samples of a candidate slower than that), `memory_bytes`, `result`.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
from pathlib import Path

from prism.files import write_json
from prism.measure.children import die_with_parent
from prism.measure.gate import Gate
from prism.measure.inputs import Case, Rotation
from prism.measure.library import Library, gate_library
from prism.measure.timers import HostTimer, time_calls


def limit_memory(extra_bytes: int) -> None:
    """No core file, and at most `extra_bytes` of address space beyond what is mapped now."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    limit = mapped + extra_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def run_job(job: dict) -> dict:
    """Gate, then cold times (microseconds) over rotating inputs; the result as plain data."""
    case = Case(Path(job["case"]))
    rotation = Rotation(case.inputs(), job["copies"])
    library = Library(Path(job["library"]), job["threads"])
    verdict = gate_library(library, Gate(case), rotation)
    result = {"verdict": verdict.to_json(), "timer": HostTimer.name, "samples_us": []}
    if not verdict.passed:
        return {**result, "status": "failed", "reason": verdict.reason}
    calls = library.rotating_calls(case, rotation)
    calls[-1]()
    samples = time_calls(calls, 0.0, 3, 3)
    if min(samples) <= job["give_up_us"]:
        samples += time_calls(calls, job["seconds"], job["at_least"], job["at_most"], first=3)
    return {**result, "status": "ok", "reason": "", "samples_us": samples}


def main(argv: list[str]) -> int:
    """Entry point of the child."""
    die_with_parent()
    job = json.loads(Path(argv[0]).read_text())
    limit_memory(job["memory_bytes"])
    try:
        result = run_job(job)
    except OSError as error:
        reason = f"the library does not load: {error}"
        result = {"status": "failed", "reason": reason, "samples_us": [], "verdict": None}
    except MemoryError:
        result = {"status": "failed", "reason": "out of memory", "samples_us": [], "verdict": None}
    write_json(Path(job["result"]), result)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
