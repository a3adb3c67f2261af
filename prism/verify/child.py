"""Work in a forked child that is stopped for certain when its time or memory is spent.

An e-graph engine cannot be interrupted inside an iteration, and one iteration of an explosive rule
set takes all there is. So e-graphs live in a child process: killed at the deadline, limited in
memory by the system, dead with its parent. The engine's threads do not survive a fork, so it must
never have run in the parent; `inside` tells where one is.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import pickle
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prism.errors import PrismError

_PR_SET_PDEATHSIG = 1
_MIB = 1 << 20
_INTERRUPTS = {signal.SIGINT, signal.SIGTERM}
_inside = False


@dataclass(frozen=True)
class Ending:
    """What came of the work: its `value`, or the `stopped` reason; peak memory in MiB."""

    value: Any
    stopped: str | None
    peak_mib: float


def inside() -> bool:
    """Whether this process is such a child."""
    return _inside


def call(work: Callable[[], Any], seconds: float, memory_mib: float) -> Ending:
    """The value of `work()`, which must pickle, computed in a child.

    The child is killed after `seconds` ("time limit") and may take `memory_mib` MiB more than this
    process has ("memory limit"). Exceptions of `work` are raised here, and PrismError where the
    system grants no process.
    """
    deadline = time.monotonic() + seconds
    source, sink = os.pipe()
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)  # none between fork and try
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside numpy's threads
        try:
            pid = os.fork()
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(source)
            os.close(sink)
            raise PrismError(f"proof: no process for the e-graph: {error}") from None
    if pid == 0:
        os.close(source)
        _child(work, sink, parent, memory_mib)
    try:
        os.close(sink)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        data = _read(source, deadline)
        if data is None:
            os.kill(pid, signal.SIGKILL)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(source)
    _, status, usage = os.wait4(pid, 0)
    peak = usage.ru_maxrss / 1024
    if data is None:
        return Ending(None, "time limit", peak)
    if status:
        return Ending(None, _death(status), peak)
    kind, value = pickle.loads(data)
    if kind == "value":
        return Ending(value, None, peak)
    if kind == "memory":
        return Ending(None, "memory limit", peak)
    raise value


def _read(source: int, deadline: float) -> bytes | None:
    """All that the child writes until it closes the pipe; None when the deadline comes first."""
    chunks = []
    poll = select.poll()
    poll.register(source, select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(min(left, 1e6) * 1000):
            return None
        chunk = os.read(source, _MIB)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)


def _death(status: int) -> str:
    """Why it died: the allocator aborts, and the system's own limit kills."""
    if not os.WIFSIGNALED(status):
        return "memory limit"  # not even the report of an exception could be made
    number = signal.Signals(os.WTERMSIG(status))
    if number in (signal.SIGABRT, signal.SIGKILL):
        return "memory limit"
    return f"the e-graph's process ended with {number.name}"


def _child(work: Callable[[], Any], sink: int, parent: int, memory_mib: float) -> None:
    """Never returns."""
    global _inside
    code = 1
    try:
        _inside = True
        gc.disable()
        faulthandler.disable()  # the allocator's abort is no news
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends this one
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)
        die_with(parent)
        _limit(memory_mib)
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 2)  # the allocator's last words
        try:
            data = pickle.dumps(("value", work()), pickle.HIGHEST_PROTOCOL)
        except MemoryError:
            data = pickle.dumps(("memory", None))
        except PrismError as error:
            data = pickle.dumps(("error", error))
        except BaseException as error:
            text = "".join(traceback.format_exception(error))
            data = pickle.dumps(("error", RuntimeError(f"in the e-graph's process: {text}")))
        view = memoryview(data)
        while view:
            view = view[os.write(sink, view) :]
        code = 0
    finally:
        os._exit(code)


def die_with(parent: int) -> None:
    """Ends this process when its parent, the process `parent`, ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before
        os._exit(1)


def _limit(memory_mib: float) -> None:
    """Data beyond what this process has: address space that is only reserved does not count."""
    with (
        contextlib.suppress(OSError, ValueError, OverflowError, StopIteration),
        open("/proc/self/status") as file,
    ):
        data = next(int(line.split()[1]) for line in file if line.startswith("VmData:"))
        limit = int(data * 1024 + memory_mib * _MIB)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
