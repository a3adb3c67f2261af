"""Small symbolic programs that several tests search and prove."""

from prism.program import Program, parse
from prism.program.node import Node, Op
from prism.sgraph import BlockGraph


def symbolic(name, formula, inputs, params=None, outputs=None) -> Program:
    """A program whose every size is a symbol named as its axis."""
    inputs = {k: v.split() for k, v in inputs.items()}
    sizes = {a: a for v in inputs.values() for a in v}  # in an order that no hash seed changes
    return parse(name, formula, inputs, sizes, params or {}, outputs=outputs)


EPS = {"eps": 1e-5}
PROGRAMS = {
    p.name: p
    for p in (
        symbolic("rmsnorm", "O = matmul(rms_norm(X, d), W, d)", {"X": "n d", "W": "d f"}, EPS),
        symbolic(
            "rmsnorm_mlp",
            "N = rms_norm(X, d)\nO = matmul(N, U, d) * matmul(N, G, d)",
            {"X": "n d", "U": "d f", "G": "d f"},
            EPS,
        ),
        symbolic(
            "swiglu",
            "O = silu(matmul(X, G, d)) * matmul(X, U, d)",
            {"X": "n d", "G": "d f", "U": "d f"},
        ),
        symbolic(
            "attention",
            "O = matmul(softmax(matmul(Q, K, d), h), V, h)",
            {"Q": "b g s d", "K": "b g h d", "V": "b g h e"},
        ),
        symbolic(
            "qk_attention",
            "O = matmul(softmax(matmul(rms_norm(Q, d), K, d), h), V, h)",
            {"Q": "b g s d", "K": "b g h d", "V": "b g h e"},
            EPS,
        ),
        symbolic(
            "two_outputs",
            "S = scale(sum(X, d), k)\nO = X / S",
            {"X": "n d"},
            {"k": 3.0},
            ["S", "O"],
        ),
        symbolic("root_of_max", "O = sqrt(max(square(X), d))", {"X": "n d"}),
        symbolic("softmax_matmul", "O = matmul(softmax(X, c), W, c)", {"X": "r c", "W": "c w"}),
        symbolic("bare_norm", "O = rms_norm(X, d)", {"X": "n d"}, EPS),
        symbolic("row_max", "O = X - max(X, d)", {"X": "n d"}),
        symbolic("outer", "O = exp(A) * B + 1", {"A": "n", "B": "f"}),
        symbolic("two", "P = X + R\nO = matmul(P, W, d)", {"X": "n d", "R": "n d", "W": "d f"}),
    )
}


def figure_1() -> BlockGraph:
    """The paper's Figure 1(c), softmax then matmul; axis c of W is its W,r and axis w its W,c."""
    x = Node(Op.LOAD, arg="X", axes=("r", "c"))
    w = Node(Op.LOAD, arg="W", axes=("c", "w"))
    e = Node(Op.EXP, (x,))
    total = Node(Op.ACCUM, (Node(Op.SUM, (e,), "c"),), "sum")
    product = Node(Op.ACCUM, (Node(Op.MATMUL, (e, w), "c"),), "sum")
    return BlockGraph(("x",), "i", (Node(Op.SAVE, (Node(Op.DIV, (product, total)),), "O"),))
