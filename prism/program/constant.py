"""Constant expressions such as `1/d` or `eps`: arithmetic over sizes and parameters, as text.

They stay symbolic through search and proof, so that one search serves every size.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Mapping

from prism.errors import PrismError

_BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: lambda a, b: float(a) ** float(b),  # integers could grow without end
}
_CALLS = {"sqrt": math.sqrt}


def canonical(text: str | float | int) -> str:
    """The expression in one spelling (`1 / d`), so that equal constants compare equal as text."""
    return ast.unparse(_parse(str(text)))


def names(text: str) -> set[str]:
    """Names of the sizes and parameters that the expression reads."""
    return {n.id for n in ast.walk(_parse(text)) if isinstance(n, ast.Name) and n.id not in _CALLS}


def evaluate(text: str, env: Mapping[str, float]) -> float:
    """Value under `env` (sizes and parameters). Raises PrismError for an unbound name."""
    try:
        value = _value(_parse(text), env)
    except (ZeroDivisionError, OverflowError, ValueError) as error:
        raise PrismError(f"constant {text!r}: {error}") from None
    if isinstance(value, complex) or not math.isfinite(value):
        raise PrismError(f"constant {text!r}: not a finite real number")
    return float(value)


def _parse(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        raise PrismError(f"constant {text!r}: not an arithmetic expression") from None


def _value(node: ast.expr, env: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=name):
            if isinstance(env.get(name), (int, float)):
                return env[name]
            raise PrismError(f"constant: {name!r} has no value; known are {sorted(env)}")
        case ast.UnaryOp(op=ast.USub(), operand=x):
            return -_value(x, env)
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, env), _value(right, env))
        case ast.Call(func=ast.Name(id=name), args=[x], keywords=[]) if name in _CALLS:
            return _CALLS[name](_value(x, env))
    raise PrismError(f"constant: {ast.unparse(node)!r} is not arithmetic over sizes and parameters")
