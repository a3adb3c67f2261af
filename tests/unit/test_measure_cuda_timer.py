"""The GPU's timer against a stand-in for torch.cuda that writes down what it is told to do.

What a real GPU makes of it is tested in tests/gpu.
"""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from devices import A100

pytest.importorskip("torch")

from prism.measure import cuda_timer
from prism.measure.timers import Turns

MIB = 1 << 20


class FakeCuda:
    """The device's queue is `log`; an event's time is the sum of `costs` of what stands before."""

    def __init__(self):
        self.log: list[str] = []
        self.costs: dict[str, float] = {}  # milliseconds
        self.fails = False
        fake = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                fake.log.append("event")
                self.at = len(fake.log)

            def elapsed_time(self, other):
                assert fake.synchronized >= other.at, "read before it is over"
                return sum(fake.costs.get(what, 0.0) for what in fake.log[self.at : other.at])

        class CUDAGraph:
            def replay(self):
                fake.log += self.held

        self.Event, self.CUDAGraph = Event, CUDAGraph
        self.synchronized = 0
        self.current = "main"

    def synchronize(self):
        self.synchronized = len(self.log)

    def _sleep(self, cycles):
        assert isinstance(cycles, int)
        self.log.append("sleep")
        self.cycles = cycles

    def graph_pool_handle(self):
        return "pool"

    @contextmanager
    def graph(self, graph, pool):
        assert pool == "pool"
        before, self.log = self.log, []
        stream, self.current = self.current, "capture"
        yield
        graph.held, self.log = self.log, before
        if self.fails:  # as in PyTorch, which then does not go back to the stream before
            raise RuntimeError("operation not permitted\nwhen stream is capturing")
        self.current = stream

    def Stream(self):
        return SimpleNamespace(wait_stream=lambda other: None, name="side")

    def current_stream(self):
        return SimpleNamespace(wait_stream=lambda other: None, name=self.current)

    def set_stream(self, stream):
        self.current = stream.name

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream.name
        yield
        self.current = before


class Buffer:
    """Only zeroed, reduced and added to."""

    def __init__(self, shape, log):
        self.shape, self.log = shape, log

    def zero_(self):
        self.log("flush")

    def add_(self, one):
        self.log("tiny")


@pytest.fixture
def cuda(monkeypatch):
    cuda = FakeCuda()

    def zeros(shape, dtype, device):
        assert device == "cuda" and dtype == "int32"
        return Buffer(shape, lambda what: cuda.log.append(what))

    def amax(buffer, dim, out):
        assert out.shape == () and dim == 0
        cuda.log.append("read")

    torch = SimpleNamespace(cuda=cuda, zeros=zeros, amax=amax, int32="int32")
    monkeypatch.setattr(cuda_timer, "torch", torch)
    return cuda


def calls_on(cuda, count=3):
    return [lambda n=n: cuda.log.append(f"call{n}") or [n] for n in range(count)]


def test_a_sample_is_a_replay_between_events_with_the_l2_flushed_before(cuda):
    timer = cuda_timer.CudaTimer(A100.gpu)
    assert 4 * timer._buffer.shape == 2 * 40 * MIB
    ready = timer.prepare(calls_on(cuda))
    assert timer.name == "CUDA events around one replay of a CUDA graph"
    assert [call() for call in ready] == [[0], [1], [2]]  # what the captured call returned
    cuda.costs = {"sleep": 7.0, "flush": 5.0, "read": 3.0, "call0": 0.25, "call2": 0.5}
    cuda.log.clear()
    assert timer.time(ready, 0.0, 2, 2, first=2) == [500.0, 250.0]  # microseconds
    cold = ["sleep", "flush", "read", "event"]
    assert cuda.log == [*cold, "call2", "event", *cold, "call0", "event"]
    cuda.log.clear()
    assert timer.time(ready[:1], 0.0, 1, 1, cold=False) == [250.0]
    assert cuda.log == ["sleep", "event", "call0", "event"]


def test_as_many_samples_as_are_asked_for_in_turns_that_go_round(cuda):
    timer = cuda_timer.CudaTimer(A100.gpu)
    turns = Turns(timer.prepare(calls_on(cuda)), timer)
    cuda.log.clear()
    assert len(turns.run("cold", 0.0, samples=25)) == 25
    made = [what for what in cuda.log if what.startswith("call")]
    assert made == [f"call{n % 3}" for n in range(26)]  # the first one wakes
    cuda.log.clear()
    assert len(turns.run("warm", 0.0, samples=7)) == 7 and "flush" not in cuda.log
    assert {what for what in cuda.log if what.startswith("call")} == {"call0"}
    assert len(timer.time(turns.calls, 0.0, 3, 100)) == 3
    assert len(timer.time(turns.calls, 60.0, 3, 100)) == 100


def test_what_cannot_be_captured_is_timed_as_it_is_and_says_so(cuda):
    cuda.fails = True
    timer, calls = cuda_timer.CudaTimer(A100.gpu), calls_on(cuda)
    assert timer.prepare(calls) == calls
    assert timer.name == (
        "CUDA events around one direct call; not captured: "
        "operation not permitted when stream is capturing"
    )
    facts = timer.facts()
    assert facts["captured"] is False and facts["direct_call_us"] > 0
    assert cuda.current == "main", "what follows does not run on the capture's stream"


def test_a_failed_capture_is_known_where_the_timer_cannot_go_on(cuda, monkeypatch):
    cuda.fails = True
    timer = cuda_timer.CudaTimer(A100.gpu)

    def dead(call):
        raise RuntimeError("the device is lost")

    monkeypatch.setattr(timer, "_calibrate", dead)
    with pytest.raises(RuntimeError, match="is lost"):
        timer.prepare(calls_on(cuda))
    assert timer.facts()["captured"] is False


def test_a_call_is_warmed_up_on_a_stream_of_its_own_before_it_is_captured(cuda):
    streams = []
    cuda_timer.CudaTimer(A100.gpu).prepare([lambda: streams.append(cuda.current)])
    warm, direct = streams.count("side"), streams.count("main")
    assert streams == ["side"] * warm + ["main"] * direct + ["capture"]
    assert warm == 3 and 1 <= direct <= 10, "a kernel is compiled, and tuned, in the first calls"


@pytest.mark.parametrize(("host_s", "ahead_us"), [(1.0, 5000.0), (1e-9, 20.0)])
def test_a_slow_host_does_not_keep_the_device_busy_for_seconds(cuda, monkeypatch, host_s, ahead_us):
    clock = iter(range(10_000))
    monkeypatch.setattr(cuda_timer.time, "perf_counter", lambda: next(clock) * host_s)
    timer = cuda_timer.CudaTimer(A100.gpu)
    timer.prepare(calls_on(cuda))
    timer.time(calls_on(cuda), 0.0, 1, 1)
    assert cuda.cycles == pytest.approx(ahead_us * 1410)


def test_the_device_is_busy_for_longer_than_the_host_needs(cuda, monkeypatch):
    clock = iter(range(10_000))
    monkeypatch.setattr(cuda_timer.time, "perf_counter", lambda: next(clock) * 1e-3)
    timer = cuda_timer.CudaTimer(A100.gpu)
    timer.prepare(calls_on(cuda))
    assert timer._ahead_us == pytest.approx(2.0 * 1000 / 3)  # three samples in a millisecond
    timer.time(calls_on(cuda), 0.0, 1, 1)
    assert cuda.cycles == pytest.approx(2000 / 3 * 1410, rel=1e-3)
    cuda.costs = {"tiny": 0.002, "sleep": 1.0, "flush": 1.0}
    timer = cuda_timer.CudaTimer(A100.gpu)
    timer.prepare(calls_on(cuda))
    found = timer.facts()
    assert found["captured"] is True and found["direct_call_us"] > 0
    assert (found["events_alone_us"], found["least_replay_us"]) == (0.0, 2.0)
