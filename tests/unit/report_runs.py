"""Synthetic runs for the tests of the report: made-up numbers, never measured ones."""

import csv
import html
import json
import re

from prism.measure.rows import Row
from prism.program import Builder, Node, Op, program_to_json
from prism.report import build
from prism.sgraph import BlockGraph, Kernel, MapVar, SGraph, make_mapping
from prism.sgraph.family import KernelFamily, Piece, Space, Step

CASE = "rmsnorm@d=4096,n=8"
ALL_CASES = {
    "rmsnorm@d=4096,n=8": {"d": 4096, "n": 8, "f": 4096},
    "rmsnorm@d=1024,n=16": {"d": 1024, "n": 16, "f": 1024},
    "rmsnorm_mlp@d=1024,n=16": {"d": 1024, "n": 16, "f": 1024},
    "rmsnorm_mlp@d=1024,n=8": {"d": 1024, "n": 8, "f": 1024},
    "swiglu@d=2048,n=8": {"d": 2048, "n": 8, "f": 2048},
    "swiglu@d=4096,n=8": {"d": 4096, "n": 8, "f": 4096},
    "attention@h=1024": {"b": 2, "g": 8, "s": 1, "d": 128, "h": 1024, "e": 128},
    "attention@h=2048": {"b": 2, "g": 8, "s": 1, "d": 128, "h": 2048, "e": 128},
    "qk_attention@h=1024": {"b": 2, "g": 8, "s": 1, "d": 128, "h": 1024, "e": 128},
    "qk_attention@h=2048": {"b": 2, "g": 8, "s": 1, "d": 128, "h": 2048, "e": 128},
}
ENVIRONMENT = {
    "cpu": "Testing CPU",
    "cores_available": 2,
    "memory_bytes": 2 << 30,
    "load_average": [0.5, 0.4, 0.3],
    "versions": {"torch": "2.13.0", "compiler": "g++ (Debian) 12.2.0"},
}


def graph(loop: str = "d") -> SGraph:
    """A fused RMSNorm and linear layer; `loop` is the axis that its loop partitions."""
    x, w = Node(Op.LOAD, (), "X", ("n", "d")), Node(Op.LOAD, (), "W", ("d", "f"))
    squares = Node(Op.ACCUM, (Node(Op.SUM, (Node(Op.SQUARE, (x,)),), "d"),), "sum")
    product = Node(Op.ACCUM, (Node(Op.MATMUL, (x, w), "d"),), "sum")
    root = Node(Op.SQRT, (Node(Op.SHIFT, (Node(Op.SCALE, (squares,), "1 / d"),), "eps"),))
    save = Node(Op.SAVE, (Node(Op.DIV, (product, root)),), "O")
    ones = [("W", "f", "x"), ("O", "f", "x"), ("X", loop, "i"), ("W", "d", "i")]
    mapping = make_mapping(MapVar(*v) for v in ones)
    return SGraph((Kernel(BlockGraph(("x",), "i", (save,)), mapping),))


def program(sizes: dict) -> dict:
    b = Builder("rmsnorm", sizes={"n": sizes["n"], "d": sizes["d"], "f": sizes["f"]}, dtype="bf16")
    b.params["eps"] = 1e-5
    normed = b.rms_norm(b.input("X", "n d"), "d")
    return program_to_json(b.build(O=b.matmul(normed, b.input("W", "d f"), "d")))


def put(path, data) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data))


def row(case: str, system: str, median: float | None, **changes) -> dict:
    workload, _, config = case.partition("@")
    made = Row(workload, config, ALL_CASES.get(case, {"n": 4}), "bf16", system)
    made.environment, made.commit, made.config_hash = ENVIRONMENT, "c0ffee", "abc123"
    made.measured_at, made.timer, made.threads = "2026-05-01T10:00:00+00:00", "perf_counter", 2
    made.compile_seconds = 20.0 if system == "compiled" else 0.0
    made.numerics = "paper" if system == "prism" else "own"
    if median is None:
        made.reason = "killed by SIGSEGV"
    else:
        made.set_samples([median * f for f in (0.9, 1.0, 1.2)], [median / 2] * 3)
        made.status, made.verdict = "ok", "n/a" if system == "read" else "PASSED"
    return made.to_json() | changes


def space(count: int) -> Space:
    """`count` graphs of one kernel, and as many squared of two."""
    root = Node(Op.EXP, (Node(Op.INPUT, (), "in:0", ("n",)),))
    kernel = KernelFamily((root,), grids=((),) * count)
    steps = (Step(0, (("in:0", "X"), ("out:0", "O"))),)
    return Space((Piece((kernel,), (steps, steps * 2)),))


STOPPED = {  # of a search
    "ended": "time limit of 60 s, in stage map",
    "seconds": {"generate": 0.1, "map": 59.0, "refute": 0.1, "prove": 0.8, "total": 60.0},
}


def search(workload: str, count: int = 3, every: int | None = None) -> dict:
    stages = {s: {"in": 40, "out": 20} for s in ("generate", "map", "refute", "prove")}
    found = space(count)
    return {
        "workload": workload,
        "seconds": {"generate": 0.01, "map": 0.02, "refute": 0.05, "prove": 0.12, "total": 0.21},
        "candidates": stages,
        "ended": "exhausted",
        "peak_mib": 181.5,
        "gaps": [{"what": "exp(X)", "reason": "saturated"}],
        "rules": {
            "part of repl": {"matches": 1200, "seconds": 0.0625},
            "axes of Merge": {"matches": 20, "seconds": 0.001},
            "axes of Comb": {"matches": 10, "seconds": 0.0005},
        },
        "graphs": {"all": every or found.count, "single_kernel": found.single_kernel},
        "space": found.to_json(),
    }


def ablation(limit_s: float = 50.0, **seconds: float) -> dict:
    """Every row takes 0.04 s but those in `seconds`, such as CCCS=8; a limit stops them."""
    rows = []
    for maps in ("SSSS", "SSCS", "SCSS", "CSSS", "SCCS", "CSCS", "CCSS", "CCCS", "CCCC"):
        spent = min(seconds.get(maps, 0.04), limit_s)
        row = dict(zip(("imap", "fmap", "omap", "sizes"), maps, strict=True))
        row |= {"seconds": spent, "ended": "limit" if spent == limit_s else "exhausted"}
        rows.append(row | {"graphs": 140, "assignments": 20, "assignments_all": 4000})
    sizes = {"n": 8, "d": 4096, "f": 4096}
    return {"workload": "rmsnorm", "program": {}, "sizes": sizes, "limit_s": limit_s, "rows": rows}


def growth() -> dict:
    rows = []
    for operators, total, ended in (
        (7, 0.2, "exhausted"),
        (30, 4.0, "exhausted"),
        (90, 60, "time limit of 60 s"),
    ):
        seconds = {"generate": 0.1, "map": 0.1, "refute": 0.0, "prove": 0.0, "total": total}
        row = {
            "program": f"chain{operators}",
            "operators": operators,
            "pieces": operators // 10 + 1,
        }
        row |= {"seconds": seconds, "graphs_log10": operators / 2, "kernels": 120, "ended": ended}
        rows.append(row | {"peak_mib": 200.0})
    return {"rows": rows}


def winner(sizes: dict) -> dict:
    concrete = {
        "program": program(sizes),
        "graph": graph().to_json(),
        "sizes": [{"x": 64, "i": 16}],
        "options": {"tile": 32},
    }
    return {
        "status": "ok",
        "concrete": concrete,
        "graph_id": "0.1",
        "seconds": {"compile": 8.0, "tune": 31.0, "total": 44.0},
        "candidates": [
            {"status": "ok"},
            {"status": "failed", "cause": "compile", "reason": "too large"},
            {"status": "failed", "cause": "internal", "reason": "no rule for <gelu>"},
        ],
        "tried": 3,
        "passed": 1,
        "causes": {"compile": 1, "internal": 1},
        "controls": {"zeros": "failed", "constant": "passed: the gate cannot tell it apart"},
        "verdict": "PASSED",
        "error": {"max": 1e-3},
        "source_sha256": "d0d0",
        "compile_command": ["g++", "-O3"],
    }


def make_run(folder, cases=("rmsnorm@d=4096,n=8",)):
    """A whole run of `cases`: Prism takes 100 us, eager 180, compiled 150, reading 60."""
    config = {"suite": {"name": "test", "workloads": []}, "device": {"name": "cpu"}}
    put(folder / "config.yaml", json.dumps(config | {"cases": dict.fromkeys(cases, "abc123")}))
    for n, case in enumerate(cases):
        workload = case.partition("@")[0]
        put(folder / f"search/{workload}.json", search(workload, 3 + 2 * n))
        sizes = {"n": 8, "d": 64, "f": 64} | ALL_CASES.get(case, {})
        put(folder / f"tune/{case}/winner.json", winner(sizes))
        put(folder / f"tune/{case}/kernel.cpp", "int prism_run() { return a<b && c>d; }\n")
        scale = 1 + 0.07 * n
        times = {"prism": 100 * scale**0.5, "eager": 180 * scale, "compiled": 150, "read": 60}
        rows = [row(case, system, time) for system, time in times.items()]
        put(folder / f"bench/{case}.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
    return folder


GPU = {"index": "0", "name": "Testing GPU", "driver_version": "1.2.3", "memory.total": "8 MiB"}
GPU_TIMER = "CUDA events around one replay of a CUDA graph"


def make_gpu_run(folder, cases=("rmsnorm@d=4096,n=8",), device="h200"):
    """The same of a GPU, made up as well: sdpa takes 90 us in the workloads that are attention."""
    make_run(folder, cases)
    path = folder / "config.yaml"
    config = json.loads(path.read_text()) | {"device": {"name": device}, "dtype": "fp16"}
    put(path, json.dumps(config))
    now, after = {"clocks.sm": "1980 MHz"}, {"clocks.sm": "1755 MHz"}
    clocks = {"idle_before": now, "idle_after": after}
    shared = {"device": device, "dtype": "fp16", "timer": GPU_TIMER}
    shared |= {
        "modelled_roofline_us": 50.0,
        "modelled_bandwidth_us": 50.0,
        "evidence": {"least_replay_us": 2.25},
    }
    shared["environment"] = ENVIRONMENT | {"gpu": GPU, "clocks": clocks}
    shared["versions"] = {"torch": "2.11.0", "triton": "3.6.0"}
    for case in cases:
        path = folder / f"bench/{case}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        expert = row(case, "sdpa", 90.0 if "attention" in case else None)
        if expert["status"] != "ok":
            expert |= {"status": "unavailable", "reason": "sdpa: not an attention"}
        for made in (*rows, expert):
            made |= shared
            median = made["median_us"]
            made["of_modelled_roofline"] = median and 50.0 / median
            if made["system"] == "read":
                made |= {
                    "modelled_roofline_us": None,
                    "modelled_bandwidth_us": None,
                    "of_modelled_roofline": None,
                }
        rows[0] |= {"registers": 128, "spill_bytes": 16, "shared_bytes": 98304, "modelled_us": 70.5}
        put(path, "".join(json.dumps(made) + "\n" for made in (*rows, expert)))
        tuned = folder / f"tune/{case}/winner.json"
        data = json.loads(tuned.read_text()) | {"device": device, "modelled_us": 70.5}
        data |= {"modelled": {"bound": "memory", "waves": 2.5, "occupancy": 0.25}}
        data |= {"ended": "time", "limit_s": 45.0}
        put(tuned, data | {"registers": 128, "spill_bytes": 16, "shared_bytes": 98304})
    return folder


def offline(cases=("rmsnorm@d=4096,n=8",), **changes) -> dict:
    """What compiled, made up: two configurations a case, of which one does not fit the A100."""
    devices = {"a100": {"gpu": {"arch": 80}}, "h200": {"gpu": {"arch": 90}}}
    rows = []
    for case in cases:
        for n, (digest, chosen) in enumerate((("d1", "random"), ("d2", "ranked"))):
            for device, data in devices.items():
                made = {"case": case, "graph_id": f"0.{n}", "digest": digest, "chosen": chosen}
                made |= {"dtype": "fp16", "device": device, "arch": data["gpu"]["arch"]}
                made |= {"status": "ok", "cause": "", "reason": "", "registers": 64 * (n + 1)}
                made |= {"spill_bytes": 8 * n, "shared_bytes": 4096 * (1 + 3 * n), "seconds": 0.5}
                made |= {"estimated_shared_bytes": 4096 * (1 + 4 * n), "modelled_us": 9.5 - n}
                made["modelled"] = {"bound": ("launch", "cache")[n], "waves": 0.5, "occupancy": 0.1}
                rows.append(made)
        rows[-2] |= {"status": "failed", "cause": "fit", "reason": "about 20480 bytes of shared"}
        rows[-2] |= {"registers": None, "spill_bytes": None, "shared_bytes": None}
        rows[-2] |= {"modelled_us": None, "seconds": None}
    found = {"status": "ok", "reason": "", "cases": list(cases), "devices": devices, "jobs": 2}
    found |= {"rows": rows, "pruned": dict.fromkeys(cases, 3), "versions": {"triton": "3.9.0"}}
    found["seconds"] = {"choose": 1.0, "compile": 1.5, "total": 2.5}
    found["settings"] = {"devices": ["a100", "h200"], "dtype": "fp16", "configs": 2}
    return found | changes


def table(run, name: str) -> list[dict]:
    with (run / f"tables/{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def change(run, case: str, system: str, **changes) -> None:
    path = run / f"bench/{case}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [r | changes if r["system"] == system else r for r in rows]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))


def verdicts(run) -> dict[str, tuple[str, str]]:
    """What was measured and the verdict, by claim, as the page of a run shows them."""
    page = build(run).read_text()
    cells = re.findall(r"<td>([^<]*)</td><td>([^<]*)</td><td class=\"verdict \w+\">([^<]*)<", page)
    return {html.unescape(claim): (html.unescape(said), end) for claim, said, end in cells}
