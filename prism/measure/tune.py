"""Tuning: the fastest of the configurations of the proved graphs that passes the gate."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from prism.codegen import BACKENDS
from prism.codegen.lower import lower
from prism.errors import PrismError
from prism.instantiate.concrete import Concrete
from prism.instantiate.stable import refused
from prism.measure.compile import compile_trusted
from prism.measure.eager_case import prepare_case
from prism.measure.environment import environment
from prism.measure.executor import executor_for
from prism.measure.gate import Gate, blind
from prism.measure.inputs import Case
from prism.measure.lock import work_folder
from prism.measure.race import FACTS, LEAST, Candidate, Limits, Progress, Race
from prism.measure.strategy import STRATEGIES, Space, Strategy
from prism.measure.winner import backend_of, store
from prism.model.cost import cost
from prism.model.device import Device
from prism.program import Program
from prism.sgraph import SGraph

SHORT = 30.0  # seconds of a tuning, below which no more are compiled at once than are tried anyway
Proofs = Callable[[Sequence[SGraph]], Sequence[str]]


@dataclass(frozen=True)
class TuneBudget:
    """At most `count` configurations and about `seconds`, but some (`race.LEAST`) whatever they
    take; the same seed tries the same ones."""

    count: int = 64
    seconds: float = 60.0
    seed: int = 0


def tune(
    program: Program,
    graphs: Sequence[tuple[str, SGraph]],
    device: Device,
    budget: TuneBudget,
    out_dir: Path,
    threads: int,
    progress: Progress | None = None,
    context: Mapping[str, object] | None = None,
    strategy: str | Strategy = "random",
    limits: Limits | None = None,
    proofs: Proofs | None = None,
    earlier: Mapping | None = None,
    until: float = math.inf,
    case_dir: Path | None = None,
) -> dict:
    """Tries configurations within the budget and stores the winner in `out_dir`.

    `proofs` tells of graphs why they are not proved, "" where they are: each is asked for before it
    is compiled, and one that is not proved fails with the cause "proof".

    `earlier` is the result of a tuning of the same program, graphs, strategy and seed that this one
    goes on with: its winner runs again beside what it had not tried. `budget` is of this call
    alone, and at the time `until` (of `time.monotonic`) nothing more is started.

    `case_dir` keeps the case (see `eager_case.prepare_case`) for the next call.

    Returns what `winner.json` holds. Without a winner its `status` is "failed", with the reason
    and the counts by cause; that is a result, not an exception. `limit_s` are the seconds that it
    and the calls before it were given, and `ended` is what ended it: "count", "time", "exhausted"
    (there was nothing more to try), or None where nothing could be. `refused` counts graphs
    without a stable form, of which none is tried, by reason, out of `refused_of`. Raises PrismError
    for a missing compiler, an unknown backend or a disk that cannot be written.
    """
    start = time.perf_counter()
    manifest = backend_of(device.backend, program.dtype)
    if isinstance(strategy, str) and strategy not in STRATEGIES:
        raise PrismError(f"strategy {strategy!r} is not known; there are {sorted(STRATEGIES)}")
    chooser = STRATEGIES[strategy]() if isinstance(strategy, str) else strategy
    known = list(earlier["candidates"]) if earlier else []
    limit = len(known) + budget.count
    bounds = budget.seed, limit, manifest.scratch_bytes
    space = Space(program, graphs, manifest.options, *bounds, device, threads)
    with work_folder("tune") as work:
        case = prepare_case(program, case_dir or work / "case", budget.seed, threads, device)
        gate = Gate(case)
        if not manifest.batch:  # else every candidate would fail
            compile_trusted(read_source(case, manifest), manifest, work, device)
        executor = executor_for(case, device, work, threads)
        race = Race(executor, manifest, device, work, threads, limits, progress)
        race.until = until
        controls = gate.controls()
        concretes, ended = {}, None
        try:
            if not blind(controls):
                executor.start()
                concretes = _again(race, manifest, earlier)
                found, ended = _tune(race, chooser, space, manifest, budget, start, proofs, known)
                concretes |= found
            winner = race.finals()
        finally:
            executor.close()
        concrete = concretes[id(winner)] if winner else None
        result = _result(race, winner, concrete, controls, device, known)
        result["pruned"] = chooser.pruned
        result["refused"] = dict(refused(program, [graph for _, graph in graphs]))
        result["refused_of"] = len(graphs)
        result["eager"] = case.eager_record | {"without_share": gate.without_eager}
    result |= {
        "program": program.name,
        "dtype": program.dtype,
        "strategy": strategy if isinstance(strategy, str) else type(strategy).__name__,
        "budget": asdict(budget),
        "limit_s": budget.seconds + ((earlier or {}).get("limit_s") or 0.0),
        "ended": ended,
        "threads": threads,
        "environment": environment(threads),
        **(context or {}),
    }
    seconds = {**race.seconds, "total": time.perf_counter() - start}
    before = earlier["seconds"] if earlier else {}
    result["seconds"] = {name: spent + before.get(name, 0.0) for name, spent in seconds.items()}
    store(result, winner.source if winner else None, manifest.suffix, Path(out_dir))
    return result


def _again(race: Race, manifest, earlier: Mapping | None) -> dict:
    """Enters the winner of an earlier tuning, if it had one; its concrete by identity."""
    if not earlier or not earlier.get("concrete"):
        return {}
    concrete = Concrete.from_json(earlier["concrete"])
    candidate = _candidate(manifest, earlier["graph_id"], concrete)
    race.enter([candidate], 1)
    return {id(candidate): concrete}


def _candidate(manifest, graph_id: str, concrete: Concrete) -> Candidate:
    write = partial(_source, manifest, concrete)
    return Candidate(graph_id, concrete.sizes, concrete.options, concrete.digest(), write)


def _tune(
    race: Race,
    chooser,
    space: Space,
    manifest,
    budget: TuneBudget,
    start: float,
    proofs: Proofs | None,
    known: Sequence[dict],
) -> tuple[dict, str]:
    """Proposes and tries in batches until the budget ends; concretes by candidate identity, and
    what ended it (see `tune`).

    `known` are records of earlier calls: history like those of this one.
    """
    concretes: dict[int, Concrete] = {}
    size = max(4, 2 * len(os.sched_getaffinity(0)))
    size = min(size, LEAST) if budget.seconds < SHORT else size  # else most are dropped untried
    finals = min(8.0, 0.2 * budget.seconds)  # seconds kept for the final passes
    slowest, again = 0.0, len(race.candidates)
    while (tried := len(race.candidates) - again) < budget.count:
        spent = time.perf_counter() - start
        if (tried and spent + slowest > budget.seconds - finals) or race.late:
            return concretes, "time"
        history = [*known, *(c.record() for c in race.candidates[again:])]
        points = chooser.propose(space, history, min(size, budget.count - tried))
        if not points:
            return concretes, "exhausted"
        batch = []
        for graph_id, concrete in points:
            candidate = _candidate(manifest, graph_id, concrete)
            concretes[id(candidate)] = concrete
            batch.append(candidate)
        if proofs is not None:
            reasons = proofs([concrete.graph for _, concrete in points])
            for candidate, reason in zip(batch, reasons, strict=True):
                if reason:
                    candidate.fail("proof", reason)
        left = budget.seconds - finals - (time.perf_counter() - start)
        race.enter(batch, budget.count, time.monotonic() + left)
        slowest = max(slowest, time.perf_counter() - start - spent)
    return concretes, "count"


def _source(manifest, concrete: Concrete) -> str:
    return manifest.source(lower(concrete, manifest.library))


def read_source(case: Case, manifest) -> str:
    """The backend's kernel that only reads the inputs of a case."""
    return manifest.read([array.nbytes for array in case.inputs().values()])


def _result(
    race: Race,
    winner: Candidate | None,
    concrete: Concrete | None,
    controls: Mapping[str, str],
    device: Device,
    known: Sequence[dict],
) -> dict:
    records = {record["digest"]: record for record in known}
    records |= {c.digest: c.record() for c in race.candidates}  # anew, where it ran again
    passed = sum(record["status"] == "ok" for record in records.values())
    causes = Counter(r["cause"] for r in records.values() if r["status"] == "failed")
    result = {
        "status": "ok" if winner else "failed",
        "reason": "" if winner else blind(controls) or _why_none(list(records.values()), causes),
        "backend": device.backend,
        "device": device.name,
        "tried": len(records),
        "passed": passed,
        "causes": dict(causes),
        "controls": controls,
        "candidates": list(records.values()),
        "concrete": concrete.to_json() if concrete else None,
        "graph_id": winner.graph_id if winner else None,
        "median_us": winner.median_us if winner else None,
    }
    if winner is None:
        return result
    facts, expected = winner.compiled.facts, modelled(concrete, device)
    return result | {
        "modelled_us": expected["us"] if expected else None,
        "modelled": expected,
        **{name: facts.get(name) for name in FACTS},
        "digest": winner.digest,
        "sizes": [dict(s) for s in winner.sizes],
        "options": dict(winner.options),
        "samples_us": winner.finals_us or winner.samples_us,
        "verdict": winner.verdict["status"],
        "error": winner.verdict["error"],
        "bound": winner.verdict["bound"],
        "source_sha256": winner.compiled.sha256,
        "compile_command": list(winner.compiled.command),
        "kernels": facts.get("kernels", []),
    }


def modelled(concrete: Concrete, device: Device) -> dict | None:
    """What the analytic model says of a configuration, see `model.cost.Cost`; None of a CPU,
    whose model ranks but tells no times."""
    if device.gpu is None:
        return None
    return asdict(cost(lower(concrete, BACKENDS[device.backend].library), device.gpu))


def _why_none(records: Sequence[Mapping], causes: Mapping[str, int]) -> str:
    if not records:
        return "there is no valid configuration of any proved graph"
    counts = ", ".join(f"{cause} {n}" for cause, n in sorted(causes.items()))
    first = next(record for record in records if record["status"] == "failed")
    return (
        f"none of {len(records)} configurations passed ({counts}); "
        f"the first: {first['cause']}: {first['reason']}"
    )
