"""Shared helpers become importable, and no test of this folder sees the user's cache."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """A cache of searches for each test."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("PRISM_CACHE", str(folder))
    return folder
