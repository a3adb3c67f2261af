"""Tuning: the fastest of the configurations of the proved graphs that passes the gate."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from prism.codegen import BACKENDS
from prism.errors import PrismError
from prism.files import write_json, write_text
from prism.instantiate.concrete import Concrete
from prism.measure.compile import Compiled, compile_one, compile_trusted, sha256
from prism.measure.eager_case import prepare_case
from prism.measure.environment import environment
from prism.measure.gate import Gate, blind
from prism.measure.lock import device_lock, work_folder
from prism.measure.race import Candidate, Limits, Progress, Race, run_candidate
from prism.measure.read_kernel import read_source
from prism.measure.strategy import STRATEGIES, Space
from prism.program import Program
from prism.sgraph import SGraph

WINNER, KERNEL = "winner.json", "kernel"
Proofs = Callable[[Sequence[SGraph]], Sequence[str]]


@dataclass(frozen=True)
class TuneBudget:
    """At most `count` configurations and about `seconds`; the same seed tries the same ones."""

    count: int = 64
    seconds: float = 60.0
    seed: int = 0


def backend_of(name: str, dtype: str | None = None):
    """A backend's manifest. Raises PrismError for an unknown one or a dtype it cannot do."""
    if name not in BACKENDS:
        raise PrismError(f"backend {name!r} is not known; there are {', '.join(sorted(BACKENDS))}")
    backend = BACKENDS[name]
    if dtype is not None and dtype not in backend.dtypes:
        raise PrismError(
            f"dtype {dtype!r}: the {name} backend does {', '.join(backend.dtypes)} only"
        )
    return backend


def tune(
    program: Program,
    graphs: Sequence[tuple[str, SGraph]],
    backend: str,
    budget: TuneBudget,
    out_dir: Path,
    threads: int,
    progress: Progress | None = None,
    context: Mapping[str, object] | None = None,
    strategy: str = "random",
    limits: Limits | None = None,
    proofs: Proofs | None = None,
) -> dict:
    """Tries configurations within the budget and stores the winner in `out_dir`.

    `proofs` tells of graphs why they are not proved, "" where they are: each is asked for before it
    is compiled, and one that is not proved fails with the cause "proof".

    Returns what `winner.json` holds. Without a winner its `status` is "failed", with the reason
    and the counts by cause; that is a result, not an exception. Raises PrismError for a missing
    compiler, an unknown backend or a disk that cannot be written.
    """
    start = time.perf_counter()
    manifest = backend_of(backend, program.dtype)
    if strategy not in STRATEGIES:
        raise PrismError(f"strategy {strategy!r} is not known; there are {sorted(STRATEGIES)}")
    space = Space(
        program, graphs, manifest.options, budget.seed, budget.count, manifest.scratch_bytes
    )
    chooser = STRATEGIES[strategy]()
    with work_folder("tune") as work:
        case = prepare_case(program, work / "case", budget.seed, threads)
        gate = Gate(case)
        compile_trusted(read_source(case), manifest, work)  # else every candidate would fail
        race = Race(case, manifest, work, threads, backend, limits, progress)
        controls = gate.controls()
        concretes = {}
        if not blind(controls):
            concretes = _tune(race, chooser, space, manifest, budget, start, proofs)
        winner = race.finals()
        concrete = concretes[id(winner)] if winner else None
        result = _result(race, winner, concrete, controls, backend)
        result["eager"] = case.eager_record | {"without_share": gate.without_eager}
    result |= {
        "program": program.name,
        "dtype": program.dtype,
        "strategy": strategy,
        "budget": asdict(budget),
        "threads": threads,
        "environment": environment(threads),
        **(context or {}),
    }
    result["seconds"] = {**race.seconds, "total": time.perf_counter() - start}
    store(result, winner.source if winner else None, manifest.suffix, Path(out_dir))
    return result


def _tune(
    race: Race,
    chooser,
    space: Space,
    manifest,
    budget: TuneBudget,
    start: float,
    proofs: Proofs | None,
) -> dict:
    """Proposes and tries in batches until the budget ends; concretes by candidate identity."""
    concretes: dict[int, Concrete] = {}
    size = max(4, 2 * len(os.sched_getaffinity(0)))
    finals = min(8.0, 0.2 * budget.seconds)  # seconds kept for the final passes
    slowest = 0.0
    while len(race.candidates) < budget.count:
        spent = time.perf_counter() - start
        if race.candidates and spent + slowest > budget.seconds - finals:
            break
        history = [c.record() for c in race.candidates]
        points = chooser.propose(space, history, min(size, budget.count - len(history)))
        if not points:
            break
        batch = []
        for graph_id, concrete in points:
            write = partial(_source, manifest, concrete)
            candidate = Candidate(
                graph_id, concrete.sizes, concrete.options, concrete.digest(), write
            )
            concretes[id(candidate)] = concrete
            batch.append(candidate)
        if proofs is not None:
            reasons = proofs([concrete.graph for _, concrete in points])
            for candidate, reason in zip(batch, reasons, strict=True):
                if reason:
                    candidate.fail("proof", reason)
        race.enter(batch, budget.count)
        slowest = max(slowest, time.perf_counter() - start - spent)
    return concretes


def _source(manifest, concrete: Concrete) -> str:
    from prism.codegen.lower import lower

    return manifest.source(lower(concrete))


def _result(
    race: Race,
    winner: Candidate | None,
    concrete: Concrete | None,
    controls: Mapping[str, str],
    backend: str,
) -> dict:
    passed = sum(c.status == "ok" for c in race.candidates)
    result = {
        "status": "ok" if winner else "failed",
        "reason": "" if winner else blind(controls) or _why_none(race),
        "backend": backend,
        "tried": len(race.candidates),
        "passed": passed,
        "causes": race.causes(),
        "controls": controls,
        "candidates": [c.record() for c in race.candidates],
        "concrete": concrete.to_json() if concrete else None,
        "graph_id": winner.graph_id if winner else None,
        "median_us": winner.median_us if winner else None,
    }
    if winner is None:
        return result
    return result | {
        "digest": winner.digest,
        "sizes": [dict(s) for s in winner.sizes],
        "options": dict(winner.options),
        "samples_us": winner.finals_us or winner.samples_us,
        "verdict": winner.verdict["status"],
        "error": winner.verdict["error"],
        "bound": winner.verdict["bound"],
        "source_sha256": winner.compiled.sha256,
        "compile_command": list(winner.compiled.command),
    }


def _why_none(race: Race) -> str:
    if not race.candidates:
        return "there is no valid configuration of any proved graph"
    counts = ", ".join(f"{cause} {n}" for cause, n in sorted(race.causes().items()))
    first = next(c for c in race.candidates if c.status == "failed")
    return (
        f"none of {len(race.candidates)} configurations passed ({counts}); "
        f"the first: {first.cause}: {first.reason}"
    )


def store(result: dict, source: str | None, suffix: str, out_dir: Path) -> None:
    """Writes the kernel's source, then winner.json, each whole or not at all."""
    kernel = out_dir / f"{KERNEL}{suffix}"
    if source is not None:
        write_text(kernel, source)
    write_json(out_dir / WINNER, result)
    if source is None:  # of an earlier run
        try:
            kernel.unlink(missing_ok=True)
        except OSError as error:
            raise PrismError(f"cannot remove {kernel}: {error.strerror or error}") from None


def read_winner(winner_dir: Path) -> dict:
    """Content of winner.json. Raises PrismError when it is missing or damaged."""
    path = Path(winner_dir) / WINNER
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise PrismError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError:
        raise PrismError(f"{path} is damaged: not JSON; remove it and tune again") from None


def rebuild(winner_dir: Path, winner: dict, work: Path) -> Compiled:
    """Compiles the stored source of a winner after checking that it is the one that won."""
    manifest = backend_of(winner["backend"])
    path = Path(winner_dir) / f"{KERNEL}{manifest.suffix}"
    try:
        source = path.read_text()
    except OSError as error:
        raise PrismError(f"cannot read {path}: {error.strerror or error}") from None
    if sha256(source) != winner["source_sha256"]:
        raise PrismError(f"{path} is not the source that won: its sha256 differs; tune again")
    compiled = compile_one(source, manifest, work)
    if compiled.library is None:
        raise PrismError(f"{path} does not compile here: {compiled.error}")
    return compiled


def replay(winner_dir: Path, threads: int, seed: int | None = None) -> dict:
    """Builds the stored winner anew, gates it on this machine, and only then times it.

    Returns `status`, `reason`, `verdict`, `median_us`, `samples_us`. Raises PrismError when there
    is no winner or its source is not the one that won.
    """
    winner = read_winner(winner_dir)
    if winner["status"] != "ok":
        raise PrismError(f"{winner_dir}: there is no winner to replay: {winner['reason']}")
    concrete = Concrete.from_json(winner["concrete"])
    seed = winner["budget"]["seed"] if seed is None else seed
    with work_folder("replay") as work:
        compiled = rebuild(winner_dir, winner, work)
        case = prepare_case(concrete.program, work / "case", seed, threads)
        if reason := blind(Gate(case).controls()):
            return {"status": "failed", "reason": reason, "verdict": None, "median_us": None}
        with device_lock(winner["backend"]):
            result = run_candidate(case, compiled.library, work, threads, seconds=0.5)
    samples = result.get("samples_us") or []
    result["median_us"] = float(np.median(samples)) if samples else None
    return result
