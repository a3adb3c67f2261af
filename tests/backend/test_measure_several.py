"""Tuning and benchmarking end to end with graphs of several kernels beside fused ones."""

import pytest
from codegen_graphs import rmsnorm, rmsnorm_library, rmsnorm_split

from prism.instantiate import Concrete
from prism.measure.bench import BenchSettings, bench, failures
from prism.measure.race import Limits
from prism.measure.tune import TuneBudget, tune
from prism.measure.winner import read_winner, replay
from prism.model.device import CPU

LIMITS = Limits(first_seconds=0.01, final_seconds=0.02)
SHAPE = (4, 128, 96, "bf16")


@pytest.fixture(autouse=True, scope="module")
def own_lock(tmp_path_factory):
    """No waiting for other runs on this machine: what is tested here is not how fast it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("lock")))
        yield


def test_a_mixed_list_of_graphs_is_tried_in_fixed_shares(tmp_path):
    program, fused = rmsnorm(*SHAPE)
    graphs = [
        ("fused", fused),
        ("library", rmsnorm_library(*SHAPE)[1]),
        ("split", rmsnorm_split(*SHAPE)[1]),
        ("wrong", rmsnorm_split(*SHAPE, norm=False)[1]),
    ]
    budget = TuneBudget(count=16, seconds=120, seed=0)
    result = tune(program, graphs, CPU, budget, tmp_path, 2, limits=LIMITS)
    assert result["status"] == "ok" and result["verdict"] == "PASSED"
    tried = [c["graph_id"] for c in result["candidates"]]
    assert len(tried) == 16 and tried.count("fused") == 12
    assert set(tried) == {"fused", "library", "split", "wrong"}
    for candidate in result["candidates"]:
        if candidate["graph_id"] == "wrong":
            assert (candidate["status"], candidate["cause"]) == ("failed", "gate")
        else:
            assert candidate["status"] == "ok", candidate["reason"]


@pytest.mark.parametrize("make", [rmsnorm_split, rmsnorm_library])
def test_a_winner_of_two_kernels_is_stored_read_back_and_measured(make, tmp_path):
    program, mapped = make(*SHAPE)
    budget = TuneBudget(count=3, seconds=60, seed=0)
    out = tmp_path / "case"
    result = tune(program, [("two", mapped)], CPU, budget, out, 2, limits=LIMITS)
    assert result["status"] == "ok" and result["passed"] == 3
    concrete = Concrete.from_json(read_winner(out)["concrete"])
    assert concrete.graph == mapped and len(result["sizes"]) == 2
    assert concrete.digest() == result["digest"]
    again = replay(out, CPU, 2)
    assert again["status"] == "ok" and again["verdict"]["error"] == result["error"]
    # No comparison with the reading kernel's time: on a busy machine neither is meaningful.
    settings = BenchSettings(device=CPU, rounds=3, seconds=0.5, threads=2, read_tolerance=0.0)
    rows = bench(program, out, [], settings, tmp_path / "rows.jsonl", {})
    row = next(row for row in rows if row["system"] == "prism")
    assert row["status"] == "ok" and row["verdict"] == "PASSED", row["reason"]
    assert row["variant"] == result["digest"] and row["n"] > 0
    assert failures(rows) == []
