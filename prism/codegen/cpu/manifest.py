"""The manifest of the CPU backend."""

from __future__ import annotations

import os
import shutil

from prism.codegen.backend import Backend, Pairs
from prism.codegen.cpu.flags import FLAGS
from prism.codegen.cpu.printer import SCHEDULES, source
from prism.codegen.cpu.read import read_source
from prism.errors import PrismError
from prism.instantiate.space import SCRATCH_BYTES


def build(pairs: Pairs, arch: int | None, jobs: int, timeout: float) -> list[str]:
    """The command that compiles one source. The compiler is $CXX, else g++ or clang++ on PATH.

    Raises PrismError when there is none.
    """
    ((source_path, library_path),) = pairs
    wanted = os.environ.get("CXX")
    for name in [wanted] if wanted else ["g++", "clang++"]:
        found = shutil.which(name)
        if found:
            return [found, *FLAGS, "-o", str(library_path), str(source_path)]
    raise PrismError(
        f"C++ compiler: {wanted or 'g++ or clang++'} is not on PATH; "
        f"install one or name it in the environment variable CXX"
    )


CPU = Backend(
    name="cpu",
    dtypes=("bf16", "fp16", "fp32"),
    suffix=".cpp",
    built=".so",
    batch=False,
    source=source,
    read=read_source,
    build=build,
    options={"schedule": SCHEDULES},
    scratch_bytes=SCRATCH_BYTES,
    library="own",
)
