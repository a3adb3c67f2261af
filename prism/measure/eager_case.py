"""PyTorch eager's outputs for a case, once, in a child: what the gate's bound is made of.

`python -m prism.measure.eager_case CASE THREADS cpu|cuda` writes `eager.NAME.raw` and, last,
`eager.json`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from prism.files import write_json
from prism.measure import children, gpu
from prism.measure.environment import FP32_POLICY, last_level_cache, revision
from prism.measure.inputs import Case, write_case
from prism.model.device import CPU, Device
from prism.program import Program, program_to_json

PREPARED = "prepared.json"
SHARE = 16  # of a GPU's memory, for the rotating copies of one system
CAPTURES = 256  # copies on a GPU, as each call on one is captured once
INTERPRETED = 4  # copies in Triton's interpreter, whose times say nothing of caches


def prepare_case(
    program: Program,
    folder: Path,
    seed: int,
    threads: int,
    device: Device = CPU,
    timeout: float = 120.0,
) -> Case:
    """Inputs, float64 reference and eager's outputs on the device, written to `folder`.

    A folder that holds just that from an earlier call is taken as it is.
    Where eager ends in an error or needs more than `timeout` seconds, the case has no eager
    outputs, the bound is that of rounding alone, and `Case.eager_record` holds the reason.
    """
    key = {"program": program_to_json(program), "seed": seed, "device": device.to_json()}
    key |= {"threads": threads, **revision()}
    if _read(folder / PREPARED) == json.loads(json.dumps(key)):
        return Case(folder)
    (folder / PREPARED).unlink(missing_ok=True)
    case = write_case(program, folder, seed, **_limits(device))
    argv = [sys.executable, "-m", "prism.measure.eager_case"]
    argv += [str(folder), str(threads), device.torch]
    env = children.environment_for_child(threads, gpu.child_environment(device, folder))
    ended = children.run(argv, timeout, env, "PyTorch eager gave no result")
    if ended.reason:
        write_json(folder / "eager_failed.json", {"reason": ended.reason})
    write_json(folder / PREPARED, key)  # last: the case is whole
    return case


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _limits(device: Device) -> dict:
    """How much of which memory the copies of the inputs rotate through."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if device.torch != "cuda":
        # Four times this rotates in every system's process, so it stays well below the memory.
        cache = {"cache_bytes": min(last_level_cache(), memory // 64)}
        return cache if device.gpu is None else cache | {"most": INTERPRETED}
    memory = gpu.memory_bytes() or memory
    return {
        "cache_bytes": int(device.gpu.l2_mib * 2**20),
        "memory_bytes": memory // SHARE,
        "most": CAPTURES,
    }


def main(argv: list[str]) -> int:
    """Entry point of the child."""
    children.die_with_parent()
    import torch

    from prism.measure.tensors import Copies, set_up
    from prism.measure.torch_program import device_of, from_torch, torch_callable

    case = Case(Path(argv[0]))
    set_up(int(argv[1]))
    copies = Copies(case, 1, argv[2])
    start = time.perf_counter()
    outputs = torch_callable(case.program, device=device_of(copies.sets[0]))(
        *copies.sets[0].values()
    )
    copies.synchronize()
    seconds = time.perf_counter() - start
    for (name, shape), output in zip(case.shapes().items(), outputs, strict=True):
        if tuple(output.shape) != shape:
            raise RuntimeError(f"output {name} has shape {tuple(output.shape)}, not {shape}")
        from_torch(output).tofile(case.folder / f"eager.{name}.raw")
    record = {"seconds": seconds, "torch": torch.__version__, "device": argv[2]}
    record["fp32"] = FP32_POLICY
    write_json(case.folder / "eager.json", record)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
