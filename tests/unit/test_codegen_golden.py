"""The generated C++ of some graphs, kept as golden files (rewrite with --update-golden)."""

from pathlib import Path

import pytest
from codegen_graphs import attention, flash_decoding, rmsnorm, rmsnorm_library

from prism.codegen import BACKENDS
from prism.codegen.cpu.printer import head, headers, kernels
from prism.codegen.lower import lower
from prism.instantiate import Concrete

GOLDEN = Path(__file__).parent / "golden"
CASES = {
    "rmsnorm": (rmsnorm(8, 100, 70, "bf16"), [{"x": 3, "i": 7}]),
    "attention": (attention(2, 5, 1, 50, 24, 20, "fp16"), [{"x": 1, "y": 3, "i": 4}]),
    "flash_decoding": (
        flash_decoding(1, 5, 1, 50, 24, 20, "bf16"),
        [{"x": 1, "y": 5, "z": 3, "i": 2}, {"x": 1, "y": 5}],
    ),
    "rmsnorm_library": (rmsnorm_library(8, 100, 70, "bf16"), [{}, {"x": 2, "y": 1}]),
}


@pytest.mark.parametrize("name", CASES)
def test_generated_kernels(name, update_golden):
    (program, graph), sizes = CASES[name]
    tile = lower(Concrete(program, graph, sizes, {"schedule": "dynamic"}))
    text = f"{head(tile)}\n{kernels(tile)}"
    path = GOLDEN / f"{name}.cpp"
    if update_golden:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "rewrite with --update-golden if intended"


def test_source_is_self_contained():
    (program, graph), sizes = CASES["rmsnorm"]
    tile = lower(Concrete(program, graph, sizes))
    text = BACKENDS["cpu"].source(tile)
    assert text.startswith(f"{head(tile)}\n{headers()}")
    assert '#include "' not in text and "#pragma once" not in text
    assert 'extern "C" int prism_run(' in text
