"""Library operators: a call of PyTorch, which brings the vendor's kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prism.codegen import tile as t
from prism.codegen.triton.products import IEEE, TF32, product_type
from prism.program import Op

_CALL = {
    Op.EXP: "torch.exp({0})",
    Op.SQUARE: "torch.square({0})",
    Op.SQRT: "torch.sqrt({0})",
    Op.SILU: "torch.nn.functional.silu({0})",
    Op.GELU: "torch.nn.functional.gelu({0})",
    Op.RELU: "torch.relu({0})",
    Op.SCALE: "({0} * {c})",
    Op.SHIFT: "({0} + {c})",
    Op.ADD: "({0} + {1})",
    Op.SUB: "({0} - {1})",
    Op.MUL: "({0} * {1})",
    Op.DIV: "({0} / {1})",
}
_REDUCE = {"sum": "torch.sum({0}, {1})", "max": "torch.amax({0}, {1})"}


def library(program: t.TileProgram, index: int, kernel: t.TileKernel) -> str:
    """The function of a library kernel: the operator on whole tensors, whatever the tiles."""
    held: dict[str, tuple[str, ...]] = {
        name: program.tensors[view.tensor].axes for name, view in kernel.views.items()
    }
    touched = program.touched(kernel)
    spelled = {view.name: f"g_{view.tensor}" for view in touched}
    lines = []
    for name in kernel.views.keys() - spelled.keys():
        mask = program.tensors[kernel.views[name].tensor]
        full = f'torch.full({mask.shape}, float("-inf"), device=g_{touched[-1].tensor}.device)'
        lines.append(f"{name} = {full}.triu({mask.shift + 1})")
        spelled[name] = name
    for s in (*kernel.pre, *kernel.post):
        match s:
            case t.Contract():
                a, b = held[s.a], held[s.b]
                axes = tuple(x.axis for x in (*s.batch, *s.rows, *s.cols))
                first, second = _same_type(program, kernel, s, spelled)
                lines.append(f"{s.out.buffer} = {_einsum(first, a, second, b, axes)}")
            case t.Chain():
                axes = tuple(x.axis for x in s.spans)
                lines.append(f"{s.out.buffer} = {_spell(s.expr, axes, held, spelled)}")
            case t.Reduce():
                axes = tuple(x.axis for x in s.spans)
                value = _spell(s.expr, (*axes, s.axis.axis), held, spelled)
                lines.append(f"{s.out.buffer} = {_REDUCE[s.kind].format(value, -1)}")
            case t.Store():
                axes = held[s.view]
                value = _spell(s.expr, axes, held, spelled)
                lines.append(f"{spelled[s.view]}.copy_({value})")
                continue
            case _:
                continue
        held[s.out.buffer], spelled[s.out.buffer] = axes, s.out.buffer
    params = ", ".join(f"g_{view.tensor}" for view in touched)
    head = f"def library{index}({params}):\n    # Library operator {kernel.operator.value}.\n"
    return head + "\n".join(f"    {line}" for line in lines) + "\n"


def _same_type(program: t.TileProgram, kernel: t.TileKernel, s: t.Contract, spelled) -> list[str]:
    """Both factors in one type: a tensor between kernels may be fp32 (see `products`)."""
    kind = product_type(program, kernel, s)
    dtype = "fp32" if kind in (IEEE, TF32) else kind
    other = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}[dtype]

    def cast(name: str) -> str:
        view = kernel.views.get(name)
        same = view is not None and program.tensors[view.tensor].dtype == dtype
        return spelled[name] if same else f"{spelled[name]}.to({other})"

    return [cast(s.a), cast(s.b)]


def _einsum(first: str, a: Sequence[str], second: str, b: Sequence[str], out: Sequence[str]) -> str:
    letters = {axis: chr(ord("a") + i) for i, axis in enumerate(dict.fromkeys((*a, *b)))}
    pattern = [",".join("".join(letters[x] for x in axes) for axes in (a, b))]
    pattern.append("".join(letters[x] for x in out))
    return f'torch.einsum("{"->".join(pattern)}", {first}, {second})'


def _spell(
    expr: t.Expr,
    want: Sequence[str],
    held: Mapping[str, Sequence[str]],
    spelled: Mapping[str, str],
) -> str:
    """An expression on whole tensors, each as it broadcasts against the axes `want`."""
    if isinstance(expr, t.Call):
        args = [_spell(arg, want, held, spelled) for arg in expr.args]
        return _CALL[expr.op].format(*args, c=expr.constant)
    have, text = list(held[expr.name]), spelled[expr.name]
    order = [axis for axis in want if axis in have]
    if order != have:
        text = f"{text}.permute({', '.join(str(have.index(axis)) for axis in order)})"
    if len(have) not in (0, len(want)):
        text += f"[{', '.join(':' if axis in have else 'None' for axis in want)}]"
    return text
