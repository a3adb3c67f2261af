"""The whole workflow on tiny budgets: twice, killed in between, and with an own workload."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from prism.config import ROOT

# The smoke suite without torch.compile, which takes longer than all the rest: `make smoke` has it.
TINY = "suite=smoke baseline=[eager] tune.count=3 tune.seconds=6 bench.rounds=2 bench.seconds=0.2"
TINY += " ablation.limit_s=0.3 growth.seconds=1"


def command(folder, overrides, *options):
    return [
        *(sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")),
        *("--directory", str(folder), "--cores", "2", *options),
        *("--config", f"overrides={overrides}"),
    ]


def environment():
    # A cache that cannot be used: who asks it warns of it.
    return os.environ | {"PYTHONPATH": str(ROOT), "PRISM_CACHE": "/dev/null/cache"}


def snakemake(folder, overrides=TINY, *options, code=0):
    """Output of a run, which must end with `code`."""
    done = subprocess.run(
        command(folder, overrides, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
        timeout=400,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def kill_when(folder, pattern):
    """Starts a run and kills its whole process group once a file like `pattern` is there."""
    process = subprocess.Popen(
        command(folder, TINY),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(),
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 200
        while not list(folder.glob(pattern)):
            assert process.poll() is None, f"the run ended before {pattern} was there"
            assert time.monotonic() < deadline, f"{pattern} never came"
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def results(folder):
    """Every result file with its time of change, after checking that each is whole."""
    found = {}
    for path in sorted((folder / "results").rglob("*")):
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".jsonl":
            assert all(json.loads(line) for line in path.read_text().splitlines())
        if path.is_file() and "logs" not in path.parts:
            found[path] = path.stat().st_mtime_ns
    return found


def rows(run):
    with open(run / "tables/kernel_time.csv") as file:
        return {
            (row["workload"], row["config"], row["system"]): row for row in csv.DictReader(file)
        }


def tuned_cases(run):
    return run.glob("bench/*.jsonl")


def jobs(output):
    """The rules that a dry run would execute."""
    return set(re.findall(r"^rule (\w+):", output, re.MULTILINE))


def test_a_killed_run_goes_on_and_a_finished_one_does_nothing(tmp_path):
    run = tmp_path / "results/smoke-cpu"
    kill_when(tmp_path, "results/smoke-cpu/logs/tune/*.log")
    searched = results(tmp_path)
    assert run / "search/rmsnorm.json" in searched or run / "search/attention.json" in searched
    assert not (run / "report.html").exists()

    kill_when(tmp_path, "results/smoke-cpu/logs/bench/*.log")
    tuned = results(tmp_path)
    assert any(path.name == "winner.json" for path in tuned)
    assert all(tuned[path] == at for path, at in searched.items()), "a search was done again"

    snakemake(tmp_path)
    finished = results(tmp_path)
    kept = [path for path in tuned if path.name == "winner.json"]
    assert all(finished[path] == tuned[path] for path in kept), "a tuning was done again"
    for workload, config in (("rmsnorm", "d=256,n=4"), ("attention", "b=1,d=64,g=2,h=128")):
        for system in ("prism", "eager"):
            row = rows(run)[workload, config, system]
            # On a busy machine a time may be suspect; that the outputs are right holds anywhere.
            assert row["status"] in ("ok", "suspect"), row
            assert (row["verdict"], row["dtype"], row["threads"]) == ("PASSED", "bf16", "2"), row
            assert float(row["median_us"]) > 0
    assert (run / "report.html").stat().st_size > 10_000
    for path in (run / "bench").glob("*.jsonl"):
        accounts = {r["system"]: r["search"] for r in map(json.loads, path.open())}
        account = accounts.pop("prism")
        assert account["gaps"] == 0 and account["ended"] == "exhausted"
        assert account["peak_mib"] > 0 and account["rules"] and not any(accounts.values())
        stages = {"generate", "map", "refute", "prove"}
        assert set(account["candidates"]) == stages < set(account["seconds"])
    ablation = json.loads((run / "ablation.json").read_text())
    assert len(ablation["rows"]) == 9 and ablation["rows"][-1]["ended"] == "limit"
    assert (run / "tables/ablation.parquet").exists() and (run / "plots/growth.svg").exists()
    assert not [path for path in finished if path.name.startswith(".")], "a partial file was left"

    assert "Nothing to be done" in snakemake(tmp_path)
    assert results(tmp_path) == finished

    for name in ("tables/rows.csv", "plots/search_time.svg", "tables/kernel_time.parquet"):
        (run / name).unlink()
    assert jobs(snakemake(tmp_path, TINY, "--dry-run")) == {"all", "report"}
    snakemake(tmp_path)
    assert set(results(tmp_path)) == set(finished), "what was deleted is there again"

    planned = snakemake(tmp_path, TINY.replace("rounds=2", "rounds=3"), "--dry-run")
    assert jobs(planned) == {"all", "settings", "pack", "bench", "report"}, (
        "only what reads the change is done again"
    )
    planned = snakemake(tmp_path, TINY.replace("limit_s=0.3", "limit_s=0.4"), "--dry-run")
    assert jobs(planned) == {"all", "settings", "ablate", "report"}
    packed = json.loads((run / "pack/manifest.json").read_text())
    assert packed["device"] == "h200" and set(packed["cases"]) == {p.stem for p in tuned_cases(run)}
    next(run.glob("tune/*/winner.json")).unlink()
    assert jobs(snakemake(tmp_path, TINY, "--dry-run")) == {"all", "tune", "bench", "report"}


def test_a_second_run_of_a_folder_ends_with_one_line(tmp_path):
    import fcntl

    lock = tmp_path / ".snakemake/smoke-cpu.lock"
    lock.parent.mkdir()
    target = "results/smoke-cpu/config.yaml"
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        output = snakemake(tmp_path, TINY, target, code=1)
        assert not (tmp_path / target).exists()
    (error,) = (line for line in output.splitlines() if "error" in line.lower())
    assert error.startswith("prism: error: another snakemake is at work on results/smoke-cpu")
    snakemake(tmp_path, TINY, target)
    assert list((tmp_path / "results/smoke-cpu").glob("*.yaml*")) == [tmp_path / target]


def test_an_own_workload_is_one_yaml_file(tmp_path):
    own = tmp_path / "own/workload"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text(
        "name: mine\nn: 4\nd: 96\nf: 80\neps: 1e-5\n"
        "inputs: {X: [n, d], R: [n, d], W: [d, f]}\n"
        "formula: |\n  H = X + R\n  O = matmul(rms_norm(H, d, eps), W, d)\n"
        "configs: [{d: 96}, {d: 33}]\n"
    )
    searchpath = f"hydra.searchpath=[file://{tmp_path}/own]"
    output = snakemake(tmp_path, f"{TINY} suite.workloads=[mine] {searchpath}")
    assert "cache" not in output, "the seconds of a workflow's search are results"
    assert not (tmp_path / "results/smoke-cpu/ablation.json").exists(), "it is the suite's own"
    found = rows(tmp_path / "results/smoke-cpu")
    for config in ("d=96", "d=33"):
        for system in ("prism", "eager"):
            assert found["mine", config, system]["verdict"] == "PASSED", found


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        ("suite.workloads=[nope]", "workload 'nope' is not in conf/workload"),
        ("workload=rmsnorm workload.d=0", "size d=0"),
        ("device=a101", "known are a100,"),
        ("a='b", "No closing quotation"),
    ],
)
def test_bad_input_ends_the_workflow_with_one_line(tmp_path, overrides, part):
    output = snakemake(tmp_path, overrides, code=2)
    errors = [line for line in output.splitlines() if "error" in line.lower()]
    assert len(errors) == 1
    assert part in errors[0]
    assert not (tmp_path / "results").exists()


def test_a_gpu_that_is_not_here_ends_the_workflow_before_its_first_job(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    output = snakemake(tmp_path, f"{TINY} device=h200", code=2)
    (error,) = (line for line in output.splitlines() if "error" in line.lower())
    assert error.startswith("prism: error: device h200: this machine has no NVIDIA GPU")
    assert not (tmp_path / "results").exists()
    due = jobs(snakemake(tmp_path, f"{TINY} device=h200", "--dry-run"))
    assert "profile" in due, "what there is to do can be asked anywhere"
    search = "results/smoke-h200/config.yaml"
    snakemake(tmp_path, f"{TINY} device=h200", search)
    assert (tmp_path / search).exists(), "as can all be done that needs no GPU"


EXECUTOR = """
import sys
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.settings import CommonSettings

common_settings = CommonSettings(
    non_local_exec=True, implies_no_shared_fs=False, job_deploy_sources=False
)

class Executor(RemoteExecutor):
    def run_job(self, job):
        print(f"SUBMITTED {job.rule.name} threads {job.threads}", file=sys.stderr)
        info = SubmittedJobInfo(job)
        self.report_job_submission(info)
        self.report_job_error(info, msg="this cluster runs nothing")

    async def check_active_jobs(self, active_jobs):
        for job in ():
            yield job

    def cancel_jobs(self, active_jobs):
        pass
"""


@pytest.mark.parametrize(("options", "threads"), [((), os.cpu_count()), (("--cores", "3"), 3)])
def test_a_cluster_gets_jobs_with_all_cores_though_no_gpu_is_here(tmp_path, options, threads):
    (tmp_path / "snakemake_executor_plugin_none").mkdir()
    (tmp_path / "snakemake_executor_plugin_none/__init__.py").write_text(EXECUTOR)
    argv = command(tmp_path, f"{TINY} device=h200")
    at = argv.index("--cores")
    argv[at : at + 2] = ["--executor", "none", "--jobs", "1", *options]
    path = f"{ROOT}{os.pathsep}{tmp_path}"
    done = subprocess.run(
        argv, env=environment() | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=200
    )
    submitted = [line for line in done.stderr.splitlines() if line.startswith("SUBMITTED")]
    assert f"SUBMITTED search threads {threads}" in submitted, done.stderr


def test_overrides_reach_the_run_unchanged(tmp_path):
    text = (
        "suite=smoke workload=rmsnorm workload.d=7e1 +baseline.eager.options.day=2024-01-01 "
        """+baseline.eager.options.nested='{a: [1e3, "x y"], b: "c: d"}'"""
    )
    snakemake(tmp_path, text, "results/smoke-cpu/config.yaml")
    import yaml

    resolved = yaml.safe_load((tmp_path / "results/smoke-cpu/config.yaml").read_text())
    assert list(resolved["cases"]) == ["rmsnorm@d=70,n=8"]
    options = resolved["baseline"]["eager"]["options"]
    assert options == {"day": "2024-01-01", "nested": {"a": [1000.0, "x y"], "b": "c: d"}}
    assert resolved["overrides"][2] == "workload.d=7e1"


def test_on_a_gpu_one_job_measures_all_cases_of_the_packed_folder(tmp_path):
    """With Triton's interpreter for a GPU: the jobs and files are those of a real one."""
    pytest.importorskip("triton")
    own = tmp_path / "own/device"
    own.mkdir(parents=True)
    text = (ROOT / "conf/device/h200.yaml").read_text()
    text = re.sub(r"gpus: \[.*\]", "gpus: []", text).replace("name: h200", "name: interpreter")
    (own / "interpreter.yaml").write_text(text)
    overrides = (
        "suite=smoke suite.workloads=[rmsnorm] "
        "suite.configs.rmsnorm='[{d: 32, n: 2}, {d: 16, n: 3}]' "
        "device=interpreter baseline=[eager] tune.count=2 tune.seconds=60 bench.rounds=2 "
        f"bench.seconds=0.2 pack.graphs=4 pack.points=20 hydra.searchpath=[file://{tmp_path}/own]"
    )
    snakemake(tmp_path, overrides)
    run = tmp_path / "results/smoke-interpreter"
    for config in ("d=32,n=2", "d=16,n=3"):
        path = run / f"bench/rmsnorm@{config}.jsonl"
        found = [json.loads(line) for line in path.read_text().splitlines()]
        verdicts = {row["system"]: row["verdict"] for row in found}
        assert verdicts == {"prism": "PASSED", "eager": "PASSED", "read": "n/a"}
        assert {row["dtype"] for row in found} == {"fp16"}
        assert (run / f"tune/rmsnorm@{config}/kernel.py").exists()
    assert "Nothing to be done" in snakemake(tmp_path, overrides)
    (run / "bench/rmsnorm@d=32,n=2.jsonl").unlink()
    assert jobs(snakemake(tmp_path, overrides, "--dry-run")) == {"all", "profile", "report"}
    tuned = {p: p.stat().st_mtime_ns for p in (run / "profile").rglob("winner.json")}
    snakemake(tmp_path, overrides)
    assert (run / "bench/rmsnorm@d=32,n=2.jsonl").exists()
    assert {p: p.stat().st_mtime_ns for p in tuned} == tuned, "what was measured is kept"
