"""The systems of a benchmark in turns: processes, preparation, rounds, evidence."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prism.measure.executor import START, START_TIMEOUT
from prism.measure.gpu import clocks
from prism.measure.rows import Row
from prism.measure.worker import Failure, Worker
from prism.model.device import Device

LATE = "the time was over before it was measured"
CUT = "cut"  # the cause of a row, see `rows.Row`
Progress = Callable[[str, int, int], None]
WARM_SHARE = 0.25  # of a turn
MIN_TURN = 0.005  # seconds
MIN_ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """At most `rounds` rounds in about `seconds` (at least three, whatever they take); or, with
    `repetitions`, so many cold samples of each system and so many warm ones, over all rounds.

    A turn is the share of one system in one round, three quarters of it cold; after it,
    `settle_seconds` let its threads fall asleep. A median below `read_tolerance` times the 20%
    quantile of merely reading the inputs is suspect. At the time `until` (of `time.monotonic`)
    systems that are not done fail with the reason `LATE`. With `limited`, `prepare_timeout` is what
    the limit of a run left: a baseline that needs longer is `CUT`, and does not hang.
    """

    device: Device
    rounds: int = 20
    seconds: float = 10.0
    repetitions: int | None = None
    threads: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    seed: int = 0
    prepare_timeout: float = 300.0
    turn_timeout: float = 60.0
    settle_seconds: float = 0.01
    read_tolerance: float = 0.75
    until: float = math.inf
    limited: bool = False


@dataclass
class System:
    """A system of a benchmark: its row, what its process is told, and the process."""

    row: Row
    source: str | None = None
    job: dict | None = None
    env: dict[str, str] = field(default_factory=dict)
    worker: Worker | None = None
    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)

    def fail(self, reason: str, status: str = "failed") -> None:
        """Marks the row; the process is gone."""
        self.row.status, self.row.reason = status, " ".join(reason.split())
        self.worker = None

    def ask(self, command: dict, timeout: float) -> dict | None:
        """The worker's answer; None, with the row marked, when there is none."""
        try:
            return self.worker.ask(command, timeout)
        except Failure as failure:
            self.fail(str(failure), failure.status)
            return None


def measure(
    systems: Sequence[System], settings: BenchSettings, work: Path, progress: Progress
) -> None:
    """Starts all systems at once and prepares each in turn; then the rounds, with the clocks
    around them, and the evidence."""
    _start([system for system in systems if system.job is not None], settings, work)
    for number, system in enumerate(systems, 1):
        if system.worker is not None:
            _prepare(system, settings)
        progress("prepare", number, len(systems))
    before = clocks() if settings.device.torch == "cuda" else {}
    _rounds(systems, settings, progress)
    if before:
        taken = {"idle_before": before, "idle_after": clocks()}  # as nothing runs by then
        for system in systems:
            system.row.environment = {**system.row.environment, "clocks": taken}
    for system in systems:
        answer = system.worker and system.ask({"do": "finish"}, settings.turn_timeout)
        if answer:
            system.row.evidence = answer["evidence"]
            system.worker.close()
            system.worker = None
            if answer["evidence"].get("problem"):
                system.fail(answer["evidence"]["problem"])


def _start(systems: Sequence[System], settings: BenchSettings, work: Path) -> None:
    """A process for each, all at once, as importing takes seconds; nothing is timed meanwhile."""
    started = []
    for system in systems:
        name = system.row.system
        system.worker = Worker(system.job, work, name, settings.threads, system.env)
        try:
            system.worker.send(START)
            started.append(system)
        except Failure as failure:
            system.fail(str(failure), failure.status)
    for system in started:
        try:
            system.worker.answer(START, START_TIMEOUT)
        except Failure as failure:
            system.fail(str(failure), failure.status)


def _rounds(systems: Sequence[System], settings: BenchSettings, progress: Progress) -> None:
    """Turns of all systems, in rotated order."""
    share = settings.seconds / (settings.rounds * len(systems)) - settings.settle_seconds
    turn_seconds = max(MIN_TURN, share)
    warm = WARM_SHARE * turn_seconds
    end = time.monotonic() + settings.seconds
    for number in range(settings.rounds):
        if time.monotonic() >= settings.until:
            for system in systems if number < MIN_ROUNDS else ():
                if system.worker is not None:
                    system.worker.close()
                    system.fail(LATE)
            break
        samples = _samples(settings, number)
        if samples is None and number >= MIN_ROUNDS and time.monotonic() > end:
            break
        turn = number % len(systems)
        for system in (*systems[turn:], *systems[:turn]):
            for state, seconds in (("cold", turn_seconds - warm), ("warm", warm)):
                if system.worker is None or samples == 0:
                    continue
                command = {"do": "turn", "state": state, "seconds": seconds, "samples": samples}
                answer = system.ask(command, settings.turn_timeout + seconds)
                if answer is not None:
                    getattr(system, state).extend(answer["samples_us"])
            if system.worker is not None:
                system.row.rounds = number + 1
                time.sleep(settings.settle_seconds)
        progress("bench", number + 1, settings.rounds)
    progress("bench", settings.rounds, settings.rounds)


def _samples(settings: BenchSettings, number: int) -> int | None:
    """How many samples of a state a turn of this round takes; None: as time allows."""
    if settings.repetitions is None:
        return None
    each, more = divmod(settings.repetitions, settings.rounds)
    return each + (number < more)


def _prepare(system: System, settings: BenchSettings) -> None:
    row, left = system.row, settings.until - time.monotonic()
    if left <= 0:
        system.worker.close()
        return system.fail(LATE)
    seconds = min(settings.prepare_timeout, left)
    try:
        answer = system.worker.ask({"do": "prepare"}, seconds)
    except Failure as failure:
        if time.monotonic() >= settings.until:
            return system.fail(LATE)
        if settings.limited and failure.cause == "hang" and "adapter" in system.job:
            row.cause, row.evidence = CUT, {"waited_seconds": seconds}
            return system.fail(f"the time limit left {seconds:.0f} s for compiling")
        return system.fail(str(failure), failure.status)
    row.timer = answer["timer"]
    row.versions = {**row.versions, **answer["versions"]}
    row.environment = {**row.environment, **answer.get("environment", {})}
    if answer["compile_seconds"] is not None:
        row.compile_seconds = answer["compile_seconds"]
    verdict = answer["verdict"]
    row.status, row.reason = "ok", ""
    row.verdict = verdict["status"] if verdict else "n/a"
    if verdict:
        row.error_max, row.error_rms = verdict["error"]["max"], verdict["error"]["rms"]
        row.bound_max, row.bound_rms = verdict["bound"]["max"], verdict["bound"]["rms"]
        if verdict["status"] != "PASSED":
            system.worker.close()
            system.fail(verdict["reason"])
