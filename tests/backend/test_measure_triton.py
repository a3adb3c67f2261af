"""Triton modules through the code that a GPU runs, on the CPU in Triton's interpreter: candidates
in one worker, tuning, replay and benchmark. Times are of the interpreter and say nothing."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from codegen_graphs import rmsnorm, rmsnorm_library
from devices import A100, INTERPRETER

from prism.errors import PrismError
from prism.measure import bench as benching
from prism.measure import executor
from prism.measure import resident as in_worker
from prism.measure.bench import BaselineSpec, BenchSettings, bench
from prism.measure.eager_case import prepare_case
from prism.measure.executor import Trial, WorkerExecutor
from prism.measure.race import Limits
from prism.measure.timers import HostTimer
from prism.measure.tune import TuneBudget, tune
from prism.measure.winner import read_winner, replay
from prism.model.device import CPU
from prism.program import Builder

pytest.importorskip("triton", reason="Triton is not installed")

ROOT = Path(__file__).parents[2]
LIMITS = Limits(first_seconds=0.01, final_seconds=0.01, child_timeout=60)
SHAPE = (4, 32, 24, "fp16")

HEAD = """
import os, time
import torch
INPUTS = {"X": ((4, 16), "fp32")}
OUTPUTS = {"O": ((4, 16), "fp32")}
TEMPS = {"t1": ((4, 16), "fp32")}
kept = []

def beyond(o, count):
    size = 4 * (o.storage_offset() + count)
    return torch.as_strided(o, (count,), (1,), o.storage_offset())

def prism_run(inputs, outputs, temps, launch=None):
    (x,), (o,), (t,) = inputs, outputs, temps
"""
GOOD = "    torch.mul(x, 3, out=t)\n    o.copy_(t)\n"
FAIL = {  # body: (cause, part of the reason)
    "    o.copy_(x * 2)\n": ("gate", "error"),
    "    pass\n": ("gate", "64 of 64 elements were never written"),
    "    o[:3] = x[:3] * 3\n": ("gate", "16 of 64 elements were never written"),
    "    o.copy_(t * 3)\n": ("gate", "64 of 64 elements are NaN"),  # an intermediate nobody wrote
    GOOD + "    x[0, 0] += 1\n": ("gate", "input X: overwritten by the kernel"),
    GOOD + "    beyond(o, 65)[64] = 1\n": ("gate", "output O: written out of bounds"),
    "    raise ValueError('first\\nsecond')\n": ("crash", "ValueError: first second"),
    "    raise MemoryError\n": ("memory", "MemoryError"),
    "    class OutOfResources(Exception): pass\n    raise OutOfResources('shared')\n": (
        "launch",
        "OutOfResources: shared",
    ),
    "    os.kill(os.getpid(), 11)\n": ("crash", "killed by SIGSEGV (during candidate)"),
    "    os._exit(0)\n": ("crash", "ended (during candidate)"),
    "    time.sleep(600)\n": ("hang", "hung: no answer to candidate within 5 s"),
}


@pytest.fixture(autouse=True, scope="module")
def own_lock(tmp_path_factory):
    """No waiting for other runs on this machine: what is tested here is not how fast it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("lock")))
        yield


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    b = Builder("triple", {"n": 4, "d": 16}, "fp32")
    program = b.build(O=b.scale(b.input("X", "n d"), 3))
    work = tmp_path_factory.mktemp("work")
    made = WorkerExecutor(
        prepare_case(program, work / "case", 0, 1, INTERPRETER), INTERPRETER, work, 1
    )
    yield made
    made.close()


@pytest.fixture
def module(tmp_path):
    def write(body):
        path = tmp_path / "kernel.py"
        path.write_text(HEAD + body)
        return path

    return write


def test_a_right_module_passes_and_is_timed(worker, module):
    result = worker.run(module(GOOD), Trial(0.0, 4, 10, timeout=120))
    assert (result["status"], result["cause"], result["reason"]) == ("ok", "", "")
    assert result["verdict"]["status"] == "PASSED" and len(result["samples_us"]) == 3 + 4
    slow = worker.run(module(GOOD), Trial(0.0, 4, 10, give_up_us=1e-6))
    assert len(slow["samples_us"]) == 3  # far behind the leader
    assert worker.verify(module(GOOD), Trial(0.0, 3, 3))["status"] == "ok"


@pytest.mark.parametrize("body", FAIL, ids=range(len(FAIL)))
def test_a_wrong_module_fails_alone_and_the_next_one_is_right(worker, module, body):
    cause, reason = FAIL[body]
    result = worker.run(module(body), Trial(0.0, 3, 3, timeout=5 if cause == "hang" else 120))
    assert (result["status"], result["cause"]) == ("failed", cause), result
    assert reason in result["reason"] and "\n" not in result["reason"]
    assert not result.get("samples_us")
    after = worker.run(module(GOOD), Trial(0.0, 3, 3, timeout=120))
    assert after["status"] == "ok", after["reason"]


def test_answers_of_a_process_that_a_candidate_forked_are_not_those_of_the_next(worker, module):
    once = "    if not kept:\n        kept.append(1)\n        os.fork()\n"
    worker.run(module(once + GOOD), Trial(0.0, 3, 3, timeout=120))
    bodies = ("    raise ValueError('wrong')\n", GOOD, "    o.zero_()\n", GOOD)
    statuses = [worker.run(module(b), Trial(0.0, 3, 3, timeout=120))["status"] for b in bodies]
    assert statuses == ["failed", "ok", "failed", "ok"]
    assert worker.verify(module(GOOD), Trial(0.0, 3, 3, timeout=120))["status"] == "ok"


def test_inputs_that_a_candidate_changes_while_timed_are_its_failure(worker, module):
    body = "    kept.append(1)\n    if len(kept) > 3:\n        x.add_(1)\n" + GOOD
    result = worker.run(module(body), Trial(0.0, 3, 3, timeout=120))
    assert (result["status"], result["cause"]) == ("failed", "gate"), result
    assert result["reason"].startswith("input X: overwritten")
    assert not result.get("samples_us")
    assert worker.run(module(GOOD), Trial(0.0, 3, 3, timeout=120))["status"] == "ok"


class NotCaptured(HostTimer):
    """As a GPU's timer after a capture that failed."""

    name = "one direct call; not captured: why"

    def facts(self):
        return {"captured": False}


def test_a_candidate_that_cannot_be_captured_keeps_its_result_and_is_the_last(
    worker, module, tmp_path, monkeypatch
):
    monkeypatch.setattr(in_worker, "timer_for", lambda device: NotCaptured())
    alone = in_worker.Candidates(worker._job)
    command = {"library": str(module(GOOD)), **asdict(Trial(0.0, 3, 3)), "thorough": False}
    result = alone.run(command)
    assert (result["status"], result["timer"], result["unwell"]) == ("ok", NotCaptured.name, True)
    monkeypatch.undo()
    assert in_worker.Candidates(worker._job).run(command)["unwell"] is False


def test_an_unwell_worker_is_replaced(tmp_path, monkeypatch):
    made = []

    class Stub:
        def __init__(self, *_):
            made.append(self)
            self.open = True

        def send(self, command):
            pass

        def answer(self, command, timeout):
            return {}

        def ask(self, command, timeout):
            assert self.open
            return {"result": {"status": "ok", "unwell": command["library"] == "bad"}}

        def close(self):
            self.open = False

    monkeypatch.setattr(executor, "Worker", Stub)
    case = SimpleNamespace(folder=tmp_path, data={"copies": 2})
    ran = WorkerExecutor(case, INTERPRETER, tmp_path, 1)
    for library in ("good", "bad", "good"):
        assert ran.run(Path(library), Trial()) == {"status": "ok"}
    assert [stub.open for stub in made] == [False, True]


def test_a_worker_goes_on_from_candidate_to_candidate_until_one_ends_it(worker, module, tmp_path):
    note = tmp_path / "pids"
    body = f"    open({str(note)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
    for more in (GOOD, "    pass\n", GOOD, "    os._exit(1)\n", GOOD):
        worker.run(module(body + more), Trial(0.0, 3, 3, timeout=120))
    pids = list(dict.fromkeys(note.read_text().split()))
    assert len(pids) == 2 and str(os.getpid()) not in pids


@pytest.mark.parametrize(
    ("text", "reason"),
    [("x = (\n", "not a generated kernel"), ("INPUTS = OUTPUTS = TEMPS = {}\n", "no prism_run")],
)
def test_a_file_that_is_no_module_does_not_load(worker, tmp_path, text, reason):
    path = tmp_path / "kernel.py"
    path.write_text(text)
    result = worker.run(path, Trial(0.0, 3, 3, timeout=120))
    assert (result["status"], result["cause"]) == ("failed", "load")
    assert reason in result["reason"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "    flat = torch.as_strided(x, (64,), (1,), x.storage_offset())\n"
            "    o.view(-1).copy_(flat * 3)\n",
            "non-contiguous inputs: output O",
        ),
        (
            "    if not kept: kept.append((x * 3).contiguous())\n    o.copy_(kept[0])\n",
            "do not change with input X",
        ),
    ],
)
def test_what_only_a_winner_is_checked_for(worker, module, body, reason):
    assert worker.run(module(body), Trial(0.0, 3, 3, timeout=120))["status"] == "ok"
    result = worker.verify(module(body), Trial(0.0, 3, 3, timeout=120))
    assert (result["status"], result["cause"]) == ("failed", "gate") and reason in result["reason"]
    assert worker.verify(module(GOOD), Trial(0.0, 3, 3, timeout=120))["status"] == "ok"


def test_a_device_on_which_nothing_runs_is_one_clear_line(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    program, _ = rmsnorm(*SHAPE)
    work = tmp_path / "work"
    case = prepare_case(program, work / "case", 0, 1, A100)
    assert case.eager() is None and case.eager_record["reason"]
    with pytest.raises(PrismError, match="device a100: no kernel can run: ") as raised:
        WorkerExecutor(case, A100, work, 1).run(tmp_path / "none.py", Trial())
    assert "\n" not in str(raised.value)


@pytest.fixture(scope="module", params=[rmsnorm, rmsnorm_library], ids=lambda f: f.__name__)
def tuned(request, tmp_path_factory):
    """A winner: of one kernel, and of a library operator beside a generated kernel."""
    program, graph = request.param(*SHAPE)
    out = tmp_path_factory.mktemp("tuned") / "case"
    budget = TuneBudget(count=2, seconds=120, seed=1)
    return program, out, tune(program, [("g", graph)], INTERPRETER, budget, out, 1, limits=LIMITS)


def test_tuning_stores_a_module_with_what_the_compiler_says_of_it(tuned):
    _, out, result = tuned
    assert result["status"] == "ok" and result["passed"] == 2, result["reason"]
    assert (result["backend"], result["device"]) == ("triton", "interpreter")
    assert sorted(p.name for p in out.iterdir()) == ["kernel.py", "winner.json"]
    assert "def prism_run(" in (out / "kernel.py").read_text()
    assert result["registers"] > 0 and result["spill_bytes"] == 0
    assert result["shared_bytes"] == max(k["shared_bytes"] for k in result["kernels"])
    assert result["modelled"]["us"] == result["modelled_us"] > 0 and result["modelled"]["bound"]
    assert result["eager"]["fp32"] == "IEEE, no TF32"
    assert "offline" in " ".join(result["compile_command"])
    assert all(c["registers"] > 0 for c in result["candidates"])


def test_a_module_is_replayed_and_not_on_another_backend(tuned):
    _, out, result = tuned
    again = replay(out, INTERPRETER, 1)
    assert again["status"] == "ok" and again["median_us"] > 0
    assert again["verdict"]["error"] == result["error"]
    with pytest.raises(PrismError, match="its kernel is for the backend triton, device cpu has"):
        replay(out, CPU, 1)


def test_the_rows_of_a_device_with_a_model(tuned, tmp_path, monkeypatch):
    program, out, result = tuned
    specs = [
        BaselineSpec(name, str(ROOT / f"baselines/{name}/adapter.py")) for name in ("eager", "sdpa")
    ]
    settings = BenchSettings(
        device=INTERPRETER, rounds=2, seconds=0.2, repetitions=5, threads=1, read_tolerance=0.0
    )
    rows = bench(program, out, specs, settings, tmp_path / "rows.jsonl", {"config": "small"})
    found = {row["system"]: row for row in rows}
    assert list(found) == ["prism", "eager", "sdpa", "read"]
    for name in ("prism", "eager", "read"):
        row = found[name]
        assert row["status"] == "ok", row["reason"]
        assert (row["n"], row["warm_n"], row["rounds"]) == (5, 5, 2)
        assert row["device"] == "interpreter" and row["copies"] <= 4
        assert "fp16" in row["environment"]["half_precision_reductions"]
        if name == "read":  # it does not do what the roofline is of
            assert (
                row["modelled_roofline_us"]
                is row["modelled_bandwidth_us"]
                is row["of_modelled_roofline"]
                is None
            )
            continue
        assert row["of_modelled_roofline"] == row["modelled_roofline_us"] / row["median_us"] < 1
        assert 0 < row["modelled_bandwidth_us"] <= row["modelled_roofline_us"]
    prism = found["prism"]
    assert prism["registers"] == result["registers"] and prism["shared_bytes"] is not None
    assert prism["modelled_us"] == result["modelled_us"] == read_winner(out)["modelled_us"]
    assert found["eager"]["registers"] is None and found["eager"]["modelled_us"] is None
    assert found["sdpa"]["status"] == "unavailable" and "no attention" in found["sdpa"]["reason"]
    json.dumps(rows)
    monkeypatch.setattr(benching, "least_us", lambda *_: 1e12)
    rows = bench(program, out, [], settings, tmp_path / "rows.jsonl", {})
    ours, read = rows
    assert ours["status"] == "suspect" and "(modelled) that device interpreter" in ours["reason"]
    assert read["status"] == "ok", "reading is not bound by the program's roofline"
