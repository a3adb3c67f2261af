"""Timers: how samples of a system's calls are taken. The one for a GPU is in `cuda_timer`."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from prism.model.device import Device

Call = Callable[[], object]
AT_MOST = 100  # samples a turn


class Timer(Protocol):
    """`name` says in words what a sample is; it is known after `prepare`."""

    name: str

    def prepare(self, calls: Sequence[Call]) -> list[Call]:
        """The calls that will be timed, in place of `calls`: they do and return the same."""

    def time(
        self,
        calls: Sequence[Call],
        seconds: float,
        at_least: int,
        at_most: int,
        first: int = 0,
        cold: bool = True,
    ) -> list[float]:
        """Microseconds of single calls, going round `calls` from `first`, until time is used up.

        `cold` empties caches before each call where rotating inputs alone do not.
        """

    def facts(self) -> dict:
        """Plain data for the row's evidence."""


class HostTimer:
    """The host's clock around each call, for calls that are over when they return."""

    name = "time.perf_counter_ns around one call"

    def prepare(self, calls: Sequence[Call]) -> list[Call]:
        """As they are."""
        return list(calls)

    def time(
        self,
        calls: Sequence[Call],
        seconds: float,
        at_least: int,
        at_most: int,
        first: int = 0,
        cold: bool = True,
    ) -> list[float]:
        """See Timer; the rotation of inputs is all that makes a call cold."""
        return time_calls(calls, seconds, at_least, at_most, first)

    def facts(self) -> dict:
        """Nothing to add."""
        return {}


def timer_for(device: Device) -> Timer:
    """The timer of a device."""
    if device.torch != "cuda":
        return HostTimer()
    from prism.measure.cuda_timer import CudaTimer

    return CudaTimer(device.gpu)


def time_calls(
    calls: Sequence[Call], seconds: float, at_least: int, at_most: int, first: int = 0
) -> list[float]:
    """Microseconds of single calls, going round `calls` from `first`, until the time is used up.

    What a call returns is freed outside the timed region.
    """
    samples: list[float] = []
    clock = time.perf_counter_ns
    collecting = gc.isenabled()
    gc.disable()
    try:
        end = clock() + int(seconds * 1e9)
        while len(samples) < at_most and (len(samples) < at_least or clock() < end):
            call = calls[(first + len(samples)) % len(calls)]
            start = clock()
            kept = call()
            stop = clock()
            samples.append(round((stop - start) / 1e3, 3))
            del kept
    finally:
        if collecting:
            gc.enable()
    return samples


class Turns:
    """Timed calls of a prepared system; the rotation goes on where the last turn ended."""

    def __init__(self, calls: Sequence[Call], timer: Timer | None = None):
        self.calls, self.timer, self.next = list(calls), timer or HostTimer(), 0

    def run(self, state: str, seconds: float, samples: int | None = None) -> list[float]:
        """Samples in microseconds, `samples` of them or, by default, as many as `seconds` allow.

        One untimed call wakes the threads; two fill the cache when the state is "warm".
        """
        least, most = (3, AT_MOST) if samples is None else (samples, samples)
        if state == "warm":
            calls = self.calls[:1]
            self.timer.time(calls, 0.0, 2, 2, cold=False)
            return self.timer.time(calls, seconds, least, most, cold=False)
        waking = self.timer.time(self.calls, 0.0, 1, 1, first=self.next)
        self.next += 1
        if samples is None and waking[0] / 1e6 > seconds:
            least = 1
        found = self.timer.time(self.calls, seconds, least, most, first=self.next)
        self.next = (self.next + len(found)) % len(self.calls)
        return found
