"""`python -m prism.measure` on a packed folder: with torch and numpy alone, killed, in Triton."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from prism import cli
from prism.config import ROOT
from prism.measure.rows import read_rows
from prism.measure.winner import read_winner

TINY = [
    "suite=smoke",
    *(
        "suite.configs.rmsnorm=[{d: 32, n: 2}]",
        "suite.configs.attention=[{b: 1, g: 1, d: 16, h: 32}]",
    ),
    *("baseline=[eager]", "bench.rounds=2", "bench.seconds=0.2", "pack.graphs=4", "pack.points=20"),
    *("tune.count=3", "tune.seconds=6"),
]
FIRST, SECOND = "rmsnorm@d=32,n=2", "attention@b=1,d=16,g=1,h=32"
# What is not on a machine that measures. (torch itself needs sympy and jinja2.)
NOT_THERE = ["diskcache", "egglog", "hydra", "matplotlib", "omegaconf", "pandas", "platformdirs"]
NOT_THERE += ["pyarrow", "rich", "seaborn", "snakemake", "yaml"]
HOOK = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {NOT_THERE}:
            raise ModuleNotFoundError(f"No module named {{name!r}}: not on this machine")
sys.meta_path.insert(0, Missing())
"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    out = tmp_path_factory.mktemp("pack") / "packed"
    assert cli.main(["pack", *TINY, f"out={out}"]) == 0
    return out


@pytest.fixture
def folder(packed, tmp_path):
    return shutil.copytree(packed, tmp_path / "packed")


@pytest.fixture
def there(tmp_path):
    """The environment of a machine where only what measuring needs is installed."""
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(HOOK)
    return os.environ | {"PYTHONPATH": f"{hook}:{ROOT}", "XDG_RUNTIME_DIR": str(hook)}


def start(folder, *args, env):
    return subprocess.Popen(
        [sys.executable, "-m", "prism.measure", str(folder), *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
        cwd=folder.parent,
        start_new_session=True,
    )


def measure(folder, *args, env):
    """Exit code and lines of a whole run."""
    process = start(folder, *args, env=env)
    output, _ = process.communicate(timeout=400)
    return process.returncode, output.splitlines()


def kill_when(folder, path, *args, env):
    """Kills a run as soon as it has written a file."""
    process = start(folder, *args, env=env)
    try:
        deadline = time.monotonic() + 200
        while not (folder / path).exists():
            assert process.poll() is None, process.stdout.read()
            assert time.monotonic() < deadline, f"{path} never came"
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_the_hook_hides_what_is_not_there(there):
    for name, code in (("egglog", 1), ("yaml", 1), ("torch", 0)):
        done = subprocess.run([sys.executable, "-c", f"import {name}"], env=there, text=True)
        assert done.returncode == code, name


def test_a_killed_run_goes_on_with_torch_and_numpy_alone(folder, there, tmp_path, capsys):
    kill_when(folder, f"work/{FIRST}/winner.json", "device=cpu", env=there)
    tuned = folder / f"work/{FIRST}/winner.json"
    at = tuned.stat().st_mtime_ns
    assert read_winner(tuned.parent)["status"] == "ok"
    assert not (folder / f"bench/{FIRST}.jsonl").exists()

    kill_when(folder, f"bench/{FIRST}.jsonl", "device=cpu", env=there)
    assert tuned.stat().st_mtime_ns == at, "tuning was not done again"
    timed = (folder / f"bench/{FIRST}.jsonl").stat().st_mtime_ns
    assert not (folder / f"bench/{SECOND}.jsonl").exists()

    code, lines = measure(folder, "device=cpu", env=there)
    assert code == 0 and len(lines) == 1, lines
    assert lines[0].startswith(f"{SECOND}: prism ") and lines[0].endswith("tried)")
    assert (folder / f"bench/{FIRST}.jsonl").stat().st_mtime_ns == timed
    assert measure(folder, "device=cpu", env=there) == (0, [])

    manifest = json.loads((folder / "manifest.json").read_text())
    for case in (FIRST, SECOND):
        rows = {row["system"]: row for row in read_rows(folder / f"bench/{case}.jsonl")}
        assert set(rows) == {"prism", "eager", "read"}
        for name in ("prism", "eager"):
            assert (rows[name]["verdict"], rows[name]["dtype"]) == ("PASSED", "bf16"), rows[name]
        winner = read_winner(folder / f"tune/{case}")
        assert rows["prism"]["variant"] == winner["digest"]
        assert (rows["prism"]["device"], rows["prism"]["threads"]) == ("cpu", winner["threads"])
        assert rows["prism"]["config_hash"] == manifest["devices"]["cpu"]["hashes"][case]
        assert rows["prism"]["search"]["ended"] == "exhausted"

    run = tmp_path / "run"
    assert cli.main(["unpack", f"from={folder}", f"run={run}"]) == 0
    assert cli.main(["report", f"run={run}"]) == 0
    page = (run / "report.html").read_text()
    assert "left out" not in page, "rows and winners are of the settings that config.yaml has"


def test_without_time_there_is_no_row_and_nothing_half(folder, there):
    code, lines = measure(folder, "device=cpu", "seconds=0.1", env=there)
    assert code == 1
    assert lines[-1].startswith("prism: warning: the time was over before 2 had a row: rmsnorm@")
    assert not (folder / "bench").exists() and not (folder / "tune").exists()


def test_the_limit_holds(folder, there):
    start = time.monotonic()
    code, lines = measure(folder, "device=cpu", "seconds=12", "threads=1", env=there)
    assert code in (0, 1), lines
    assert time.monotonic() - start < 12 + 20 + 10  # a candidate's limit, and the start
    found = sorted(path.name for path in folder.glob("bench/*.jsonl"))
    assert len(found) == sum(": prism " in line for line in lines) or code == 0


def test_triton_kernels_through_the_interpreter(folder, tmp_path):
    """The path of a GPU, but for its timer: no time of it is a result."""
    pytest.importorskip("triton")
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    entry = json.loads(json.dumps(manifest["devices"]["h200"]))
    entry["settings"]["device"]["name"] = "interpreter"
    entry["settings"]["tune"] |= {"count": 2, "seconds": 60}
    manifest["devices"]["interpreter"] = entry | {"gpus": []}
    manifest["cases"] = {SECOND: manifest["cases"][SECOND]}
    path.write_text(json.dumps(manifest))
    own = os.environ | {"PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(tmp_path)}
    code, lines = measure(folder, "device=interpreter", env=own)
    assert code == 0, lines
    rows = {row["system"]: row for row in read_rows(folder / f"bench/{SECOND}.jsonl")}
    assert rows["prism"]["verdict"] == "PASSED", rows["prism"]
    assert (rows["prism"]["device"], rows["prism"]["dtype"]) == ("interpreter", "fp16")
    winner = read_winner(folder / f"tune/{SECOND}")
    assert (winner["backend"], winner["strategy"]) == ("triton", "ranked")
    assert "@triton.jit" in (folder / f"tune/{SECOND}/kernel.py").read_text()
