"""The timer of a GPU on a GPU: plausible times, captured calls, calls that cannot be captured."""

from statistics import median

import pytest

MIB = 1 << 20


@pytest.fixture(scope="module")
def timer(device):
    from prism.measure.cuda_timer import CudaTimer

    return CudaTimer(device.gpu)


def copier(mib):
    """Calls that read and write so many MiB each, on tensors of their own."""
    import torch

    pairs = [
        [torch.ones(mib * MIB // 4, dtype=torch.int32, device="cuda") for _ in range(2)]
        for _ in range(3)
    ]
    return [lambda a=a, b=b: [b.copy_(a)] for a, b in pairs]


def test_times_are_those_of_the_work_and_grow_with_it(timer):
    found = {}
    for mib in (64, 512):
        calls = timer.prepare(copier(mib))
        assert "replay of a CUDA graph" in timer.name
        found[mib] = median(timer.time(calls, 0.0, 20, 20))
        gigabytes_a_second = 2 * mib * MIB / found[mib] / 1e3
        assert 100 < gigabytes_a_second < 20_000
        facts = timer.facts()
        assert facts["captured"] is True
        assert 0 <= facts["events_alone_us"] < facts["least_replay_us"] < 50
        assert facts["direct_call_us"] > 0.5 * found[mib]
    assert 4 < found[512] / found[64] < 16


def test_a_cold_call_does_not_find_its_inputs_in_the_l2(timer, device):
    calls = timer.prepare(copier(max(1, int(device.gpu.l2_mib // 8))))
    cold = median(timer.time(calls, 0.0, 50, 50))
    timer.time(calls[:1], 0.0, 2, 2, cold=False)
    assert median(timer.time(calls[:1], 0.0, 50, 50, cold=False)) < cold


def test_the_host_s_launches_are_not_in_a_sample(timer):
    """Forty tiny kernels take a direct call much longer than a replay."""
    import torch

    x = torch.ones(64, device="cuda")

    def many():
        y = x
        for _ in range(40):
            y = y * 1.5
        return [y]

    calls = timer.prepare([many])
    assert median(timer.time(calls, 0.0, 20, 20)) < timer.facts()["direct_call_us"]


def test_a_replay_reads_its_inputs_anew_and_returns_its_outputs(timer):
    import torch

    given = [torch.full((1000,), float(n), device="cuda") for n in range(4)]
    calls = timer.prepare([lambda x=x: [x * 2 + 1] for x in given])
    assert [call()[0][0].item() for call in calls] == [1.0, 3.0, 5.0, 7.0]
    given[2].fill_(10.0)
    assert (calls[2]()[0] == 21.0).all() and (calls[3]()[0] == 7.0).all()


def test_what_cannot_be_captured_is_timed_as_it_is(timer):
    import torch

    x = torch.ones(1000, device="cuda")
    calls = [lambda: [x * x.sum().item()]]  # the host waits for a value
    assert timer.prepare(calls) == calls
    assert "direct call; not captured: " in timer.name and timer.facts()["captured"] is False
    assert len(timer.time(calls, 0.0, 5, 5)) == 5
    after = timer.prepare([lambda: [x + 1]])  # and the device is none the worse
    assert timer.facts()["captured"] is True and after[0]()[0][0].item() == 2.0
