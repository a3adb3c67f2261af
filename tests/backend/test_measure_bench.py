"""Benchmarks end to end at tiny sizes: rounds, misbehaving systems, kills."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from codegen_graphs import attention

from prism.errors import PrismError
from prism.measure import bench as benching
from prism.measure import children, gate
from prism.measure.bench import BaselineSpec, BenchSettings, bench, failures
from prism.measure.compile import sha256
from prism.measure.gate import CONTROLS, Error
from prism.measure.inputs import write_case
from prism.measure.rounds import System
from prism.measure.rows import Row, read_rows
from prism.model.device import CPU, Device
from prism.program import Builder

ROOT = Path(__file__).parents[2]
EAGER = BaselineSpec("eager", str(ROOT / "baselines/eager/adapter.py"))
KERNEL = """
extern "C" int prism_run(const void* const* in, void* const* out, int) {
    for (int i = 0; i < %d; ++i) ((float*)out[0])[i] = 3 * ((const float*)in[0])[i];
    return 0;
}
"""


@pytest.fixture(autouse=True, scope="module")
def own_lock(tmp_path_factory):
    """No waiting for other runs on this machine: what is tested here is not how fast it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("lock")))
        yield


def program(rows=4, columns=16):
    b = Builder("triple", {"n": rows, "d": columns}, "fp32")
    return b.build(O=b.scale(b.input("X", "n d"), 3))


def settings(**fields):
    return BenchSettings(**{"device": CPU, "rounds": 3, "seconds": 0.5, "threads": 1} | fields)


def winner(folder, source, **fields):
    folder.mkdir(exist_ok=True)
    (folder / "kernel.cpp").write_text(source)
    record = {
        "status": "ok",
        "reason": "",
        "backend": "cpu",
        "graph_id": "g1",
        "digest": "abc",
        "source_sha256": sha256(source),
        "seconds": {"compile": 1.0, "tune": 2.0, "total": 3.0},
    }
    (folder / "winner.json").write_text(json.dumps(record | fields))
    return folder


def adapter(tmp_path, name, body):
    text = "import os, time, torch\nfrom prism.measure.baseline import Unavailable\n"
    text += "class Adapter:\n    def __init__(self, options): self.options = options\n"
    text += "    def version(self): return {'own': '1'}\n" + body
    path = tmp_path / name / "adapter.py"
    path.parent.mkdir()
    path.write_text(text)
    return BaselineSpec(name, str(path), {"k": 1})


def by_system(rows):
    return {row["system"]: row for row in rows}


def test_all_systems_pass_the_gate_and_are_timed_cold_and_warm(tmp_path):
    folder = winner(tmp_path / "w", KERNEL % 64)
    out, seen = tmp_path / "rows.jsonl", []
    context = {"workload": "mine", "config": "d=16", "search_seconds": 0.25, "config_hash": "h"}
    context["search"] = {"peak_mib": 80.0}
    rows = bench(
        program(), folder, [EAGER], settings(), out, context, progress=lambda *a: seen.append(a)
    )
    assert read_rows(out) == rows
    assert [row["system"] for row in rows] == ["prism", "eager", "read"]
    for row in rows:
        busy = row["system"] == "read" and "the machine was busy" in row["reason"]
        assert row["status"] == ("suspect" if busy else "ok"), row["reason"]
        assert row["n"] == len(row["samples_us"]) >= 9 and row["warm_n"] >= 9
        assert 0 < row["p20_us"] <= row["median_us"] <= row["p80_us"]
        assert (row["workload"], row["config"], row["config_hash"]) == ("mine", "d=16", "h")
        assert row["timer"] and row["rounds"] == 3 and row["shape"] == {"n": 4, "d": 16}
        assert row["copies"] * row["input_bytes"] > 0 and row["environment"]["threads"] == 1
    found = by_system(rows)
    assert found["prism"]["verdict"] == found["eager"]["verdict"] == "PASSED"
    for system in ("prism", "eager"):
        assert found[system]["controls"] == dict.fromkeys(CONTROLS, "failed")
        assert found[system]["bound_note"] == ""
    assert found["read"]["controls"] == {} and failures(rows) == []
    assert found["read"]["verdict"] == "n/a"
    assert found["read"]["read_speed_fraction"] == (1 if found["read"]["status"] == "ok" else None)
    assert found["prism"]["search_seconds"] == 0.25 and found["eager"]["search_seconds"] is None
    assert found["prism"]["search"] == {"peak_mib": 80.0} and found["eager"]["search"] == {}
    assert found["prism"]["tune_seconds"] == 2.0 and found["prism"]["graph_id"] == "g1"
    assert found["eager"]["versions"]["torch"]
    assert seen[-1] == ("bench", 3, 3)


def without_eager(program, folder, seed, threads, device):
    return write_case(program, folder, seed, 1 << 20)


def test_torch_compile_is_compiled_and_never_recompiled_while_timed(tmp_path):
    spec = BaselineSpec("compiled", str(ROOT / "baselines/compiled/adapter.py"))
    rows = bench(program(), None, [spec], settings(), tmp_path / "rows.jsonl", {})
    row = by_system(rows)["compiled"]
    assert row["status"] == "ok" and row["verdict"] == "PASSED", row["reason"]
    evidence = row["evidence"]
    assert (evidence["graphs"], evidence["lowered"], evidence["recompiles"]) == (1, 1, 0)
    assert evidence["mode"] == "max-autotune" and row["compile_seconds"] > 0.1


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_an_expert_s_attention_passes_the_gate_beside_eager(tmp_path, dtype):
    program, _ = attention(1, 2, 4, 64, 16, 16, dtype)
    spec = BaselineSpec("sdpa", str(ROOT / "baselines/sdpa/adapter.py"))
    rows = bench(program, None, [EAGER, spec], settings(), tmp_path / "rows.jsonl", {})
    found = by_system(rows)
    for name in ("eager", "sdpa"):
        row = found[name]
        assert row["status"] == "ok" and row["verdict"] == "PASSED", row["reason"]
        assert row["n"] >= 9 and row["warm_n"] >= 9


BODIES = {
    "dies": ("    def prepare(self, p, x): os.kill(os.getpid(), 11)\n", "failed", "SIGSEGV"),
    "raises": ("    def prepare(self, p, x): raise ValueError('a\\nb')\n", "failed", "ValueError"),
    "absent": (
        "    def prepare(self, p, x): raise Unavailable('not installed')\n",
        "unavailable",
        "not installed",
    ),
    "zeros": (
        "    def prepare(self, p, x): return lambda t: [torch.zeros(4, 16)]\n",
        "failed",
        "error",
    ),
    "shape": (
        "    def prepare(self, p, x): return lambda t: [torch.zeros(4)]\n",
        "failed",
        "shape",
    ),
    "talks": (
        "    def prepare(self, p, x):\n        print('noise on stdout')\n"
        "        return lambda t: [t['X'] * 3]\n",
        "ok",
        "",
    ),
    "spoils": (
        "    def prepare(self, p, x): return lambda t: [t['X'].mul_(3)]\n",
        "failed",
        "overwritten",
    ),
    "fell_back": (
        "    def prepare(self, p, x): return lambda t: [t['X'] * 3]\n"
        "    def evidence(self): return {'problem': 'fell back'}\n",
        "failed",
        "fell back",
    ),
    "late": (
        "    def prepare(self, p, x):\n        self.calls = 0\n        def call(t):\n"
        "            self.calls += 1\n            if self.calls > 9: time.sleep(60)\n"
        "            return [t['X'] * 3]\n        return call\n",
        "failed",
        "no answer to a cold turn within",
    ),
}


def test_a_misbehaving_system_is_one_row_and_the_others_go_on(tmp_path):
    folder = winner(tmp_path / "w", KERNEL % 64)
    specs = [adapter(tmp_path, name, body) for name, (body, _, _) in BODIES.items()]
    specs.append(BaselineSpec("missing", str(tmp_path / "none.py")))
    rows = bench(
        program(), folder, specs, settings(turn_timeout=5), tmp_path / "rows.jsonl", {"config": ""}
    )
    found = by_system(rows)
    for name, (_, status, reason) in BODIES.items():
        row = found[name]
        assert row["status"] == status and reason in row["reason"], row["reason"]
        assert "\n" not in row["reason"]
        assert (row["median_us"] is not None) == (status == "ok")
    assert "there is no adapter" in found["missing"]["reason"]
    assert found["prism"]["status"] == found["read"]["status"] == "ok"


def test_a_system_that_hangs_while_preparing_is_stopped(tmp_path):
    spec = adapter(tmp_path, "hangs", "    def prepare(self, p, x): time.sleep(60)\n")
    rows = bench(program(), None, [spec], settings(prepare_timeout=6), tmp_path / "rows.jsonl", {})
    found = by_system(rows)
    assert found["hangs"]["reason"] == "hung: no answer to prepare within 6 s"
    assert found["prism"]["status"] == "failed" and "no winner" in found["prism"]["reason"]
    assert found["read"]["status"] == "ok"
    assert failures(rows) == [
        "no system has a time: prism: failed: there is no winner; "
        "hangs: failed: hung: no answer to prepare within 6 s"
    ]


def test_a_baseline_that_the_limit_of_a_run_cuts_does_not_hang(tmp_path):
    spec = adapter(tmp_path, "slow", "    def prepare(self, p, x): time.sleep(60)\n")
    given = settings(prepare_timeout=3, limited=True)
    row = by_system(bench(program(), None, [spec], given, tmp_path / "rows.jsonl", {}))["slow"]
    assert row["reason"] == "the time limit left 3 s for compiling"
    assert (row["status"], row["cause"]) == ("failed", "cut")
    assert row["evidence"] == {"waited_seconds": 3}


def test_a_blind_gate_gives_no_system_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(gate, "bound_of", lambda *_: (Error(1e9, 1e9), ""))
    folder = winner(tmp_path / "w", KERNEL % 64)
    rows = bench(program(), folder, [EAGER], settings(), tmp_path / "rows.jsonl", {})
    found = by_system(rows)
    for system in ("prism", "eager"):
        row = found[system]
        assert row["status"] == "failed" and row["samples_us"] == [] and row["rounds"] is None
        assert "the gate cannot tell a wrong output" in row["reason"] and "zeros" in row["reason"]
        assert row["controls"] == dict.fromkeys(CONTROLS, "passed for O")
    assert found["read"]["status"] == "ok"


def test_every_timed_call_is_made_under_the_lock_of_the_device(tmp_path):
    body = (
        "    def prepare(self, p, x):\n"
        "        from prism.measure.lock import lock_path\n        import fcntl\n"
        "        path, self.free = lock_path('cpu'), 0\n"
        "        def call(t):\n            with open(path, 'a') as file:\n                try:\n"
        "                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "                    self.free += 1\n                except BlockingIOError: pass\n"
        "            return [t['X'] * 3]\n        return call\n"
        "    def evidence(self):\n"
        "        return {'problem': f'{self.free} calls without a lock' if self.free else ''}\n"
    )
    spec = adapter(tmp_path, "looks", body)
    rows = bench(program(), None, [spec], settings(), tmp_path / "rows.jsonl", {})
    row = by_system(rows)["looks"]
    assert row["status"] == "ok" and row["n"] >= 9, row["reason"]


def test_cold_calls_change_their_inputs_and_warm_calls_do_not(tmp_path):
    body = (
        "    def prepare(self, p, x):\n        self.last = None\n        def call(t):\n"
        "            time.sleep(0.001 if t['X'].data_ptr() == self.last else 0.02)\n"
        "            self.last = t['X'].data_ptr()\n"
        "            return [t['X'] * 3]\n        return call\n"
    )
    spec = adapter(tmp_path, "caches", body)
    rows = bench(program(), None, [spec], settings(), tmp_path / "rows.jsonl", {})
    row = by_system(rows)["caches"]
    assert row["status"] == "ok", row["reason"]
    assert min(row["samples_us"]) >= 20_000 and row["warm_p20_us"] < 20_000


def test_a_kernel_that_replays_its_first_outputs_is_caught(tmp_path):
    source = """
extern "C" int prism_run(const void* const* in, void* const* out, int) {
    static float kept[64];
    static bool filled;
    for (int i = 0; i < 64 && !filled; ++i) kept[i] = 3 * ((const float*)in[0])[i];
    filled = true;
    for (int i = 0; i < 64; ++i) ((float*)out[0])[i] = kept[i];
    return 0;
}
"""
    folder = winner(tmp_path / "w", source)
    rows = bench(program(), folder, [], settings(), tmp_path / "rows.jsonl", {})
    row = by_system(rows)["prism"]
    assert row["status"] == "failed" and "do not change with input X" in row["reason"]
    assert row["samples_us"] == [] and failures(rows) == [f"prism: failed: {row['reason']}"]


def test_what_is_said_of_rows_without_a_time():
    def row(system, status="ok"):
        return {"system": system, "status": status, "reason": "" if status == "ok" else "killed"}

    read, eager = row("read"), row("eager")
    assert failures([row("prism"), row("eager", "failed"), read]) == []
    assert failures([row("prism", "suspect"), eager, read]) == ["prism: suspect: killed"]
    assert failures([row("prism", "failed"), read]) == ["prism: failed: killed"]
    assert failures([row("prism", "failed"), row("eager", "unavailable"), read]) == [
        "no system has a time: prism: failed: killed; eager: unavailable: killed"
    ]


def test_replayed_outputs_are_caught(tmp_path):
    body = (
        "    def prepare(self, p, x):\n        kept = [t * 3 for t in x.values()]\n"
        "        return lambda t: kept\n"
    )
    spec = adapter(tmp_path, "replays", body)
    rows = bench(program(), None, [spec], settings(), tmp_path / "rows.jsonl", {})
    row = by_system(rows)["replays"]
    assert row["status"] == "failed" and "do not change with input X" in row["reason"]


@pytest.mark.parametrize(
    ("least", "read_us", "status"),
    [(2.0, 4.5, "suspect"), (2.0, 3.5, "ok"), (None, 45.0, "ok"), (None, 55.0, "suspect")],
)
def test_reading_judges_from_twice_the_least_replay_of_a_gpu(least, read_us, status):
    made = []
    for name, took in (("prism", read_us / 2), ("read", read_us)):
        row = Row("w", "c", {"n": 4}, "fp16", name, status="ok", verdict="n/a")
        row.evidence = {} if least is None else {"least_replay_us": least}
        made.append(System(row, cold=[took], warm=[took]))
    ours, read = benching._finished(made, BenchSettings(device=CPU))
    assert ours["status"] == status and read["status"] == "ok"


def test_reading_that_was_disturbed_makes_no_sound_time_suspect():
    made = []
    for name, took in (("prism", [200.0] * 4), ("read", [190.0, 190.0, 900.0, 900.0])):
        row = Row("w", "c", {"n": 4}, "fp16", name, status="ok", verdict="n/a")
        made.append(System(row, cold=took, warm=took))
    ours, read = benching._finished(made, BenchSettings(device=CPU))
    assert (ours["status"], read["status"]) == ("ok", "ok") and ours["read_us"] == 545.0


@pytest.mark.parametrize(
    ("took", "ours_us", "ours", "reads"),
    [  # 130,000 bytes at 1 GB/s are 130 us, and starting threads is given 50 us
        (16_000.0, 9.0, "ok", "suspect"),
        (181.0, 90.0, "ok", "suspect"),
        (179.0, 90.0, "suspect", "ok"),
    ],
)
def test_reading_that_cannot_be_judges_nothing(took, ours_us, ours, reads):
    made = []
    for name, us in (("prism", ours_us), ("read", took)):
        row = Row("w", "c", {"n": 4}, "fp16", name, status="ok", verdict="n/a", input_bytes=130_000)
        made.append(System(row, cold=[us] * 4, warm=[us] * 4))
    prism, read = benching._finished(made, BenchSettings(device=CPU))
    assert (prism["status"], read["status"]) == (ours, reads)
    if reads == "suspect":
        assert read["reason"].startswith("the machine was busy: reading 130000 bytes took")
        assert read["median_us"] == took and read["read_us"] is prism["read_us"] is None
        assert read["read_speed_fraction"] is prism["read_speed_fraction"] is None
    else:
        assert prism["read_speed_fraction"] == took / ours_us and read["reason"] == ""


def test_a_time_below_that_of_reading_is_suspect(tmp_path):
    body = (  # honest until it is timed
        "    def prepare(self, p, x):\n        self.kept = None\n"
        "        return lambda t: self.kept or [t['X'] * 3]\n"
        "    def started(self): self.kept = [torch.zeros(1)]\n"
    )
    spec = adapter(tmp_path, "skips", body)
    rows = bench(program(1024, 4096), None, [spec], settings(), tmp_path / "rows.jsonl", {})
    row = by_system(rows)["skips"]
    assert row["status"] == "suspect" and "merely reading the inputs" in row["reason"]
    assert row["median_us"] < 0.75 * row["read_us"]


@pytest.mark.parametrize(
    ("source", "fields", "reason"),
    [
        (KERNEL % 63, {}, "1 of 64 elements were never written"),
        (KERNEL % 64, {"source_sha256": "0"}, "is not the source that won"),
        ("int x = ;", {}, "its kernel does not compile here: error:"),
        ("int x;", {}, "prism_run"),
        (KERNEL % 64, {"status": "failed", "reason": "none of 3 passed"}, "none of 3 passed"),
    ],
)
def test_a_winner_that_is_no_winner_here(tmp_path, monkeypatch, source, fields, reason):
    monkeypatch.setattr(benching, "prepare_case", without_eager)
    folder = winner(tmp_path / "w", source, **fields)
    rows = bench(program(), folder, [], settings(), tmp_path / "rows.jsonl", {})
    row = by_system(rows)["prism"]
    assert row["status"] == "failed" and reason in row["reason"]
    assert row["median_us"] is None and by_system(rows)["read"]["status"] == "ok"


def test_a_dtype_that_the_device_cannot_do_is_the_user_s_error(tmp_path):
    with pytest.raises(PrismError, match="backend 'abacus' is not known"):
        bench(
            program(),
            None,
            [],
            settings(device=Device("abacus", "abacus")),
            tmp_path / "rows.jsonl",
            {},
        )
    assert list(tmp_path.iterdir()) == []


COORDINATOR = """
import sys
from pathlib import Path
from prism.measure.bench import BaselineSpec, BenchSettings, bench
from prism.model.device import CPU
from prism.program import Builder
b = Builder("triple", {"n": 4, "d": 16}, "fp32")
program = b.build(O=b.scale(b.input("X", "n d"), 3))
spec = BaselineSpec("hangs", sys.argv[1])
bench(program, None, [spec], BenchSettings(device=CPU, threads=1), Path(sys.argv[2]), {})
"""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_children_die_with_their_parent_and_no_file_is_left(tmp_path, how):
    note = tmp_path / "pid"
    body = (
        f"    def prepare(self, p, x):\n        open({str(note)!r}, 'w').write(str(os.getpid()))\n"
    )
    spec = adapter(tmp_path, "hangs", body + "        time.sleep(600)\n")
    out = tmp_path / "run" / "rows.jsonl"
    env = children.environment_for_child(1, {"TMPDIR": str(tmp_path)})
    argv = [sys.executable, "-c", COORDINATOR, spec.adapter, str(out)]

    def attend():  # the shell of a background job has interrupts ignored, and children inherit that
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen(argv, env=env, stderr=subprocess.DEVNULL, preexec_fn=attend) as parent:
        assert wait_for(lambda: note.exists() and note.read_text())
        child = int(note.read_text())
        assert alive(child)
        os.kill(parent.pid, how)
        assert parent.wait(20) != 0
    assert wait_for(lambda: not alive(child), 20)
    assert not out.exists()
