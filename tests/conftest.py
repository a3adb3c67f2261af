"""Options and markers of the whole test suite."""

import pytest

from prism import devices


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")


def pytest_configure(config):
    config.addinivalue_line("markers", "backend: compiles C++")


@pytest.fixture
def update_golden(request) -> bool:
    return request.config.getoption("--update-golden")


@pytest.fixture(autouse=True, scope="module")
def gpu_only_where_it_is_tested(request):
    """`device=auto` is the CPU in all other tests, also on a machine with a GPU."""
    if request.path.parent.name == "gpu":
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        devices.gpu.cache_clear()
        yield
    devices.gpu.cache_clear()
