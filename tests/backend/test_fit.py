"""The estimate of what fits a GPU, against the compiler's own report.

Configurations of the five workloads, some at random and some near the limit of shared memory, are
compiled for two architectures. What fits, in the compiler's words: it asks for no more shared
memory than a block may have, and spills at most as many registers as a thread has.
"""

import json
import os
import random
import subprocess
from dataclasses import dataclass
from functools import cache

import pytest
import yaml

from prism.codegen import LoweringError
from prism.codegen.lower import lower
from prism.codegen.tile import TileProgram
from prism.codegen.triton.axes import Axes
from prism.codegen.triton.manifest import TRITON
from prism.config import compose, program_of, root, symbolic, workload_of
from prism.instantiate import sample
from prism.model import Device
from prism.model.device import THREAD_REGISTERS
from prism.model.fit import SPILLING, fit, kernel_fit
from prism.model.registers import registers
from prism.search import Bounds, search

pytest.importorskip("triton", reason="needs Triton")

SUITE = compose(["suite=paper"]).suite.workloads
GRAPHS = 60  # of a workload, of one kernel and of several
NEAR = 0.6, 1.5  # of the limit: what is near it
HOPELESS = 1.5  # times the registers that are too many: those take long to compile


@dataclass(frozen=True)
class Compiled:
    """A configuration with what the estimate and the compiler say of it."""

    name: str
    tile: TileProgram
    reason: str
    report: dict

    @property
    def shared(self) -> int:
        return max((k["shared_bytes"] for k in self.report["kernels"]), default=0)

    @property
    def spilled(self) -> int:
        return max((k["spill_bytes"] for k in self.report["kernels"]), default=0)


def device(name: str) -> Device:
    data = yaml.safe_load((root() / f"conf/device/{name}.yaml").read_text())
    return Device.from_json({key: data[key] for key in ("name", "backend", "gpu")})


@cache
def cases() -> list:
    """(name, program, graphs) of every configuration of the suite."""
    found = []
    for name in SUITE:
        cfg = compose([f"workload={name}"])
        data = workload_of(cfg)
        space = search(symbolic(data), Bounds()).space
        drawn = [space.graph(i) for single in (True, False) for i in space.draw(GRAPHS, 0, single)]
        graphs = [(f"g{i}", graph) for i, graph in enumerate(drawn)]
        for sizes in data["configs"]:
            found.append((name, workload_of(cfg, sizes), graphs))
    return found


def shared_share(tile, kernel, gpu) -> float:
    """The estimated shared memory as a share of the limit."""
    return kernel_fit(tile, kernel, gpu).shared_bytes / (gpu.shared_kib * 1024)


def hopeless(tile, kernel) -> bool:
    return registers(tile, kernel, Axes(kernel)) > HOPELESS * SPILLING


def tiles(count: int, gpu, dtype: str, seed: int) -> list[tuple[str, TileProgram]]:
    """About `count` programs, of each case as many, half of them near the limit."""
    each = -(-count // (2 * len(cases())))
    found = []
    for name, data, graphs in cases():
        program = program_of(data, dtype)
        left = {True: each, False: each}
        points = sample(graphs, program, 400, seed, TRITON.options, TRITON.scratch_bytes)
        for _, concrete in points:
            try:
                tile = lower(concrete, TRITON.library)
                own = [kernel for kernel in tile.kernels if kernel.operator is None]
                near = any(NEAR[0] < shared_share(tile, k, gpu) < NEAR[1] for k in own)
                if left[near] and not any(hopeless(tile, kernel) for kernel in own):
                    TRITON.source(tile)
                    left[near] -= 1
                    found.append((f"{name}-{concrete.digest()}", tile))
            except LoweringError:
                continue
    return found


def compiled(name: str, count: int, folder, dtype: str = "fp16", seed: int = 0) -> list[Compiled]:
    """The sample for one device, compiled for its architecture in one process."""
    gpu = device(name).gpu
    drawn = tiles(count, gpu, dtype, seed)
    random.Random(0).shuffle(drawn)  # so that two jobs at once have about as much to do
    pairs = [(folder / f"{key}.py", folder / f"{key}.json") for key, _ in drawn]
    for (path, _), (_, tile) in zip(pairs, drawn, strict=True):
        path.write_text(TRITON.source(tile))
    argv, env = TRITON.build(pairs, gpu.arch, jobs=2, timeout=60), {"TRITON_CACHE_DIR": str(folder)}
    subprocess.run(argv, check=True, capture_output=True, env=os.environ | env)
    return [
        Compiled(key, tile, fit(tile, gpu).reason, json.loads(out.read_text()))
        for (key, tile), (_, out) in zip(drawn, pairs, strict=True)
    ]


def check(found: list[Compiled], gpu) -> dict[str, float]:
    """Both properties of the estimate; returns the shares that a message may show."""
    limit = gpu.shared_kib * 1024
    tried = [c for c in found if not c.reason]
    for c in tried:
        assert c.report["error"] is None, (c.name, c.report["error"])
        assert c.shared <= limit, (c.name, c.shared)
    known = [c for c in found if c.report["error"] is None]
    fits = [c for c in known if c.shared <= limit and c.spilled <= 4 * THREAD_REGISTERS]
    lost = [c for c in fits if c.reason]
    assert len(lost) <= 0.1 * len(fits), [(c.name, c.reason, c.shared, c.spilled) for c in lost]
    spilling = [c for c in known if c.shared <= limit and c.spilled > 4 * THREAD_REGISTERS]
    caught = [c for c in spilling if c.reason]
    assert len(caught) >= 0.5 * len(spilling), [(c.name, c.spilled) for c in spilling]
    # The sample has some of each kind, near the limit on both sides.
    assert len(tried) > len(found) / 4
    assert sum(NEAR[0] * limit < c.shared <= limit for c in tried) >= 3
    assert sum(limit < c.shared < NEAR[1] * limit for c in known) >= 3
    return {"fits": len(fits), "lost": len(lost), "caught": len(caught), "spilling": len(spilling)}


@pytest.mark.parametrize("name", ["a100", "h200"])
def test_what_fits_is_tried_and_nothing_else(name, tmp_path):
    found = compiled(name, 40, tmp_path)
    assert len(found) >= 25
    check(found, device(name).gpu)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("name", ["a100", "h200"])
def test_what_fits_is_tried_in_a_larger_sample(name, dtype, tmp_path):
    found = compiled(name, 300, tmp_path, dtype, seed=1)
    print(name, dtype, check(found, device(name).gpu))
