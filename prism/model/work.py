"""Modelled arithmetic of a tile program's statements, on tiles as Triton holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod

from prism.codegen.tile import Call, Contract, Expr, Load, Reduce, Ref, Statement, TileKernel
from prism.codegen.triton.axes import Axes
from prism.instantiate.spans import Span
from prism.model.device import Gpu
from prism.program import Op

# What one element of an operator costs beside an addition. The special function units of a
# multiprocessor do 16 results a clock where the others do 64 to 128 (CUDA C++ programming guide,
# "Arithmetic instructions"); quotients, roots and sigmoids take one or two of them and some steps.
WEIGHT = {
    Op.EXP: 8,
    Op.EXP_SHIFTED: 11,
    Op.RESCALE: 10,
    Op.SQRT: 8,
    Op.DIV: 10,
    Op.SILU: 18,
    Op.GELU: 40,
    Op.RELU: 2,
}


@dataclass(frozen=True)
class Work:
    """Of one block: `products`, operations of the matrix units; `others`, all other operations;
    `chain`, statements that run one after another, each waiting for the one before."""

    products: float = 0
    others: float = 0
    chain: float = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.products + other.products, self.others + other.others, self.chain + other.chain
        )

    def __mul__(self, times: float) -> Work:
        return Work(self.products * times, self.others * times, self.chain * times)


def work(kernel: TileKernel, axes: Axes) -> Work:
    """Operations of one block, padding included, all iterations together."""
    iterations = kernel.loop.count if kernel.loop else 1
    parts = (kernel.pre, 1), (kernel.body, iterations), (kernel.post, 1)
    found = Work()
    for statements, times in parts:
        for statement in statements:
            found += _work(statement, axes.is_dot, axes.shape) * times
    return found


def whole_work(kernel: TileKernel) -> Work:
    """Operations of a library kernel on whole tensors."""
    is_dot = Axes(kernel).is_dot
    found = Work()
    for statement in (*kernel.pre, *kernel.post):
        found += _work(statement, is_dot, lambda spans: tuple(s.size for s in spans))
    return found


def warp_groups(s: Contract, axes: Axes, gpu: Gpu, warps: int) -> bool:
    """Whether a product is done by Hopper's instructions for four warps (wgmma), which read
    operands from shared memory: those take 64 rows and no batch."""
    rows = prod(axes.shape(s.rows))
    return gpu.arch >= 90 and warps >= 4 and rows >= 64 and not axes.held(s.batch)


def _work(
    statement: Statement,
    is_dot: Callable[[Contract], bool],
    shape: Callable[[Iterable[Span]], tuple[int, ...]],
) -> Work:
    if isinstance(statement, Load):
        return Work()
    if isinstance(statement, Contract):
        spans = (*statement.batch, *statement.rows, *statement.cols, statement.inner)
        terms = prod(shape(spans))
        if is_dot(statement):
            return Work(products=2 * terms, chain=1)
        return Work(others=2 * terms, chain=1)
    spans = getattr(statement, "spans", None)
    if spans is None:  # a Fill
        return Work()
    if isinstance(statement, Reduce):
        terms = prod(shape((*spans, statement.axis)))
        return Work(others=terms * (1 + weight(statement.expr)), chain=1)
    return Work(others=prod(shape(spans)) * (1 + weight(statement.expr)))


def weight(expr: Expr) -> int:
    """What an expression costs an element, an addition being 1."""
    if isinstance(expr, Ref):
        return 0
    assert isinstance(expr, Call)
    return WEIGHT.get(expr.op, 1) + sum(map(weight, expr.args))
