"""The ablation of symbolic maps, and the growth family."""

import json

import pytest
from workloads import PROGRAMS

from prism.errors import PrismError
from prism.search import Bounds, search
from prism.search.ablate import ablate
from prism.search.growth import FAMILY, growth, program
from prism.search.members import operators

SINGLE = Bounds(generated=1, kernels=1, library=(), split=False, grid=1)


@pytest.fixture(scope="module")
def result():
    return ablate(PROGRAMS["two"].bind(n=8, d=64, f=64), SINGLE, limit_s=3.0)


def test_every_variant_finds_the_same_graphs(result):
    """Concrete maps are enumerated, symbolic ones solved for: what is found does not change."""
    expected = search(PROGRAMS["two"], SINGLE).space.count
    rows = [row for row in result["rows"] if row["sizes"] == "S"]
    assert len(rows) == 8
    assert len({(row["imap"], row["fmap"], row["omap"]) for row in rows}) == 8
    for row in rows:
        assert row["ended"] == "exhausted", row
        assert row["graphs"] == expected
        assert row["assignments"] == row["assignments_all"] >= 1
    assert rows[0]["assignments"] == 1 and len(rows[0]["samples"]) == 5


def test_the_number_of_assignments_multiplies(result):
    """X, R and W have three options each a dimension, the output three; grids of up to one."""
    count = {
        (row["imap"], row["fmap"], row["omap"]): row["assignments_all"]
        for row in result["rows"]
        if row["sizes"] == "S"
    }
    pairs = {"imap": 27, "omap": 3, "both": 81}
    grids = {name: 1 + n for name, n in pairs.items()}
    assert count["S", "S", "S"] == 1 and count["S", "C", "S"] == 27
    assert count["C", "S", "S"] == grids["imap"] and count["S", "S", "C"] == grids["omap"]
    assert count["C", "S", "C"] == grids["both"] and count["C", "C", "C"] == 27 * grids["both"]


def test_a_limit_is_no_time(result):
    """The search with concrete sizes hits its limit here, and says so."""
    (row,) = (row for row in result["rows"] if row["sizes"] == "C")
    assert row["ended"] == "limit" and row["seconds"] >= 3.0
    assert row["assignments"] < row["assignments_all"]


def test_concrete_sizes_find_the_same_graphs_when_they_finish():
    small = PROGRAMS["bare_norm"].bind(n=4, d=4)
    bounds = Bounds(grid=1, extra_operators=0)
    found = ablate(small, bounds, limit_s=60.0)
    (row,) = (row for row in found["rows"] if row["sizes"] == "C")
    assert row["ended"] == "exhausted" and row["assignments"] == row["assignments_all"]
    assert row["graphs"] == found["rows"][0]["graphs"] > 0
    json.dumps(found)


def test_the_ablation_needs_sizes():
    with pytest.raises(PrismError, match="still symbolic"):
        ablate(PROGRAMS["two"], SINGLE, limit_s=1.0)


def test_the_growth_family_reaches_a_decoder_layer():
    programs = [program(*item) for item in FAMILY]
    counts = [operators(tuple(node for _, node in p.outputs)) for p in programs]
    assert counts[0] == 3 and counts[-1] == 30 and counts == sorted(counts)


def test_growth_rows(monkeypatch):
    monkeypatch.setattr("prism.search.growth.FAMILY", (FAMILY[0], FAMILY[-1]))
    rows = growth(Bounds(grid=1, loop=False, library=()))["rows"]
    assert [row["program"] for row in rows] == ["softmax", "decoder layer"]
    assert rows[0]["pieces"] == 1 and rows[1]["pieces"] == 3
    for row in rows:
        assert row["ended"] == "exhausted" and row["graphs_log10"] > 0 and row["kernels"] > 0
        assert 0 < row["seconds"]["prove"] < row["seconds"]["total"]
