"""Which configurations are compiled for GPUs without one, and what becomes of those that fail."""

import dataclasses
import json
import os
import threading

import pytest
from codegen_graphs import rmsnorm

from prism import cli, given, offline
from prism.codegen import BACKENDS
from prism.codegen.errors import LoweringError
from prism.measure.compile import Compiled, sha256
from prism.model.device import Device, Gpu
from prism.program import Node, Op
from prism.sgraph import BlockGraph, Kernel, SGraph

PROGRAM, GRAPH = rmsnorm(16, 256, 128, "fp16")


def gpu(name: str, arch: int, shared_kib: int = 160) -> Device:
    """A made-up GPU: no device of any data sheet."""
    rates = {"fp16": 100.0, "bf16": 100.0, "fp32": 10.0}
    sizes = (100, 1000, 1000, 40, shared_kib, 164, 65536, 2048, 32, 2.5, 10.0, rates)
    return Device(name, "triton", Gpu(arch, *sizes))


DEVICES = (gpu("small", 80), gpu("large", 90))
SETTINGS = offline.Settings(configs=6, points=40, limit_s=5.0)


def wrong() -> SGraph:
    """The graph without its division: another program."""
    (kernel,) = GRAPH.kernels
    (save,) = kernel.block.savers
    (division,) = save.src
    saver = Node(Op.SAVE, (division.src[0],), "O")
    block = BlockGraph(kernel.block.grid, kernel.block.loop, (saver,))
    return SGraph((Kernel(block, kernel.mapping),))


def case(*graphs) -> offline.Case:
    return offline.Case(PROGRAM, graphs or (("g", GRAPH),), given.proofs(PROGRAM))


class Compiler:
    """Stands for the compiler: results by the number of the source, and what it was given."""

    def __init__(self, results=()):
        self.results, self.batches = dict(results), []

    def __call__(self, sources, backend, work, jobs, timeout, device):
        self.batches.append((device.gpu.arch, list(sources)))
        found = {}
        for n, source in enumerate(sources):
            error, seconds = self.results.get(n, ("", 0.5))
            facts = {"registers": 40 + n, "spill_bytes": 0, "shared_bytes": 4096}
            facts |= {"kernels": [{"name": "k0", **facts}]}
            built = None if error else work / "built"
            digest = sha256(source)
            found[digest] = Compiled(digest, built, (), seconds, error, {} if error else facts)
        return found


@pytest.fixture
def compiler(monkeypatch):
    found = Compiler()
    monkeypatch.setattr(offline, "compile_all", found)
    monkeypatch.setattr(offline, "missing", lambda: "")
    monkeypatch.setattr(offline, "version", lambda name: "0.0")
    return found


def run(cases=None, devices=DEVICES, settings=SETTINGS, **more) -> dict:
    return offline.offline(cases or {"rmsnorm@d=256,n=16": case}, devices, settings, 2, **more)


def test_half_are_random_and_half_are_what_the_model_ranks_first(compiler):
    found = run()
    rows = found["rows"]
    assert found["status"] == "ok" and len(rows) == 12
    assert [(r["chosen"], r["device"]) for r in rows[::2]] == [("random", "small")] * 3 + [
        ("ranked", "small")
    ] * 3
    assert len({r["digest"] for r in rows}) == 6, "none is tried twice"
    assert {r["device"]: r["arch"] for r in rows} == {"small": 80, "large": 90}
    assert [arch for arch, _ in compiler.batches] == [80, 90], "one batch an architecture"
    assert all(len(sources) == 6 for _, sources in compiler.batches)
    best = min(r["modelled_us"] for r in rows if r["chosen"] == "ranked" and r["device"] == "small")
    assert all(r["modelled_us"] >= best for r in rows if r["device"] == "small")
    assert all(r["modelled"]["us"] == r["modelled_us"] and r["modelled"]["bound"] for r in rows)
    assert {r["status"] for r in rows} == {"ok"} and {r["dtype"] for r in rows} == {"fp16"}
    assert rows[0]["shared_bytes"] == 4096 and rows[0]["kernels"][0]["registers"] == 40
    assert found["totals"] == {"configurations": 6, "tried": 12, "compiled": 12, "causes": {}}
    assert [r["digest"] for r in run()["rows"]] == [r["digest"] for r in rows], "same seed, same"


def test_sources_are_kept_by_digest_where_a_folder_is_named(compiler, tmp_path):
    compiler.results |= {1: ("CompilationError: no such layout", 0.7)}
    found = run(sources=tmp_path / "kernels")
    names = {row["digest"]: row["source"] for row in found["rows"]}
    assert names == {digest: f"{digest}.py" for digest in names} and len(names) == 6
    texts = {path.name: path.read_text() for path in (tmp_path / "kernels").iterdir()}
    assert set(texts) == set(names.values()), "also of what the compiler refused"
    assert set(texts.values()) == {text for _, batch in compiler.batches for text in batch}
    assert {row["source"] for row in run()["rows"]} == {None}


def test_devices_of_one_architecture_share_a_compilation(compiler):
    found = run(devices=(*DEVICES, gpu("larger", 90)))
    assert [arch for arch, _ in compiler.batches] == [80, 90]
    assert len(found["rows"]) == 18


def test_each_failure_has_its_cause_and_its_reason(compiler):
    late = ("the compiler did not end within 5 s", 5.1)
    compiler.results |= {1: ("CompilationError: no such layout", 0.7), 2: late}
    found = run()
    failed = [r for r in found["rows"] if r["status"] == "failed"]
    assert [(r["cause"], r["reason"]) for r in failed[::2]] == [
        ("compile", "CompilationError: no such layout"),
        ("timeout", "the compiler did not end within 5 s"),
    ]
    assert all(r["registers"] is r["shared_bytes"] is None for r in failed)
    assert found["totals"]["causes"] == {"compile": 2, "timeout": 2}
    assert (found["totals"]["tried"], found["totals"]["compiled"]) == (12, 8)


def test_a_graph_that_is_not_proved_is_never_compiled(compiler):
    found = run({"rmsnorm@d=256,n=16": lambda: case(("wrong", wrong()), ("right", GRAPH))})
    causes = {r["graph_id"]: r["cause"] for r in found["rows"]}
    assert causes == {"wrong": "proof", "right": ""}
    given_to = {sha256(source) for _, sources in compiler.batches for source in sources}
    right = {r["digest"] for r in found["rows"] if r["graph_id"] == "right"}
    assert len(given_to) == len(right) < 6
    assert all(r["reason"] and r["registers"] is None for r in found["rows"] if r["cause"])


def test_what_cannot_be_printed_is_a_failure_and_not_a_crash(compiler, monkeypatch):
    def source(program):
        raise LoweringError("a tile of\n too many elements")

    odd = dataclasses.replace(BACKENDS["triton"], source=source)
    monkeypatch.setitem(BACKENDS, "triton", odd)
    rows = run()["rows"]
    assert {(r["cause"], r["reason"]) for r in rows} == {("lower", "a tile of too many elements")}
    assert not any(sources for _, sources in compiler.batches)


def test_what_does_not_fit_a_device_is_not_tried_there(compiler):
    large = rmsnorm(16, 1024, 1024, "fp16")
    of = offline.Case(large[0], (("g", large[1]),), given.proofs(large[0]))
    devices = (gpu("tiny", 80, shared_kib=24), DEVICES[1])
    found = run({"c": lambda: of}, devices, dataclasses.replace(SETTINGS, configs=30, points=200))
    unfit = [r for r in found["rows"] if r["cause"] == "fit"]
    assert unfit and {r["device"] for r in unfit} == {"tiny"}
    assert all("shared memory" in r["reason"] and r["modelled_us"] is None for r in unfit)
    counts = {arch: len(sources) for arch, sources in compiler.batches}
    assert counts == {80: 30 - len(unfit), 90: 30}
    nothing = (gpu("none", 80, shared_kib=1), gpu("neither", 90, shared_kib=1))
    found = run({"c": lambda: of}, nothing, dataclasses.replace(SETTINGS, points=200))
    assert found["pruned"]["c"] > 0
    assert all(r["estimated_shared_bytes"] <= 1024 for r in found["rows"])


def test_without_triton_nothing_is_loaded_and_the_reason_is_the_result(monkeypatch):
    monkeypatch.setattr(offline.importlib.util, "find_spec", lambda name: None)

    def load():
        raise AssertionError("a case was loaded")

    found = run({"rmsnorm@d=256,n=16": load})
    assert found["status"] == "unavailable" and "triton is not installed" in found["reason"]
    assert found["rows"] == [] and found["cases"] == ["rmsnorm@d=256,n=16"]
    assert set(found["devices"]) == {"small", "large"}


def test_an_interrupt_ends_all_and_leaves_no_folder(compiler, monkeypatch):
    seen = []

    def interrupted(sources, backend, work, *rest, **more):
        (work / "kernel.json").write_text("{}")
        seen.append(work)
        told.wait(5)
        raise KeyboardInterrupt

    told = threading.Event()

    def progress(stage, done, total):
        seen.append((stage, done, total))
        if done and stage.startswith("compile"):
            told.set()

    monkeypatch.setattr(offline, "compile_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(progress=progress)
    assert ("choose and prove", 1, 1) in seen and ("compile for sm_80", 1, 6) in seen
    work = next(item for item in seen if not isinstance(item, tuple))
    assert not work.exists() and not work.parent.exists()


def test_the_stage_ends_well_without_triton(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(offline.importlib.util, "find_spec", lambda name: None)
    out = tmp_path / "o.json"
    assert cli.main(["offline", "suite=smoke", "device=cpu", f"out={out}"]) == 0
    err = capsys.readouterr().err
    assert "prism: warning: nothing was compiled for a GPU: triton is not installed" in err
    found = json.loads(out.read_text())
    assert found["cases"] == ["rmsnorm@d=256,n=4", "attention@b=1,d=64,g=2,h=128"]
    assert found["status"] == "unavailable" and found["settings"]["configs"] == 2


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("offline.devices=[cpu]", "offline.devices: cpu is no GPU"),
        ("offline.devices=[]", "must be a list such as [a100, h200]"),
        ("offline.devices=[b7]", "device 'b7' is not in conf/device"),
        ("offline.dtype=int8", "offline.dtype='int8': device a100 can do fp16, bf16, fp32"),
        ("offline.configs=0", "offline.configs=0: must be a positive integer"),
        ("offline.limit_s=-1", "must be a positive number"),
        ("sources=/dev/null/kernels", "sources=/dev/null/kernels: Not a directory"),
    ],
)
def test_bad_settings_are_one_line(tmp_path, capsys, override, part):
    assert cli.main(["offline", "workload=rmsnorm", override, f"out={tmp_path}/o.json"]) == 2
    err = capsys.readouterr().err
    assert part in err and err.count("prism: error: ") == 1
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("overrides", "devices", "said"),
    [
        (["device=a100"], ["a100"], []),
        (["device=a100", "offline.devices=[h200]"], ["h200"], []),
        (["device=auto"], ["a100", "h200"], []),
        (["device=cpu"], ["a100", "h200"], ["prism: device=cpu: is no GPU; kernels are compiled"]),
    ],
)
def test_a_gpu_asked_for_is_what_is_compiled_for(
    tmp_path, capsys, monkeypatch, overrides, devices, said
):
    seen = []

    def none(cases, devices, *rest):
        seen.extend(device.name for device in devices)
        raise offline.PrismError("seen")

    monkeypatch.setattr(offline, "offline", none)
    monkeypatch.setattr(offline, "missing", lambda: "not here")
    assert cli.main(["offline", "suite=smoke", *overrides, f"out={tmp_path / 'o.json'}"]) == 2
    assert seen == devices
    lines = [x for x in capsys.readouterr().err.splitlines() if "auto" not in x and "seen" not in x]
    assert [line[: len(part)] for line, part in zip(lines, said, strict=True)] == said
