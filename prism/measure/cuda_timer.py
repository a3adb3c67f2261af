"""The timer of a GPU: device events around replays of captured CUDA graphs.

A call is captured once for each copy of the inputs and replayed, so that a sample is the device's
time without the host's launches, for every system alike; where a call cannot be captured, it is
timed as it is, and the timer's name says so. The device is kept busy while the host enqueues a
sample, so that the host's time is not in it.

A cold sample gets inputs that were last used more than four L2 sizes ago, and before its first
event a buffer of twice the L2 is written and then read: the reading leaves no dirty lines whose way
back to memory would fall into the sample.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import torch

from prism.measure.timers import Call
from prism.model.device import Gpu

BATCH = 10  # samples between two synchronizations
WARM_UPS = 3
DIRECT_CALLS, DIRECT_SECONDS = 10, 0.02  # at most; a slow candidate is called once
ENQUEUED = 3  # samples, to see what the host needs
AHEAD = 2.0  # the device is busy this times as long as the host needs to enqueue a sample
LEAST_AHEAD_US, MOST_AHEAD_US = 20.0, 5000.0


class CudaTimer:
    """See `timers.Timer`. Raises whatever PyTorch raises without a GPU."""

    def __init__(self, gpu: Gpu):
        self.name = "CUDA events"
        self._clock_mhz = gpu.clock_mhz
        words = 2 * int(gpu.l2_mib * 2**20) // 4
        self._buffer = torch.zeros(words, dtype=torch.int32, device="cuda")
        self._seen = torch.zeros((), dtype=torch.int32, device="cuda")
        self._ahead_us = 100.0
        self._facts: dict[str, object] = {}
        self._floor: dict[str, float] = {}

    def prepare(self, calls: Sequence[Call]) -> list[Call]:
        """Replays of the calls, captured one by one; the calls themselves where that fails."""
        _warm_up(calls[0])
        self._facts = {"direct_call_us": _direct(calls[0])}
        stream = torch.cuda.current_stream()
        try:
            found = _captured(calls)
            self.name = "CUDA events around one replay of a CUDA graph"
        except Exception as error:  # whatever a system does that cannot be captured
            self._facts["captured"] = False
            torch.cuda.set_stream(stream)  # a capture that cannot be ended leaves its own
            torch.cuda.synchronize()  # raises when the device has failed, not only the capture
            found = list(calls)
            why = " ".join(str(error).split())[:200]
            self.name = f"CUDA events around one direct call; not captured: {why}"
        captured = found[0] is not calls[0]
        self._calibrate(found[0])
        self._facts |= {"captured": captured, **self._least(captured)}
        return found

    def time(
        self,
        calls: Sequence[Call],
        seconds: float,
        at_least: int,
        at_most: int,
        first: int = 0,
        cold: bool = True,
    ) -> list[float]:
        """See Timer. Samples are taken in batches, so that a few may come after the time is up."""
        samples: list[float] = []
        end = time.monotonic() + seconds
        while len(samples) < at_most and (len(samples) < at_least or time.monotonic() < end):
            wanted = at_least if len(samples) < at_least else at_most
            count = min(BATCH, wanted - len(samples))
            turn = [calls[(first + len(samples) + i) % len(calls)] for i in range(count)]
            samples += self._batch(turn, cold)
        return samples

    def facts(self) -> dict:
        """`direct_call_us`: a call from the host, launches and all; `captured`: whether it is
        replayed; `events_alone_us`: a sample of nothing; `least_replay_us`: of a graph of one
        kernel that does nothing to speak of, which is in every replay's time."""
        return dict(self._facts)

    def _least(self, captured: bool) -> dict[str, float]:
        """What a sample takes at least; each is measured once."""
        if "events_alone_us" not in self._floor:
            self._floor["events_alone_us"] = self._median(_nothing)
        if captured and "least_replay_us" not in self._floor:
            (tiny,) = _captured([lambda: self._seen.add_(1)])
            self._floor["least_replay_us"] = self._median(tiny)
        return self._floor

    def _median(self, call: Call) -> float:
        return median(self.time([call], 0.0, BATCH, BATCH))

    def _batch(self, calls: Sequence[Call], cold: bool) -> list[float]:
        events = [self._enqueue(call, cold) for call in calls]
        torch.cuda.synchronize()
        return [round(start.elapsed_time(stop) * 1e3, 3) for start, stop in events]

    def _enqueue(self, call: Call, cold: bool) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(self._ahead_us * self._clock_mhz))
        if cold:
            self._buffer.zero_()
            torch.amax(self._buffer, dim=0, out=self._seen)
        start.record()
        call()
        stop.record()
        return start, stop

    def _calibrate(self, call: Call) -> None:
        """How long the device must be busy while the host enqueues a sample."""
        self._enqueue(call, cold=True)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(ENQUEUED):
            self._enqueue(call, cold=True)
        needed = (time.perf_counter() - start) / ENQUEUED * 1e6
        torch.cuda.synchronize()
        self._ahead_us = min(MOST_AHEAD_US, max(LEAST_AHEAD_US, AHEAD * needed))


def _nothing() -> None:
    """What events are recorded around to see what they take themselves."""


def _warm_up(call: Call) -> None:
    """On a stream of its own, as PyTorch's documentation of CUDA graphs asks for."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def _direct(call: Call) -> float:
    """Median microseconds on the host from a call to the end of what it launched."""
    samples: list[float] = []
    while len(samples) < DIRECT_CALLS and sum(samples) < DIRECT_SECONDS * 1e6:
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - start) * 1e6)
    return round(median(samples), 3)


def _captured(calls: Sequence[Call]) -> list[Call]:
    """One graph a call, in one memory pool: what one leaves is read before another is replayed."""
    pool = torch.cuda.graph_pool_handle()
    found = []
    for call in calls:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            outputs = call()
        found.append(_Replay(graph, outputs))
    return found


class _Replay:
    """A captured call: runs the graph and returns the tensors that it writes."""

    def __init__(self, graph: torch.cuda.CUDAGraph, outputs: object):
        self._graph, self._outputs = graph, outputs

    def __call__(self) -> object:
        self._graph.replay()
        return self._outputs
