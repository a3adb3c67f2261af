"""Programs as text: the `formula` of a workload file, parsed to a Program.

The language is assignments whose right-hand sides are calls of the builder's operators and the
infix operators + - * / @. It is read with Python's own parser and never evaluated as Python.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from prism.errors import PrismError
from prism.program.builder import Builder
from prism.program.node import Node
from prism.program.program import Program

_INFIX = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.MatMult: "matmul",
}
# Per operator: how many tensors, axis names and constants its call takes.
_SIGNATURE = (
    dict.fromkeys(("exp", "square", "sqrt", "silu", "gelu", "relu"), "t")
    | dict.fromkeys(("add", "sub", "mul", "div"), "ee")
    | dict.fromkeys(("sum", "max", "softmax"), "ta")
    | {"causal": "aaa?", "matmul": "tta?", "scale": "tc", "shift": "tc", "rms_norm": "tac?"}
)
# What people ask for and the language does not have, and what to write instead.
_ABSENT = {
    "layer_norm": "write it out: center by sum(X, d) / d, then square, sum, sqrt and divide",
    "mean": "write sum(X, d) / d",
    "where": "an input of 0 and -inf that is added masks logits",
    "masked_fill": "an input of 0 and -inf that is added masks logits",
    "sliding_window": "an input of 0 and -inf that is added masks logits",
    "rope": "rotate before the program",
    "top_k": "it has no tensors of indices",
    "topk": "it has no tensors of indices",
    "tanh": "it has silu, gelu and relu",
    "sigmoid": "it has silu, gelu and relu",
}


def parse(
    name: str,
    formula: str,
    inputs: Mapping[str, Sequence[str]],
    sizes: Mapping[str, int | str],
    params: Mapping[str, float],
    dtype: str = "bf16",
    outputs: Sequence[str] | None = None,
) -> Program:
    """The program of a workload file.

    `outputs` names the assigned tensors to keep; by default the last one assigned. Raises
    PrismError with the line for whatever the language does not know.
    """
    builder = Builder(name, sizes, dtype, params)
    reader = _Reader(builder, {k: builder.input(k, axes) for k, axes in inputs.items()})
    try:
        body = ast.parse(formula).body
    except (RecursionError, MemoryError):
        raise PrismError(f"program {name}: the formula is nested too deeply") from None
    except SyntaxError as error:
        raise PrismError(
            f"program {name}: formula line {error.lineno}: not readable: "
            f"{(error.text or '').strip()!r}"
        ) from None
    if not body:
        raise PrismError(f"program {name}: the formula is empty")
    for statement in body:
        try:
            reader.assign(statement)
        except RecursionError:
            raise reader.fail(statement, "the expression is nested too deeply") from None
    kept = list(outputs) if outputs else [reader.last]
    for output in kept:
        if output not in reader.assigned:
            raise PrismError(f"program {name}: output {output!r} is not assigned by the formula")
    return builder.build(**{output: reader.tensors[output] for output in kept})


class _Reader:
    def __init__(self, builder: Builder, tensors: dict[str, Node]):
        self.builder, self.tensors = builder, dict(tensors)
        self.assigned: set[str] = set()
        self.last = ""

    def fail(self, node: ast.AST, why: str) -> PrismError:
        return PrismError(f"program {self.builder.name}: formula line {node.lineno}: {why}")

    def assign(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=[ast.Name(id=target)], value=value):
                if target in self.tensors:
                    raise self.fail(statement, f"{target!r} is assigned twice")
                result = self.expression(value)
                if not isinstance(result, Node):
                    raise self.fail(statement, f"{target!r} is a constant, not a tensor")
                self.tensors[target] = result
                self.assigned.add(target)
                self.last = target
            case _:
                raise self.fail(statement, "only `NAME = expression` is understood")

    def expression(self, node: ast.expr) -> Node | str:
        """A tensor, or the text of a constant."""
        match node:
            case ast.Name(id=name) if name in self.tensors:
                return self.tensors[name]
            case ast.Name(id=name) if name in self.builder.params or name in self.builder.sizes:
                return name
            case ast.Name(id=name):
                raise self.fail(node, f"{name!r} is not a tensor, a size or a parameter")
            case ast.Constant(value=int() | float()):
                return ast.unparse(node)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self.expression(operand)
                return (
                    self.apply(node, "scale", [value, "-1"])
                    if isinstance(value, Node)
                    else (ast.unparse(node))
                )
            case ast.BinOp(op=op, left=left, right=right):
                values = [self.expression(left), self.expression(right)]
                if not any(isinstance(v, Node) for v in values):
                    return ast.unparse(node)
                if type(op) not in _INFIX:
                    raise self.fail(node, f"operator in {ast.unparse(node)!r} is not understood")
                return self.apply(node, _INFIX[type(op)], values)
            case ast.Call(func=ast.Name(id="sqrt"), args=[arg]) if not self.has_tensor(arg):
                return ast.unparse(node)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self.call(node, name, args)
            case ast.Call(func=ast.Name(id=name), keywords=[ast.keyword(arg=key), *_]):
                raise self.fail(node, f"{name}: takes no `{key}=`; arguments have no names here")
        raise self.fail(node, f"{ast.unparse(node)!r} is not understood")

    def has_tensor(self, node: ast.expr) -> bool:
        return any(isinstance(n, ast.Name) and n.id in self.tensors for n in ast.walk(node))

    def call(self, node: ast.Call, name: str, args: list[ast.expr]) -> Node:
        if name not in _SIGNATURE:
            hint = f" ({_ABSENT[name]})" if name in _ABSENT else ""
            known = ", ".join(sorted(_SIGNATURE))
            raise self.fail(node, f"unknown operator {name!r}{hint}; known are {known}")
        optional = _SIGNATURE[name].endswith("?")
        signature = _SIGNATURE[name].rstrip("?")
        if not len(signature) - optional <= len(args) <= len(signature):
            least = f"{len(signature) - 1} or " if optional else ""
            raise self.fail(
                node, f"{name} takes {least}{len(signature)} argument(s), got {len(args)}"
            )
        values = [
            self.argument(arg, kind, name) for arg, kind in zip(args, signature, strict=False)
        ]
        return self.apply(node, name, values)

    def argument(self, node: ast.expr, kind: str, operator: str) -> Node | str:
        if kind == "a":
            if not isinstance(node, ast.Name):
                raise self.fail(node, f"{operator}: {ast.unparse(node)!r} is not an axis name")
            return node.id
        value = self.expression(node)
        if kind == "t" and not isinstance(value, Node):
            raise self.fail(node, f"{operator}: {ast.unparse(node)!r} is not a tensor")
        if kind == "c" and isinstance(value, Node):
            raise self.fail(node, f"{operator}: {ast.unparse(node)!r} is not a constant")
        return value

    def apply(self, node: ast.AST, operator: str, values: list[Node | str]) -> Node:
        try:
            return getattr(self.builder, operator)(*values)
        except PrismError as error:
            text = str(error).removeprefix(f"program {self.builder.name}: ")
            raise self.fail(node, text) from None
