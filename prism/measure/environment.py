"""What a result was measured on, as far as the machine tells: nothing is guessed."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from prism.measure import gpu
from prism.measure.children import environment_for_child

FP32_POLICY = "IEEE, no TF32"  # of every system that runs in PyTorch or Triton
_CPUS = Path("/sys/devices/system/cpu")
_THREAD_SETTINGS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "OMP_PROC_BIND", "OMP_PLACES")
_THREAD_SETTINGS += ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "MKL_NUM_THREADS", "MALLOC_ARENA_MAX")


def available_cpus() -> list[int]:
    """The CPUs that this process may run on."""
    return sorted(os.sched_getaffinity(0))


def caches() -> list[dict]:
    """Data and unified caches of the available CPUs: level, type, size in bytes, count."""
    found: dict[tuple, dict] = {}
    seen = set()
    for cpu in available_cpus():
        for folder in sorted((_CPUS / f"cpu{cpu}" / "cache").glob("index*")):
            kind, level = _read(folder / "type"), _read(folder / "level")
            shared, size = _read(folder / "shared_cpu_list"), _size(_read(folder / "size"))
            if kind in ("Instruction", None) or not size or (level, kind, shared) in seen:
                continue
            seen.add((level, kind, shared))
            entry = found.setdefault(
                (level, kind, size),
                {"level": int(level), "type": kind, "size_bytes": size, "count": 0},
            )
            entry["count"] += 1
    return sorted(found.values(), key=lambda c: c["level"])


def last_level_cache() -> int:
    """Bytes of last-level cache that the available CPUs can use together; 32 MiB if unknown."""
    known = caches()
    top = max((c["level"] for c in known), default=0)
    return sum(c["size_bytes"] * c["count"] for c in known if c["level"] == top) or 32 << 20


def environment(threads: int) -> dict:
    """Machine, system, compiler, versions, source revision, thread settings and load."""
    cpu = _cpu_info()
    settings = environment_for_child(threads)
    return {
        "cpu": cpu.get("model name", platform.processor() or "unknown"),
        "cpu_flags": [f for f in cpu.get("flags", "").split() if f.startswith(("avx", "amx"))],
        "cores_available": len(available_cpus()),
        "threads": threads,
        "caches": caches(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": _system(),
        "kernel": platform.release(),
        "governor": _read(_CPUS / "cpu0/cpufreq/scaling_governor"),
        "clock_mhz": _clock(cpu),
        "load_average": list(os.getloadavg()),
        "thread_settings": {k: settings[k] for k in _THREAD_SETTINGS if k in settings},
        "transparent_hugepages": _read(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        "gpu": gpu.facts(),
        "fp32_products": FP32_POLICY,
        "versions": versions(),
        **revision(),
    }


def half_reductions() -> dict:
    """Whether products of 16-bit operands on this process's GPU may be summed in 16 bits."""
    import torch

    products = torch.backends.cuda.matmul
    return {
        "half_precision_reductions": {
            "fp16": products.allow_fp16_reduced_precision_reduction,
            "bf16": products.allow_bf16_reduced_precision_reduction,
        }
    }


def versions() -> dict[str, str | None]:
    """Python, libraries and the C++ compiler; None for what is not there."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("prism", "torch", "numpy", "triton", "egglog"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    found["compiler"] = compiler_version()
    return found


@cache
def compiler_version() -> str | None:
    """First line of `$CXX --version` (else c++, g++ or clang++); None without a compiler."""
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++"):
        if name and shutil.which(name):
            return _command(name, "--version")
    return None


@cache
def revision() -> dict:
    """`commit` and `dirty` of the source tree this package lies in; None where git is not."""
    here = str(Path(__file__).resolve().parent)
    commit = _command("git", "-C", here, "rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "dirty": None}
    status = _command("git", "-C", here, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": bool(status)}


def _command(*argv: str) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    text = done.stdout.strip()
    return text.splitlines()[0] if text else text


def _cpu_info() -> dict[str, str]:
    text = (_read(Path("/proc/cpuinfo")) or "").split("\n\n")[0]
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _clock(cpu: dict[str, str]) -> float | None:
    scaled = _read(_CPUS / "cpu0/cpufreq/scaling_cur_freq")
    if scaled and scaled.isdigit():
        return int(scaled) / 1000
    try:
        return float(cpu["cpu MHz"])
    except (KeyError, ValueError):
        return None


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", sys.platform)
    except OSError:
        return sys.platform


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _size(text: str | None) -> int:
    found = re.fullmatch(r"(\d+)([KMG]?)", text or "")
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]] if found else 0
