"""The benchmark of a case: Prism's winner, the baselines and the reading kernel, interleaved.

Each system lives in its own process, passes the gate there, and is then timed in turns: rounds
whose order rotates, one system running while the others block on their pipes. A system that fails
is a row with its reason, and the others go on.
"""

from __future__ import annotations

import datetime
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prism.codegen import NUMERICS
from prism.errors import PrismError
from prism.measure.baseline import BaselineSpec
from prism.measure.compile import compile_trusted
from prism.measure.eager_case import prepare_case
from prism.measure.environment import environment
from prism.measure.gate import Gate, blind
from prism.measure.gpu import child_environment, clocks, lock_name
from prism.measure.inputs import Case
from prism.measure.lock import device_lock, work_folder
from prism.measure.race import FACTS
from prism.measure.rows import Row, write_rows
from prism.measure.tune import backend_of, read_source, read_winner, rebuild
from prism.measure.worker import Failure, Worker
from prism.model.device import Device
from prism.model.roofline import roofline_us
from prism.program import Program

__all__ = ["BaselineSpec", "BenchSettings", "bench", "failures"]

PRISM, READ = "prism", "read"
LATE = "the time was over before it was measured"
Progress = Callable[[str, int, int], None]
WARM_SHARE = 0.25  # of a turn
MIN_TURN = 0.005  # seconds
MIN_ROUNDS = 3
JUDGED_FROM_US = 50.0  # below, starting threads and not memory decides the reading kernel's time


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """At most `rounds` rounds in about `seconds` (at least three, whatever they take); or, with
    `repetitions`, so many cold samples of each system and so many warm ones, over all rounds.

    A turn is the share of one system in one round, three quarters of it cold; after it,
    `settle_seconds` let its threads fall asleep. A time below `read_tolerance` times that of merely
    reading the inputs is suspect. At the time `until` (of `time.monotonic`) systems that are not
    done fail with the reason `LATE`.
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


@dataclass
class _System:
    row: Row
    job: dict | None = None
    env: dict[str, str] = field(default_factory=dict)
    worker: Worker | None = None
    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)

    def fail(self, reason: str, status: str = "failed") -> None:
        self.row.status, self.row.reason = status, " ".join(reason.split())
        self.worker = None

    def ask(self, command: dict, timeout: float) -> dict | None:
        """The worker's answer; None, with the row marked, when there is none."""
        try:
            return self.worker.ask(command, timeout)
        except Failure as failure:
            self.fail(str(failure), failure.status)
            return None


def bench(
    program: Program,
    winner_dir: Path | None,
    baselines: Sequence[BaselineSpec],
    settings: BenchSettings,
    out: Path,
    context: Mapping[str, object],
    progress: Progress | None = None,
) -> list[dict]:
    """One row a system (`prism`, the baselines by name, `read`), returned and written to `out`.

    Raises PrismError for a missing compiler or a disk that cannot be written; whatever a system
    does is its row.
    """
    backend_of(settings.device.backend, program.dtype)
    progress = progress or (lambda stage, done, total: None)
    systems: list[_System] = []
    with work_folder("bench") as work:
        case = prepare_case(
            program, work / "case", settings.seed, settings.threads, settings.device
        )
        template = _template(case, settings, context)
        systems.append(_prism(case, winner_dir, settings, work, template))
        systems += [_baseline(case, b, settings, work, template) for b in baselines]
        systems.append(_read(case, settings, work, template))
        if reason := blind(template["controls"]):
            for system in systems[:-1]:  # all but `read`, which has nothing to gate
                system.job = None
                system.fail(reason)
        try:
            with device_lock(lock_name(settings.device)):
                _measure(systems, settings, work, progress)
        finally:
            for system in systems:
                if system.worker is not None:
                    system.worker.close()
    rows = _finished(systems, settings)
    write_rows(out, rows)
    return rows


def failures(rows: Sequence[Mapping]) -> list[str]:
    """What a user of `bench` must be told of its rows, a line each; empty when Prism has a time.

    One line when no system has one, with the reasons of all; else one when Prism has none.
    """
    systems = [row for row in rows if row["system"] != READ]
    failed = [row for row in systems if row["status"] != "ok"]
    said = [f"{row['system']}: {row['status']}: {row['reason']}" for row in failed]
    if len(failed) == len(systems) > 1:
        return [f"no system has a time: {'; '.join(said)}"]
    return [line for row, line in zip(failed, said, strict=True) if row["system"] == PRISM]


def _template(case: Case, settings: BenchSettings, context: Mapping[str, object]) -> dict:
    """What all rows of the case share."""
    gate = Gate(case)
    bound = max(gate.bounds.values(), key=lambda b: b.rms)
    note = "; ".join(f"{output}: {why}" for output, why in gate.without_eager.items())
    gpu, facts = settings.device.gpu, environment(settings.threads)
    known = set(Row.__dataclass_fields__)
    shared = {
        "workload": case.program.name,
        "config": "",
        "shape": {k: v for k, v in case.program.sizes.items() if isinstance(v, int)},
        "dtype": case.dtype,
        "device": settings.device.name,
        "bound_max": bound.max,
        "bound_rms": bound.rms,
        "bound_note": note,
        "controls": gate.controls(),
        "input_bytes": case.data["input_bytes"],
        "copies": case.data["copies"],
        "roofline_us": roofline_us(case.program, gpu) if gpu is not None else None,
        "threads": settings.threads,
        "seed": settings.seed,
        "versions": facts.pop("versions"),
        "commit": facts.pop("commit"),
        "dirty": facts.pop("dirty"),
        "environment": facts,
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    return shared | {k: v for k, v in context.items() if k in known}


def _job(case: Case, settings: BenchSettings, **rest) -> dict:
    copies = case.data["copies"]
    device = settings.device.to_json()
    shared = {"case": str(case.folder), "threads": settings.threads, "device": device}
    return {**shared, "copies": copies, **rest}


def _prism(
    case: Case, winner_dir: Path | None, settings: BenchSettings, work: Path, template: dict
) -> _System:
    """The winner, built anew from its stored source; the worker gates it before any timing."""
    system = _System(Row(system=PRISM, numerics=NUMERICS, **template))
    try:
        if winner_dir is None:
            raise PrismError("there is no winner")
        winner = read_winner(winner_dir)
        row = system.row
        row.tune_seconds = winner["seconds"]["tune"]
        row.compile_seconds = winner["seconds"]["compile"]
        if winner["status"] != "ok":
            raise PrismError(winner["reason"])
        row.graph_id, row.source_sha256 = winner["graph_id"], winner["source_sha256"]
        row.variant = winner["digest"]
        row.modelled_us = winner.get("modelled_us")
        compiled = rebuild(winner_dir, winner, settings.device, work)
        for name in FACTS:
            setattr(row, name, compiled.facts.get(name))
        system.env = child_environment(settings.device, work)
        system.job = _job(case, settings, library=str(compiled.library), gated=True)
    except PrismError as error:
        system.fail(str(error))
    return system


def _baseline(
    case: Case, spec: BaselineSpec, settings: BenchSettings, work: Path, template: dict
) -> _System:
    row = Row(system=spec.name, **{**template, "search_seconds": None, "search": {}})
    system = _System(row)
    # Empty caches of compiled code, so that compile_seconds is what a user waits for.
    own = work / f"cache-{spec.name}"
    system.env = child_environment(settings.device, own) | {"TRITON_INTERPRET": "0"}
    system.env |= {"TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"), "TMPDIR": str(work)}
    adapter = str(Path(spec.adapter).resolve())
    options = dict(spec.options)
    system.job = _job(case, settings, adapter=adapter, name=spec.name, options=options)
    return system


def _read(case: Case, settings: BenchSettings, work: Path, template: dict) -> _System:
    system = _System(Row(system=READ, **{**template, "search_seconds": None, "search": {}}))
    system.row.controls, system.row.bound_note = {}, ""
    system.row.bound_max = system.row.bound_rms = None
    manifest = backend_of(settings.device.backend)
    compiled = compile_trusted(read_source(case, manifest), manifest, work, settings.device)
    system.env = child_environment(settings.device, work)
    system.job = _job(case, settings, library=str(compiled.library), gated=False)
    return system


def _measure(
    systems: Sequence[_System], settings: BenchSettings, work: Path, progress: Progress
) -> None:
    """Prepares each system in turn, then the rounds, with the clocks around them, then evidence."""
    for number, system in enumerate(systems, 1):
        if system.job is not None:
            _prepare(system, settings, work)
        progress("prepare", number, len(systems))
    before = clocks() if settings.device.torch == "cuda" else {}
    _rounds(systems, settings, progress)
    if before:
        taken = {"before": before, "after": clocks()}
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


def _rounds(systems: Sequence[_System], settings: BenchSettings, progress: Progress) -> None:
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


def _prepare(system: _System, settings: BenchSettings, work: Path) -> None:
    row, left = system.row, settings.until - time.monotonic()
    if left <= 0:
        return system.fail(LATE)
    system.worker = Worker(system.job, work, row.system, settings.threads, system.env)
    answer = system.ask({"do": "prepare"}, min(settings.prepare_timeout, left))
    if answer is None:
        if time.monotonic() >= settings.until:
            system.fail(LATE)
        return
    row.timer = answer["timer"]
    row.versions = {**row.versions, **answer["versions"]}
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


def _finished(systems: Sequence[_System], settings: BenchSettings) -> list[dict]:
    """Samples, the comparison with reading and with the roofline, and the rows as plain data."""
    for system in systems:
        if system.row.status == "ok":
            system.row.set_samples(system.cold, system.warm)
    read = next(s.row.median_us for s in systems if s.row.system == READ)
    for system in systems:
        row = system.row
        row.read_us = read
        if row.median_us is None:
            continue
        if row.roofline_us is not None:
            row.roofline_fraction = row.roofline_us / row.median_us
            if row.median_us < row.roofline_us:
                row.status = "suspect"
                row.reason = (
                    f"{row.median_us:.1f} us is less than the {row.roofline_us:.1f} us "
                    f"(modelled) that device {row.device} needs at least"
                )
        if read is None:
            continue
        row.read_speed_fraction = read / row.median_us
        if read >= JUDGED_FROM_US and row.median_us < settings.read_tolerance * read:
            row.status = "suspect"
            row.reason = (
                f"{row.median_us:.1f} us is less than {settings.read_tolerance:g} times the "
                f"{read:.1f} us of merely reading the inputs"
            )
    return [system.row.to_json() for system in systems]
