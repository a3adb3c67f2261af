"""The estimate of what fits a GPU, against the compiler's own report.

Configurations of the five workloads, some at random and some near the limit of shared memory, are
compiled for two architectures. What fits, in the compiler's words: it asks for no more shared
memory than a block may have, and spills at most as many registers as a thread has. Only points in a
window are compiled: with less than `NEAR[1]` times the limit of estimated shared memory and at most
`HOPELESS` times the estimated registers that rule a program out. Of what lies beyond, which is
never tried either, these tests say nothing.
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
from prism.model.fit import SPILLING, Fit, fit, kernel_fit
from prism.model.registers import registers
from prism.search import Bounds, search

pytest.importorskip("triton", reason="needs Triton")

DEVICES = ["a100", "h200"]
SUITE = compose(["suite=paper"]).suite.workloads
GRAPHS = 60  # of a workload, of one kernel and of several
NEAR = 0.6, 1.5  # of the limit: what is near it; beyond, nothing is compiled
LIMIT = 40  # seconds of one compilation; some with hundreds of registers take minutes
HOPELESS = 1.2  # times the registers that are too many: beyond, compiling takes minutes


@dataclass(frozen=True)
class Compiled:
    """A configuration with what the estimate and the compiler say of it."""

    name: str
    tile: TileProgram
    fit: Fit
    report: dict
    limit: int

    @property
    def shared(self) -> int:
        """Of what did not compile in time nothing is known."""
        return max((k["shared_bytes"] for k in self.report["kernels"]), default=0)

    @property
    def spilled(self) -> int:
        return max((k["spill_bytes"] for k in self.report["kernels"]), default=0)


def device(name: str) -> Device:
    data = yaml.safe_load((root() / f"conf/device/{name}.yaml").read_text())
    return Device.from_json({key: data[key] for key in ("name", "backend", "gpu")})


@cache
def cases() -> list:
    """(name, data, graphs) of every configuration of the suite."""
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


def tiles(each: int, gpu, dtype: str, seed: int, of: slice) -> list[tuple[str, TileProgram]]:
    """Programs of the cases `of` the suite: of each `each` near the limit, where there are, and
    twice as many others."""
    found = []
    for name, data, graphs in cases()[of]:
        left = {True: each, False: 2 * each}
        points = sample(
            graphs, program_of(data, dtype), 400, seed, TRITON.options, TRITON.scratch_bytes
        )
        for _, concrete in points:
            try:
                tile = lower(concrete, TRITON.library)
                own = [kernel for kernel in tile.kernels if kernel.operator is None]
                share = max((shared_share(tile, kernel, gpu) for kernel in own), default=0)
                near = share > NEAR[0]
                if left[near] and share < NEAR[1] and not any(hopeless(tile, k) for k in own):
                    TRITON.source(tile)
                    left[near] -= 1
                    found.append((f"{name}-{concrete.digest()}", tile))
            except LoweringError:
                continue
    return found


def compiled(
    name: str, each: int, folder, dtype: str = "fp16", seed: int = 0, of: slice = slice(None)
) -> list[Compiled]:
    """The sample for one device, compiled for its architecture in one process."""
    gpu = device(name).gpu
    drawn = tiles(each, gpu, dtype, seed, of)
    random.Random(0).shuffle(drawn)  # so that two jobs at once have about as much to do
    pairs = [(folder / f"{key}.py", folder / f"{key}.json") for key, _ in drawn]
    for (path, _), (_, tile) in zip(pairs, drawn, strict=True):
        path.write_text(TRITON.source(tile))
    argv, env = (
        TRITON.build(pairs, gpu.arch, jobs=2, timeout=LIMIT),
        {"TRITON_CACHE_DIR": str(folder)},
    )
    subprocess.run(argv, check=True, capture_output=True, env=os.environ | env)
    return [
        Compiled(key, tile, fit(tile, gpu), json.loads(out.read_text()), gpu.shared_kib * 1024)
        for (key, tile), (_, out) in zip(drawn, pairs, strict=True)
    ]


def check_tried(found: list[Compiled], least: int) -> None:
    """Nothing that wants too much shared memory is tried, whatever it spills; and the sample has
    what could be mistaken, at least so many."""
    tried = [c for c in found if not c.fit.reason]
    late = [c for c in tried if "did not end" in (c.report["error"] or "")]
    assert len(late) <= 0.1 * len(tried), [c.name for c in late]
    for c in tried:
        assert c.report["error"] is None or c in late, (c.name, c.report["error"])
        assert c.shared <= c.limit, (c.name, c.shared, c.fit)
    assert len(tried) > len(found) / 2
    assert sum(c.shared > NEAR[0] * c.limit for c in tried) >= least
    assert sum(c.shared > c.limit for c in found) >= least


def check_lost(found: list[Compiled]) -> str:
    """Of what fits hardly any is lost; of what spills without end some is caught."""
    runs = [c for c in found if c.report["error"] is None and c.shared <= c.limit]
    fits = [c for c in runs if c.spilled <= 4 * THREAD_REGISTERS]
    lost = [c for c in fits if c.fit.reason]
    assert len(fits) > len(found) / 2
    assert len(lost) <= 0.1 * len(fits), [(c.name, c.fit, c.shared, c.spilled) for c in lost]
    spilling = [c for c in runs if c.spilled > 4 * THREAD_REGISTERS]
    caught = [c for c in spilling if c.fit.reason]
    assert len(caught) >= 0.3 * len(spilling), [(c.name, c.fit, c.spilled) for c in spilling]
    return f"{len(lost)} of {len(fits)} lost, {len(caught)} of {len(spilling)} that spill caught"


def test_what_fits_is_tried_and_too_much_shared_memory_is_not(tmp_path):
    """One test, so that the sample is compiled once however tests are shared out; of the two
    configurations of a workload each device has one."""
    found = []
    for number, name in enumerate(DEVICES):
        (tmp_path / name).mkdir()
        found += compiled(name, 1, tmp_path / name, seed=4, of=slice(number, None, len(DEVICES)))
    check_tried(found, 2)
    check_lost(found)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("name", DEVICES)
def test_a_larger_sample(name, dtype, tmp_path):
    found = compiled(name, 4, tmp_path, dtype, seed=5)
    print(name, dtype, check_lost(found))
    check_tried(found, 3)
