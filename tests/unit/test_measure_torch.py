"""Programs as PyTorch functions: right, and with the operators that a user would call."""

import numpy as np
import pytest

from prism.measure.inputs import make_inputs, widen
from prism.measure.torch_program import from_torch, to_torch, torch_callable, torch_source
from prism.program import Builder, evaluate


def rmsnorm():
    b = Builder("rmsnorm", {"n": 8, "d": 64, "f": 32}, "fp32", {"eps": 1e-5})
    x, w = b.input("X", "n d"), b.input("W", "d f")
    return b.build(O=b.matmul(b.rms_norm(x, "d"), w, "d"))


def gated_mlp():
    b = Builder("mlp", {"n": 8, "d": 64, "f": 32}, "fp32", {"eps": 1e-5})
    x, up, gate = b.input("X", "n d"), b.input("U", "d f"), b.input("G", "d f")
    h = b.rms_norm(x, "d")
    left, right = b.silu(b.matmul(h, gate, "d")), b.gelu(b.matmul(h, up, "d"))
    return b.build(O=b.mul(left, right))


def attention(query="b g s d"):
    sizes = {"b": 2, "g": 3, "r": 4, "s": 2, "h": 40, "d": 16}
    b = Builder("attention", sizes, "fp32", {"eps": 1e-5})
    q, k, v = b.input("Q", query), b.input("K", "b g h d"), b.input("V", "b g h d")
    scores = b.scale(b.matmul(b.rms_norm(q, "d"), k, "d"), "1/sqrt(d)")
    return b.build(O=b.matmul(b.softmax(scores, "h"), v, "h"))


def odd_layouts():
    b = Builder("odd", {"n": 4, "d": 6, "f": 5, "m": 3}, "fp32")
    x, w, r = b.input("X", "n d"), b.input("W", "m d f"), b.input("R", "n")
    return b.build(
        O=b.add(b.matmul(x, w, "d"), r),
        P=b.sub(b.softmax(x, "n"), r),
        Q=b.rms_norm(x, "n", 0.1),
        S=b.sum(b.max(x, "n"), "d"),
        T=b.relu(b.shift(b.sqrt(b.square(x)), -1)),
        U=b.div(b.exp(x), b.sum(b.exp(b.scale(x, 2)), "d")),
    )


def einsums():
    b = Builder("einsums", {"n": 8, "b": 4, "d": 6, "f": 5, "g": 2}, "fp32")
    x, w = b.input("X", "b n d"), b.input("W", "b f d g")
    row = b.sum(b.sum(x, "n"), "b")
    return b.build(
        O=b.matmul(x, w, "d"), P=b.matmul(b.sum(x, "n"), w, "d"), T=b.matmul(row, row, "d")
    )


def any_names():
    """Inputs named like what generated code uses itself; `t0` as in H = exp(X); O = H * t0."""
    b = Builder("names", {"n": 4, "d": 6}, "fp32")
    x, *others = (
        b.input(name, "n d") for name in ("X", "t0", "v_0", "g_X", "F", "torch", "program")
    )
    word, line = b.input("class", "n d"), b.input("lambda", "d")
    result = b.mul(b.exp(x), others[0])
    for other in (*others[1:], word, line):
        result = b.add(b.silu(result), other)
    return b.build(O=result)


PROGRAMS = [rmsnorm(), gated_mlp(), attention(), attention("b g r s d"), odd_layouts(), einsums()]
PROGRAMS.append(any_names())


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_the_function_computes_the_program(program):
    arrays = make_inputs(program, 0)
    want = evaluate(program, {n: widen(a, program.dtype) for n, a in arrays.items()})
    got = torch_callable(program)(*(to_torch(a, program.dtype) for a in arrays.values()))
    for (name, reference), tensor in zip(want.items(), got, strict=True):
        assert tuple(tensor.shape) == reference.shape and tensor.is_contiguous(), name
        np.testing.assert_allclose(from_torch(tensor), reference, rtol=2e-4, atol=1e-4)


def test_compositions_become_pytorch_s_own_operators():
    assert torch_source(rmsnorm()) == (
        "def program(g_X, g_W):\n"
        "    v_0 = F.rms_norm(g_X, (64,), eps=1e-05)\n"
        "    v_1 = torch.matmul(v_0, g_W)\n"
        "    return [v_1]\n"
    )
    text = torch_source(attention())
    assert "torch.softmax(v_2, dim=-1)" in text and "torch.matmul(v_0, g_K.mT)" in text
    assert "exp" not in text and "einsum" not in text and "contiguous" not in text


def test_a_shared_norm_is_computed_once():
    assert torch_source(gated_mlp()).count("rms_norm") == 1


def test_query_heads_of_one_group_become_one_product():
    text = torch_source(attention("b g r s d"))
    assert "v_0.reshape(2, 3, -1, 16)" in text and "einsum" not in text


def test_what_only_looks_like_softmax_stays_as_it_is():
    text = torch_source(odd_layouts())
    assert text.count("torch.softmax") == 1 and "torch.exp(g_X)" in text


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_tensors_share_memory_with_their_arrays(dtype):
    b = Builder("p", {"n": 4}, dtype)
    program = b.build(O=b.scale(b.input("X", "n"), 1))
    array = make_inputs(program, 0)["X"]
    tensor = to_torch(array, dtype)
    assert tensor.data_ptr() == array.ctypes.data
    np.testing.assert_array_equal(from_torch(tensor), array)
