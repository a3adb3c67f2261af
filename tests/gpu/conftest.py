"""Tests that need an NVIDIA GPU; without one each is skipped, and says so."""

from dataclasses import replace

import pytest
from devices import A100

from prism.model.device import Device


def _why_not() -> str:
    """Why nothing can run on a GPU here, or an empty string."""
    try:
        import torch
        import triton  # noqa: F401 - only whether it is there
    except ImportError as error:
        return f"no tests on a GPU: {error}"
    return "" if torch.cuda.is_available() else "no tests on a GPU: PyTorch sees no NVIDIA GPU"


@pytest.fixture(autouse=True, scope="session")
def needs_a_gpu():
    if why := _why_not():
        pytest.skip(why)


@pytest.fixture(autouse=True, scope="session")
def own_lock(tmp_path_factory):
    """No waiting for other runs on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("lock")))
        yield


@pytest.fixture(scope="session")
def device(needs_a_gpu) -> Device:
    """The GPU that is here; what PyTorch does not tell of it is an A100's."""
    import torch

    found = torch.cuda.get_device_properties(0)
    arch, l2 = 10 * found.major + found.minor, found.L2_cache_size / 2**20
    gpu = replace(A100.gpu, arch=arch, sms=found.multi_processor_count, l2_mib=l2)
    return Device("here", "triton", replace(gpu, bandwidth_gbs=20_000))  # a roofline nothing beats
