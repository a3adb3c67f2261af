"""The benchmark of a case: Prism's winner, the baselines and the reading kernel, interleaved.

Each system lives in its own process, passes the gate there, and is then timed in turns: rounds
whose order rotates, one system running while the others block on their pipes. A system that fails
is a row with its reason, and the others go on.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path

from prism.errors import PrismError
from prism.measure.baseline import BaselineSpec
from prism.measure.compile import compile_all, sha256
from prism.measure.eager_case import prepare_case
from prism.measure.environment import environment
from prism.measure.gate import Gate, blind
from prism.measure.gpu import child_environment, lock_name
from prism.measure.inputs import Case
from prism.measure.lock import device_lock, work_folder
from prism.measure.race import FACTS
from prism.measure.rounds import LATE, BenchSettings, Progress, System, measure
from prism.measure.rows import Row, write_rows
from prism.measure.tune import read_source
from prism.measure.winner import DOES_NOT_COMPILE, backend_of, read_winner, stored_source
from prism.model.device import Device, Gpu
from prism.model.roofline import compulsory_bytes, least_us, roofline_us
from prism.program import Program

__all__ = ["LATE", "BaselineSpec", "BenchSettings", "bench", "failures"]

PRISM, READ = "prism", "read"
JUDGED_FROM_US = 50.0  # below, starting threads and not memory decides the reading kernel's time
MODELLED = ("modelled_roofline_us", "modelled_bandwidth_us", "modelled_least_us")
JUDGED_FROM_REPLAYS = 2.0  # the same on a GPU, in replays of a kernel that does nothing
SLOWEST_GBS = 1.0  # no memory is slower; a reading that is was held up by other work


def bench(
    program: Program,
    winner_dir: Path | None,
    baselines: Sequence[BaselineSpec],
    settings: BenchSettings,
    out: Path,
    context: Mapping[str, object],
    progress: Progress | None = None,
    case_dir: Path | None = None,
) -> list[dict]:
    """One row a system (`prism`, the baselines by name, `read`), returned and written to `out`.

    `case_dir` keeps the case (see `eager_case.prepare_case`) for the next call. Raises PrismError
    for a missing compiler or a disk that cannot be written; whatever a system does is its row.
    """
    backend_of(settings.device.backend, program.dtype)
    progress = progress or (lambda stage, done, total: None)
    systems: list[System] = []
    with work_folder("bench") as work:
        case = prepare_case(
            program, case_dir or work / "case", settings.seed, settings.threads, settings.device
        )
        template = _template(case, settings, context)
        systems.append(_prism(case, winner_dir, settings, template))
        systems += [_baseline(case, b, settings, work, template) for b in baselines]
        systems.append(_read(case, settings, template))
        _compile(case, systems, settings, work)
        if reason := blind(template["controls"]):
            for system in systems[:-1]:  # all but `read`, which has nothing to gate
                system.job = None
                system.fail(reason)
        try:
            with device_lock(lock_name(settings.device), settings.until):
                measure(systems, settings, work, progress)
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
        **_modelled(case.program, gpu),
        "threads": settings.threads,
        "seed": settings.seed,
        "versions": facts.pop("versions"),
        "commit": facts.pop("commit"),
        "dirty": facts.pop("dirty"),
        "environment": facts,
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    return shared | {k: v for k, v in context.items() if k in known}


def _modelled(program: Program, gpu: Gpu | None) -> dict[str, float | None]:
    """The roofline on a GPU, what of it is memory's, and what no kernel can be faster than."""
    if gpu is None:
        return {}
    return {
        "modelled_roofline_us": roofline_us(program, gpu),
        "modelled_bandwidth_us": compulsory_bytes(program) / (gpu.bandwidth_gbs * 1e3),
        "modelled_least_us": least_us(program, gpu),
    }


def _job(case: Case, settings: BenchSettings, **rest) -> dict:
    copies = case.data["copies"]
    device = settings.device.to_json()
    shared = {"case": str(case.folder), "threads": settings.threads, "device": device}
    return {**shared, "copies": copies, **rest}


def _prism(case: Case, winner_dir: Path | None, settings: BenchSettings, template: dict) -> System:
    """The winner, to be built anew from its source; the worker gates it before any timing."""
    system = System(Row(system=PRISM, numerics=case.program.numerics, **template))
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
        system.source = stored_source(winner_dir, winner, settings.device)
    except PrismError as error:
        system.fail(str(error))
    return system


def _baseline(
    case: Case, spec: BaselineSpec, settings: BenchSettings, work: Path, template: dict
) -> System:
    row = Row(system=spec.name, **{**template, "search_seconds": None, "search": {}})
    system = System(row)
    # Empty caches of compiled code, so that compile_seconds is what a user waits for.
    own = work / f"cache-{spec.name}"
    system.env = child_environment(settings.device, own) | {"TRITON_INTERPRET": "0"}
    system.env |= {"TRITON_CACHE_DIR": str(own / "triton")}
    system.env |= {"TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"), "TMPDIR": str(work)}
    adapter = str(Path(spec.adapter).resolve())
    options = dict(spec.options)
    system.job = _job(case, settings, adapter=adapter, name=spec.name, options=options)
    return system


def _read(case: Case, settings: BenchSettings, template: dict) -> System:
    system = System(Row(system=READ, **{**template, "search_seconds": None, "search": {}}))
    system.row.controls, system.row.bound_note = {}, ""
    system.row.bound_max = system.row.bound_rms = None
    system.row.modelled_roofline_us = system.row.modelled_bandwidth_us = (
        None  # it writes and computes nothing
    )
    system.source = read_source(case, backend_of(settings.device.backend))
    return system


def _compile(case: Case, systems: Sequence[System], settings: BenchSettings, work: Path) -> None:
    """Builds the systems that have a source, all at once.

    Raises PrismError when not even the reading kernel compiles.
    """
    manifest, device = backend_of(settings.device.backend), settings.device
    sources = [system.source for system in systems if system.source]
    built = compile_all(sources, manifest, work, len(sources), device=device)
    for system in systems:
        if not system.source:
            continue
        compiled, gated = built[sha256(system.source)], system.row.system == PRISM
        if compiled.library is not None:
            for name in FACTS if gated else ():
                setattr(system.row, name, compiled.facts.get(name))
            system.env = child_environment(device, work)
            system.job = _job(case, settings, library=str(compiled.library), gated=gated)
        elif gated:
            system.fail(f"{DOES_NOT_COMPILE}: {compiled.error}")
        else:
            raise PrismError(f"{compiled.command[0]!r} does not work: {compiled.error}")


def _finished(systems: Sequence[System], settings: BenchSettings) -> list[dict]:
    """Samples, the comparison with reading and with the model's bounds; rows as plain data.

    Reading counts by its low quantile, as a disturbance would make sound rows suspect; and not at
    all where even that cannot be (`_disturbed`).
    """
    for system in systems:
        if system.row.status == "ok":
            system.row.set_samples(system.cold, system.warm)
    reading = next(s.row for s in systems if s.row.system == READ)
    read, least, judged_from = reading.median_us, reading.p20_us, _judged_from(reading)
    if reason := _disturbed(reading, settings.device):
        reading.status, reading.reason, read = "suspect", reason, None
    for system in systems:
        row = system.row
        row.read_us = read
        if row.median_us is None:
            continue
        if row.modelled_roofline_us is not None:
            row.of_modelled_roofline = row.modelled_roofline_us / row.median_us
            if row.median_us < row.modelled_least_us:
                row.status = "suspect"
                row.reason = (
                    f"{row.median_us:.1f} us is less than the {row.modelled_least_us:.1f} us "
                    f"(modelled) that device {row.device} needs at least"
                )
        if read is None:
            continue
        row.read_speed_fraction = read / row.median_us
        if least >= judged_from and row.median_us < settings.read_tolerance * least:
            row.status = "suspect"
            row.reason = (
                f"{row.median_us:.1f} us is less than {settings.read_tolerance:g} times the "
                f"{least:.1f} us of merely reading the inputs (20% quantile)"
            )
    return [system.row.to_json() for system in systems]


def _judged_from(reading: Row) -> float:
    """Microseconds of reading from which on memory decides them."""
    least = reading.evidence.get("least_replay_us")
    return JUDGED_FROM_US if least is None else JUDGED_FROM_REPLAYS * least


def _disturbed(reading: Row, device: Device) -> str:
    """Why the reading says nothing of memory; empty where it may, and in Triton's interpreter."""
    least, size = reading.p20_us, reading.input_bytes
    interpreted = device.gpu is not None and device.torch == "cpu"
    if interpreted or least is None or size is None:
        return ""
    if least <= size / (SLOWEST_GBS * 1e3) + JUDGED_FROM_US:
        return ""
    return (
        f"the machine was busy: reading {size} bytes took {least:.1f} us (20% quantile), less than "
        f"{SLOWEST_GBS:g} GB/s, so it judges nothing"
    )
