"""Programs as PyTorch functions: right, and with the operators that a user would call."""

import numpy as np
import pytest

from prism.measure.compositions import attention_argument
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


def attention(query="b g s d", keys="b g h d", values="b g h e"):
    sizes = {"b": 2, "g": 3, "r": 4, "s": 2, "h": 40, "d": 16, "e": 16}
    b = Builder("attention", sizes, "fp32", {"eps": 1e-5})
    q, k, v = b.input("Q", query), b.input("K", keys), b.input("V", values)
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


FUSED = {  # inputs: the call
    ("b g s d",): "(v_0, g_K, g_V, scale=0.25)",
    ("b g r s d",): "(v_0.reshape(2, 3, 8, 16), g_K, g_V, scale=0.25).reshape(2, 3, 4, 2, 16)",
    ("d g b",): ".reshape(2, 3, 1, 16), g_K, g_V, scale=0.25).reshape(2, 3, 16)",
    ("s d", "h d", "h e"): "(v_0.reshape(1, 1, 2, 16), g_K.reshape(1, 1, 40, 16), g_V.reshape",
    ("r b g s d", "d h b g s", "b g h e s"): ".reshape(6, 2, 4, 16), g_K.permute(2, 3, 4, 1, 0)",
}


@pytest.mark.parametrize("axes", FUSED, ids=" / ".join)
def test_attention_is_one_call_where_that_is_asked_for(axes):
    program = attention(*axes)
    text = torch_source(program, attention=True)
    assert FUSED[axes] in text and text.count("F.scaled_dot_product_attention") == 1, text
    assert "torch.softmax" not in text and "torch.matmul" not in text
    assert "scaled_dot" not in torch_source(program)
    arrays = make_inputs(program, 0)
    want = evaluate(program, {n: widen(a, "fp32") for n, a in arrays.items()})["O"]
    tensors = (to_torch(a, "fp32") for a in arrays.values())
    (got,) = torch_callable(program, attention=True)(*tensors)
    assert tuple(got.shape) == want.shape
    np.testing.assert_allclose(from_torch(got), want, rtol=2e-4, atol=1e-4)


def test_what_only_looks_like_attention_is_none():
    def looks(query, keys, values, over="h", mixed="h"):
        b = Builder("looks", dict(b=2, s=3, h=4, d=5, e=6), "fp32")
        q, k, v = b.input("Q", query), b.input("K", keys), b.input("V", values)
        return b.build(O=b.matmul(b.softmax(b.matmul(q, k, "d"), over), v, mixed))

    def found(program):
        return [n for n in program.nodes if attention_argument(n, program)]

    assert len(found(looks("b s d", "b h d", "b h e"))) == 1
    assert found(looks("b s d", "b h d", "b h e", over="s")) == []  # of another axis
    assert found(looks("b s d", "b h d", "h e")) == []  # values of no batch
    assert found(looks("s d", "b h d", "b h e")) == []  # queries of no batch
    assert found(looks("b s d", "b h d", "b s h e")) == []  # values of each row
    assert found(rmsnorm()) == found(gated_mlp()) == []
