"""What nvidia-smi tells of the GPU that is measured, and what its child processes are told."""

from __future__ import annotations

import csv
import os
import subprocess
import tempfile
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from prism.errors import PrismError
from prism.measure.children import kill_group
from prism.model.device import Device

SMI_SECONDS = 10.0  # for nvidia-smi to answer; a driver that has to be loaded takes some
_MOST_BYTES = 1 << 16  # of its answer

# What names and limits the device, then what may change while something runs on it.
_FIXED = ("index", "name", "uuid", "driver_version", "memory.total", "persistence_mode")
_FIXED += ("power.limit", "clocks.max.sm", "clocks.max.memory", "mig.mode.current", "compute_mode")
_CLOCKS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "pstate")
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # new, old drivers


# Where tunings and benchmarks that follow each other keep what Triton compiled; None: each its own.
CACHE: ContextVar[Path | None] = ContextVar("cache", default=None)
_known: dict[str, dict[str, str]] = {}  # facts by GPU; no answer is asked for again


def visible() -> str | None:
    """The first GPU that this process may use, as CUDA_VISIBLE_DEVICES names it; "0" where that is
    not set, and None where it hides all of them."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    return None if first in ("", "-1") else first


def facts() -> dict[str, str]:
    """Name, UUID, driver, memory and limits of the GPU; empty without one."""
    which = visible() or ""
    if which not in _known and (found := _query(*_FIXED)):
        _known[which] = found
    return dict(_known.get(which, {}))


def check_shared() -> None:
    """Raises PrismError for a GPU that the device does not describe as a whole, or on which the
    systems of a comparison cannot be at once."""
    if partitioned():
        raise PrismError(
            "the GPU is split into MIG instances, and devices describe whole GPUs; "
            "`nvidia-smi -mig 0` joins them"
        )
    mode = facts().get("compute_mode", "Default")
    if mode != "Default":
        raise PrismError(
            f"the GPU is in compute mode {mode}: all systems of a comparison hold contexts at "
            "once; `nvidia-smi --compute-mode=DEFAULT` allows it"
        )


def clocks() -> dict[str, str]:
    """SM and memory clock, power, temperature and what slows the GPU down, now."""
    for reasons in _REASONS:
        if found := _query(*_CLOCKS, reasons):
            return found
    return _query(*_CLOCKS)


@cache
def memory_bytes() -> int | None:
    """The GPU's memory; None when it is not known."""
    size, _, unit = facts().get("memory.total", "").partition(" ")
    return int(size) << 20 if size.isdigit() and unit == "MiB" else None


def lock_name(device: Device) -> str:
    """One name a GPU, however it is spelled; the device's own name when it is none."""
    if device.torch != "cuda":
        return device.name
    return f"gpu-{facts().get('uuid') or visible() or 'none'}".replace("/", "-")


def child_environment(device: Device, work: Path) -> dict[str, str]:
    """What a process that runs or compiles Triton kernels needs: one cache, `CACHE` or that of the
    work folder, GPUs numbered as nvidia-smi does, and the interpreter where the device is that."""
    if device.backend != "triton":
        return {}
    return {
        "TRITON_CACHE_DIR": str(CACHE.get() or work / "triton"),
        "TRITON_INTERPRET": "1" if device.name == "interpreter" else "0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def partitioned() -> bool:
    """Whether the GPU is split into MIG instances, which no description of a whole GPU fits."""
    return facts().get("mig.mode.current") == "Enabled"


def smi(*arguments: str) -> list[list[str]]:
    """What nvidia-smi answers in CSV, as rows; empty when it is missing, fails, hangs, or says what
    is no text."""
    argv = ["nvidia-smi", *arguments, "--format=csv,noheader"]
    try:
        with tempfile.TemporaryFile() as answer:  # a pipe could be kept open by what it started
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout=SMI_SECONDS)
            except BaseException:
                kill_group(process)
                raise
            answer.seek(0)
            text = answer.read(_MOST_BYTES).decode(errors="replace")
        if code or "\ufffd" in text:
            return []
        return list(csv.reader(text.splitlines(), skipinitialspace=True))
    except (OSError, ValueError, subprocess.TimeoutExpired, csv.Error):
        return []


def _query(*fields: str) -> dict[str, str]:
    """Values by field, as nvidia-smi spells them; empty when it gives none."""
    which = visible()
    rows = which and smi(f"--id={which}", f"--query-gpu={','.join(fields)}")
    if not rows or len(rows[0]) != len(fields):
        return {}
    return dict(zip(fields, rows[0], strict=True))
