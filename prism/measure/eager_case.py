"""PyTorch eager's outputs for a case, once, in a child: what the gate's bound is made of.

`python -m prism.measure.eager_case CASE THREADS` writes `eager.NAME.raw` and, last, `eager.json`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from prism.files import write_json
from prism.measure import children
from prism.measure.environment import last_level_cache
from prism.measure.inputs import Case, write_case
from prism.program import Program


def prepare_case(
    program: Program, folder: Path, seed: int, threads: int, timeout: float = 120.0
) -> Case:
    """Inputs, float64 reference and eager's outputs of a program, written to `folder`.

    Where eager ends in an error or needs more than `timeout` seconds, the case has no eager
    outputs, the bound is that of rounding alone, and `Case.eager_record` holds the reason.
    """
    # Four times this rotates in every system's process, so it stays well below the memory.
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    case = write_case(program, folder, seed, min(last_level_cache(), memory // 64))
    argv = [sys.executable, "-m", "prism.measure.eager_case", str(folder), str(threads)]
    ended = children.run(
        argv, timeout, children.environment_for_child(threads), "PyTorch eager gave no result"
    )
    if ended.reason:
        write_json(folder / "eager_failed.json", {"reason": ended.reason})
    return case


def main(argv: list[str]) -> int:
    """Entry point of the child."""
    children.die_with_parent()
    import torch

    from prism.measure.torch_program import from_torch, to_torch, torch_callable

    case = Case(Path(argv[0]))
    torch.set_num_threads(int(argv[1]))
    torch.set_grad_enabled(False)
    tensors = [to_torch(array.copy(), case.dtype) for array in case.inputs().values()]
    start = time.perf_counter()
    outputs = torch_callable(case.program)(*tensors)
    seconds = time.perf_counter() - start
    for (name, shape), output in zip(case.shapes().items(), outputs, strict=True):
        if tuple(output.shape) != shape:
            raise RuntimeError(f"output {name} has shape {tuple(output.shape)}, not {shape}")
        from_torch(output).tofile(case.folder / f"eager.{name}.raw")
    record = {"seconds": seconds, "torch": torch.__version__}
    write_json(case.folder / "eager.json", record)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
