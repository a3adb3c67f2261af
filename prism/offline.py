"""Kernels for GPUs compiled where there is none, and what the compiler says of them.

Configurations of proved graphs, some at random and some by the model's ranking, are compiled for
the architecture of each device. Nothing runs: registers, spills and shared memory are the
compiler's own report, and microseconds and the estimate of shared memory are modelled.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from prism import config
from prism.codegen import BACKENDS
from prism.codegen.errors import LoweringError
from prism.codegen.lower import lower
from prism.codegen.tile import TileProgram
from prism.errors import PrismError
from prism.files import write_text
from prism.instantiate.concrete import Concrete
from prism.instantiate.sampling import sample
from prism.measure.compile import Compiled, compile_all, sha256
from prism.measure.lock import work_folder
from prism.model.cost import Cost, cost
from prism.model.device import Device
from prism.model.fit import Fit, fit
from prism.model.rank import rank
from prism.program import Program
from prism.sgraph import SGraph

BACKEND = "triton"
Progress = Callable[[str, int, int | None], None]
Proofs = Callable[[Sequence[SGraph]], Sequence[str]]
_POLL = 0.5  # seconds between looks at how many are done


@dataclass(frozen=True)
class Case:
    """One configuration of a workload; `proofs` tells of graphs why they are not proved, or ""."""

    program: Program
    graphs: Sequence[tuple[str, SGraph]]
    proofs: Proofs


@dataclass(frozen=True)
class Settings:
    """`configs` of each case are compiled: half of them at random, the rest the best that the model
    ranks among `points` random ones. `limit_s` are the seconds that one of them may take.
    """

    configs: int
    points: int
    limit_s: float
    seed: int = 0


@dataclass
class _Tried:
    """One configuration on its way; `cause` and `reason` are of a failure on every device."""

    case: str
    graph_id: str
    concrete: Concrete
    chosen: str
    tile: TileProgram | None = None
    source: str = ""
    cause: str = ""
    reason: str = ""
    fits: dict[str, Fit] = field(default_factory=dict)  # by device, as the next one
    costs: dict[str, Cost] = field(default_factory=dict)  # modelled

    def fail(self, cause: str, reason: str) -> None:
        self.cause, self.reason = cause, " ".join(reason.split())

    def fitting(self) -> set[str]:
        """The devices to compile it for."""
        fits = {name for name, found in self.fits.items() if not found.reason}
        return set() if self.cause else fits


def offline_slice(
    cfg: Any, cases: Mapping[str, Mapping], overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """What the stage reads: workloads by case, its own settings, and devices to compile for.

    `cfg` was composed with `overrides`. Raises PrismError for a device that is no GPU and for a
    dtype that it cannot do.
    """
    own = config.plain(cfg.offline)
    if not isinstance(own["devices"], list) or not own["devices"]:
        raise PrismError(f"offline.devices={own['devices']!r}: must be a list such as [a100, h200]")
    elsewhere = [item for item in overrides if config.key_of(item) == "hydra.searchpath"]
    devices = {}
    for name in own["devices"]:
        found = config.compose([*elsewhere, f"device={name}"])
        if "gpu" not in found.device:
            raise PrismError(f"offline.devices: {name} is no GPU")
        if own["dtype"] not in found.device.dtypes:
            known = ", ".join(found.device.dtypes)
            raise PrismError(f"offline.dtype={own['dtype']!r}: device {name} can do {known}")
        devices[name] = config.device_of(found)
    return {"cases": dict(cases), "offline": own, "devices": devices, "seed": cfg.seed}


def missing() -> str:
    """Why nothing can be compiled for a GPU here; empty where it can."""
    if importlib.util.find_spec("triton") is not None:
        return ""
    return "triton is not installed: pip install triton"


def offline(
    cases: Mapping[str, Callable[[], Case]],
    devices: Sequence[Device],
    settings: Settings,
    jobs: int,
    progress: Progress = lambda stage, done, total: None,
    sources: Path | None = None,
) -> dict:
    """Tries `settings.configs` configurations of each case on every device; `cases` load them.

    In the folder `sources` are then the sources of all that the compiler was given, each named by
    its digest (see `Concrete.digest`), which a row's `source` names.

    Returns plain data: `rows`, one a configuration and device, each with its status and the cause
    and reason of a failure ("proof", "lower", "fit", "compile" or "timeout"); `pruned`, how many
    random configurations of each case were passed over as they fit no device; `totals` and
    `seconds`. Where triton is not installed `status` is "unavailable", with the reason. Raises
    PrismError for a folder that cannot be written.
    """
    start = time.perf_counter()
    shared = {
        "backend": BACKEND,
        "devices": {device.name: device.to_json() for device in devices},
        **{k: getattr(settings, k) for k in ("configs", "points", "seed")},
        "jobs": jobs,
        "cases": list(cases),
    }
    if reason := missing():
        return shared | {"status": "unavailable", "reason": reason, "rows": []}
    tried: list[_Tried] = []
    pruned: dict[str, int] = {}
    for number, (name, load) in enumerate(cases.items(), 1):
        case = load()
        found, pruned[name] = _choose(name, case, devices, settings)
        _prove(case, found)
        tried += found
        progress("choose and prove", number, len(cases))
    chosen = time.perf_counter()
    archs: dict[int, list[Device]] = {}
    for device in devices:
        archs.setdefault(device.gpu.arch, []).append(device)
    with work_folder("offline") as work:
        built = {
            arch: _compile(tried, alike, settings, jobs, work / f"sm_{arch}", progress)
            for arch, alike in archs.items()
        }
    end = time.perf_counter()
    for one in tried if sources else ():
        if one.fitting():
            write_text(sources / _file(one), one.source)
    rows = [
        _row(t, d, built[d.gpu.arch].get(sha256(t.source)), settings.limit_s, sources is not None)
        for t in tried
        for d in devices
    ]
    return shared | {
        "status": "ok",
        "reason": "",
        "versions": {"triton": version("triton")},
        "pruned": pruned,
        "rows": rows,
        "totals": _totals(rows, len(tried)),
        "seconds": {"choose": chosen - start, "compile": end - chosen, "total": end - start},
    }


# Choosing ---------------------------------------------------------------------------------


def _choose(
    name: str, case: Case, devices: Sequence[Device], settings: Settings
) -> tuple[list[_Tried], int]:
    """The configurations of a case, and how many random ones before them fit no device."""
    manifest = BACKENDS[BACKEND]
    points = sample(
        case.graphs,
        case.program,
        settings.points,
        settings.seed,
        manifest.options,
        manifest.scratch_bytes,
    )
    found: dict[str, _Tried] = {}
    pruned = 0
    for graph_id, concrete in points:
        if len(found) >= math.ceil(settings.configs / 2):
            break
        tried = _prepared(_Tried(name, graph_id, concrete, "random"), devices)
        if not tried.cause and not tried.fitting():
            pruned += 1
        else:
            found[concrete.digest()] = tried
    # The devices' rankings in turn: the best of each, then the second best, ...
    for item in chain.from_iterable(zip_longest(*(rank(points, d) for d in devices))):
        if len(found) >= settings.configs:
            break
        if item is not None and item[2].digest() not in found:
            tried = _Tried(name, item[1], item[2], "ranked")
            found[item[2].digest()] = _prepared(tried, devices)
    return list(found.values()), pruned


def _prepared(tried: _Tried, devices: Sequence[Device]) -> _Tried:
    """Lowered, with the devices that it fits, and printed where there are any."""
    manifest = BACKENDS[BACKEND]
    try:
        tried.tile = lower(tried.concrete, manifest.library)
        tried.fits = {device.name: fit(tried.tile, device.gpu) for device in devices}
        if tried.fitting():
            tried.source = manifest.source(tried.tile)
        fitting = [device for device in devices if device.name in tried.fitting()]
        tried.costs = {d.name: cost(tried.tile, d.gpu) for d in fitting}
    except LoweringError as error:
        tried.fail("lower", str(error))
    return tried


def _prove(case: Case, tried: Sequence[_Tried]) -> None:
    """Each graph as a whole, whatever the search says of it."""
    reasons = case.proofs([t.concrete.graph for t in tried])
    for one, reason in zip(tried, reasons, strict=True):
        if reason and not one.cause:
            one.fail("proof", reason)


# Compiling --------------------------------------------------------------------------------


def _compile(
    tried: Sequence[_Tried],
    devices: Sequence[Device],
    settings: Settings,
    jobs: int,
    work: Path,
    progress: Progress,
) -> dict[str, Compiled]:
    """What the compiler makes of all that fit one of `devices`, which share an architecture.

    By sha256 of the source; one batch.
    """
    names, arch = {device.name for device in devices}, devices[0].gpu.arch
    sources = [one.source for one in tried if one.fitting() & names]
    work.mkdir()
    with _watching(work, lambda done: progress(f"compile for sm_{arch}", done, len(sources))):
        return compile_all(
            sources, BACKENDS[BACKEND], work, jobs, settings.limit_s, device=devices[0]
        )


@contextlib.contextmanager
def _watching(folder: Path, say: Callable[[int], None]) -> Iterator[None]:
    """Tells `say` how many results are in a folder, until the block ends."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(_POLL):
            say(sum(1 for _ in folder.glob("[!.]*" + BACKENDS[BACKEND].built)))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# Results ----------------------------------------------------------------------------------


def _file(tried: _Tried) -> str:
    return f"{tried.concrete.digest()}{BACKENDS[BACKEND].suffix}"


def _row(
    tried: _Tried, device: Device, compiled: Compiled | None, limit_s: float, kept: bool
) -> dict:
    """One configuration on one device; `kept`: whether sources are. `modelled_us`, `modelled` (a
    `model.cost.Cost`) and `estimated_shared_bytes` are modelled."""
    fitted, facts = tried.fits.get(device.name), compiled.facts if compiled else {}
    modelled = tried.costs.get(device.name)
    cause, reason = tried.cause, tried.reason
    if not cause and fitted.reason:
        cause, reason = "fit", fitted.reason
    elif not cause and compiled.error:
        cause = "timeout" if compiled.seconds >= limit_s else "compile"
        reason = compiled.error
    return {
        **{"case": tried.case, "graph_id": tried.graph_id, "digest": tried.concrete.digest()},
        "dtype": tried.concrete.program.dtype,
        "chosen": tried.chosen,
        "sizes": [dict(sizes) for sizes in tried.concrete.sizes],
        "options": dict(tried.concrete.options),
        **{"device": device.name, "arch": device.gpu.arch},
        "status": "failed" if cause else "ok",
        **{"cause": cause, "reason": reason},
        **{fact: facts.get(fact) for fact in ("registers", "spill_bytes", "shared_bytes")},
        "kernels": facts.get("kernels", []),
        "source": _file(tried) if kept and device.name in tried.fitting() else None,
        "seconds": compiled.seconds if compiled else None,
        "estimated_shared_bytes": fitted.shared_bytes if fitted else None,
        "modelled_us": modelled.us if modelled else None,
        "modelled": asdict(modelled) if modelled else None,
    }


def _totals(rows: Sequence[Mapping], configurations: int) -> dict:
    """`tried` were given to the compiler; `causes` are of those that were not, or failed there."""
    causes = Counter(row["cause"] for row in rows if row["cause"])
    passed = sum(row["status"] == "ok" for row in rows)
    return {
        "configurations": configurations,
        "tried": passed + causes["compile"] + causes["timeout"],
        "compiled": passed,
        "causes": dict(sorted(causes.items())),
    }
