"""A backend whose compiler takes many sources at once and leaves a result in JSON for each."""

import json
import os
import sys

import pytest
from devices import INTERPRETER

from prism.errors import PrismError
from prism.measure.compile import compile_all, compile_one, sha256

COMPILER = """
import json, os, pathlib, sys, time
arch, jobs, timeout, *paths = sys.argv[1:]
pathlib.Path(paths[0]).with_name("called.json").write_text(json.dumps(
    {"arch": arch, "jobs": jobs, "timeout": timeout, "sources": len(paths) // 2,
     **{k: os.environ.get(k) for k in ("TRITON_CACHE_DIR", "TRITON_INTERPRET", "TMPDIR")}}))
for source, out in zip(paths[::2], paths[1::2]):
    text = pathlib.Path(source).read_text()
    if text == "crash":
        sys.exit("fatal: the compiler crashed")
    if text == "half":
        pathlib.Path(out).write_text('{"error": nu')
        continue
    kernels = [{"registers": n, "spill_bytes": 0, "shared_bytes": 100 * n} for n in (40, 24)]
    kernels[1]["spill_bytes"] = 8 * (text == "spills")
    error = "no such operator" if text == "bad" else None
    result = {"error": error, "seconds": 0.5, "kernels": [] if error else kernels}
    pathlib.Path(out).write_text(json.dumps(result))
"""


class Batch:
    suffix, built, batch = ".py", ".json", True
    calls = 0

    def build(self, pairs, arch, jobs, timeout):
        paths = [str(path) for pair in pairs for path in pair]
        return [sys.executable, "-c", COMPILER, str(arch), str(jobs), str(timeout), *paths]


def test_one_command_compiles_all_and_tells_of_each(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    progress = []
    sources = ["good", "bad", "spills", "half", "good"]
    found = compile_all(
        sources, Batch(), tmp_path, 2, 7.0, lambda *a: progress.append(a), device=INTERPRETER
    )
    assert progress == [("compile", 4, 4)]
    called = json.loads((tmp_path / "called.json").read_text())
    assert called["sources"] == 4 and (called["arch"], called["jobs"]) == ("80", "2")
    assert called["timeout"] == "7.0" and called["TRITON_INTERPRET"] == "0"
    assert called["TRITON_CACHE_DIR"] == str(tmp_path / "triton")
    good, bad, spills, half = (found[sha256(s)] for s in sources[:4])
    assert good.library.read_text() == "good" and good.library.suffix == ".py"
    assert (good.error, good.seconds) == ("", 0.5) and len(good.facts["kernels"]) == 2
    facts = {k: v for k, v in spills.facts.items() if k != "kernels"}
    assert facts == {"registers": 40, "spill_bytes": 8, "shared_bytes": 4000}  # the most of one
    assert good.command[-2:] == (good.library.name, good.library.with_suffix(".json").name)
    assert str(tmp_path) not in " ".join(good.command)
    assert bad.library is None and bad.error == "no such operator" and bad.facts == {}
    assert half.library is None and half.error == "the compiler left no result"


def test_a_compiler_that_crashes_fails_only_what_it_left_undone(tmp_path):
    sources = ["good", "crash", "late"]
    found = compile_all(sources, Batch(), tmp_path, 1, device=INTERPRETER)
    good, crash, late = (found[sha256(s)] for s in sources)
    assert good.library is not None
    for one in (crash, late):
        assert one.library is None
        assert one.error == "exit status 1: fatal: the compiler crashed"


def test_a_result_of_an_earlier_command_is_not_taken(tmp_path):
    assert compile_one("crash", Batch(), tmp_path, device=INTERPRETER).library is None
    out = tmp_path / f"{sha256('crash')[:16]}.json"
    out.write_text(json.dumps({"error": None, "seconds": 1.0, "kernels": []}))
    assert compile_one("crash", Batch(), tmp_path, device=INTERPRETER).library is None


def test_nothing_to_compile_starts_nothing(tmp_path):
    assert compile_all([], Batch(), tmp_path, 4, device=INTERPRETER) == {}
    assert os.listdir(tmp_path) == []


def test_a_compiler_that_is_missing_is_the_user_s_error(tmp_path):
    class Missing(Batch):
        def build(self, pairs, arch, jobs, timeout):
            return ["/nonexistent/compiler"]

    with pytest.raises(PrismError, match="cannot run the compiler '/nonexistent/compiler'"):
        compile_all(["x"], Missing(), tmp_path, 1, device=INTERPRETER)
