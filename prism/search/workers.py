"""Searches of pieces in processes of their own, which Ctrl-C ends without losing what they have."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

from prism.search.result import INTERRUPTED
from prism.verify.child import die_with

_stopped = False  # in a process: whether it was interrupted, so that it starts nothing new


def run(search: Callable, jobs: Sequence[tuple], workers: int) -> Iterator[Any | str]:
    """`search(*job)` of each job, in order, or why there is none: an interrupt, a dead process.

    Ctrl-C reaches all processes of a terminal: each returns what it has, with `ended` as it says. A
    second Ctrl-C raises KeyboardInterrupt.
    """
    if workers == 1:
        yield from _one_by_one(search, jobs)
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, context, die_with, (os.getpid(),)) as pool:
        futures, interrupted = _submitted(pool, search, jobs)
        for future in futures:
            try:
                yield _result(future)
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                for other in futures:  # those that run go on to their end
                    other.cancel()
                yield _result(future)


def _one_by_one(search: Callable, jobs: Sequence[tuple]) -> Iterator[Any | str]:
    stopped = False
    for job in jobs:
        result = INTERRUPTED if stopped else search(*job)
        stopped = stopped or result.ended == INTERRUPTED
        yield result


def _submitted(
    pool: ProcessPoolExecutor, search: Callable, jobs: Sequence[tuple]
) -> tuple[list[Future], bool]:
    """The jobs on their way, and whether an interrupt came meanwhile."""
    with _deferred() as came:
        futures = [pool.submit(_job, search, job) for job in jobs]
    if came:
        for future in futures:
            future.cancel()
    return futures, bool(came)


@contextmanager
def _deferred() -> Iterator[list[bool]]:
    """Interrupts are kept in a list, and blocked in every process that starts meanwhile.

    One that starts, or waits for work, must not die of them, as that would break the pool.
    """
    came: list[bool] = []
    if threading.current_thread() is not threading.main_thread():
        yield came  # interrupts do not come here
        return
    handler = signal.signal(signal.SIGINT, lambda *_: came.append(True))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield came
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)


def _job(search: Callable, job: tuple) -> Any | None:
    """In a process: one search, the only time when an interrupt reaches it."""
    global _stopped
    if _stopped:
        return None
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        result = search(*job)
    except KeyboardInterrupt:  # before the search began, or after its end
        result = None
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    _stopped = result is None or result.ended == INTERRUPTED
    return result


def _result(future: Future) -> Any | str:
    try:
        return future.result() or INTERRUPTED
    except CancelledError:
        return INTERRUPTED
    except BrokenExecutor:
        return "its process died"
