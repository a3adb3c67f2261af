"""The command line: results, exit codes, and one line for every error."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from codegen_graphs import rmsnorm

from prism import cli, config, files, given
from prism.instantiate import Concrete
from prism.model.device import Device
from prism.program import Node, Op, program_to_json
from prism.sgraph.family import KernelFamily, Loop, Piece, Space, Step


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


def program(*overrides):
    cfg = config.compose(overrides)
    return config.program_of(config.workload_of(cfg), cfg.dtype)


def space_of(*loops, count=1):
    """A space whose one family holds exp(X) under `loops`, with as many grids as `count`."""
    root = Node(Op.EXP, (Node(Op.INPUT, (), "in:0", ("n", "d")),))
    kernel = KernelFamily((root,), loops or (Loop(),), ((),) * count)
    names = (("in:0", "X"), ("out:0", "O"))
    return Space((Piece((kernel,), ((Step(0, names),), (Step(0, names),) * 2)),))


def stored_search(space=None, **changes):
    """What `prism search` stores, without its statistics."""
    symbolic = config.symbolic(config.search_slice(config.compose())["workload"])
    data = {"program": program_to_json(symbolic), "space": (space or space_of()).to_json()}
    return data | {"workload": "rmsnorm", "seconds": {"total": 1.0}} | changes


def stored_winner(of, graph, case, **changes):
    """What `prism tune` stores, as far as it is read again."""
    sizes = tuple(dict.fromkeys(kernel.block.pars, 1) for kernel in graph.kernels)
    return {
        **{"case": case, "dtype": of.dtype, "status": "ok", "reason": "", "backend": "cpu"},
        **{"seconds": {"tune": 1.0, "compile": 1.0}, "graph_id": "g", "source_sha256": "s"},
        **{"digest": "d", "concrete": Concrete(of, graph, sizes).to_json()},
    } | changes


def test_search_writes_the_agreed_json(tmp_path, capsys):
    out, log = tmp_path / "deep/swiglu.json", tmp_path / "swiglu.log"
    code, text, err = run(capsys, "search", "workload=swiglu", f"out={out}", f"log={log}")
    assert (code, err) == (0, "")
    data = json.loads(out.read_text())
    assert data["workload"] == "swiglu"
    assert set(data["seconds"]) == {"generate", "map", "refute", "prove", "total"}
    assert all({"in", "out"} == set(counts) for counts in data["candidates"].values())
    assert data["graphs"]["all"] == Space.from_json(data["space"]).count
    assert data["graphs"]["all"] > data["graphs"]["single_kernel"] > 0
    assert data["program"]["sizes"] == {"n": "n", "d": "d", "f": "f"}
    assert list(out.parent.iterdir()) == [out]
    assert "done" in log.read_text()


def test_search_shows_what_it_found_and_why_not_the_rest(capsys):
    code, text, _ = run(capsys, "search", "workload=attention")
    assert code == 0
    assert len(text.splitlines()) <= 120
    for part in (
        "graphs proved: ",
        "peak memory",
        "partial candidates rejected: ",
        "shapes: operands are cut differently",
        "matches of rules: ",
        "{matmul exp sum div matmul} ",  # a kind of kernel graph, in the table
        "one kernel: ",
        "loop {i=d_i}",
        "imap {x:",
        "two kernels, the first leaves partial results: ",
        "split]",
        "with a library operator: ",
    ):
        assert part in text, part
    shown = text.index("one kernel: ")
    assert "grid {x=d_x, y=d_y, z=d_z} loop {i=d_i}" in text[shown : text.index("two kernels")]
    counts = [line.split(maxsplit=1) for line in text.splitlines() if line.startswith("  ")]
    causes = [c for c in counts if len(c) == 2 and " of a " in c[1] and c[0].isdigit()]
    assert causes == sorted(causes, key=lambda item: -int(item[0]))


def test_what_the_exhaustive_search_found_is_shown_alike(capsys):
    bounds = ("search.extra_operators=0", "search.grid=1", "search.seconds=30")
    code, text, _ = run(capsys, "search", "workload=swiglu", "search=exhaustive", *bounds)
    assert code == 0
    assert "{matmul silu matmul mul} " in text and "loop {i=d_i}" in text
    assert (
        run(capsys, "search", "workload=swiglu", "search=exhaustive", *bounds, "show=0.0")[0] == 0
    )


def test_a_slice_is_the_same_search(tmp_path, capsys):
    data = config.search_slice(config.compose(["workload=swiglu"]))
    found = []
    for name, args in (("a", ["workload=swiglu"]), ("b", [f"slice={json.dumps(data)}"])):
        assert run(capsys, "search", *args, f"out={tmp_path / name}")[0] == 0
        found.append(json.loads((tmp_path / name).read_text())["space"])
    assert found[0] == found[1]


def test_show_prints_the_graph_with_the_id(capsys):
    code, text, _ = run(capsys, "search", "show=0.3")
    assert code == 0
    assert text.startswith("graph 0.3, PROVED as a whole\nkernel 0: grid ")
    assert "generate" not in text
    for wanted, part in (("nope", "an id is FAMILY.NUMBER"), ("0.99999", "no such graph")):
        code, _, err = run(capsys, "search", f"show={wanted}")
        assert code == 2
        assert f"show={wanted}: graph" in one_line(err)
        assert part in err


def test_a_program_in_pieces_is_shown_by_piece(capsys):
    from prism import terminal

    (piece,) = space_of(count=3).pieces
    result = stored_search(Space((piece, piece)))
    terminal.graphs(result)
    text = capsys.readouterr().out
    for part in ("graphs of piece 1", "graphs of piece 2", "one kernel (piece 1): 0.0", "0.0+0.0"):
        assert part in text
    terminal.graph(result, "0.2+1.4")
    assert capsys.readouterr().out.count("kernel ") >= 3
    names = [name for name, _ in given.proved(result)]
    assert len(names) == 12 * 12 and names[0] == "0.0+0.0", "no graph is one kernel"


ACCOUNT = {
    "seconds": {"map": 3.0, "total": 2.0},
    "candidates": {"map": {"in": 4, "out": 2}},
    "graphs": {"all": 4, "single_kernel": 0},
    **{"ended": "exhausted", "peak_mib": 100.0, "rejected": {}, "rules": {}, "gaps": []},
}


def test_a_summary_says_that_stages_are_summed_over_pieces(capsys):
    from prism import terminal

    (piece,) = space_of().pieces
    for pieces, said in (((piece,), False), ((piece, piece), True)):
        terminal.summary(stored_search(Space(pieces), **ACCOUNT))
        assert ("stages are summed over pieces" in capsys.readouterr().out) == said


@pytest.mark.parametrize(
    ("ended", "shown"),
    [
        ("exhausted", " 2.00 "),
        ("time limit of 2 s, in stage map", " > 2.00 (limit) "),
        ("p_1: interrupted", " > 2.00 (interrupted) "),
        ("p_1: its process died", " > 2.00 (stopped) "),
    ],
)
def test_what_a_stopped_search_ran_is_no_time(capsys, ended, shown):
    from prism import terminal

    terminal.summary(stored_search(**ACCOUNT | {"ended": ended}))
    assert shown in next(x for x in capsys.readouterr().out.splitlines() if "total" in x)
    row = {"program": "gate", "operators": 4, "pieces": 1, "graphs_log10": 2.0, "kernels": 9}
    terminal.growth({"rows": [ACCOUNT | row | {"ended": ended}]})
    assert shown in capsys.readouterr().out


def test_a_summary_counts_what_was_not_proved_by_reason(capsys):
    from prism import terminal

    reasons = ["axiom gap at pair 0", "not tried", "not tried"]
    unproved = {"gaps": [{"what": "exp(X)", "reason": reason} for reason in reasons]}
    terminal.summary(stored_search(**ACCOUNT | unproved))
    assert "not proved, unused: 3 (not tried 2, axiom gap 1)\n" in capsys.readouterr().out
    terminal.summary(stored_search(**ACCOUNT))
    assert "not proved, unused: none\n" in capsys.readouterr().out


def test_the_examples_differ_and_the_rest_is_counted(capsys):
    from prism import terminal

    result = stored_search(space_of(Loop(), Loop((("in:0", "d"),), (0, 1), ((1, "concat:d"),))))
    terminal.graphs(result)
    text = capsys.readouterr().out
    assert "{exp} " in text and "{exp} {exp}" in text
    assert "one kernel: 0.1, PROVED" in text, "the one with a loop shows more"
    assert "two kernels" not in text and "library operator:" not in text


SLICE = {"workload": {"name": "w", "inputs": {"X": ["n"]}, "formula": "O = exp(X)"}}
SLICE |= {"dtype": "bf16", "search": {"name": "guided"}}


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ({"a": 1}, "`workload` must be an object, got None"),
        ({}, "`workload` must be an object"),
        (3, "must be an object of JSON, got 3"),
        ([], "must be an object of JSON, got []"),
        (SLICE | {"search": {}}, "'name' is missing"),
        (SLICE | {"search": {"name": "guided", "seconds": "soon"}}, "search.seconds='soon'"),
        (SLICE | {"search": {"name": "guided", "speed": 1}}, "'speed'"),
        (SLICE | {"search": {"name": "guided", "library": ["gemm"]}}, "'gemm' is not an operator"),
        (SLICE | {"search": {"name": "guided", "cache": True}}, "'cache'"),
        (SLICE | {"workload": {"name": "w", "inputs": {"X": ["n"]}}}, "`formula` must be text"),
        (SLICE | {"workload": SLICE["workload"] | {"inputs": {"X": "n"}}}, "`inputs.X`"),
        (SLICE | {"dtype": 16}, "`dtype` must be text"),
    ],
)
def test_a_bad_slice_is_one_line(tmp_path, capsys, data, part):
    code, out, err = run(capsys, "search", f"slice={json.dumps(data)}", f"out={tmp_path}/o")
    assert (code, out) == (2, "")
    assert part in one_line(err)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("stage", ["tune", "bench"])
def test_a_bad_slice_of_a_case_is_one_line(tmp_path, capsys, stage):
    for data in ({"a": 1}, 3, {}, SLICE | {"case": "w@n=4", "device": {}}):
        args = (f"slice={json.dumps(data)}", f"graphs={tmp_path}/none", f"out={tmp_path}/o")
        code, _, err = run(capsys, stage, *args)
        assert code == 2
        assert "slice" in one_line(err)


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ({"workload": "rmsnorm"}, "not a result of `prism search`: 'program' is missing"),
        ([1], "not a result of `prism search`"),
        (stored_search(seconds={}), "'total' is missing"),
        (stored_search() | {"space": []}, "`space` must be a list of pieces"),
        (
            stored_search() | {"space": [{"kernels": [], "graphs": [[[0, {}]]]}]},
            "family is missing",
        ),
        (stored_search() | {"space": [{"kernels": [1], "graphs": []}]}, "not a result"),
        (stored_search(space_of(Loop((), (7,)))), "not a result"),
    ],
)
@pytest.mark.parametrize("stage", ["tune", "bench"])
def test_graphs_that_are_none_are_one_line(tmp_path, capsys, stage, data, part):
    (tmp_path / "found.json").write_text(json.dumps(data))
    code, _, err = run(capsys, stage, f"graphs={tmp_path}/found.json", f"out={tmp_path}/o")
    assert code == 2
    assert part in one_line(err)


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("workload.formula=O = matmul(gelu(rms_norm(X, d, eps)), W, d)", "none there, gelu here"),
        ("workload.eps=1e-6", "parameter eps: 1e-05 there, 1e-06 here"),
        ("workload.inputs={X:[n,d],W:[f,d]}", "input W: [d, f] there, [f, d] here"),
        ("workload.formula=O = matmul(X, W, d)", "div, scale, shift, sqrt, square, sum there"),
        ("workload=swiglu", "workload: rmsnorm there, swiglu here"),
    ],
)
def test_graphs_of_another_program_are_refused(tmp_path, capsys, override, part):
    path = tmp_path / "found.json"
    path.write_text(json.dumps(stored_search()))
    key, value = override.split("=", 1)
    quoted = f"{key}='{value}'" if " " in value else override
    code, _, err = run(capsys, "tune", quoted, f"graphs={path}", f"out={tmp_path}/o")
    assert code == 2
    assert "graphs of another program" in one_line(err)
    assert part in err
    assert given.search_result(str(path), program("dtype=fp32", "workload.f=64"))


def test_a_winner_of_another_program_is_refused(tmp_path, capsys):
    case, (_, graph) = "rmsnorm@d=4096,n=8", rmsnorm(8, 16, 16)
    for of, part in (
        (program("workload.f=32"), "size f: 32 there, 4096 here"),
        (program("workload.eps=1e-6"), "parameter eps: 1e-06 there, 1e-05 here"),
    ):
        stored = stored_winner(of, graph, case)
        (tmp_path / "winner.json").write_text(json.dumps(stored))
        code, _, err = run(capsys, "bench", f"winner={tmp_path}", f"out={tmp_path}/o")
        assert code == 2
        assert "tuned for another program" in one_line(err)
        assert part in err
        assert given.winner(str(tmp_path), case, of) == tmp_path
    del stored["concrete"]
    (tmp_path / "winner.json").write_text(json.dumps(stored))
    code, _, err = run(capsys, "bench", f"winner={tmp_path}", f"out={tmp_path}/o")
    assert code == 2
    assert "not a result of `prism tune`: 'concrete' is missing" in one_line(err)


def test_programs_with_the_same_operators_can_differ():
    one, other = (
        program("workload.formula='O = matmul(exp(X) + square(X), W, d)'"),
        program("workload.formula='O = matmul(exp(X + square(X)), W, d)'"),
    )
    assert given.difference(one, one) == ""
    assert given.difference(one, other) == "the formula: the same operators in another order"


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
        (["tune", "device=h200", "out={tmp}/o"], "device h200: this machine has no NVIDIA GPU"),
        (["tune", "graphs={tmp}/none.json", "out={tmp}/o"], "No such file"),
        (["tune", "graphs={tmp}/half.json", "out={tmp}/o"], "not a result of `prism search`"),
        (["tune", "graphs={tmp}/other.json", "out={tmp}/o"], "workload: other there, rmsnorm here"),
        (["tune", "threads=0", "graphs={tmp}/empty.json", "out={tmp}/o"], "threads=0"),
        (["bench", "winner={tmp}", "out={tmp}/o"], "no winner.json there"),
        (["bench", "winner={tmp}/won", "out={tmp}/o"], "rmsnorm@d=4096,n=8 in bf16"),
        (["ablate"], "out=... is needed"),
        (["ablate", "ablation.limit_s=0", "out={tmp}/o"], "ablation.limit_s=0: must be a positive"),
        (["ablate", "slice={}", "out={tmp}/o"], "`workload` must be an object"),
        (["growth"], "out=... is needed"),
        (["growth", "growth.seconds=soon", "out={tmp}/o"], "growth.seconds='soon'"),
        (["growth", 'slice={"search": {}}', "out={tmp}/o"], "`growth` must be an object"),
        (["report"], "run=... is needed"),
        (["report", "run={tmp}/none"], "no such folder"),
        (["report", "run={tmp}", "suite=smoke"], "only run=FOLDER"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, capsys, args, part):
    files = {
        "half.json": '{"workload": "rms',
        "other.json": json.dumps(stored_search()).replace('"rmsnorm"', '"other"'),
        "empty.json": json.dumps(stored_search()),
        "winner.json": json.dumps(
            {"case": "rmsnorm@d=4096,n=4", "dtype": "bf16", "status": "failed", "reason": "none"}
            | {"seconds": {"tune": 1, "compile": 1}}
        ),
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

    monkeypatch.setattr(files.os, "replace", full)
    code, _, err = run(capsys, "search", "workload=swiglu", f"out={out}")
    assert code == 1
    assert "No space left on device" in one_line(err)
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


@pytest.fixture
def interrupted(monkeypatch):
    """A search that Ctrl-C ends with one family found."""
    import prism.search

    def search(program, bounds, *_args, **_more):
        result = prism.search.SearchResult(program, bounds)
        result.ended, result.space = "interrupted", space_of()
        return result

    monkeypatch.setattr(prism.search, "search", search)


def test_an_interrupted_search_leaves_what_it_found(tmp_path, capsys, interrupted):
    out = tmp_path / "found.json"
    code, text, err = run(capsys, "search", f"out={out}")
    assert code == 130
    assert "ended: interrupted" in text
    assert "interrupted" in one_line(err)
    assert json.loads(out.read_text())["ended"] == "interrupted"
    out.unlink()
    data = json.dumps(config.search_slice(config.compose()))
    assert run(capsys, "search", f"slice={data}", f"out={out}")[0] == 130
    assert not out.exists(), "a workflow takes whole results only"
    code, _, err = run(capsys, "tune", f"out={tmp_path}/tuned")
    assert code == 130
    assert "interrupted" in one_line(err)
    assert not list(tmp_path.rglob("winner.json"))


def test_ctrl_c_during_a_search_in_pieces_leaves_graphs_of_the_whole_program(tmp_path):
    out = tmp_path / "found.json"
    command = [sys.executable, "-m", "prism", "search", "workload=llama_layer", f"out={out}"]
    process = subprocess.Popen(
        [*command, "search.cache=false", "search.piece=6"],
        env=os.environ | {"PYTHONPATH": str(config.ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = f"/proc/{process.pid}/task/{process.pid}/children"
    deadline = time.monotonic() + 60
    while len(Path(children).read_text().split()) < 2:  # searches of pieces, or what starts them
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted" in one_line(err)
    data = json.loads(out.read_text())
    assert data["ended"].endswith("interrupted")
    graph = Space.from_json(data["space"]).graph("+".join("0.0" for _ in data["space"]))
    assert {"O", "Knew", "Vnew"} <= {name for kernel in graph.kernels for name in kernel.writes}


def test_after_an_interrupt_no_other_piece_is_searched(monkeypatch):
    import importlib

    from prism.search import Bounds

    module = importlib.import_module("prism.search.search")
    seconds, run = [], module._search_piece

    def piece(*job):
        seconds.append(job[1].seconds)
        result = run(*job)
        result.ended = "interrupted" if len(seconds) == 2 else result.ended
        return result

    monkeypatch.setattr(module, "_search_piece", piece)
    symbolic = config.symbolic(config.search_slice(config.compose())["workload"])
    result = module.search(symbolic, Bounds(piece=2, seconds=40))
    assert seconds == [10, 10, 1e-3, 1e-3]
    assert result.ended.endswith("interrupted") and len(result.space.pieces) == 4


def test_tuning_what_an_interrupted_search_left_is_a_warning(tmp_path, capsys, monkeypatch):
    import prism.measure.tune as module

    tuned = []
    monkeypatch.setattr(
        module,
        "tune",
        lambda _p, graphs, *_a, **_m: tuned.append(graphs) or {"status": "failed", "reason": ""},
    )
    path = tmp_path / "found.json"
    path.write_text(json.dumps(stored_search(space_of(count=2), ended="interrupted")))
    code, _, err = run(capsys, "tune", f"graphs={path}", f"out={tmp_path}/o")
    assert code == 0
    assert f"prism: warning: graphs={path}: its search was interrupted" in err
    assert [name for name, _ in tuned[0]] == ["0.0", "0.1", "1.0", "1.1", "1.2", "1.3"]


def test_tuning_draws_from_many_graphs(monkeypatch):
    monkeypatch.setattr(given, "SINGLE", 30)
    monkeypatch.setattr(given, "OTHERS", 7)
    few, many = stored_search(space_of(count=3)), stored_search(space_of(count=90))
    assert [name for name, _ in given.proved(few)][:4] == ["0.0", "0.1", "0.2", "1.0"]
    names = [name for name, _ in given.proved(many, seed=3)]
    single = [name for name in names if name.startswith("0.")]
    assert 10 < len(single) <= 30 and 0 < len(names) - len(single) <= 7
    assert names == [name for name, _ in given.proved(many, seed=3)]
    assert names != [name for name, _ in given.proved(many, seed=4)]


def test_ablate_writes_seconds_and_calls_no_limit_a_time(tmp_path, capsys):
    out = tmp_path / "ablation.json"
    small = ("workload.d=64", "workload.n=4", "ablation.limit_s=0.3")
    code, text, err = run(capsys, "ablate", *small, f"out={out}")
    assert (code, err) == (0, "")
    data = json.loads(out.read_text())
    assert data["limit_s"] == 0.3 and data["sizes"] == {"n": 4, "d": 64, "f": 64}
    letters = ["".join(r[m] for m in ("imap", "fmap", "omap", "sizes")) for r in data["rows"]]
    assert len(letters) == 9 and letters[0] == "SSSS" and letters[-1] == "CCCC"
    last = data["rows"][-1]
    assert last["ended"] == "limit" and last["assignments"] < last["assignments_all"]
    assert "> 0.3 (limit)" in text.splitlines()[-2] and "S symbolic, C concrete" in text
    cfg = config.compose([*small])
    args = (f"slice={json.dumps(config.ablation_slice(cfg))}", f"out={tmp_path}/b")
    assert run(capsys, "ablate", *args)[0] == 0
    assert json.loads((tmp_path / "b").read_text())["program"] == data["program"]


def test_growth_writes_what_each_program_took(tmp_path, capsys, monkeypatch):
    from report_runs import growth as rows

    import prism.search.growth as module

    called, found = [], rows()

    def growth(bounds, progress, workers):
        progress("norm", 1)
        called.append((bounds.seconds, bounds.grid, workers > 0))
        return found

    monkeypatch.setattr(module, "growth", growth)
    out = tmp_path / "growth.json"
    code, text, _ = run(capsys, "growth", "growth.seconds=2.5", "search.grid=2", f"out={out}")
    assert code == 0 and called == [(2.5, 2, True)]
    assert json.loads(out.read_text()) == found
    assert "chain90" in text and "10^45.0" in text
    data = config.growth_slice(config.compose())
    assert run(capsys, "growth", f"slice={json.dumps(data)}", f"out={out}")[0] == 0
    found["rows"][1]["ended"] = "p_2: interrupted"
    code, _, err = run(capsys, "growth", f"out={tmp_path}/none.json")
    assert code == 130 and "interrupted" in one_line(err)
    assert not (tmp_path / "none.json").exists()


def bench_of(monkeypatch, **statuses):
    """Replaces the measurement by rows of these statuses; returns the settings it is given."""
    import prism.measure.bench as module

    given_settings = []
    rows = [
        {"system": name, "status": status, "reason": f"{name} is {status}", "median_us": None}
        for name, status in ({"prism": "ok", "eager": "ok"} | statuses).items()
    ]

    def bench(_program, _winner, _baselines, settings, *_rest, progress):
        given_settings.append(settings)
        return rows

    monkeypatch.setattr(module, "bench", bench)
    return given_settings


def test_bench_measures_on_the_configured_device(tmp_path, capsys, monkeypatch):
    data = config.case_slices(config.compose())[1]
    data["device"] = {"name": "mine", "backend": "cpu", "gpu": None}
    called = bench_of(monkeypatch)
    assert run(capsys, "bench", f"slice={json.dumps(data)}", f"out={tmp_path}/o")[0] == 0
    assert called[0].device == Device("mine", "cpu")


def test_a_failed_system_is_a_warning(tmp_path, capsys, monkeypatch):
    (tmp_path / "winner.json").write_text(
        json.dumps(stored_winner(program(), rmsnorm(8, 16, 16)[1], "rmsnorm@d=4096,n=8"))
    )

    def warnings(*args, **statuses):
        bench_of(monkeypatch, **statuses)
        code, _, err = run(capsys, "bench", f"out={tmp_path}/o", *args)
        assert code == 0
        return [line for line in err.splitlines() if "device auto" not in line]

    won = f"winner={tmp_path}"
    assert warnings(won) == warnings(won, eager="failed") == []
    (line,) = warnings(won, prism="failed")
    assert line == "prism: warning: rmsnorm@d=4096,n=8: prism: failed: prism is failed"
    assert warnings(prism="failed") == [], "only the baselines were asked for"
    (line,) = warnings(prism="failed", eager="failed")
    assert "no system has a time" in line


def test_no_kernel_is_a_warning(tmp_path, capsys, monkeypatch):
    import prism.measure.tune as module

    (tmp_path / "found.json").write_text(json.dumps(stored_search()))
    failed = {"status": "failed", "reason": "none of 3 passed"}
    monkeypatch.setattr(module, "tune", lambda *_args, **_more: failed)
    code, out, err = run(capsys, "tune", f"graphs={tmp_path}/found.json", f"out={tmp_path}/o")
    assert (code, out) == (0, "")
    assert "prism: warning: rmsnorm@d=4096,n=8: no kernel: none of 3 passed\n" in err


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
