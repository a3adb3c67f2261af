"""Rows, their file, the environment, the compiler's messages and the lock."""

import json
import os
import subprocess
import sys
import time

import pytest

from prism.errors import PrismError
from prism.measure import children, environment, lock
from prism.measure.compile import compile_all, compile_one, first_error, sha256
from prism.measure.race import Race
from prism.measure.rows import Row, read_rows, write_rows
from prism.model.device import CPU


def row(**fields):
    return Row(workload="w", config="d=4", shape={"d": 4}, dtype="bf16", system="prism", **fields)


def test_a_row_needs_a_reason_or_a_passed_gate():
    with pytest.raises(ValueError, match="needs a reason"):
        row().to_json()
    with pytest.raises(ValueError, match="no time without a passed gate"):
        row(status="ok").to_json()
    with pytest.raises(ValueError, match="status 'fine'"):
        row(status="fine").to_json()
    good = row(status="ok", verdict="PASSED")
    good.set_samples([3.0, 1.0, 2.0], [])
    data = good.to_json()
    assert (data["median_us"], data["n"], data["samples_us"]) == (2.0, 3, [3.0, 1.0, 2.0])
    assert data["warm_median_us"] is None


def test_rows_are_read_as_they_were_written(tmp_path):
    path, rows = tmp_path / "deep" / "rows.jsonl", [{"a": 1}, {"b": None, "c": "\u2028\n"}]
    write_rows(path, rows)
    assert read_rows(path) == rows
    assert [p.name for p in path.parent.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize("damaged", [b'{"b":', b"[1]", b"", b"\xff\xfe", b"null"])
def test_damaged_rows_are_named_with_their_line(tmp_path, damaged):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n' + damaged + b'\n{"c": 3}\n')
    with pytest.raises(PrismError, match=r"rows.jsonl: line 2 is not a row of JSON"):
        read_rows(path)
    with pytest.raises(PrismError, match="cannot read"):
        read_rows(tmp_path / "none")


def test_environment_is_plain_data_with_the_run_s_thread_settings():
    found = environment.environment(3)
    assert json.loads(json.dumps(found)) == found
    assert found["thread_settings"]["OMP_NUM_THREADS"] == "3"
    assert found["cores_available"] == len(os.sched_getaffinity(0))
    assert found["versions"]["python"] == sys.version.split()[0]
    assert environment.last_level_cache() >= 1 << 16
    assert {"commit", "dirty", "caches", "load_average", "memory_bytes"} <= set(found)


def test_first_error_drops_the_path():
    text = "x.cpp: In function 'f':\n/a/b/x.cpp:3:5: error: 'y' was not declared\nmore"
    assert first_error(text) == "error: 'y' was not declared"
    assert first_error("ld: cannot find -lfoo\n") == "ld: cannot find -lfoo"
    assert first_error("") == "the compiler gave no message"


class FakeBackend:
    """Its compiler is Python: fails for a source with "bad", hangs for one with "hang"."""

    suffix, built, batch = ".src", ".so", False

    def build(self, pairs, arch, jobs, timeout):
        ((source, library),) = pairs
        code = (
            "import sys, time, pathlib as p; s = p.Path(sys.argv[1]).read_text();"
            "'hang' in s and time.sleep(60);"
            "'bad' in s and sys.exit('x.src:1: error: bad source');"
            "p.Path(sys.argv[2]).write_text(s)"
        )
        return [sys.executable, "-c", code, str(source), str(library)]


def test_each_distinct_source_is_compiled_once_and_failures_stay_apart(tmp_path):
    calls = []
    found = compile_all(
        ["good", "bad", "good"],
        FakeBackend(),
        tmp_path,
        jobs=2,
        progress=lambda *a: calls.append(a),
    )
    assert len(found) == 2 and calls[-1] == ("compile", 2, 2)
    good, bad = found[sha256("good")], found[sha256("bad")]
    assert good.library.read_text() == "good" and good.error == ""
    assert bad.library is None and bad.error == "error: bad source"
    assert not list(tmp_path.glob("*.tmp.so"))


def test_a_hanging_compiler_is_stopped(tmp_path):
    found = compile_one("hang", FakeBackend(), tmp_path, timeout=0.5)
    assert found.library is None and "did not end within 0.5 s" in found.error


def test_a_missing_compiler_is_the_user_s_error(tmp_path):
    class Missing(FakeBackend):
        def build(self, pairs, arch, jobs, timeout):
            return ["/nonexistent/compiler", str(pairs[0][0])]

    with pytest.raises(PrismError, match="cannot run the compiler '/nonexistent/compiler'"):
        compile_all(["x"], Missing(), tmp_path, jobs=1)


def test_exit_statuses_in_words():
    assert children.describe(0) == ""
    assert children.describe(-11) == "killed by SIGSEGV"
    assert children.describe(3, "a\nlast line\n") == "exit status 3: last line"
    ended = children.run([sys.executable, "-c", "import time; time.sleep(30)"], 0.3)
    assert ended.returncode is None and ended.seconds < 5


def test_the_device_lock_excludes_another_process(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    code = (
        "from prism.measure.lock import device_lock\n"
        "with device_lock('test'):\n    print('held', flush=True); input()\n"
    )
    env = children.environment_for_child(1)
    start = [sys.executable, "-c", code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": env}
    with subprocess.Popen(start, **pipes) as holder:
        assert holder.stdout.readline() == "held\n"
        with subprocess.Popen(start, **pipes, stderr=subprocess.PIPE) as waiter:
            assert "waiting for another run" in waiter.stderr.readline()
            holder.kill()  # the lock dies with its holder
            assert waiter.stdout.readline() == "held\n"
            waiter.kill()


def test_waiting_for_the_device_ends_with_the_time(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with lock.device_lock("test"):
        start = time.monotonic()
        with (
            pytest.raises(lock.Locked, match="another run held the lock .*until the time was over"),
            lock.device_lock("test", start + 0.3),
        ):
            pass
        assert 0.3 <= time.monotonic() - start < 5
    with lock.device_lock("test", start):  # free: taken at once, however late
        pass
    assert capsys.readouterr().err.count("waiting for another run") == 1


def test_a_race_that_waits_for_another_run_ends_with_what_it_has(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    race = Race(None, None, CPU, tmp_path, 1)
    with lock.device_lock("cpu"):
        race.until = time.monotonic() + 0.2
        with pytest.raises(lock.Locked), race._alone(0):
            pass
        with race._alone(1):
            assert race.late


def test_folders_of_killed_runs_are_removed_and_live_ones_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(lock.tempfile, "tempdir", str(tmp_path))
    with lock.work_folder("live") as live:
        left = live.parent / "work-dead-1"
        left.mkdir()
        (left / "data").write_text("x")
        left.with_suffix(".lock").write_text("")
        with lock.work_folder("other") as other:
            assert live.is_dir() and other.is_dir() and not left.exists()
    assert list(tmp_path.glob("*/work-*")) == []


FULL_DISK = """
import resource, sys
from pathlib import Path
from prism.errors import PrismError
from prism.codegen import BACKENDS
from prism.measure.compile import compile_one
from prism.measure.inputs import write_case
from prism.measure.rows import write_rows
from prism.measure.winner import store
from prism.program import Builder
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
folder = Path(sys.argv[1])
b = Builder("p", {"n": 4000}, "fp32")
program = b.build(O=b.scale(b.input("X", "n"), 1))

for write in (
    lambda: write_case(program, folder / "case", 0, 1),
    lambda: write_rows(folder / "rows.jsonl", [{"samples": list(range(2000))}]),
    lambda: store({"status": "ok"}, "x" * 2000, ".cpp", folder / "tune"),
    lambda: store({"status": "x" * 2000}, "x", ".cpp", folder / "tune"),
    lambda: compile_one("x" * 2000, BACKENDS["cpu"], folder / "compile"),
):
    try:
        write()
        print("written")
    except PrismError as error:
        print(error)
"""


def test_a_full_disk_is_one_line_and_leaves_no_result(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        env=children.environment_for_child(1),
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 5 and all(line.startswith("cannot write") for line in lines), lines
    left = sorted(p.name for p in tmp_path.glob("**/*") if p.is_file())
    assert left == ["in.X.raw", "kernel.cpp"]  # a case has no case.json, tuning no winner.json
