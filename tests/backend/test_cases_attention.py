"""Attention and softmax from the field: on the reference, the interpreter, the CPU and Triton.

What the program language cannot say: to merge two states by their log-sum-exp (there is no log, and
no value for "both are empty"), to choose the top k, to take bool. Those are errors, tested in
test_cases_matmul.py; what a split merges inside is tested here with a part that no query sees.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from field_cases import FieldCase
from one_source import compiled
from plans import plans

from prism.codegen.interpreter import run
from prism.codegen.lower import lower
from prism.measure.torch_program import torch_callable
from prism.program import parse

ATTENTION = "O = matmul(softmax(matmul(Q, K, d) * (1 / sqrt(d)), h), V, h)"
QKV = {"Q": "b g s d", "K": "b g h d", "V": "b g h e"}
MASKED = "O = matmul(softmax(matmul(Q, K, d) * (1 / sqrt(d)) + M, h), V, h)"
INF = float("inf")


def sdpa(Q, K, V, M=0.0):
    """Attention by its definition."""
    return torch.softmax(Q @ K.mT / Q.shape[-1] ** 0.5 + M, -1) @ V


def lower_right(queries, keys):
    """The last query sees the last key; one that sees none has NaN, as in PyTorch."""
    return torch.full((queries, keys), -INF).triu(1 + keys - queries)


def upper_left(Q, K, V):
    return sdpa(Q, K, V, torch.full((Q.shape[-2], K.shape[-2]), -INF).triu(1))


def first_key_dropped(Q, K, V, M=None):
    return sdpa(Q, K[..., 1:, :], V[..., 1:, :], 0.0 if M is None else M[..., 1:])


def unscaled(Q, K, V, M=0.0):
    return torch.softmax(Q @ K.mT + M, -1) @ V


WRONG = {"first key dropped": first_key_dropped, "scale left out": unscaled}


def raw(X):
    """What overflows, in the range of fp32."""
    e = torch.exp(X).float().double()
    return e / e.sum(-1, keepdim=True)


def attention(name, issue, sizes, **fields):
    return FieldCase(name, issue, ATTENTION, QKV, sizes, sdpa, wrong=WRONG, **fields)


def masked(name, issue, sizes, mask, **fields):
    """Attention with an additive mask of shape (s, h), `mask(s, h)`."""

    def make(arrays):
        return arrays | {"M": mask(*np.indices(arrays["M"].shape))}

    axes = {"Q": "g s d", "K": "g h d", "V": "g h e", "M": "s h"}
    return FieldCase(name, issue, MASKED, axes, sizes, sdpa, make, wrong=WRONG, **fields)


def softmax(name, issue, sizes, make, dtype="fp32", **fields):
    right = lambda X: torch.softmax(X, -1)  # noqa: E731
    return FieldCase(
        name, issue, "O = softmax(X, h)", {"X": "n h"}, sizes, right, make, dtype, **fields
    )


def logits(size):
    """Inputs whose largest is about `size`, the others spread below it."""

    def make(arrays):
        return {"X": size - np.abs(arrays["X"]) * np.linspace(0, 12, arrays["X"].shape[-1])}

    return make


def all_inf(arrays):
    """One row of -inf, one with a single finite value, one with +inf and one with NaN."""
    x = arrays["X"].copy()
    x[1], x[2, 1:], x[3, 2], x[4, 5] = -INF, -INF, INF, np.nan
    return {"X": x}


CASES = [
    attention("gqa group 7", "flashinfer#996", "b=1 g=4 s=7 h=1000 d=128 e=128", dtype="bf16"),
    attention("gqa group 16", "flashinfer PR#3563", "b=1 g=4 s=16 h=512 d=128 e=128", dtype="bf16"),
    attention("20 of 20 heads", "mirage#472", "b=1 g=20 s=1 h=64 d=128 e=128", dtype="bf16"),
    attention("d 80", "flash-attention#28", "b=1 g=2 s=17 h=257 d=80 e=80", dtype="fp16"),
    attention("d 96", "flash-attention#28", "b=2 g=1 s=3 h=17 d=96 e=96", dtype="fp16"),
    attention(
        "d 192 e 128", "flash-attention PR#980", "b=1 g=2 s=5 h=33 d=192 e=128", dtype="bf16"
    ),
    # Rows of a batch are not mixed where keys are split: each equals its run alone, as the right
    # value is of each row alone.
    FieldCase(
        "split keys, batch 3",
        "vllm flash-attention PR#176",
        ATTENTION,
        QKV,
        "b=3 g=2 s=1 h=96 d=32 e=32",
        lambda Q, K, V: torch.cat(
            [sdpa(q[None], k[None], v[None]) for q, k, v in zip(Q, K, V, strict=True)]
        ),
        lambda a: {n: x * np.arange(1, 4).reshape(3, 1, 1, 1) for n, x in a.items()},
        "bf16",
    ),
    FieldCase(
        "softmax over the batch",
        "pytorch#196468",
        "O = matmul(softmax(matmul(Q, K, d) * (1 / 128), b), V, h)",
        QKV,
        "b=4 g=4 s=2 h=3 d=8 e=8",
        lambda Q, K, V: torch.softmax(Q @ K.mT / 128, 0) @ V,
        wrong={"over the last axis": lambda Q, K, V: torch.softmax(Q @ K.mT / 128, -1) @ V},
    ),
    softmax("row of -inf", "cubecl PR#1070", "n=8 h=8", all_inf),
    masked(
        "mask of the lowest number",  # the plain average of the values
        "pytorch#109517",
        "g=2 s=5 h=24 d=8 e=16",
        lambda s, h: np.where((s == 2) | (h > 20), float(np.finfo(np.float32).min), 0.0),
    ),
    masked(
        "rows that see nothing",
        "cubecl PR#1070",
        "g=2 s=5 h=24 d=8 e=16",
        lambda s, h: np.where((s == 2) | (h > 20), -INF, 0.0),
    ),
    # A part of the keys that no query sees, as one of two states that are merged.
    masked(
        "empty parts",
        "flashinfer#4051",
        "g=2 s=4 h=64 d=8 e=16",
        lambda s, h: np.where((h < 32) == (s % 2 == 0), -INF, 0.0),
    ),
    masked(
        "5 queries and 2 keys, the last sees all",
        "flash-attention#1778",
        "g=2 s=5 h=2 d=8 e=16",
        lambda s, h: np.where(h <= s - 3, 0.0, -INF),
    ),
    *(
        FieldCase(
            f"causal, {s} queries and {h} keys",
            "flash-attention#1778",
            "O = matmul(softmax(matmul(Q, K, d) * (1 / sqrt(d)) + causal(s, h), h), V, h)",
            {"Q": "g s d", "K": "g h d", "V": "g h e"},
            f"g=3 s={s} h={h} d=16 e=8",
            lambda Q, K, V: sdpa(Q, K, V, lower_right(Q.shape[-2], K.shape[-2])),
            dtype=dtype,
            wrong={"not masked": sdpa} | ({"other alignment": upper_left} if s != h else {}),
        )
        for s, h, dtype in ((5, 2, "fp32"), (17, 17, "bf16"), (3, 50, "fp16"), (33, 20, "fp32"))
    ),
    softmax(
        "logits near 151",
        "executorch PR#18407",
        "n=5 h=300",
        logits(151.0),
        wrong={"no shift": raw},
    ),
    softmax("logits near 12 in fp16", "mirage#210", "n=5 h=300", logits(12.0), "fp16"),
    softmax(
        "logits near 1e4", "mirage#210", "n=5 h=300", logits(1e4), "fp16", wrong={"no shift": raw}
    ),
    softmax("393216 columns", "KernelBench#165", "n=8 h=393216", lambda a: a, "bf16"),
    # Its bool input has to be cast by whoever calls: a program's inputs have one floating dtype.
    FieldCase(
        "two classes",
        "pytorch PR#196874",
        "O = softmax(X * 2, h)",
        {"X": "h"},
        "h=2",
        lambda X: torch.tensor([1 / (1 + np.exp(2.0)), 1 / (1 + np.exp(-2.0))], dtype=torch.double),
        lambda a: {"X": np.array([0.0, 1.0])},
        exact=1e-15,
    ),
    softmax(
        "gate of 128 experts, near ties",
        "vLLM-metax#270",
        "n=9 h=128",
        lambda a: {"X": 1 + 2.0**-7 * (np.arange(9 * 128).reshape(9, 128) % 3)},
        "bf16",
    ),
]


@pytest.mark.backend
def test_what_overflows_before_a_softmax_is_nan_as_in_eager(tmp_path):
    """x * (-1.7e14) ** 3 is -Inf or Inf in fp32, and their softmax NaN (pytorch#161150)."""
    formula = "O = softmax(X * -1.7e14 * -1.7e14 * -1.7e14, a)"
    program = parse("powers", formula, {"X": ["a", "b"]}, {"a": 1, "b": 10}, {}, "fp32")
    x = {"X": np.linspace(-1, 2, 10, dtype=np.float32).reshape(1, 10)}
    (eager,) = torch_callable(program)(torch.from_numpy(x["X"]))
    assert torch.isnan(eager).sum() == 9  # all but the 0
    tiles = [lower(concretes[0]) for concretes in plans(program).values()]
    for library, tile in zip(compiled(tiles, tmp_path), tiles, strict=True):
        outputs = {"O": np.zeros((1, 10), np.float32)}
        assert library.bind(x, outputs)() == 0
        np.testing.assert_array_equal(outputs["O"], eager)
        np.testing.assert_array_equal(run(tile, x)["O"], eager)


def test_numerics_are_stable_unless_the_paper_s_are_asked_for():
    """The paper's exponentials overflow, and are said to (see NUMERICS)."""
    (case,) = (c for c in CASES if c.name == "logits near 151")
    program = case.program
    assert program.numerics == "stable"
    x = case.stored(program)
    for concretes in plans(program).values():
        stable, paper = (
            concretes[0],
            replace(concretes[0], program=replace(program, numerics="paper")),
        )
        total = run(lower(stable), x)["O"].sum(axis=1)
        np.testing.assert_allclose(total, 1, rtol=1e-5)
        assert np.isnan(run(lower(paper), x)["O"]).any()
