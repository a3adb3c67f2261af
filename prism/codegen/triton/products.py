"""In which type the matrix units multiply.

Factors are of the program's type, as the CPU's are: an intermediate is rounded to it. But fp16 ends
at 65504, which exp(11.1) exceeds. So a product with a factor that may hold exponentials (made by
one in this kernel, or fp32 in memory, where an earlier kernel left it) is one of TF32 numbers: as
many bits as fp16 has, and the range of fp32. fp32 programs are multiplied as IEEE numbers.
"""

from __future__ import annotations

from prism.codegen import tile as t
from prism.program import Op

IEEE, TF32 = "ieee", "tf32"
# For the head of generated files.
_CALLS = "and so is what library operators return"
PRODUCTS = {
    "bf16": f"factors are rounded too, {_CALLS}",
    "fp16": "factors are rounded too, but to TF32 those that may be raw exponentials or that "
    f"another kernel left, {_CALLS}",
}


def product_type(program: t.TileProgram, kernel: t.TileKernel, s: t.Contract) -> str:
    """ "fp16" or "bf16", or how fp32 numbers are multiplied: IEEE or TF32."""
    dtype = program.tensors[program.outputs[0]].dtype
    if dtype == "fp32":
        return IEEE
    if dtype == "fp16" and any(may_be_large(program, kernel, name) for name in (s.a, s.b)):
        return TF32
    return dtype


def may_be_large(program: t.TileProgram, kernel: t.TileKernel, name: str) -> bool:
    """Whether a view or buffer may hold exponentials in fp32."""
    view = kernel.views.get(name)
    if view is not None:
        return program.tensors[view.tensor].dtype == "fp32"
    return name in _exponential(kernel)


def _exponential(kernel: t.TileKernel) -> set[str]:
    """The buffers that are computed from exponentials."""
    found: set[str] = set()
    for s in (*kernel.pre, *kernel.body, *kernel.post):
        expr = getattr(s, "expr", None)
        if isinstance(s, t.Store | t.Load | t.Fill):
            continue
        read = {s.a, s.b} if expr is None else set(t.refs(expr))
        if read & found or (expr is not None and _has_exp(expr)):
            found.add(s.out.buffer)
    return found


def _has_exp(expr: t.Expr) -> bool:
    if isinstance(expr, t.Ref):
        return False
    return expr.op is Op.EXP or any(_has_exp(arg) for arg in expr.args)
