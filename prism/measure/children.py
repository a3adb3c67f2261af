"""Child processes: started with a time limit, ended with their parent, their ends put in words."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import prism
from prism.errors import PrismError

PARENT = "PRISM_PARENT_PID"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Ended:
    """How a child ended: `reason` is empty for exit status 0."""

    returncode: int | None
    reason: str
    stderr: str
    seconds: float


def environment_for_child(threads: int, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The parent's environment with the import path and the thread count of the run.

    The OpenMP wait policy stays the library's default for every system (passive waiting would
    slow all of them); the coordinator lets a child's threads fall asleep before the next turn.
    """
    roots = [str(Path(prism.__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(r for r in roots if r),
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_DYNAMIC": "FALSE",
        PARENT: str(os.getpid()),
        **(extra or {}),
    }


def die_with_parent() -> None:
    """Called first in a child: it is killed when its parent ends, however that ends (Linux)."""
    parent = os.environ.get(PARENT)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != int(parent):
        sys.exit("the parent process has ended")


def describe(returncode: int, stderr: str = "") -> str:
    """An exit status in words: "killed by SIGSEGV", "exit status 3: last line of stderr"."""
    if returncode == 0:
        return ""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    last = f": {lines[-1][:300]}" if lines else ""
    if returncode < 0:
        try:
            name = signal.Signals(-returncode).name
        except ValueError:
            name = f"signal {-returncode}"
        return f"killed by {name}{last}"
    return f"exit status {returncode}{last}"


def one_line(error: BaseException) -> str:
    """An exception as one line; a PrismError by its message alone."""
    text = " ".join(str(error).split())[:400]
    return text if isinstance(error, PrismError) else f"{type(error).__name__}: {text}"


def out_of_memory(stderr: str) -> bool:
    """Whether what a child said before it ended is that there was no more memory."""
    return any(word in stderr for word in ("bad_alloc", "MemoryError", "OutOfMemoryError"))


def kill_group(process: subprocess.Popen) -> None:
    """Kills a child that leads its own process group, with all it started, and reaps it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(
    argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None, what: str = "no end"
) -> Ended:
    """Runs a command to its end or its time limit (seconds); never raises for what it does."""
    start = time.perf_counter()
    process = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=None if env is None else dict(env),
        start_new_session=True,
        text=True,
        errors="replace",
    )
    try:
        _, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        kill_group(process)
        process.stderr.close()
        return Ended(None, f"{what} within {timeout:g} s", "", time.perf_counter() - start)
    except BaseException:
        kill_group(process)
        raise
    seconds = time.perf_counter() - start
    return Ended(process.returncode, describe(process.returncode, stderr), stderr, seconds)
