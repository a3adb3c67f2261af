"""Generated Triton files as modules, and the memory they need between kernels."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from prism.errors import PrismError


def load(path: Path) -> ModuleType:
    """The module of a generated file. Raises PrismError for a file that is none."""
    spec = importlib.util.spec_from_file_location(f"prism_kernel_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except OSError as error:
        raise PrismError(f"cannot read {path}: {error.strerror or error}") from None
    except SyntaxError as error:
        raise PrismError(f"{path}: not a generated kernel: {error.msg}") from None
    missing = [n for n in ("INPUTS", "OUTPUTS", "TEMPS", "prism_run") if not hasattr(module, n)]
    if missing:
        raise PrismError(f"{path}: not a generated kernel: it has no {missing[0]}")
    return module


def temps(module: ModuleType, device: str) -> list:
    """The tensors between kernels, empty, on a PyTorch device such as "cuda"."""
    import torch

    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    return [
        torch.empty(shape, dtype=types[dtype], device=device)
        for shape, dtype in module.TEMPS.values()
    ]
