"""A program as the plain PyTorch function that a PyTorch user would write, as source and callable.

Compositions that PyTorch has one operator for are recognised: softmax (`torch.softmax`, stable)
and rms_norm (`F.rms_norm`, statistics in fp32); attention (`F.scaled_dot_product_attention`) only
where it is asked for. The rest is one PyTorch operator an operator.
Matrix products are `torch.matmul` on views, with no copy where the layouts allow; `torch.einsum`
is left for what `matmul` cannot say. Shared subexpressions are computed once. Inputs are named
`g_NAME` and values `v_NUMBER`, so that an input may have any name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from prism.errors import PrismError
from prism.measure.compositions import (
    Attention,
    attention_argument,
    rms_norm_argument,
    softmax_argument,
)
from prism.program import Node, Op, Program, constant
from prism.program.mask import Causal
from prism.program.node import topological

_UNARY = {
    Op.EXP: "torch.exp({})",
    Op.SQUARE: "torch.square({})",
    Op.SQRT: "torch.sqrt({})",
    Op.SILU: "F.silu({})",
    Op.GELU: "F.gelu({})",
    Op.RELU: "F.relu({})",
}
_DTYPE = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_BINARY = {Op.ADD: "+", Op.SUB: "-", Op.MUL: "*", Op.DIV: "/"}


class _Writer:
    """Writes the lines; `axes` is the order in which each value is held."""

    def __init__(self, program: Program):
        self.program = program
        self.lines: list[str] = []
        self.constants: list[str] = []  # made once, outside of the function
        self.names: dict[Node, str] = {}
        self.axes: dict[Node, tuple[str, ...]] = {}

    def put(self, node: Node, expression: str, axes: tuple[str, ...]) -> None:
        self.names[node] = f"v_{len(self.lines)}"
        self.axes[node] = axes
        self.lines.append(f"{self.names[node]} = {expression}")

    def permuted(self, node: Node, axes: tuple[str, ...]) -> str:
        """The value with its axes in the order of `axes` (same set), as a view."""
        held = self.axes[node]
        if held == axes:
            return self.names[node]
        order = [held.index(a) for a in axes]
        swapped = list(range(len(axes) - 2)) + [len(axes) - 1, len(axes) - 2]
        if order == swapped:
            return f"{self.names[node]}.mT"
        return f"{self.names[node]}.permute({', '.join(map(str, order))})"

    def aligned(self, node: Node, axes: tuple[str, ...]) -> str:
        """The value as it broadcasts against `axes`."""
        held = set(self.axes[node])
        text = self.permuted(node, tuple(a for a in axes if a in held))
        inside = [a in held for a in axes]
        if True not in inside or all(inside[inside.index(True) :]):
            return text  # missing axes lead: PyTorch broadcasts by itself
        if inside == [True] * (len(axes) - 1) + [False]:
            return f"{text}.unsqueeze(-1)"
        index = ", ".join(":" if i else "None" for i in inside)
        return f"{text}[{index}]"

    def shape(self, axes: tuple[str, ...]) -> str:
        return ", ".join(str(self.program.size(a)) for a in axes)

    def matmul(self, node: Node) -> None:
        a, b = node.src
        k = node.arg
        held_a, held_b = self.axes[a], self.axes[b]
        batch = tuple(x for x in held_a if x in held_b and x != k)
        left = tuple(x for x in held_a if x not in held_b)
        right = tuple(x for x in held_b if x not in held_a)
        if not batch and len(right) == 1 and len(left) >= 1:
            x, y = self.permuted(a, (*left, k)), self.permuted(b, (k, *right))
            return self.put(node, f"torch.matmul({x}, {y})", left + right)
        if not batch and len(left) == 1 and len(right) > 1:
            x, y = self.permuted(b, (*right, k)), self.permuted(a, (k, *left))
            return self.put(node, f"torch.matmul({x}, {y})", right + left)
        if len(left) == 1 and len(right) == 1:
            x, y = self.permuted(a, (*batch, *left, k)), self.permuted(b, (*batch, k, *right))
            return self.put(node, f"torch.matmul({x}, {y})", (*batch, *left, *right))
        if len(right) == 1 and held_a == (*batch, *left, k) and left:
            # Several query rows for one set of keys (GQA): fold them into one axis, a view.
            y = self.permuted(b, (*batch, k, *right))
            folded = f"{self.names[a]}.reshape({self.shape(batch)}, -1, {self.shape((k,))})"
            back = self.shape((*batch, *left, *right))
            text = f"torch.matmul({folded}, {y}).reshape({back})"
            return self.put(node, text, (*batch, *left, *right))
        letters = {x: chr(ord("a") + i) for i, x in enumerate(dict.fromkeys(held_a + held_b))}
        spell = lambda axes: "".join(letters[x] for x in axes)  # noqa: E731
        pattern = f"{spell(held_a)},{spell(held_b)}->{spell(node.axes)}"
        text = f"torch.einsum({pattern!r}, {self.names[a]}, {self.names[b]})"
        return self.put(node, text, node.axes)

    def write(self, node: Node) -> None:
        op = node.op
        if op is Op.MATMUL:
            return self.matmul(node)
        held = self.axes[node.src[0]] if node.src else ()
        name = self.names.get(node.src[0], "") if node.src else ""
        if op in _UNARY:
            return self.put(node, _UNARY[op].format(name), held)
        if op is Op.SCALE or op is Op.SHIFT:
            value = constant.evaluate(node.arg, self.program.env)
            return self.put(node, f"{name} {'*' if op is Op.SCALE else '+'} {value!r}", held)
        if op in _BINARY:
            axes = union_axes_held(node, self.axes)
            a, b = (self.aligned(s, axes) for s in node.src)
            return self.put(node, f"{a} {_BINARY[op]} {b}", axes)
        if op in (Op.SUM, Op.MAX):
            call = "torch.sum" if op is Op.SUM else "torch.amax"
            where = held.index(node.arg)
            rest = held[:where] + held[where + 1 :]
            return self.put(node, f"{call}({name}, dim={where - len(held)})", rest)
        raise PrismError(f"program {self.program.name}: operator {op.value} has no PyTorch form")


def union_axes_held(node: Node, axes: Mapping[Node, tuple[str, ...]]) -> tuple[str, ...]:
    """Order of a broadcast result, from the orders in which the operands are held."""
    wide = max(node.src, key=lambda s: len(axes[s]))
    return tuple(dict.fromkeys(a for s in (wide, *node.src) for a in axes[s]))


def _needed(program: Program, attention: bool) -> list[Node]:
    """Nodes to write, sources first: the insides of recognised compositions only if used apart."""
    order: dict[Node, None] = {}

    def visit(node: Node) -> None:
        if node in order:
            return
        for source in _sources(node, program, attention):
            visit(source)
        order[node] = None

    for _, node in program.outputs:
        visit(node)
    position = {n: i for i, n in enumerate(topological(n for _, n in program.outputs))}
    return sorted(order, key=position.__getitem__)


def _sources(node: Node, program: Program, attention: bool) -> tuple[Node, ...]:
    if attention and (parts := attention_argument(node, program)) is not None:
        mask = () if parts.mask is None or _is_causal(parts, program) else (parts.mask,)
        return (parts.q, parts.k, parts.v, *mask)
    if (x := softmax_argument(node)) is not None:
        return (x,)
    if (norm := rms_norm_argument(node, program)) is not None:
        return (norm[0],)
    return node.src


def torch_source(program: Program, attention: bool = False, device: str = "cpu") -> str:
    """Source of `def program(inputs...)`, returning the outputs in the program's order.

    Masks that follow from indices are constants beside it, on `device`.
    """
    writer = _Writer(program)
    for name, node in program.inputs.items():
        writer.names[node], writer.axes[node] = f"g_{name}", node.axes
    needed = _needed(program, attention)
    for name, rule in program.generated.items():
        if program.inputs[name] in needed:
            writer.constants.append(f"g_{name} = {_causal(program, rule, device)}")
    for node in needed:
        if node.op is Op.INPUT:
            continue
        if attention and (parts := attention_argument(node, program)) is not None:
            _write_attention(writer, node, parts)
        elif (x := softmax_argument(node)) is not None:
            axis = writer.axes[x].index(node.src[1].arg) - len(writer.axes[x])
            writer.put(node, f"torch.softmax({writer.names[x]}, dim={axis})", writer.axes[x])
        elif (norm := rms_norm_argument(node, program)) is not None:
            _write_rms_norm(writer, node, *norm)
        else:
            writer.write(node)
    results = []
    for _, node in program.outputs:
        text = writer.permuted(node, node.axes)
        results.append(text if text == writer.names[node] else f"{text}.contiguous()")
    body = "".join(f"    {line}\n" for line in writer.lines)
    arguments = ", ".join(writer.names[node] for node in program.arguments.values())
    made = "".join(f"{line}\n" for line in writer.constants)
    return f"{made}def program({arguments}):\n{body}    return [{', '.join(results)}]\n"


def _causal(program: Program, rule: Causal, device: str) -> str:
    """The mask as a tensor of the program's dtype."""
    queries, keys = (program.size(axis) for axis in rule.axes)
    made = f'dtype=torch.{_DTYPE[program.dtype]}, device="{device}"'
    above = rule.shift(queries, keys) + 1
    return f'torch.full(({queries}, {keys}), float("-inf"), {made}).triu({above})'


def _write_attention(writer: _Writer, node: Node, parts: Attention) -> None:
    """One call on four axes, as fused kernels want them: two of the batch, rows, width.

    Query rows that share their keys (GQA) are folded into one axis, a view where layouts allow.
    """
    batch = tuple(a for a in writer.axes[parts.k] if a in parts.batch)
    rows = tuple(a for a in writer.axes[parts.q] if a not in batch and a != parts.inner)
    sizes = [writer.program.size(a) for a in batch]
    two = (math.prod(sizes[:-1]), sizes[-1] if sizes else 1)

    def folded(value: Node, middle: tuple[str, ...], last: str) -> str:
        text = writer.permuted(value, (*batch, *middle, last))
        if len(batch) == 2 and len(middle) == 1:
            return text
        extent = math.prod(writer.program.size(a) for a in middle)
        return f"{text}.reshape({two[0]}, {two[1]}, {extent}, {writer.program.size(last)})"

    q = folded(parts.q, rows, parts.inner)
    k = folded(parts.k, (parts.keys,), parts.inner)
    v = folded(parts.v, (parts.keys,), parts.value)
    masked = f", {mask}" if (mask := _attention_mask(writer, parts, batch, rows, two)) else ""
    text = f"F.scaled_dot_product_attention({q}, {k}, {v}{masked}, scale={parts.scale!r})"
    axes = (*batch, *rows, parts.value)
    if len(batch) != 2 or len(rows) != 1:
        text += f".reshape({writer.shape(axes)})"
    writer.put(node, text, axes)


def _is_causal(parts: Attention, program: Program) -> bool:
    """Whether the mask is that of PyTorch's `is_causal`, which aligns first query and first key."""
    if parts.mask is None or parts.mask.arg not in program.generated:
        return False
    rule = program.generated[parts.mask.arg]
    rows = [a for a in parts.q.axes if a not in parts.batch and a != parts.inner]
    aligned = rule.shift(*program.shape(parts.mask)) == 0
    return aligned and rule.axes == (*rows, parts.keys)


def _attention_mask(
    writer: _Writer, parts: Attention, batch: tuple, rows: tuple, two: tuple[int, int]
) -> str:
    """The argument for the mask; one that is constant is folded outside of the function."""
    if parts.mask is None:
        return ""
    if _is_causal(parts, writer.program):
        return "is_causal=True"
    axes = (*batch, *rows, parts.keys)
    text = writer.aligned(parts.mask, axes)
    if len(batch) != 2 or len(rows) != 1:
        extent = math.prod(writer.program.size(a) for a in rows)
        wide = f"{text}.expand({writer.shape(axes)})"
        text = f"{wide}.reshape({two[0]}, {two[1]}, {extent}, {writer.program.size(parts.keys)})"
    if parts.mask.arg in writer.program.generated and text != writer.names[parts.mask]:
        name = f"mask_{len(writer.constants)}"
        writer.constants.append(f"{name} = {text}")
        text = name
    return f"attn_mask={text}"


def _write_rms_norm(writer: _Writer, node: Node, x: Node, axis: str, eps: float) -> None:
    held, name = writer.axes[x], writer.names[x]
    if held[-1] == axis:
        text = f"F.rms_norm({name}, ({writer.program.size(axis)},), eps={eps!r})"
        return writer.put(node, text, held)
    wide, dim = f"{name}.float()", held.index(axis) - len(held)
    mean = f"{wide}.square().mean(dim={dim}, keepdim=True)"
    text = f"({wide} * torch.rsqrt({mean} + {eps!r})).to({name}.dtype)"
    return writer.put(node, text, held)


def torch_callable(program: Program, attention: bool = False, device: str = "cpu") -> Callable:
    """The function of `torch_source`, taking the input tensors in the program's order."""
    import torch
    import torch.nn.functional as F

    names = {"torch": torch, "F": F}
    source = torch_source(program, attention, device)
    exec(compile(source, f"<{program.name} in PyTorch>", "exec"), names)
    return names["program"]


def device_of(inputs: Mapping) -> str:
    """Where the tensors are, such as "cpu"; they are on one device."""
    return next((str(tensor.device) for tensor in inputs.values()), "cpu")


def to_torch(array, dtype: str):
    """A tensor that shares memory with an array in storage form (bf16 as uint16)."""
    import torch

    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == "bf16" else tensor


def from_torch(tensor):
    """The array in storage form (bf16 as uint16) of a tensor, contiguous."""
    import numpy as np
    import torch

    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()
