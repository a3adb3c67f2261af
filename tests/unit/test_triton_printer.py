"""The generated Triton of some graphs as golden files (rewrite with --update-golden), and what the
printer refuses. Nothing here needs Triton."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from codegen_graphs import attention, flash_decoding, graph, load, op, rmsnorm, rmsnorm_library

from prism.codegen import BACKENDS, LoweringError
from prism.codegen.lower import lower
from prism.instantiate import Concrete
from prism.program import Builder, Op

GOLDEN = Path(__file__).parent / "golden"
OPTIONS = {"num_warps": 4, "num_stages": 3}
TRITON = BACKENDS["triton"]
CASES = {
    "rmsnorm": (rmsnorm(8, 100, 70, "bf16"), [{"x": 3, "i": 7}]),
    "attention": (attention(2, 5, 3, 50, 24, 20, "fp16"), [{"x": 2, "y": 5, "i": 4}]),
    "flash_decoding": (
        flash_decoding(1, 5, 1, 50, 24, 20, "bf16"),
        [{"x": 1, "y": 5, "z": 3, "i": 2}, {"x": 1, "y": 5}],
    ),
    "rmsnorm_library": (rmsnorm_library(8, 100, 70, "fp16"), [{}, {"x": 2, "y": 1}]),
}


def printed(program, mapped, sizes, options=OPTIONS):
    return TRITON.source(lower(Concrete(program, mapped, sizes, options), TRITON.library))


@pytest.mark.parametrize("name", CASES)
def test_generated_kernels(name, update_golden):
    (program, mapped), sizes = CASES[name]
    text = printed(program, mapped, sizes)
    ast.parse(text)
    path = GOLDEN / f"{name}.triton"
    if update_golden:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "rewrite with --update-golden if intended"


def test_small_dimensions_are_padded_for_matrix_units_and_one_row_needs_none():
    for rows, dot in ((1, False), (3, True), (8, True), (17, True)):
        text = printed(*rmsnorm(rows, 64, 64, "fp16"), [{"x": 1, "i": 2}])
        assert ("tl.dot(" in text) == dot
        padded = {1: None, 3: 16, 8: 16, 17: 32}[rows]
        assert (f"o_n = tl.arange(0, {padded})" in text) == dot
        assert ("m_n = " in text) == dot


def test_products_are_of_the_program_s_type_and_of_tf32_where_fp16_would_overflow():
    assert 'input_precision="ieee"' in printed(*rmsnorm(8, 64, 64, "fp32"), [{"x": 1, "i": 2}])
    assert "input_precision" not in printed(*rmsnorm(8, 64, 64, "fp16"), [{"x": 1, "i": 2}])
    texts = {}
    for dtype in ("fp16", "bf16", "stable"):
        program, mapped = attention(1, 1, 16, 64, 32, 32, dtype.replace("stable", "fp16"))
        program = program if dtype == "stable" else replace(program, numerics="paper")
        texts[dtype] = printed(program, mapped, [{"x": 1, "y": 1, "i": 2}])
    assert "tf32" not in texts["stable"]  # shifted exponentials are at most 1
    assert "tl.dot(v_Q, tl.permute(v_K, (1, 0)))" in texts["fp16"]
    assert 'v_V.to(tl.float32), t1_accum, input_precision="tf32")' in texts["fp16"]
    assert ".to(tl.bfloat16), v_V" in texts["bf16"] and "tf32" not in texts["bf16"]


def test_a_library_operator_is_a_call_of_torch_and_its_result_of_the_program_s_type():
    (program, mapped), sizes = CASES["rmsnorm_library"]
    text = printed(program, mapped, sizes)
    assert "torch.einsum(" in text and "launch(library0, None" in text
    assert "TEMPS = {'t1': ((8, 70), 'fp16')}" in text
    concrete = Concrete(program, mapped, sizes, OPTIONS)
    assert lower(concrete, "own").tensors["t1"].dtype == "fp32"


def test_chunks_that_are_only_saved_are_stored_by_their_iteration():
    b = Builder("rows", {"n": 8, "d": 64}, "fp32")
    program = b.build(O=b.exp(b.input("X", "n d")))
    value = op(Op.EXP, load("X", "n d"))
    mapped = graph(
        op(Op.SAVE, op(Op.ACCUM, value, arg="concat:d"), arg="O"),
        grid="x",
        loop="i",
        ones="X.n.x O.n.x X.d.i",
    )
    (kernel,) = lower(Concrete(program, mapped, [{"x": 2, "i": 4}], OPTIONS)).kernels
    assert not kernel.buffers and not kernel.post
    assert [type(s).__name__ for s in kernel.body] == ["Load", "Store"]
    text = printed(program, mapped, [{"x": 2, "i": 4}])
    assert "g_O + p_x * 4 * s_O_n + i * 16 * s_O_d" in text


def test_a_tile_beyond_triton_s_limit_is_refused_with_its_size():
    program, mapped = rmsnorm(512, 64, 4096, "fp16")
    with pytest.raises(LoweringError, match="512 x 4096 elements; Triton holds 1048576"):
        printed(program, mapped, [{"x": 1, "i": 2}])


@pytest.mark.parametrize("options", [{"num_warps": 3}, {"num_stages": 9}, {"schedule": "static"}])
def test_unknown_options_are_refused(options):
    with pytest.raises(LoweringError, match=f"option {next(iter(options))}="):
        printed(*rmsnorm(8, 64, 64, "fp16"), [{"x": 1, "i": 2}], options)


def test_names_that_meet_in_a_parameter_are_told_apart():
    b = Builder("caches", {"n": 8, "d": 16, "x_n": 8}, "fp32")
    program = b.build(O=b.matmul(b.input("A", "x_n d"), b.input("A_x", "n d"), "d"))
    product = op(Op.MATMUL, load("A", "x_n d"), load("A_x", "n d"), arg="d")
    text = printed(program, graph(op(Op.SAVE, product, arg="O")), [{}])
    (head,) = [line for line in text.splitlines() if line.startswith("def kernel0(")]
    names = head.removeprefix("def kernel0(").removesuffix("):").split(", ")
    assert len(set(names)) == len(names) == 3 + 6
    compile(text, "kernel", "exec")
