"""What a block takes, against figures that Triton 3.9 reports of the same kernels; a test of the
backend compares many more."""

import pytest
import yaml
from codegen_graphs import attention, graph, load, op, rmsnorm, rmsnorm_library

from prism.codegen.lower import lower
from prism.codegen.triton.axes import Axes
from prism.config import root
from prism.instantiate.concrete import Concrete
from prism.model import Device
from prism.model.fit import SPILLING, fit, kernel_fit
from prism.model.registers import registers
from prism.model.shared import operand_bytes, shared_bytes
from prism.program import Builder, Op

OPTIONS = {"num_warps": 4, "num_stages": 3}


def gpu(name: str):
    data = yaml.safe_load((root() / f"conf/device/{name}.yaml").read_text())
    return Device.from_json({key: data[key] for key in ("name", "backend", "gpu")}).gpu


A100, H200 = gpu("a100"), gpu("h200")


def tile(pair, *sizes, **options):
    program, graph = pair
    return lower(Concrete(program, graph, sizes, OPTIONS | options), "torch")


def parts(program):
    return program, program.kernels[0], Axes(program.kernels[0])


DECODE = rmsnorm(8, 4096, 4096, "fp16")
WIDE = rmsnorm(64, 4096, 4096, "fp16")
GROUPED = attention(2, 8, 16, 1024, 64, 64, "fp16")
ONE_QUERY = attention(2, 8, 1, 1024, 128, 128, "fp16")


@pytest.mark.parametrize(
    ("device", "program", "compiled"),
    [
        (A100, tile(DECODE, {"x": 64, "i": 64}, num_stages=1), 10240),
        (A100, tile(DECODE, {"x": 64, "i": 64}, num_stages=2), 10240),
        (A100, tile(DECODE, {"x": 64, "i": 64}, num_stages=3), 20480),
        (A100, tile(DECODE, {"x": 64, "i": 64}, num_stages=4), 30720),
        (A100, tile(DECODE, {"x": 16, "i": 64}), 69632),
        (A100, tile(DECODE, {"x": 16, "i": 32}), 139264),
        (H200, tile(DECODE, {"x": 32, "i": 64}, num_stages=4), 55296),
        (A100, tile(WIDE, {"x": 64, "i": 64}), 32768),
        (H200, tile(WIDE, {"x": 64, "i": 64}, num_warps=2), 32768),
        (A100, tile(GROUPED, {"x": 2, "y": 8, "i": 16}), 36864),
        (H200, tile(GROUPED, {"x": 2, "y": 8, "i": 16}), 36864),
    ],
)
def test_operands_of_products_take_what_the_compiler_reports(device, program, compiled):
    assert operand_bytes(*parts(program), device) == compiled
    assert compiled <= shared_bytes(*parts(program), device) <= compiled + 1024


def test_asynchronous_products_keep_one_more_stage():
    """Triton reports 40960: it needs no third stage of the operand that registers read too."""
    program = tile(WIDE, {"x": 64, "i": 64})
    assert operand_bytes(*parts(program), H200) == 3 * 2 * 64 * 128 >= 40960
    assert operand_bytes(*parts(program), A100) == 2 * 2 * 64 * 128


def test_products_of_vectors_take_scratch_alone():
    """Triton reports 1024."""
    program = tile(ONE_QUERY, {"x": 2, "y": 8, "i": 16})
    assert operand_bytes(*parts(program), A100) == 0
    assert shared_bytes(*parts(program), A100) >= 1024


@pytest.mark.parametrize(
    ("program", "compiled"),
    [
        (tile(DECODE, {"x": 64, "i": 64}), 56),
        (tile(DECODE, {"x": 16, "i": 64}), 96),
        (tile(DECODE, {"x": 16, "i": 32}), 121),
        (tile(ONE_QUERY, {"x": 2, "y": 8, "i": 16}), 72),
        (tile(ONE_QUERY, {"x": 2, "y": 8, "i": 4}), 163),
    ],
)
def test_registers_are_about_those_that_the_compiler_reports(program, compiled):
    assert compiled / 1.6 < registers(*parts(program)) < compiled * 1.6


def test_too_much_shared_memory_is_a_reason():
    fits, not_there = ({"x": 16, "i": 32}, {"x": 16, "i": 16})
    assert fit(tile(DECODE, fits), A100).reason == ""
    found = fit(tile(DECODE, not_there), A100)
    assert found.reason == (
        f"about {found.shared_bytes} bytes of shared memory a block, the limit is 166912"
    )
    assert found.shared_bytes > 2 * 2 * 256 * (16 + 256)


def test_the_limit_is_that_of_the_device():
    program = tile(DECODE, {"x": 32, "i": 32}, num_stages=4)
    between = tile(DECODE, {"x": 16, "i": 32}, num_stages=4)  # 208896 bytes
    assert [fit(program, d).reason for d in (A100, H200)] == ["", ""]
    assert [bool(fit(between, d).reason) for d in (A100, H200)] == [True, False]


def test_too_many_registers_are_a_reason():
    """All of K and V in the registers of one warp."""
    found = fit(tile(ONE_QUERY, {"x": 2, "y": 8, "i": 2}, num_warps=1), A100)
    assert "registers a thread, of which there are 255" in found.reason
    assert found.registers == 255
    spread = tile(ONE_QUERY, {"x": 2, "y": 8, "i": 16}, num_warps=8)
    assert fit(spread, A100).reason == "" and registers(*parts(spread)) < SPILLING


def test_a_tile_that_triton_cannot_hold_is_a_reason():
    program = tile(rmsnorm(8, 4096, 4096, "fp16"), {"x": 1, "i": 1})
    assert "4096 x 4096 elements; Triton holds 1048576" in fit(program, A100).reason
    vectors = tile(attention(1, 1, 1, 8192, 256, 1, "fp16"), {"x": 1, "y": 1, "i": 1})
    assert "elements; Triton holds 1048576" in fit(vectors, A100).reason

    b = Builder("pairs", {"n": 128, "f": 128, "d": 128}, "fp16")
    program = b.build(O=b.sum(b.mul(b.input("A", "n d"), b.input("B", "f d")), "d"))
    pairs = op(Op.MUL, load("A", "n d"), load("B", "f d"))
    whole = graph(op(Op.SAVE, op(Op.SUM, pairs, arg="d"), arg="O"))
    assert "elements; Triton holds 1048576" in fit(tile((program, whole), {}), A100).reason


def test_what_a_loop_reads_again_is_held_in_fp32():
    """W stays while rows of X pass, one an iteration; it is converted once, before the loop."""
    found = {}
    for dtype in ("fp16", "fp32"):
        program, _ = rmsnorm(16, 128, 64, dtype)
        product = op(Op.MATMUL, load("X", "n d"), load("W", "d f"), arg="d")
        saved = op(Op.SAVE, op(Op.ACCUM, product, arg="concat:n"), arg="O")
        rows = graph(saved, grid="x", loop="i", ones="X.n.i")
        found[dtype] = registers(*parts(tile((program, rows), {"x": 1, "i": 16})))
    held = 128 * 64 / 128  # registers of W
    assert found["fp32"] - held / 2 < found["fp16"] <= found["fp32"]


def test_library_operators_bring_their_own_kernels():
    program = tile(rmsnorm_library(8, 8192, 8192, "fp16"), {}, {"x": 8, "y": 64})
    assert program.kernels[0].operator is not None
    own = kernel_fit(program, program.kernels[1], H200)
    assert fit(program, H200) == own and own.reason == ""
