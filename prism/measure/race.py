"""Candidates against each other: compiled in parallel, gated and timed one by one, then finals.

Every candidate is gated and gets a few timed calls; those far behind the leader get no more.
The best few run again in passes whose order rotates, and the winner is the one whose median over
all passes is least: so a lucky sample does not pick it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from prism.errors import PrismError
from prism.files import write_json
from prism.measure import children
from prism.measure.compile import Builder, Compiled, compile_all, sha256
from prism.measure.inputs import Case
from prism.measure.lock import device_lock

Progress = Callable[[str, int, int], None]
GIVE_UP_FACTOR = 2.0  # a candidate slower than this times the leader gets no further samples
FINALISTS = 4
PASSES = 3
GIB = 1 << 30


@dataclass
class Candidate:
    """One configuration: `write()` gives its source, or raises with the reason it has none."""

    graph_id: str
    sizes: Sequence[Mapping[str, int]]
    options: Mapping[str, int | str]
    digest: str
    write: Callable[[], str]
    source: str | None = None
    compiled: Compiled | None = None
    status: str = "untried"
    # Of a failure: proof (the graph is not proved), lower (the backend cannot), internal (a fault
    # of Prism), compile, load, crash, hang, memory, gate.
    cause: str = ""
    reason: str = ""
    verdict: dict | None = None
    samples_us: list[float] = field(default_factory=list)
    finals_us: list[float] = field(default_factory=list)

    @property
    def median_us(self) -> float | None:
        """Median of the finals where it took part, else of the first samples."""
        samples = self.finals_us or self.samples_us
        return float(np.median(samples)) if samples and self.status == "ok" else None

    @property
    def score_us(self) -> float:
        """What ranks candidates before the finals: a low quantile, as noise only adds time."""
        return float(np.quantile(self.samples_us, 0.2)) if self.samples_us else float("inf")

    def fail(self, cause: str, reason: str) -> None:
        """Marks the candidate as failed."""
        self.status, self.cause, self.reason = "failed", cause, reason

    def record(self) -> dict:
        """Plain data for winner.json."""
        return {
            "graph_id": self.graph_id,
            "digest": self.digest,
            "sizes": [dict(s) for s in self.sizes],
            "options": dict(self.options),
            "status": self.status,
            "cause": self.cause,
            "reason": self.reason,
            "median_us": self.median_us,
            "n": len(self.finals_us or self.samples_us),
            "finalist": bool(self.finals_us),
            "compile_seconds": self.compiled.seconds if self.compiled else None,
            "source_sha256": self.compiled.sha256 if self.compiled else None,
        }


@dataclass(frozen=True)
class Limits:
    """Seconds of timing a candidate and a final pass, and the time limit of a child."""

    first_seconds: float = 0.06
    final_seconds: float = 0.2
    child_timeout: float = 20.0
    compile_timeout: float = 120.0


class Race:
    """Holds the candidates of one case, in the order in which they were proposed."""

    def __init__(
        self,
        case: Case,
        backend: Builder,
        work: Path,
        threads: int,
        device: str,
        limits: Limits | None = None,
        progress: Progress | None = None,
    ):
        self.case, self.backend, self.work, self.threads = case, backend, work, threads
        self.device, self.limits = device, limits or Limits()
        self.progress = progress or (lambda stage, done, total: None)
        self.candidates: list[Candidate] = []
        self.seconds = {"compile": 0.0, "tune": 0.0}
        self._libraries: dict[str, Compiled] = {}

    @property
    def leader(self) -> Candidate | None:
        """The fastest that passed, or None."""
        passed = [c for c in self.candidates if c.status == "ok"]
        final = [c for c in passed if c.finals_us]
        if final:
            return min(final, key=lambda c: c.median_us)
        return min(passed, key=lambda c: c.score_us, default=None)

    def causes(self) -> dict[str, int]:
        """Failures counted by cause."""
        return dict(Counter(c.cause for c in self.candidates if c.status == "failed"))

    def enter(self, batch: Sequence[Candidate], total: int) -> None:
        """Lowers and compiles a batch, then gates and times each serially."""
        self.candidates += batch
        start = time.perf_counter()
        self._compile(batch)
        compiled = time.perf_counter()
        self.seconds["compile"] += compiled - start
        with device_lock(self.device):
            tried = len(self.candidates) - len(batch)
            for number, candidate in enumerate(batch, tried + 1):
                if candidate.status != "failed":
                    self._first(candidate)
                self.progress("tune", number, total)
        self.seconds["tune"] += time.perf_counter() - compiled

    def finals(self) -> Candidate | None:
        """Runs the best again, in passes of rotated order; the winner, or None."""
        start = time.perf_counter()
        passed = sorted((c for c in self.candidates if c.status == "ok"), key=lambda c: c.score_us)
        finalists = []
        for candidate in passed:
            if all(f.compiled.sha256 != candidate.compiled.sha256 for f in finalists):
                finalists.append(candidate)
        finalists = finalists[:FINALISTS]
        with device_lock(self.device):
            for number in range(PASSES):
                turn = number % max(1, len(finalists))
                for candidate in finalists[turn:] + finalists[:turn]:
                    if candidate.status == "ok":
                        self._final(candidate)
                self.progress("finals", number + 1, PASSES)
        self.seconds["tune"] += time.perf_counter() - start
        return self.leader

    def _compile(self, batch: Sequence[Candidate]) -> None:
        for candidate in batch:
            if candidate.status == "failed":  # before it came here
                continue
            try:
                candidate.source = candidate.write()
            except PrismError as error:
                candidate.fail("lower", str(error))
            except Exception as error:  # one candidate never aborts the rest
                candidate.fail("internal", f"{type(error).__name__}: {error}")
        written = [c for c in batch if c.source is not None]
        new = [c.source for c in written if sha256(c.source) not in self._libraries]
        jobs = min(len(os.sched_getaffinity(0)), max(1, self.threads))
        self._libraries |= compile_all(
            new, self.backend, self.work, jobs, self.limits.compile_timeout, self.progress
        )
        for candidate in written:
            candidate.compiled = self._libraries[sha256(candidate.source)]
            if candidate.compiled.library is None:
                candidate.fail("compile", candidate.compiled.error)

    def _first(self, candidate: Candidate) -> None:
        leader = self.leader
        give_up = GIVE_UP_FACTOR * leader.score_us if leader else float("inf")
        candidate.status = "ok"
        self._run(
            candidate, self.limits.first_seconds, 5, 100, candidate.samples_us, give_up_us=give_up
        )

    def _final(self, candidate: Candidate) -> None:
        self._run(candidate, self.limits.final_seconds, 10, 400, candidate.finals_us)

    def _run(self, candidate, seconds, at_least, at_most, samples, give_up_us=float("inf")) -> None:
        result = run_candidate(
            self.case,
            candidate.compiled.library,
            self.work,
            self.threads,
            seconds=seconds,
            at_least=at_least,
            at_most=at_most,
            give_up_us=give_up_us,
            timeout=self.limits.child_timeout,
        )
        candidate.verdict = result.get("verdict") or candidate.verdict
        if result["status"] != "ok":
            candidate.fail(result["cause"], result["reason"])
        samples += result.get("samples_us", [])


def run_candidate(
    case: Case,
    library: Path,
    work: Path,
    threads: int,
    *,
    seconds: float,
    at_least: int = 5,
    at_most: int = 1000,
    give_up_us: float = float("inf"),
    timeout: float = 20.0,
) -> dict:
    """Gates and times one library in its own process.

    The result: `status` ("ok", "failed"), `cause`, `reason`, `verdict`, `samples_us`. A crash,
    a hang and the memory limit are failures like any other.
    """
    result = work / "result.json"
    result.unlink(missing_ok=True)
    size = case.data["input_bytes"]
    outputs = sum(r.nbytes for r in case.references().values())
    job = {
        "case": str(case.folder),
        "library": str(library),
        "threads": threads,
        "copies": case.data["copies"],
        "seconds": seconds,
        "at_least": at_least,
        "at_most": at_most,
        "give_up_us": min(give_up_us, 1e18),
        "memory_bytes": case.data["copies"] * (size + outputs)
        + 8 * (size + outputs)
        + 4 * GIB
        + threads * GIB // 4,
        "result": str(result),
    }
    write_json(work / "job.json", job)
    ended = children.run(
        [sys.executable, "-m", "prism.measure.candidate", str(work / "job.json")],
        timeout,
        children.environment_for_child(threads),
        "hung: no result",
    )
    if ended.returncode is None:
        return {"status": "failed", "cause": "hang", "reason": ended.reason}
    if ended.reason or not result.exists():
        memory = "bad_alloc" in ended.stderr or "MemoryError" in ended.stderr
        reason = ended.reason or "ended without a result"
        return {"status": "failed", "cause": "memory" if memory else "crash", "reason": reason}
    found = json.loads(result.read_text())
    if found["status"] != "ok":
        cause = "gate" if found["verdict"] else "load"
        found["cause"] = "memory" if found["reason"] == "out of memory" else cause
    return found
