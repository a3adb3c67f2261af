"""How numbers, expressions and indices are spelled in Triton."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from prism.codegen.tile import Expr, Ref
from prism.program import Op

TYPE = {"bf16": "tl.bfloat16", "fp16": "tl.float16", "fp32": "tl.float32"}

# Functions printed into the file of a kernel that calls them. Infinities and NaN behave as in IEEE
# arithmetic; tl.max alone would drop a NaN.
HELPERS = {
    "square": """\
@triton.jit
def square(x):
    return x * x
""",
    "silu": """\
@triton.jit
def silu(x):
    y = tl.where(x < -104.0, -104.0, x)  # below, the quotient is 0, also for -infinity
    return y / (1.0 + tl.exp(-y))
""",
    # The minimax fit of the CPU backend, prism_math.h: max(x, 0) - |x| Phi(-|x|).
    "gelu": """\
@triton.jit
def gelu(x):
    a = tl.abs(x)
    y = tl.where(a > 15.0, 15.0, a)  # the tail there is 0
    t = 1.0 / (1.0 + 0.305 * y)
    p = 0.0366388671
    p = p * t - 0.152746096
    p = p * t + 0.185314924
    p = p * t - 0.0376206860
    p = p * t + 0.120840400
    p = p * t + 0.103473693
    p = p * t + 0.122458681
    p = p * t + 0.121640243
    return tl.where(x < 0.0, 0.0, x) - y * (t * p * tl.exp(-0.5 * y * y))
""",
    "relu": """\
@triton.jit
def relu(x):
    return tl.where(x < 0.0, 0.0, x)
""",
    "exp_shifted": """\
@triton.jit
def exp_shifted(x, m):
    return tl.exp(x - tl.where(m == float("-inf"), 0.0, m))  # a row of -inf: 0, not NaN
""",
    "rescale": """\
@triton.jit
def rescale(old, new):
    return tl.where(old == float("-inf"), 1.0, tl.exp(old - new))
""",
    "larger": """\
@triton.jit
def larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "largest": """\
@triton.jit
def largest(x, axis: tl.constexpr):
    nan = tl.sum((x != x).to(tl.int32), axis) > 0
    return tl.where(nan, float("nan"), tl.max(x, axis))
""",
}

_CALL = {
    Op.EXP: "tl.exp({0})",
    Op.SQUARE: "square({0})",
    Op.SQRT: "tl.sqrt({0})",
    Op.SILU: "silu({0})",
    Op.GELU: "gelu({0})",
    Op.RELU: "relu({0})",
    Op.SCALE: "({0} * {c})",
    Op.SHIFT: "({0} + {c})",
    Op.ADD: "({0} + {1})",
    Op.SUB: "({0} - {1})",
    Op.MUL: "({0} * {1})",
    Op.DIV: "({0} / {1})",
    Op.EXP_SHIFTED: "exp_shifted({0}, {1})",
    Op.RESCALE: "rescale({0}, {1})",
}
COMBINE = {"sum": "{0} + {1}", "max": "larger({0}, {1})"}
REDUCE = {"sum": "tl.sum({0}, {1})", "max": "largest({0}, {1})"}
IDENTITY = {"sum": "0.0", "max": 'float("-inf")'}


def number(value: float) -> str:
    """A literal that reads back as the nearest fp32 value."""
    with np.errstate(over="ignore"):
        rounded = np.float32(value)
    if not np.isfinite(rounded):
        return f'float("{rounded}")'
    return np.format_float_scientific(rounded, unique=True, trim="0")


def expression(expr: Expr, elements: Mapping[str, str]) -> str:
    """Triton of an expression; `elements` spells the reads."""
    if isinstance(expr, Ref):
        return elements[expr.name]
    args = [expression(arg, elements) for arg in expr.args]
    constant = None if expr.constant is None else number(expr.constant)
    return _CALL[expr.op].format(*args, c=constant)


def bare(text: str) -> str:
    """Without the parentheses around all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and at < len(text) - 1:
            return text
    return text[1:-1]


def placed(text: str, have: Iterable, want: Iterable) -> str:
    """A tensor with dimensions `have`, in that order, as it broadcasts against `want`."""
    have, want = list(have), list(want)
    order = [d for d in want if d in have]
    if order != have:
        text = f"tl.permute({text}, {tuple(have.index(d) for d in order)})"
    if len(have) in (0, len(want)):
        return text
    return f"{text}[{', '.join(':' if d in have else 'None' for d in want)}]"
