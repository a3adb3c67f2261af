"""How names, numbers and expressions are spelled in C++."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from prism.codegen.tile import Expr, Ref
from prism.instantiate.spans import Span
from prism.program import Op

CTYPE = {"bf16": "prism::bf16", "fp16": "prism::fp16", "fp32": "float"}

_CALL = {
    Op.EXP: "prism::exp({0})",
    Op.SQUARE: "prism::square({0})",
    Op.SQRT: "std::sqrt({0})",
    Op.SILU: "prism::silu({0})",
    Op.GELU: "prism::gelu({0})",
    Op.RELU: "prism::relu({0})",
    Op.SCALE: "({0} * {c})",
    Op.SHIFT: "({0} + {c})",
    Op.ADD: "({0} + {1})",
    Op.SUB: "({0} - {1})",
    Op.MUL: "({0} * {1})",
    Op.DIV: "({0} / {1})",
    Op.EXP_SHIFTED: "prism::exp_shifted({0}, {1})",
    Op.RESCALE: "prism::rescale({0}, {1})",
}
_SIGN = {Op.ADD: "+", Op.SUB: "-", Op.MUL: "*", Op.DIV: "/"}


def number(value: float) -> str:
    """A float literal that reads back as the nearest fp32 value."""
    with np.errstate(over="ignore"):
        rounded = np.float32(value)
    if np.isinf(rounded):
        return f"{'-' if rounded < 0 else ''}std::numeric_limits<float>::infinity()"
    return np.format_float_scientific(rounded, unique=True, trim="0") + "f"


def expression(expr: Expr, elements: Mapping[str, str]) -> str:
    """C++ of an expression; `elements` spells the reads."""
    if isinstance(expr, Ref):
        return elements[expr.name]
    args = [expression(arg, elements) for arg in expr.args]
    constant = None if expr.constant is None else number(expr.constant)
    return _CALL[expr.op].format(*args, c=constant)


def summary(expr: Expr) -> str:
    """An expression for a comment: names without indices."""
    if isinstance(expr, Ref):
        return expr.name
    args = [summary(arg) for arg in expr.args]
    if expr.op in _SIGN:
        return f"({args[0]} {_SIGN[expr.op]} {args[1]})"
    if expr.constant is not None:
        return f"({args[0]} {'*' if expr.op is Op.SCALE else '+'} {expr.constant:.6g})"
    return f"{expr.op.value}({', '.join(args)})"


def span_name(span: Span) -> str:
    """What cuts the axis, and the axis: one name for one length, whatever axes are called."""
    return f"{span.grid or ''}{'i' if span.step else ''}_{span.axis}"


def extent(span: Span) -> str:
    """The number of elements of a tile: a constant, or the variable that holds it."""
    return f"len_{span_name(span)}" if span.ragged else str(span.extent)


def total(terms: list[tuple[str, int]]) -> str:
    """The sum of variables times strides; "0" when there are none."""
    parts = [v if abs(s) == 1 else f"{v} * {abs(s)}" for v, s in terms if s != 0]
    signs = ["+" if s > 0 else "-" for _, s in terms if s != 0]
    text = " ".join(f"{sign} {part}" for sign, part in zip(signs, parts, strict=True))
    return text.removeprefix("+ ") or "0"
