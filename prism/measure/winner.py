"""The winner of a tuning as it is kept: `winner.json` and the kernel's source; and its replay."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from prism.codegen import BACKENDS
from prism.errors import PrismError
from prism.files import write_json, write_text
from prism.instantiate.concrete import Concrete
from prism.measure.compile import compile_one, sha256
from prism.measure.eager_case import prepare_case
from prism.measure.executor import Trial, executor_for
from prism.measure.gate import Gate, blind
from prism.measure.gpu import lock_name
from prism.measure.lock import device_lock, work_folder
from prism.model.device import Device

WINNER, KERNEL = "winner.json", "kernel"
DOES_NOT_COMPILE = "its kernel does not compile here"


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


def stored_source(winner_dir: Path, winner: dict, device: Device) -> str:
    """The stored source of a winner. Raises PrismError when it is not the one that won, or is for
    another backend than the device's."""
    if winner["backend"] != device.backend:
        raise PrismError(
            f"{winner_dir}: its kernel is for the backend {winner['backend']}, "
            f"device {device.name} has {device.backend}; tune again"
        )
    manifest = backend_of(winner["backend"])
    path = Path(winner_dir) / f"{KERNEL}{manifest.suffix}"
    try:
        source = path.read_text()
    except OSError as error:
        raise PrismError(f"cannot read {path}: {error.strerror or error}") from None
    if sha256(source) != winner["source_sha256"]:
        raise PrismError(f"{path} is not the source that won: its sha256 differs; tune again")
    return source


def replay(winner_dir: Path, device: Device, threads: int, seed: int | None = None) -> dict:
    """Builds the stored winner anew, gates it on this machine, and only then times it.

    Returns `status`, `reason`, `verdict`, `median_us`, `samples_us`. Raises PrismError when there
    is no winner, it is for another backend, or its source is not the one that won.
    """
    winner = read_winner(winner_dir)
    if winner["status"] != "ok":
        raise PrismError(f"{winner_dir}: there is no winner to replay: {winner['reason']}")
    concrete = Concrete.from_json(winner["concrete"])
    seed = winner["budget"]["seed"] if seed is None else seed
    with work_folder("replay") as work:
        source = stored_source(winner_dir, winner, device)
        compiled = compile_one(source, BACKENDS[device.backend], work, device=device)
        if compiled.library is None:
            raise PrismError(f"{winner_dir}: {DOES_NOT_COMPILE}: {compiled.error}")
        case = prepare_case(concrete.program, work / "case", seed, threads, device)
        if reason := blind(Gate(case).controls()):
            return {"status": "failed", "reason": reason, "verdict": None, "median_us": None}
        executor = executor_for(case, device, work, threads)
        try:
            with device_lock(lock_name(device)):
                result = executor.verify(compiled.library, Trial(0.0, 3, 3))
                if result["status"] == "ok":
                    result = executor.run(compiled.library, Trial())
        finally:
            executor.close()
    samples = result.get("samples_us") or []
    result["median_us"] = float(np.median(samples)) if samples else None
    return result
