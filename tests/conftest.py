"""Options and markers of the whole test suite."""

import pytest


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")


def pytest_configure(config):
    config.addinivalue_line("markers", "backend: compiles C++")


@pytest.fixture
def update_golden(request) -> bool:
    return request.config.getoption("--update-golden")
