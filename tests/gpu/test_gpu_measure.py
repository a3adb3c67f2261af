"""Candidates, tuning and benchmarks on a GPU."""

from pathlib import Path

import pytest
from codegen_graphs import attention, rmsnorm, rmsnorm_library

from prism.measure.bench import BaselineSpec, BenchSettings, bench, failures
from prism.measure.eager_case import prepare_case
from prism.measure.executor import Trial, WorkerExecutor
from prism.measure.race import Limits
from prism.measure.tune import TuneBudget, tune
from prism.measure.winner import replay
from prism.program import Builder

ROOT = Path(__file__).parents[2]
LIMITS = Limits(first_seconds=0.02, final_seconds=0.05, child_timeout=60)
HEAD = """
import torch, triton
import triton.language as tl
INPUTS = {"X": ((4, 16), "fp32")}
OUTPUTS = {"O": ((4, 16), "fp32")}
TEMPS = {}

@triton.jit
def far(o):
    tl.store(o + (1 << 44), 1.0)

def prism_run(inputs, outputs, temps, launch=None):
    (x,), (o,) = inputs, outputs
"""
GOOD = "    torch.mul(x, 3, out=o)\n"
FAIL = {
    "    torch.mul(x, 2, out=o)\n": ("gate", "error"),
    "    o[:3] = x[:3] * 3\n": ("gate", "16 of 64 elements were never written"),
    GOOD + "    x[0, 0] += 1\n": ("gate", "input X: overwritten by the kernel"),
    "    far[(1,)](o)\n": ("crash", "illegal memory access"),
    "    torch.empty(1 << 50, dtype=torch.uint8, device='cuda')\n": ("memory", "out of memory"),
    "    torch.cuda._sleep(1 << 50)\n": ("hang", "hung: no answer to candidate within 10 s"),
}


@pytest.fixture(scope="module")
def worker(device, tmp_path_factory):
    b = Builder("triple", {"n": 4, "d": 16}, "fp32")
    program = b.build(O=b.scale(b.input("X", "n d"), 3))
    work = tmp_path_factory.mktemp("work")
    made = WorkerExecutor(prepare_case(program, work / "case", 0, 1, device), device, work, 1)
    yield made
    made.close()


@pytest.mark.parametrize("body", FAIL, ids=range(len(FAIL)))
def test_a_wrong_module_fails_alone_and_the_next_one_is_right(worker, tmp_path, body):
    cause, reason = FAIL[body]
    path = tmp_path / "kernel.py"
    path.write_text(HEAD + body)
    result = worker.run(path, Trial(0.0, 3, 3, timeout=10 if cause == "hang" else 120))
    assert (result["status"], result["cause"]) == ("failed", cause), result
    assert reason in result["reason"].lower() or reason in result["reason"]
    path.write_text(HEAD + GOOD)
    after = worker.verify(path, Trial(0.0, 3, 3, timeout=120))
    assert after["status"] == "ok" and "CUDA graph" in after["timer"], after


def test_eager_s_outputs_are_those_of_the_gpu(device, tmp_path):
    program, _ = rmsnorm(8, 256, 128, "fp32")
    case = prepare_case(program, tmp_path / "case", 0, 1, device)
    record = case.eager_record
    assert record["device"] == "cuda" and record["fp32"] == "IEEE, no TF32", record
    from prism.measure.gate import Gate

    assert Gate(case).without_eager == {}  # TF32 would be far off


@pytest.mark.parametrize("make", [rmsnorm, rmsnorm_library], ids=lambda f: f.__name__)
def test_tuning_replay_and_rows(device, tmp_path, make):
    program, graph = make(8, 512, 256, "fp16")
    budget = TuneBudget(count=4, seconds=120, seed=1)
    out = tmp_path / "case"
    result = tune(program, [("g", graph)], device, budget, out, 1, limits=LIMITS)
    assert result["status"] == "ok", result["reason"]
    assert replay(out, device, 1)["status"] == "ok"
    specs = [
        BaselineSpec(name, str(ROOT / f"baselines/{name}/adapter.py"))
        for name in ("eager", "compiled")
    ]
    settings = BenchSettings(device=device, rounds=4, seconds=1.0, threads=1, read_tolerance=0.0)
    rows = bench(program, out, specs, settings, tmp_path / "rows.jsonl", {})
    assert failures(rows) == []
    for row in rows:
        assert row["status"] == "ok", (row["system"], row["reason"])
        assert "CUDA graph" in row["timer"] and row["n"] >= 9
        assert row["evidence"]["direct_call_us"] > 0
        assert row["environment"]["clocks"]["idle_before"]["clocks.sm"]
    compiled = next(row for row in rows if row["system"] == "compiled")
    assert compiled["evidence"]["mode"] == "max-autotune-no-cudagraphs"


def test_an_expert_s_attention_has_a_row(device, tmp_path):
    program, _ = attention(2, 4, 1, 256, 64, 64, "fp16")
    spec = BaselineSpec("sdpa", str(ROOT / "baselines/sdpa/adapter.py"))
    settings = BenchSettings(device=device, rounds=3, repetitions=30, threads=1, read_tolerance=0.0)
    rows = bench(program, None, [spec], settings, tmp_path / "rows.jsonl", {})
    row = next(row for row in rows if row["system"] == "sdpa")
    assert row["status"] == "ok", row["reason"]
    assert (row["n"], row["warm_n"]) == (30, 30)
