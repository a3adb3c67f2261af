"""The command line: results, exit codes, and one line for every error."""

import errno
import json
import os
import subprocess
import sys

import pytest

from prism import cli, config, terminal


def run(capsys, *args):
    """Exit code, stdout and stderr of a call in this process."""
    code = cli.main(list(args))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def one_line(err):
    """The error's text, after checking that it is a single line."""
    lines = [line for line in err.splitlines() if not line.startswith("prism: device auto")]
    assert len(lines) == 1, err
    assert lines[0].startswith("prism: error: ")
    return lines[0]


def test_search_writes_the_agreed_json(tmp_path, capsys):
    out, log = tmp_path / "deep/swiglu.json", tmp_path / "swiglu.log"
    code, text, err = run(capsys, "search", "workload=swiglu", f"out={out}", f"log={log}")
    assert (code, err) == (0, "")
    assert "PROVED" in text
    data = json.loads(out.read_text())
    assert data["workload"] == "swiglu"
    assert set(data["seconds"]) == {"generate", "map", "refute", "prove", "total"}
    assert all({"in", "out"} <= set(data["candidates"][s]) for s in ("generate", "map", "prove"))
    proved = [g for g in data["graphs"] if g["verdict"] == "PROVED"]
    assert proved
    assert all(g["id"] and g["kernels"] == 1 and g["graph"]["kernels"] for g in proved)
    assert data["program"]["sizes"] == {"n": "n", "d": "d", "f": "f"}
    assert list(out.parent.iterdir()) == [out]
    assert "done" in log.read_text()


def test_a_slice_is_the_same_search(tmp_path, capsys):
    data = config.search_slice(config.compose(["workload=swiglu"]))
    found = []
    for name, args in (("a", ["workload=swiglu"]), ("b", [f"slice={json.dumps(data)}"])):
        assert run(capsys, "search", *args, f"out={tmp_path / name}")[0] == 0
        graphs = json.loads((tmp_path / name).read_text())["graphs"]
        found.append([(g["id"], g["verdict"]) for g in graphs])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ([], "STAGE"),
        (["serch"], "invalid choice: 'serch'"),
        (["search", "--fast"], "--fast"),
        (["search", "workload=nope"], "workload 'nope'"),
        (["search", "workload.d=-1"], "size d=-1"),
        (["search", "workload.d="], "size d=''"),
        (["search", "wrkload=rmsnorm"], "wrkload"),
        (["search", "dtype=int8"], "device cpu can do bf16"),
        (["search", "out="], "out: needs a value"),
        (["search", "slice={"], "slice: not JSON"),
        (["search", "slice={}", "workload=rmsnorm"], "exclude each other"),
        (["tune"], "out=... is needed"),
        (["tune", "device=h200", "out={tmp}/o"], "device 'h200'"),
        (["tune", "graphs={tmp}/none.json", "out={tmp}/o"], "no such file"),
        (["tune", "graphs={tmp}/half.json", "out={tmp}/o"], "not a result of `prism search`"),
        (["tune", "graphs={tmp}/other.json", "out={tmp}/o"], "holds the graphs of 'other'"),
        (["tune", "threads=0", "graphs={tmp}/empty.json", "out={tmp}/o"], "threads=0"),
        (["bench", "winner={tmp}", "out={tmp}/o"], "no winner.json there"),
        (["bench", "winner={tmp}/won", "out={tmp}/o"], "rmsnorm@d=4096,n=8 in bf16"),
        (["report"], "run=... is needed"),
        (["report", "run={tmp}/none"], "no such folder"),
        (["report", "run={tmp}", "suite=smoke"], "only run=FOLDER"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, capsys, args, part):
    files = {
        "half.json": '{"workload": "rms',
        "other.json": '{"workload": "other", "graphs": []}',
        "empty.json": '{"workload": "rmsnorm", "graphs": []}',
        "winner.json": '{"case": "rmsnorm@d=4096,n=4", "dtype": "bf16"}',
    }
    (tmp_path / "won").mkdir()
    for name, text in files.items():
        (tmp_path / ("won" if name == "winner.json" else ".") / name).write_text(text)
    code, out, err = run(capsys, *(arg.replace("{tmp}", str(tmp_path)) for arg in args))
    assert (code, out) == (2, "")
    assert part in one_line(err)
    assert {p.name for p in tmp_path.rglob("*") if p.is_file()} == set(files)


def test_no_output_file_for_a_failed_search(tmp_path, capsys):
    out = tmp_path / "found.json"
    assert run(capsys, "search", "workload=nope", f"out={out}")[0] == 2
    assert not out.exists()
    code, _, err = run(capsys, "search", f"out={tmp_path}")
    assert code == 2
    assert "is a folder" in one_line(err)
    (tmp_path / "file").write_text("")
    code, _, err = run(capsys, "search", f"out={tmp_path}/file/x.json")
    assert code == 2
    assert "out=" in one_line(err)


def test_a_full_disk_is_one_line_and_keeps_the_old_file(tmp_path, capsys, monkeypatch):
    out = tmp_path / "found.json"
    out.write_text("old")

    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device", str(out))

    monkeypatch.setattr(terminal.json, "dump", full)
    code, _, err = run(capsys, "search", "workload=swiglu", f"out={out}")
    assert code == 1
    assert "no space left on the device" in one_line(err)
    assert str(out) in err
    assert [p.name for p in tmp_path.iterdir()] == ["found.json"]
    assert out.read_text() == "old"


@pytest.mark.parametrize(
    ("error", "code", "part"),
    [(KeyboardInterrupt(), 130, "interrupted"), (ValueError("a\nb"), 1, "ValueError: a b")],
)
def test_other_ends_are_one_line(capsys, monkeypatch, error, code, part):
    def stage(_own, _overrides):
        raise error

    monkeypatch.setitem(cli._STAGES, "report", stage)
    found, _, err = run(capsys, "report", "run=x")
    assert found == code
    assert part in one_line(err)


def test_an_interrupted_search_is_no_result(tmp_path, capsys, monkeypatch):
    import prism.search

    def interrupted(program, bounds, progress):
        result = prism.search.SearchResult(program, bounds)
        result.ended = "interrupted"
        return result

    monkeypatch.setattr(prism.search, "search", interrupted)
    out = tmp_path / "found.json"
    assert run(capsys, "search", f"out={out}")[0] == 130
    assert not out.exists()


def test_help_names_the_keys_and_an_example(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["bench", "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert all(key in text for key in ("out ", "winner ", "graphs ", "example: prism bench"))


def test_the_process_exits_with_the_code(tmp_path):
    command = [sys.executable, "-m", "prism", "search", "workload=nope"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(config.ROOT)},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "workload 'nope'" in one_line(done.stderr)
    assert not list(tmp_path.iterdir())


def test_a_run_on_a_timing_machine_imports_no_engine():
    """`tune` and `bench` with a slice need none of the packages of search and report."""
    code = (
        "import sys, prism.cli, prism.config, prism.measure.tune, prism.measure.bench\n"
        "heavy = {'egglog', 'hydra', 'omegaconf', 'pandas', 'pyarrow', 'snakemake', 'sympy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    env = os.environ | {"PYTHONPATH": str(config.ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stdout.strip() == "[]", done.stderr
