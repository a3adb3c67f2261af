"""Code generation: one lowering to a tile program, and a declarative manifest a backend."""

from prism.codegen.backend import Backend
from prism.codegen.cpu.manifest import CPU
from prism.codegen.errors import LoweringError
from prism.codegen.triton.manifest import TRITON

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (CPU, TRITON)}

__all__ = ["BACKENDS", "Backend", "LoweringError"]
