"""Every proved graph of one kernel of the five workloads, compiled once for two architectures.

At sizes of at most `CAPS` a dimension, so that each has configurations that fit a GPU (of graphs
without a loop over a long axis none does at the paper's sizes) and that compile in a second.
Configurations at the paper's sizes are the business of `prism offline` and `test_fit.py`.
"""

import json
import os
import random
import subprocess
from dataclasses import replace

import pytest
from test_fit import SUITE, device
from workloads import PROGRAMS

from prism.codegen import LoweringError
from prism.codegen.lower import lower
from prism.codegen.triton.manifest import TRITON
from prism.config import compose, program_of, workload_of
from prism.instantiate import Concrete
from prism.instantiate.space import sizes
from prism.model.fit import fit
from prism.search import Bounds, search

pytest.importorskip("triton", reason="needs Triton")

CAPS = 64, 16
TRIES = 40
LIGHT = 100  # estimated registers a thread: no need to look for a smaller configuration
PARTS = 16
GPUS = [device(name).gpu for name in ("a100", "h200")]


def fitting(name: str, graph, rng: random.Random):
    """A lowered configuration that fits both devices, the first light one, or None."""
    config = program_of(workload_of(compose([f"workload={name}"])), "fp16").sizes
    for cap in CAPS:
        bound = PROGRAMS[name].bind(**{d: min(size, cap) for d, size in config.items()})
        program, best = replace(bound, dtype="fp16"), None
        choices = [sizes(program, kernel) for kernel in graph.kernels]
        for _ in range(TRIES):
            drawn = tuple({p: rng.choice(v) for p, v in each.items()} for each in choices)
            options = {option: rng.choice(v) for option, v in TRITON.options.items()}
            concrete = Concrete(program, graph, drawn, options)
            if concrete.problem(TRITON.scratch_bytes):
                continue
            try:
                tile = lower(concrete, TRITON.library)
            except LoweringError:
                continue
            fits = [fit(tile, gpu) for gpu in GPUS]
            if any(f.reason for f in fits):
                continue
            wanted = max(f.registers for f in fits)
            if best is None or wanted < best[0]:
                best = wanted, tile
            if wanted <= LIGHT:
                break
        if best:
            return best[1]
    return None


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", SUITE)
def test_every_proved_graph_compiles(name, part, tmp_path):
    space = search(PROGRAMS[name], Bounds()).space
    ids = space.draw(10**9, 0, True)[part::PARTS]
    assert ids
    rng, pairs = random.Random(f"{name} {part}"), []
    for number, graph_id in enumerate(ids):
        tile = fitting(name, space.graph(graph_id), rng)
        assert tile is not None, f"{graph_id} has no configuration that fits"
        path = tmp_path / f"{number}.py"
        path.write_text(TRITON.source(tile))
        pairs.append((path, path.with_suffix(".json"), graph_id))
    failed = []
    for gpu in GPUS:
        argv = TRITON.build([pair[:2] for pair in pairs], gpu.arch, jobs=1, timeout=120)
        env = os.environ | {"TRITON_CACHE_DIR": str(tmp_path / f"cache{gpu.arch}")}
        subprocess.run(argv, check=True, capture_output=True, env=env)
        for _, out, graph_id in pairs:
            report = json.loads(out.read_text())
            shared = max((k["shared_bytes"] for k in report["kernels"]), default=0)
            if report["error"] or not report["kernels"] or shared > gpu.shared_kib * 1024:
                failed.append((graph_id, gpu.arch, report["error"], shared))
    assert not failed, failed
