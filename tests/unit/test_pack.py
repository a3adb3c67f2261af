"""Packing and unpacking folders, and what is refused of one."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from codegen_graphs import graph, load, op

from prism import cli, config, files, given, pack, terminal
from prism.errors import PrismError
from prism.instantiate.sampling import sample
from prism.measure.__main__ import main as measure
from prism.measure.folder import STATE, digest, program_hash, read_folder
from prism.measure.rows import Row, write_rows
from prism.model.device import Device
from prism.model.rank import rank
from prism.program import Op, program_from_json
from prism.stages import pack as stage

SMALL = ["suite=smoke", "baseline=[eager]", "pack.graphs=6", "pack.points=40"]
CASES = ["rmsnorm@d=256,n=4", "attention@b=1,d=64,g=2,h=128"]


def run(capsys, *args, main=cli.main):
    """Exit code, stdout, and stderr without what is said of the device."""
    code = main([str(arg) for arg in args])
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if "device auto" not in line]
    return code, captured.out, lines


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A packed folder, which no test changes."""
    out = tmp_path_factory.mktemp("pack") / "packed"
    assert cli.main(["pack", *SMALL, f"out={out}"]) == 0
    return out


@pytest.fixture
def folder(packed, tmp_path):
    """A copy of it to be changed."""
    return shutil.copytree(packed, tmp_path / "packed")


def change(path, edit):
    data = json.loads(path.read_text())
    edit(data)
    path.write_text(json.dumps(data))


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_folder_holds_what_measuring_needs(packed):
    found = read_folder(packed)
    assert set(found.devices) == {"h200", "a100", "h100", "cpu"}
    assert found.devices["cpu"] == [] and found.devices["h200"] == ["NVIDIA H200"]
    for device, dtype in (("cpu", "bf16"), ("h200", "fp16")):
        assert [case.name for case in found.cases(device)] == CASES
        assert {case.program.dtype for case in found.cases(device)} == {dtype}
        for case in found.cases(device):
            graphs = found.graphs(case)
            assert 0 < len(graphs) <= 6
            reasons = given.proofs(case.program)([graph for _, graph in graphs])
            assert reasons == [""] * len(graphs)
            account = {"search_seconds", "search"}
            assert set(case.account) == account and case.account["search"]["gaps"] == 0
    assert not list(packed.parent.glob(".*")), "nothing is left beside it"


def test_graphs_are_the_models_first_and_some_at_random(packed):
    found = read_folder(packed)
    case = found.cases("h200")[0]
    settings = found.settings("h200")
    searched = json.loads((packed / "search/rmsnorm.json").read_text())
    from prism.codegen import BACKENDS

    manifest = BACKENDS["triton"]
    proved = given.proved(searched, 0)
    points = sample(proved, case.program, 40, 0, manifest.options, manifest.scratch_bytes)
    ranked = rank(points, Device.from_json(settings["device"]))
    names = [name for name, _ in found.graphs(case)]
    assert names[:3] == list(dict.fromkeys(name for name, _ in points))[:3]
    first = list(dict.fromkeys(name for _, name, _ in ranked))
    assert set(names[3:]) == set([name for name in first if name not in names[:3]][:3])


def test_the_same_seed_packs_the_same_and_a_search_can_be_given(packed, tmp_path, capsys):
    out = tmp_path / "again"
    searches = packed / "search"
    code, text, _ = run(capsys, "pack", *SMALL, f"graphs={searches}", f"out={out}")
    assert code == 0
    assert "2 configurations for h200, " in text and f"`python -m prism.measure {out}`" in text
    for name in ("graphs/rmsnorm.json", "graphs/attention.json", "search/rmsnorm.json"):
        assert (out / name).read_bytes() == (packed / name).read_bytes()
    other = tmp_path / "other"
    run(capsys, "pack", *SMALL, "seed=1", f"graphs={searches}", f"out={other}")
    name = "graphs/rmsnorm.json"
    assert (other / name).read_bytes() != (packed / name).read_bytes()


def test_a_slice_packs_the_same(packed, tmp_path, capsys):
    from prism.workflow import plan

    out = tmp_path / "sliced"
    text = plan(SMALL)["pack"]
    args = ("pack", f"slice={text}", f"graphs={packed / 'search'}", f"out={out}")
    assert run(capsys, *args)[0] == 0
    one, other = (json.loads((place / "manifest.json").read_text()) for place in (packed, out))
    assert one | {"created": ""} == other | {"created": ""}


@pytest.mark.parametrize(
    ("edit", "part"),
    [
        (lambda d: d.pop("cases"), "`cases` must be an object"),
        (lambda d: d["devices"].pop("h200"), "pack: 'h200' is missing"),
        (lambda d: d["pack"].pop("points"), "pack: 'points' is missing"),
        (lambda d: d["pack"].update(graphs=0), "pack.graphs=0"),
        (lambda d: d["devices"]["h200"]["settings"]["device"].pop("name"), "'name' is missing"),
        (lambda d: d["cases"][CASES[0]].pop("formula"), "pack: 'formula' is missing"),
    ],
)
def test_a_bad_slice_is_one_line(packed, tmp_path, capsys, edit, part):
    from prism.workflow import plan

    data = json.loads(plan(SMALL)["pack"])
    edit(data)
    args = (f"slice={json.dumps(data)}", f"graphs={packed / 'search'}", f"out={tmp_path / 'out'}")
    code, _, (line,) = run(capsys, "pack", *args)
    assert code == 2 and line.startswith("prism: error: ") and part in line
    assert not (tmp_path / "out").exists()


def test_only_proved_graphs_are_packed(packed, tmp_path, capsys, monkeypatch):
    def half(program):
        return lambda graphs: ["no proof" if n % 2 else "" for n in range(len(graphs))]

    monkeypatch.setattr(given, "proofs", half)
    out = tmp_path / "half"
    args = ("pack", *SMALL, f"graphs={packed / 'search'}", f"out={out}")
    assert run(capsys, *args)[0] == 0
    whole, kept = read_folder(packed), read_folder(out)
    for case in whole.cases("cpu"):
        assert kept.graphs(case) == whole.graphs(case)[::2]
        told = kept.manifest["workloads"][case.workload]
        assert told["graphs"] == len(kept.graphs(case)) and told["not_proved"] == {"no proof": 3}
    monkeypatch.setattr(given, "proofs", lambda p: lambda graphs: ["no proof"] * len(graphs))
    out = tmp_path / "none"
    code, _, (line,) = run(capsys, "pack", *SMALL, f"graphs={packed / 'search'}", f"out={out}")
    assert code == 2 and "no graph that is proved as a whole: no proof" in line
    assert not out.exists()


def test_a_folder_appears_whole_or_not_at_all(packed, folder, tmp_path, capsys, monkeypatch):
    (folder / "bench").mkdir()
    (folder / "bench/mine.jsonl").write_text("{}\n")
    before = contents(folder)
    real = files.write_bytes

    def full(path, data):
        if "attention" in Path(path).name:
            raise PrismError("cannot write it: No space left") from OSError(errno.ENOSPC, "full")
        return real(path, data)

    args = ("pack", *SMALL, "seed=1", f"graphs={packed / 'search'}")
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_bytes", full)
        for out in (folder, tmp_path / "new"):
            assert run(capsys, *args, f"out={out}")[0] != 0
    assert contents(folder) == before and not (tmp_path / "new").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"packed"}
    assert run(capsys, *args, f"out={folder}")[0] == 0
    after = contents(folder)
    assert set(after) == set(before), "what was measured there stays"
    assert after[folder / "graphs/rmsnorm.json"] != before[folder / "graphs/rmsnorm.json"]
    read_folder(folder).graphs(read_folder(folder).cases("cpu")[0])


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["device=cpu"],
            ["prism: device=cpu: the folder is packed for h200 (pack.device), and can"],
        ),
        (["device=cpu", "pack.device=cpu"], []),
        (["device=auto"], []),
        ([], []),
        (["device=a100"], []),
    ],
)
def test_the_device_that_is_packed_for_is_said(tmp_path, capsys, monkeypatch, overrides, said):
    seen = {}
    monkeypatch.setattr(stage, "searches", lambda *args: {})
    monkeypatch.setattr(terminal, "packed", lambda out, manifest: None)
    monkeypatch.setattr(pack, "pack", lambda data, *rest: seen.update(data))
    code, _, lines = run(capsys, "pack", *SMALL, *overrides, f"out={tmp_path / 'out'}")
    assert code == 0 and [line[: len(part)] for line, part in zip(lines, said, strict=True)] == said
    assert seen["device"] == {"device=a100": "a100"}.get(
        "".join(overrides), "cpu" if len(overrides) == 2 else "h200"
    )


def test_other_folders_are_left_alone(packed, tmp_path, capsys):
    (tmp_path / "run/search").mkdir(parents=True)
    (tmp_path / "run/config.yaml").write_text("mine: 1\n")
    code, _, (line,) = run(capsys, "pack", *SMALL, f"out={tmp_path / 'run'}")
    assert code == 2 and "no packed folder; choose another name" in line
    (tmp_path / "file").write_text("")
    code, _, (line,) = run(capsys, "pack", *SMALL, f"out={tmp_path / 'file'}")
    assert code == 2 and "Not a directory" in line
    code, _, (line,) = run(capsys, "pack", *SMALL)
    assert code == 2 and "out=... is needed" in line
    code, _, (line,) = run(capsys, "pack", *SMALL, f"out={tmp_path / 'x'}", f"graphs={tmp_path}")
    assert code == 2 and "rmsnorm.json: No such file or directory" in line
    assert not (tmp_path / "x").exists()


def manifest_of(edit):
    return lambda folder: change(folder / "manifest.json", edit)


DAMAGED = {
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "`prism pack out="),
    "not JSON": (lambda f: (f / "manifest.json").write_text("{"), "damaged: not JSON"),
    "not an object": (lambda f: (f / "manifest.json").write_text("[]"), "has format None"),
    "another format": (manifest_of(lambda d: d.update(format=99)), "has format 99"),
    "no cases": (manifest_of(lambda d: d.pop("cases")), "'cases' is missing"),
    "no device": (manifest_of(lambda d: d["devices"]["cpu"].pop("hashes")), "'hashes' is missing"),
    "a bad device": (
        manifest_of(lambda d: d["devices"]["h200"]["settings"]["device"].update(gpu={"sms": 1})),
        "device h200: gpu",
    ),
    "a bad program": (
        manifest_of(lambda d: d["cases"][CASES[0]]["program"].update(nodes=3)),
        "program: not readable",
    ),
    "a number for a list": (
        manifest_of(lambda d: d["devices"]["cpu"].update(gpus=3)),
        "devices.cpu.gpus must be a list, got 3",
    ),
    "a text for a budget": (
        manifest_of(lambda d: d["devices"]["cpu"]["settings"]["tune"].update(seconds="soon")),
        "devices.cpu.settings.tune.seconds must be a number, got 'soon'",
    ),
    "a switch for a count": (
        manifest_of(lambda d: d["devices"]["h200"]["settings"]["tune"].update(count=True)),
        "settings.tune.count must be an integer, got True",
    ),
    "a list for a baseline": (
        manifest_of(lambda d: d["devices"]["cpu"]["settings"]["baseline"].update(eager=[])),
        "baseline.eager must be an object, got []",
    ),
    "a size that is none": (
        manifest_of(lambda d: d["cases"][CASES[0]]["program"]["sizes"].update(n="n")),
        "program.sizes.n must be an integer, got 'n'",
    ),
    "an input that is none": (
        manifest_of(lambda d: d["cases"][CASES[1]]["program"]["inputs"].append("Z")),
        "'Z' is missing",
    ),
    "an endless number": (
        manifest_of(lambda d: d["cases"][CASES[0]]["program"]["params"].update(eps=1e400)),
        "params.eps must be a number, got inf",
    ),
    "another dtype": (
        manifest_of(lambda d: d["devices"]["cpu"]["settings"].update(dtype="int8")),
        "dtype 'int8' is not one of",
    ),
    "an unknown device": (
        manifest_of(lambda d: d.update(device="b7")),
        "device 'b7' is not one of its devices",
    ),
    "no graphs": (lambda f: (f / "graphs/rmsnorm.json").unlink(), "No such file"),
    "edited graphs": (
        lambda f: change(f / "graphs/rmsnorm.json", lambda d: d.update(graphs=[])),
        "rmsnorm.json is damaged: it is not as it was packed",
    ),
    "half of the graphs": (
        lambda f: os.truncate(f / "graphs/attention.json", 100),
        "attention.json is damaged",
    ),
    "another program": (
        manifest_of(
            lambda d: d["cases"][CASES[0]]["program"]["params"].update(eps=1e-3),
        ),
        "rmsnorm.json holds the graphs of another program",
    ),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_folder_is_one_line(folder, capsys, kind):
    damage, part = DAMAGED[kind]
    damage(folder)
    before = contents(folder)
    code, out, (line,) = run(capsys, folder, "device=cpu", main=measure)
    assert (code, out) == (2, "")
    assert line.startswith("prism: error: ") and part in line
    after = contents(folder)
    after.pop(folder / ".lock", None)
    assert after == before
    code, _, (line,) = run(capsys, "unpack", f"from={folder}", f"run={folder / 'run'}")
    assert code == 2 and line.startswith("prism: error: ")
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ((), "one packed folder is needed"),
        (("a", "b"), "one packed folder is needed"),
        (("--fast",), "one packed folder is needed"),
        (("{}", "device=b200"), "device=b200: is not in the packed folder; there are auto, h200"),
        (("{}", "device=a100"), "device=a100: there is no such GPU here"),
        (("{}",), "device=auto: there is no GPU"),
        (("{}", "device=cpu", "seconds=soon"), "seconds=soon: must be a positive number"),
        (("{}", "device=cpu", "seconds=-3"), "seconds=-3: must be"),
        (("{}", "device=cpu", "threads=0"), "threads=0: must be"),
        (("{}", "device=cpu", "tune=random"), "no key 'tune'; known are device, seconds, out, thr"),
        (("tune=random",), "no key 'tune'; known are device, seconds, out, threads"),
    ],
)
def test_bad_arguments_of_measuring_are_one_line(packed, capsys, args, part):
    code, out, (line,) = run(capsys, *(a.format(packed) for a in args), main=measure)
    assert (code, out) == (2, "")
    assert part in line


@pytest.mark.parametrize(
    ("args", "there", "part"),
    [
        (("device=h200",), "NVIDIA H100 80GB HBM3", "describes NVIDIA H200, and this machine has"),
        ((), "NVIDIA GeForce GTX 1080", "the GPU NVIDIA GeForce GTX 1080 is not described"),
    ],
)
def test_a_gpu_of_another_name_is_one_line(packed, capsys, monkeypatch, args, there, part):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: there)
    code, _, (line,) = run(capsys, packed, *args, main=measure)
    assert code == 2 and part in line


@pytest.mark.parametrize(
    ("name", "device"), [("torch", "cpu"), ("numpy", "cpu"), ("triton", "h200")]
)
def test_what_is_not_installed_is_one_line(packed, capsys, monkeypatch, name, device):
    import importlib.util

    import torch

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == name else real(n))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    code, _, (line,) = run(capsys, packed, f"device={device}", main=measure)
    assert code == 2 and f"{name} is not installed here" in line


def test_without_a_compiler_nothing_starts(packed, capsys, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    code, _, (line,) = run(capsys, packed, "device=cpu", main=measure)
    assert code == 2 and "no-such-compiler" in line
    assert not (packed / STATE).exists()


def test_help_says_how_to_measure(capsys):
    code, out, _ = run(capsys, "--help", main=measure)
    assert code == 0
    assert all(key in out for key in ("device=", "seconds=", "out=", "threads="))


# What was measured ------------------------------------------------------------------------


def measured(folder, cases=CASES, commit="c0ffee", **changes):
    """Puts rows as `python -m prism.measure` would leave them into the folder."""
    packed = read_folder(folder)
    state = {"format": 1, "device": "h200", "cases": {}}
    (folder / STATE).write_text(json.dumps(state))
    for case in packed.cases("h200"):
        if case.name not in cases:
            continue
        row = Row(
            **{"workload": case.workload, "config": case.name.partition("@")[2]},
            **{"shape": dict(case.program.sizes), "dtype": "fp16", "system": "prism"},
            **{"device": "h200", "reason": "no kernel", "commit": commit},
            config_hash=case.config_hash,
        )
        for name, value in changes.items():
            setattr(row, name, value)
        write_rows(folder / f"bench/{case.name}.jsonl", [row.to_json()])
        tune = folder / "tune" / case.name
        tune.mkdir(parents=True)
        (tune / "winner.json").write_text(json.dumps({"status": "failed", "concrete": None}))


def test_unpacking_makes_the_folder_of_a_run(folder, tmp_path, capsys):
    import yaml

    searched = folder / "search/rmsnorm.json"
    change(searched, lambda d: d["program"].update(dtype="bf16"))  # as of a run on the CPU
    seal = digest(searched.read_bytes())
    change(folder / "manifest.json", lambda d: d["files"].update({"search/rmsnorm.json": seal}))
    measured(folder)
    target = tmp_path / "results/paper-h200"
    code, out, lines = run(capsys, "unpack", f"from={folder}", f"run={target}")
    assert code == 0 and f"prism report run={target}" in out
    assert any("measured at commit c0ffee" in line for line in lines)
    data = yaml.safe_load((target / "config.yaml").read_text())
    assert data["device"]["name"] == "h200" and data["dtype"] == "fp16"
    assert data["tune"]["name"] == "ranked" and list(data["cases"]) == CASES
    for case in CASES:
        for name in (f"bench/{case}.jsonl", f"tune/{case}/winner.json"):
            assert (target / name).read_bytes() == (folder / name).read_bytes()
    found = given.search_result(
        str(target / "search/rmsnorm.json"), config.program_of(data["workloads"]["rmsnorm"])
    )
    assert found["workload"] == "rmsnorm"
    code, out, _ = run(capsys, "report", f"run={target}")
    assert code == 0 and "left out" not in (target / "report.html").read_text()


def test_the_run_of_other_settings_is_left_alone(folder, tmp_path, capsys):
    measured(folder)
    run_folder = tmp_path / "run"
    args = ("unpack", f"from={folder}", f"run={run_folder}")
    assert run(capsys, *args)[0] == 0
    assert run(capsys, *args)[0] == 0, "the same again"
    for text in ("cases: {a: b}\n", "cases: [", "- 1\n"):
        (run_folder / "config.yaml").write_text(text)
        before = contents(run_folder)
        code, _, (line,) = run(capsys, *args)
        assert code == 2 and "holds a run of other settings; choose another folder" in line
        assert contents(run_folder) == before


def test_what_was_measured_elsewhere_is_named(folder, tmp_path, capsys):
    measured(folder)
    apart = tmp_path / "apart"
    apart.mkdir()
    for name in ("bench", "tune", STATE):
        shutil.move(folder / name, apart / name)
    args = ("unpack", f"from={folder}", f"run={tmp_path / 'run'}")
    code, _, (line,) = run(capsys, *args)
    assert code == 2 and "`python -m prism.measure` writes it" in line
    assert run(capsys, *args, f"measured={apart}")[0] == 0
    assert (tmp_path / f"run/bench/{CASES[0]}.jsonl").is_file()


def test_a_case_without_rows_is_said(folder, tmp_path, capsys):
    measured(folder, CASES[:1])
    code, _, lines = run(capsys, "unpack", f"from={folder}", f"run={tmp_path / 'run'}")
    assert code == 0 and f"prism: warning: {CASES[1]}: not measured" in lines


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"config_hash": "0" * 12}, "rows of other settings (configuration hash 000000000000"),
        ({"device": "a100"}, "device a100"),
    ],
)
def test_rows_of_other_settings_are_refused(folder, tmp_path, capsys, changes, part):
    measured(folder, **changes)
    code, _, (line,) = run(capsys, "unpack", f"from={folder}", f"run={tmp_path / 'run'}")
    assert code == 2 and part in line
    assert not (tmp_path / "run").exists()


def test_a_winner_of_another_program_is_refused(folder, tmp_path, capsys):
    from prism.instantiate import Concrete

    measured(folder)
    packed = read_folder(folder)
    case, other = packed.cases("h200")
    _, graph = packed.graphs(other)[0]
    sizes = tuple(dict.fromkeys(kernel.block.pars, 1) for kernel in graph.kernels)
    stored = {"status": "ok", "concrete": Concrete(other.program, graph, sizes).to_json()}
    (folder / f"tune/{case.name}/winner.json").write_text(json.dumps(stored))
    code, _, (line,) = run(capsys, "unpack", f"from={folder}", f"run={tmp_path / 'run'}")
    assert code == 2 and "was tuned for another program: workload: attention there" in line
    assert not (tmp_path / "run").exists()


def won(folder, case, graph=None):
    """Puts a winner of one of the packed graphs, or of `graph`, and its row into the folder."""
    from prism.instantiate import Concrete

    graph = graph or read_folder(folder).graphs(case)[0][1]
    sizes = tuple(dict.fromkeys(kernel.block.pars, 1) for kernel in graph.kernels)
    concrete = Concrete(case.program, graph, sizes)
    place = folder / "tune" / case.name
    (place / "kernel.py").write_text("# a kernel\n")
    stored = {"status": "ok", "backend": "triton", "concrete": concrete.to_json()}
    stored |= {"digest": concrete.digest(), "source_sha256": digest(b"# a kernel\n")}
    (place / "winner.json").write_text(json.dumps(stored))
    path = folder / f"bench/{case.name}.jsonl"
    row = json.loads(path.read_text()) | {"variant": concrete.digest()}
    write_rows(path, [row])
    return path, place


def test_a_winner_is_proved_and_belongs_to_its_kernel_and_row(folder, tmp_path, capsys):
    measured(folder)
    case = read_folder(folder).cases("h200")[0]
    target = tmp_path / "run"
    args = ("unpack", f"from={folder}", f"run={target}")

    def refused(part):
        code, _, (line,) = run(capsys, *args)
        assert code == 2 and part in line and not target.exists()

    rows, place = won(folder, case)
    (place / "kernel.py").write_text("# another\n")
    refused("kernel.py is not the kernel that won")
    (place / "kernel.py").unlink()
    refused("kernel.py: No such file")
    won(folder, case)
    write_rows(rows, [json.loads(rows.read_text()) | {"variant": "0" * 12}])
    refused(f"{case.name}: its row is of configuration 000000000000")
    won(folder, case)
    change(place / "winner.json", lambda d: d.update(digest="1" * 12))
    refused("its configuration has another digest")
    change(place / "winner.json", lambda d: d.pop("source_sha256"))
    refused("winner.json: 'source_sha256' is missing")
    won(folder, case, without_eps(case))
    refused("winner.json: the winner's graph is not proved")
    won(folder, case)
    code, out, _ = run(capsys, *args)
    assert code == 0 and f"{target}: measured on device h200; " in out
    assert (target / f"tune/{case.name}/kernel.py").read_text() == "# a kernel\n"


def without_eps(case):
    """A graph of RMSNorm and a product that forgets `eps`."""
    x, w = load("X", "n d"), load("W", "d f")
    squares = op(Op.ACCUM, op(Op.SUM, op(Op.SQUARE, x), arg="d"), arg="sum")
    product = op(Op.ACCUM, op(Op.MATMUL, x, w, arg="d"), arg="sum")
    root = op(Op.SQRT, op(Op.SCALE, squares, arg="1 / d"))
    saved = op(Op.SAVE, op(Op.DIV, product, root), arg="O")
    return graph(saved, grid="x", loop="i", ones="W.f.x O.f.x X.d.i W.d.i")


def test_the_device_of_the_rows_is_said(folder, tmp_path, capsys):
    measured(folder, device="cpu")
    change(folder / STATE, lambda d: d.update(device="cpu"))
    hashes = read_folder(folder).manifest["devices"]["cpu"]["hashes"]
    for case, config_hash in hashes.items():
        path = folder / f"bench/{case}.jsonl"
        write_rows(path, [json.loads(path.read_text()) | {"config_hash": config_hash}])
    code, out, lines = run(capsys, "unpack", f"from={folder}", f"run={tmp_path / 'run'}")
    assert code == 0 and "measured on device cpu" in out
    assert "prism: warning: the rows are of device cpu; the folder was packed for h200" in lines


def state_of(folder):
    """`measured.json` as `python -m prism.measure` leaves it."""
    packed = read_folder(folder)
    seals = packed.manifest["files"]
    keys = {
        c.name: f"{c.config_hash} {seals[f'graphs/{c.workload}.json']}"
        for c in packed.cases("h200")
    }
    cases = {name: {"key": key, "seconds": 1.0} for name, key in keys.items()}
    (folder / STATE).write_text(json.dumps({"format": 1, "device": "h200", "cases": cases}))


def test_measurements_of_another_packed_folder_are_refused(folder, tmp_path, capsys):
    measured(folder)
    state_of(folder)
    args = ("unpack", f"from={folder}", f"run={tmp_path / 'run'}")
    assert run(capsys, *args)[0] == 0
    change(folder / STATE, lambda d: d["cases"][CASES[1]].update(key="other graphs"))
    code, _, (line,) = run(capsys, *args)
    assert code == 2 and f"holds measurements of another packed folder than {folder}" in line


def test_nothing_else_is_packed_over_measurements(packed, folder, capsys):
    state_of(folder)
    before = contents(folder)
    args = ("pack", f"graphs={packed / 'search'}", f"out={folder}", *SMALL)
    for other in (["bench.rounds=3"], ["seed=1"], ["suite.workloads=[rmsnorm]"], ["pack.graphs=3"]):
        code, _, (line,) = run(capsys, *args, *other)
        assert code == 2 and "holds measurements of other cases, settings or graphs" in line
        assert "another folder, or remove this one" in line and contents(folder) == before
    assert run(capsys, *args)[0] == 0, "the same again"


def test_damaged_states_and_overrides_of_unpacking(folder, tmp_path, capsys):
    args = ("unpack", f"from={folder}", f"run={tmp_path / 'run'}")
    measured(folder, [])
    code, _, (line,) = run(capsys, *args)
    assert code == 2 and "nothing was measured" in line
    for text, part in (
        ("{", "damaged: not JSON"),
        ('{"format": 1}', "'device' is missing"),
        ('{"format": 9}', "format 9"),
        ('{"format": 1, "device": "b200", "cases": {}}', "device b200 is not in"),
    ):
        (folder / STATE).write_text(text)
        code, _, (line,) = run(capsys, *args)
        assert code == 2 and part in line
    code, _, (line,) = run(capsys, *args, "device=h200")
    assert code == 2 and "only its keys are known" in line


def test_a_programs_hash_is_the_same_for_all_sizes_and_dtypes():
    found = config.workload_of(config.compose(["workload=rmsnorm"]))
    one, other = config.program_of(found, "bf16"), config.program_of(found | {"d": 64}, "fp32")
    assert program_hash(one) == program_hash(other)
    changed = config.program_of(found | {"eps": 1e-3})
    assert program_hash(one) != program_hash(changed)
    from prism.program import program_to_json

    assert program_hash(program_from_json(program_to_json(one))) == program_hash(one)


def test_a_cpu_has_no_model_and_packs_at_random(packed):
    slices = {"graphs": 4, "points": 30}
    found = json.loads((packed / "search/rmsnorm.json").read_text())
    program = read_folder(packed).cases("cpu")[0].program
    graphs = given.proved(found, 0)
    names = pack._chosen(graphs, program, Device("cpu", "cpu"), slices, 0)
    assert len(set(names)) == 4 and set(names) <= dict(graphs).keys()
