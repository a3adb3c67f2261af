"""The manifest of the Triton backend."""

from __future__ import annotations

import importlib.util
import sys

from prism.codegen.backend import Backend, Pairs
from prism.codegen.triton.printer import STAGES, WARPS, source
from prism.codegen.triton.read import read_source
from prism.errors import PrismError

# All registers of the largest block, 8 warps of 32 threads with 255 of 4 bytes, in powers of two.
SCRATCH_BYTES = 256 << 10


def build(pairs: Pairs, arch: int | None, jobs: int, timeout: float) -> list[str]:
    """The command that compiles sources without a GPU, see `offline`.

    Raises PrismError when Triton is not installed and when no GPU is named.
    """
    if importlib.util.find_spec("triton") is None:
        raise PrismError("Triton is not installed; install it (pip install triton)")
    if arch is None:
        raise PrismError("Triton: the compute capability of a GPU is needed, such as 90")
    paths = [str(path) for pair in pairs for path in pair]
    command = [sys.executable, "-m", "prism.codegen.triton.offline"]
    return [*command, str(arch), str(jobs), str(timeout), *paths]


TRITON = Backend(
    name="triton",
    dtypes=("fp16", "bf16", "fp32"),
    suffix=".py",
    built=".json",
    batch=True,
    source=source,
    read=read_source,
    build=build,
    options={"num_warps": WARPS, "num_stages": STAGES},
    scratch_bytes=SCRATCH_BYTES,
    library="torch",
)
