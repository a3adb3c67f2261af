"""Kernels with masks in C++ and in Triton's interpreter, gated as any other."""

import importlib.util
import random
from dataclasses import replace

import numpy as np
import pytest
from codegen_graphs import joined, library, load, op
from masked import graphs, points
from test_cpu_kernels import check, start
from test_triton_interpreter import gated, with_eager

from prism.codegen import BACKENDS, LoweringError
from prism.codegen.lower import lower
from prism.instantiate import Concrete
from prism.measure.gate import Gate, blind
from prism.measure.inputs import Rotation, make_inputs, write_case
from prism.measure.library import Library, gate_library
from prism.program import Builder, Op

pytestmark = pytest.mark.backend
LENGTHS = [(7, 7), (5, 13), (5, 2), (1, 11), (17, 33)]
OPTIONS = {"num_warps": 4, "num_stages": 2}


def concretes(mask, dtype, count, options):
    """Concrete graphs that lower, at sizes drawn anew for each graph."""
    rng = random.Random(f"{mask} {dtype}")
    symbols, found = graphs(mask, count)
    for mapped in found:
        queries, keys = rng.choice(LENGTHS)
        sizes = dict(b=rng.randint(1, 2), g=rng.randint(1, 3), s=queries, h=keys, d=16, e=8)
        program = replace(symbols, dtype=dtype).bind(**sizes)
        for concrete in points(program, mapped, rng, 1, options=options):
            try:
                lower(concrete)
            except LoweringError:
                continue
            yield concrete


@pytest.mark.parametrize("mask", ["last", "first", "additive"])
def test_cpp_is_the_interpreter(mask, tmp_path):
    found = list(concretes(mask, "fp32", 6, {}))
    assert len(found) >= 5
    for number, concrete in enumerate(found):
        numbers = np.random.default_rng(number)
        program = concrete.program
        shapes = {name: program.shape(node) for name, node in program.arguments.items()}
        inputs = {n: numbers.normal(size=s).astype(np.float32) for n, s in shapes.items()}
        if (
            mask == "additive" and shapes["M"][0] > 3
        ):  # hidden keys, a row that sees none, the least
            inputs["M"][0, ::2], inputs["M"][1] = -np.inf, -np.inf
            inputs["M"][2] = np.finfo(np.float32).min
        check([concrete], tmp_path, inputs={n: a.astype(np.float64) for n, a in inputs.items()})


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_compiled_kernels_pass_the_gate(dtype, tmp_path):
    """Through the C ABI, which has no pointer for the mask."""
    (folder := tmp_path / "built").mkdir()
    found = list(concretes("last", dtype, 6, {}))
    started = [start(lower(concrete), folder) for concrete in found]
    assert len(found) >= 4
    for number, (concrete, (process, built)) in enumerate(zip(found, started, strict=True)):
        assert process.wait() == 0, process.stderr.read()
        case = with_eager(write_case(concrete.program, tmp_path / str(number), number, 1 << 20))
        gate = Gate(case)
        assert not blind(gate.controls())
        verdict = gate_library(Library(built, 2), gate, Rotation(case.inputs(), 1))
        assert verdict.passed, (concrete.program.sizes, concrete.sizes, verdict.reason)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize(("mask", "dtype"), [("last", "fp16"), ("last", "fp32"), ("first", "fp32")])
def test_triton_passes_the_gate(mask, dtype, tmp_path):
    triton, found = BACKENDS["triton"], []
    for concrete in concretes(mask, dtype, 12, OPTIONS):
        try:
            found.append((concrete, triton.source(lower(concrete, triton.library))))
        except LoweringError as error:
            assert "Triton holds" in str(error), error
    assert len(found) >= 12
    assert gated(found, tmp_path) == []


@pytest.mark.parametrize("align", ["last", "first"])
def test_a_library_operator_reads_a_mask(align, tmp_path):
    """Ours in C++, PyTorch's in Triton; the axes of the other operand are in another order."""
    b = Builder("p", {"s": 5, "h": 9, "g": 3}, "fp32")
    program = b.build(O=b.scale(b.add(b.input("X", "h g s"), b.causal("s", "h", align)), 2))
    (name,) = program.generated
    added = op(Op.ADD, load("X", "h g s"), load(name, "s h"))
    mapped = joined(library(added, "t1"), library(op(Op.SCALE, load("t1", "h g s"), arg="2"), "O"))
    concrete = Concrete(program, mapped, [{}, {}])
    check([concrete], tmp_path)
    if importlib.util.find_spec("triton") is not None:
        triton, concrete = BACKENDS["triton"], replace(concrete, options=OPTIONS)
        source = triton.source(lower(concrete, triton.library))
        assert "torch.full((5, 9)" in source
        assert gated([(concrete, source)], tmp_path / "triton") == []


def test_outputs_of_another_mask_fail_the_gate(tmp_path):
    """The gate sees a mask that is off by one."""
    concrete = next(iter(concretes("last", "fp32", 4, {})))
    program = concrete.program.bind(s=7, h=7)
    case = with_eager(write_case(program, tmp_path / "case", 0, 1 << 20))
    inputs = make_inputs(program, 0)
    q, k, v = (inputs[name].astype(np.float64) for name in "QKV")
    for off, passes in ((0, True), (1, False), (-1, False), (7, False)):
        logits = q @ k.swapaxes(-1, -2) / 4
        logits = np.where(np.tri(7, 7, off, bool), logits, -np.inf)
        with np.errstate(invalid="ignore"):
            weights = np.exp(logits)
            found = weights / weights.sum(-1, keepdims=True) @ v
        assert Gate(case).check({"O": found.astype(np.float32)}).passed == passes
