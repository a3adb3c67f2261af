"""Kernels for GPUs compiled by Triton where there is no GPU."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from prism import cli
from prism.codegen.triton import offline as triton_offline
from prism.config import ROOT
from prism.report import build

pytest.importorskip("triton", reason="triton is not installed")

TINY = ["workload=rmsnorm", "workload.n=4", "workload.d=256", "offline.configs=2"]
TINY += ["offline.points=20"]
CASE = "rmsnorm@d=256,n=4"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """One cache of searches for all tests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRISM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def offline(capsys, out, *more):
    """The result of the stage, and what it said on stderr."""
    code = cli.main(["offline", *TINY, *more, f"out={out}"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(out.read_text()), captured


def test_every_configuration_compiles_for_both_architectures(tmp_path, capsys):
    kept = tmp_path / "kernels"
    found, captured = offline(capsys, tmp_path / "offline.json", f"sources={kept}")
    assert {row["source"] for row in found["rows"]} == set(os.listdir(kept))
    assert found["cases"] == [CASE] and found["status"] == "ok"
    assert found["totals"] == {"configurations": 2, "tried": 4, "compiled": 4, "causes": {}}
    assert {(r["device"], r["arch"]) for r in found["rows"]} == {("a100", 80), ("h200", 90)}
    for row in found["rows"]:
        assert 0 < row["registers"] <= 255 and row["spill_bytes"] == 0
        assert all(k["cubin_bytes"] > 0 and k["ptx_bytes"] > 0 for k in row["kernels"])
        assert row["shared_bytes"] == max(k["shared_bytes"] for k in row["kernels"])
        assert row["modelled_us"] > 0 and 0 < row["seconds"] < 60
    assert found["settings"]["dtype"] == "fp16" and found["versions"]["triton"]
    assert "2 configurations, not run" in captured.out
    assert sorted(os.listdir(tmp_path)) == ["kernels", "offline.json"]
    page = build(tmp_path).read_text()
    assert "4 of 4 compilations of 2 configurations" in page


def test_what_the_compiler_does_not_tell_is_unknown(tmp_path, capsys, monkeypatch):
    """The tool that reads registers and spills from a kernel says nothing; the kernel counts."""
    tool = tmp_path / "cuobjdump"
    tool.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "release 12.8" || exit 1\n')
    tool.chmod(0o755)
    monkeypatch.setenv("TRITON_CUOBJDUMP_PATH", str(tool))
    run = tmp_path / "run"
    run.mkdir()
    only = "offline.configs=1", "offline.devices=[h100]"
    found, _ = offline(capsys, run / "offline.json", *only)
    (row,) = found["rows"]
    assert (row["status"], row["registers"], row["spill_bytes"]) == ("ok", None, None)
    assert row["shared_bytes"] > 0 and row["kernels"][0]["registers"] is None
    assert "1 of 1 compilations" in build(run).read_text()


def test_a_compiler_without_its_tool_still_compiles(monkeypatch):
    from triton import knobs

    monkeypatch.delenv("TRITON_CUOBJDUMP_PATH", raising=False)
    find = triton_offline._cuobjdump.__wrapped__
    assert find().endswith("cuobjdump")
    monkeypatch.setattr(vars(type(knobs.nvidia))["cuobjdump"], "default_path", "/nowhere/cuobjdump")
    assert find() is None
    monkeypatch.setattr(triton_offline, "_cuobjdump", find)
    assert triton_offline._used(b"") == {}


def test_time_that_is_up_is_that_configurations_failure(tmp_path, capsys):
    limits = ("offline.limit_s=0.05", "offline.devices=[h100]")
    found, captured = offline(capsys, tmp_path / "offline.json", *limits)
    assert [(r["cause"], r["device"]) for r in found["rows"]] == [("timeout", "h100")] * 2
    assert all("did not end within 0.05 s" in r["reason"] for r in found["rows"])
    assert "timeout 2" in captured.out


def test_an_interrupt_leaves_nothing_half_written_and_no_compiler(tmp_path):
    base = tmp_path / "tmp"
    base.mkdir()
    argv = [sys.executable, "-m", "prism", "offline", *TINY, f"out={tmp_path}/o.json"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(base)}
    child = subprocess.Popen(
        argv,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        # Where the tests run in the background it is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 120
    while not list(base.glob("prism-*/work-offline-*/sm_80/*.py")):
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == 130 and "interrupted" in stderr
    assert os.listdir(tmp_path) == ["tmp"]
    assert not list(base.glob("prism-*/work-*"))
    argv = ["ps", "-eo", "args"]
    running = subprocess.run(argv, capture_output=True, text=True).stdout
    assert str(base) not in running
