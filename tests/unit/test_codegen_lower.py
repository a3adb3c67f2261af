"""What lowering decides, and what it refuses with a reason."""

import pytest
from codegen_graphs import attention, graph, load, op, rmsnorm

from prism.codegen import BACKENDS, LoweringError
from prism.codegen.cpu.manifest import build
from prism.codegen.lower import lower
from prism.codegen.tile import Chain, Contract, Fill, Load, Reduce, Store
from prism.errors import PrismError
from prism.instantiate import Concrete
from prism.program import Builder, Op


def kernel_of(fixture, **sizes):
    program, mapped = fixture
    return lower(Concrete(program, mapped, (sizes,))).kernels[0]


def test_rmsnorm_is_one_pass_with_fused_accumulators():
    kernel = kernel_of(rmsnorm(8, 64, 48), x=4, i=2)
    assert [type(s) for s in kernel.pre] == [Fill, Fill]
    assert [type(s) for s in kernel.body] == [Load, Load, Contract, Reduce]
    assert kernel.body[2].accumulate and kernel.body[3].accumulate
    assert [type(s) for s in kernel.post] == [Chain, Store]
    assert kernel.body[3].expr.op is Op.SQUARE  # not a buffer of its own


def test_attention_streams_keys_and_hoists_the_query():
    kernel = kernel_of(attention(2, 4, 1, 64, 16, 16), x=2, y=2, i=8)
    assert Load("v_Q") in kernel.pre
    contracts = [s for s in kernel.body if isinstance(s, Contract)]
    assert [s.b for s in contracts] == ["v_K", "v_V"]
    assert [[x.axis for x in s.batch] for s in contracts] == [["b", "g"]] * 2


def test_a_short_block_runs_fewer_iterations():
    b = Builder("p", {"n": 2, "f": 50}, "fp32")
    program = b.build(O=b.exp(b.input("X", "n f")))
    value = op(Op.ACCUM, op(Op.EXP, load("X", "n f")), arg="concat:f")
    mapped = graph(op(Op.SAVE, value, arg="O"), grid="x", loop="i", ones="X.f.x X.f.i O.f.x")
    kernel = lower(Concrete(program, mapped, ({"x": 4, "i": 13},))).kernels[0]
    assert kernel.loop.count == 13 and kernel.loop.span.last == 11  # of 13


def test_blocks_that_share_the_large_operand_are_neighbours():
    b = Builder("p", {"n": 4, "d": 64, "f": 96}, "fp32")
    program = b.build(O=b.matmul(b.input("X", "n d"), b.input("W", "d f"), "d"))
    product = op(Op.MATMUL, load("X", "n d"), load("W", "d f"), arg="d")
    mapped = graph(op(Op.SAVE, product, arg="O"), grid="xy", ones="X.n.x O.n.x W.f.y O.f.y")
    kernel = lower(Concrete(program, mapped, ({"x": 4, "y": 3},))).kernels[0]
    assert kernel.grid == (("y", 3), ("x", 4))


def sum_program(n=6, k=8):
    b = Builder("p", {"n": n, "k": k}, "fp32")
    return b.build(O=b.sum(b.input("X", "n k"), "k"))


X = load("X", "n k")
SUM = op(Op.SUM, X, arg="k")
REFUSED = {
    "single iteration": (
        graph(op(Op.SAVE, op(Op.ADD, op(Op.ACCUM, SUM, arg="sum"), SUM), arg="O"),
              loop="i", ones="X.k.i"),
        {"i": 2},
    ),
    "empty chunk": (graph(op(Op.SAVE, SUM, arg="O"), grid="x", ones="X.n.x O.n.x"), {"x": 5}),
    "does not change": (
        graph(op(Op.SAVE, op(Op.ACCUM, SUM, arg="sum"), arg="O"), loop="i"), {"i": 2}
    ),
    "still changes": (graph(op(Op.SAVE, SUM, arg="O"), loop="i", ones="X.k.i"), {"i": 2}),
    "cuts none of its axes": (graph(op(Op.SAVE, SUM, arg="O"), grid="x", ones="X.k.x"), {"x": 2}),
    "in the output": (graph(op(Op.SAVE, SUM, arg="O"), grid="x", ones="O.n.x"), {"x": 2}),
    "the loop does not cut": (
        graph(op(Op.SAVE, op(Op.ACCUM, SUM, arg="concat:n"), arg="O"), loop="i", ones="X.k.i"),
        {"i": 2},
    ),
    "nothing has written": (
        graph(op(Op.SAVE, op(Op.SUM, load("Y", "n k"), arg="k"), arg="O")), {}
    ),
    "has axes": (graph(op(Op.SAVE, op(Op.SUM, load("X", "k n"), arg="k"), arg="O")), {}),
    "written by no kernel": (graph(op(Op.SAVE, SUM, arg="T")), {}),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_refused_with_a_reason(reason):
    mapped, sizes = REFUSED[reason]
    with pytest.raises(LoweringError, match=reason):
        lower(Concrete(sum_program(), mapped, (sizes,)))


def test_operands_cut_in_two_ways_are_refused():
    b = Builder("p", {"n": 6, "k": 8}, "fp32")
    program = b.build(O=b.add(b.input("X", "n k"), b.input("Y", "n k")))
    total = op(Op.ADD, X, load("Y", "n k"))
    mapped = graph(op(Op.SAVE, total, arg="O"), grid="x", ones="X.n.x O.n.x")
    assert lower(Concrete(program, mapped, ({"x": 1},)))  # a single chunk is no cut
    with pytest.raises(LoweringError, match="axis 'n' is cut in two ways"):
        lower(Concrete(program, mapped, ({"x": 2},)))


def test_unknown_schedule_is_refused():
    program, mapped = rmsnorm(2, 4, 4)
    tile = lower(Concrete(program, mapped, ({"x": 1, "i": 1},), {"schedule": "guided"}))
    with pytest.raises(LoweringError, match="schedule='guided'"):
        BACKENDS["cpu"].source(tile)


def test_missing_compiler_is_one_clear_error(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(PrismError, match="no-such-compiler is not on PATH") as error:
        build([(tmp_path / "a.cpp", tmp_path / "a.so")], None, 1, 60.0)
    assert "\n" not in str(error.value)
