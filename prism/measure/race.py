"""Candidates against each other: compiled in parallel, gated and timed one by one, then finals.

Every candidate is gated and gets a few timed calls; those far behind the leader get no more.
The best few run again in passes whose order rotates, and the winner is the one whose median over
all passes is least: so a lucky sample does not pick it.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from prism.errors import PrismError
from prism.measure.compile import Builder, Compiled, compile_all, sha256
from prism.measure.executor import Executor, Trial
from prism.measure.gpu import lock_name
from prism.measure.lock import Locked, device_lock
from prism.model.device import Device

Progress = Callable[[str, int, int], None]
GIVE_UP_FACTOR = 2.0  # a candidate slower than this times the leader gets no further samples
LEAST = 8  # candidates to try, whatever the seconds of a tuning
FINALISTS = 4
PASSES = 3
VERIFY_FACTOR = 3.0  # of the time limit of a child, for the checks of a winner
FACTS = ("registers", "spill_bytes", "shared_bytes")  # of the compiler, see `compile.Compiled`


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
    # of Prism), compile, load, launch (refused by the device), crash, hang, memory, gate.
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
        facts = self.compiled.facts if self.compiled else {}
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
            **{name: facts.get(name) for name in FACTS},
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
        executor: Executor,
        backend: Builder,
        device: Device,
        work: Path,
        threads: int,
        limits: Limits | None = None,
        progress: Progress | None = None,
    ):
        self.executor, self.backend, self.work, self.threads = executor, backend, work, threads
        self.device, self.limits = device, limits or Limits()
        self.progress = progress or (lambda stage, done, total: None)
        self.candidates: list[Candidate] = []
        self.until = math.inf  # of time.monotonic; then nothing more is started
        self.seconds = {"compile": 0.0, "tune": 0.0}
        self._libraries: dict[str, Compiled] = {}
        self._lock = lock_name(device)

    @property
    def late(self) -> bool:
        """Whether it is time to end."""
        return time.monotonic() >= self.until

    @property
    def leader(self) -> Candidate | None:
        """The fastest that passed, or None."""
        passed = [c for c in self.candidates if c.status == "ok"]
        final = [c for c in passed if c.finals_us]
        if final:
            return min(final, key=lambda c: c.median_us)
        return min(passed, key=lambda c: c.score_us, default=None)

    @contextlib.contextmanager
    def _alone(self, tried: int) -> Iterator[None]:
        """Holds the device; or it is time to end, as another run held it. Raises Locked then when
        none were tried before, as there is nothing to end with."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(device_lock(self._lock, self.until))
            except Locked:
                if not tried:
                    raise
            yield

    def causes(self) -> dict[str, int]:
        """Failures counted by cause."""
        return dict(Counter(c.cause for c in self.candidates if c.status == "failed"))

    def enter(self, batch: Sequence[Candidate], total: int, until: float = math.inf) -> None:
        """Lowers and compiles a batch, then gates and times each serially.

        At `until` (of `time.monotonic`), once `LEAST` were tried, the rest is dropped as if it had
        not been entered.
        """
        self.candidates += batch
        start = time.perf_counter()
        self._compile(batch)
        compiled = time.perf_counter()
        self.seconds["compile"] += compiled - start
        tried = len(self.candidates) - len(batch)
        with self._alone(tried):
            for number, candidate in enumerate(batch, tried + 1):
                over = number > LEAST and time.monotonic() >= until
                if self.late or over:  # those not reached were not tried
                    del self.candidates[number - 1 :]
                    break
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
        with self._alone(len(self.candidates)):
            for number in range(PASSES):
                if self.late:
                    break
                turn = number % max(1, len(finalists))
                for candidate in finalists[turn:] + finalists[:turn]:
                    if candidate.status == "ok":
                        self._final(candidate)
                self.progress("finals", number + 1, PASSES)
            while (leader := self.leader) and not self._verified(leader):
                pass
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
            new,
            self.backend,
            self.work,
            jobs,
            self.limits.compile_timeout,
            self.progress,
            self.device,
        )
        for candidate in written:
            candidate.compiled = self._libraries[sha256(candidate.source)]
            if candidate.compiled.library is None:
                candidate.fail("compile", candidate.compiled.error)

    def _first(self, candidate: Candidate) -> None:
        leader = self.leader
        give_up = GIVE_UP_FACTOR * leader.score_us if leader else Trial.give_up_us
        candidate.status = "ok"
        candidate.samples_us += self._run(candidate, self.limits.first_seconds, 5, 100, give_up)

    def _final(self, candidate: Candidate) -> None:
        candidate.finals_us += self._run(candidate, self.limits.final_seconds, 10, 400)

    def _run(self, candidate, seconds, at_least, at_most, give_up=Trial.give_up_us) -> list[float]:
        trial = Trial(seconds, at_least, at_most, give_up, self.limits.child_timeout)
        result = self.executor.run(candidate.compiled.library, trial)
        candidate.verdict = result.get("verdict") or candidate.verdict
        if result["status"] != "ok":
            candidate.fail(result["cause"], result["reason"])
        return result.get("samples_us", [])

    def _verified(self, candidate: Candidate) -> bool:
        """The checks that only a winner must pass; a failure is the candidate's."""
        trial = Trial(0.0, 3, 3, timeout=VERIFY_FACTOR * self.limits.child_timeout)
        result = self.executor.verify(candidate.compiled.library, trial)
        if result["status"] != "ok":
            candidate.fail(result["cause"], result["reason"])
        return result["status"] == "ok"
