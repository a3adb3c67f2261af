"""The modelled time of a tile program on a CPU. It ranks configurations; it is no measurement.

Threads take blocks in turn; a kernel lasts as long as the busiest of them, and waits for memory
where all its tensors together come slower than that. A statement of a block costs
- a product: its multiplications over the rate of the dot product instructions, of which narrow
  tiles waste some; or its larger operand over the rate at which a core draws from the cache;
- another: its elements over the rate of vectors, which tiles of short rows do not reach;
and each execution of it a little. Memory gives short runs slower than long ones.

It ignores: which instructions a processor has, conflicts in caches, clocks, and how well the
compiler does. The rates are of the order that current server cores reach with bf16; as they only
rank, their ratios count.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from prism.codegen.tile import (
    Contract,
    Expr,
    Fill,
    Load,
    Reduce,
    Ref,
    Statement,
    Tensor,
    TileKernel,
    TileProgram,
    View,
)
from prism.instantiate.spans import Span, ceil_div
from prism.model.roofline import ITEM_BYTES
from prism.model.traffic import tensor_bytes
from prism.model.work import weight

THREADS_US = 4.0  # to wake the threads, and to wait for all of them at a kernel's end
STATEMENT_US = 0.05  # of each execution of a statement
PRODUCTS_US = 150e3  # multiplications a microsecond and core
ELEMENTS_US = 6e3  # other operations a microsecond and core
CACHE_US = 22e3  # bytes a microsecond and core, of a product's larger operand
MEMORY_US = 22e3  # bytes a microsecond that all cores draw together, for each core of up to four
VECTOR = 32  # columns that a product's inner loop takes at once
ROWS = 8  # rows of the result that share a load of the larger operand
LONG_RUN = 512  # bytes in a row from which memory gives well
WHOLE_RUN = 2**16  # bytes in a row from which it gives its best


def host_us(program: TileProgram, threads: int) -> float:
    """Modelled microseconds of all kernels, one after another, on so many cores."""
    return sum(_kernel(program, kernel, threads) for kernel in program.kernels)


def _kernel(program: TileProgram, kernel: TileKernel, threads: int) -> float:
    iterations = kernel.loop.count if kernel.loop else 1
    parts = (kernel.pre, 1), (kernel.body, iterations), (kernel.post, 1)
    block = sum(times * _statement(kernel, s) for group, times in parts for s in group)
    computing = ceil_div(kernel.blocks, threads) * block
    reading = sum(
        tensor_bytes(tensor) / _draw(view, tensor, threads)
        for view, tensor in _tensors(program, kernel)
    )
    # They overlap but in part: a pass that waits does not compute.
    return THREADS_US + max(computing, reading) + 0.3 * min(computing, reading)


def _tensors(program: TileProgram, kernel: TileKernel) -> Iterable[tuple[View, Tensor]]:
    for view in program.touched(kernel):
        tensor = program.tensors[view.tensor]
        if tensor.role != "temp":  # those stay in the caches
            yield view, tensor


def _draw(view: View, tensor: Tensor, threads: int) -> float:
    """Bytes a microsecond from memory, where a tile's contiguous runs are as long as they are."""
    run = ITEM_BYTES[tensor.dtype]
    for span in reversed(view.spans):
        run *= span.extent
        if span.extent != span.size:
            break
    share = 0.5 + 0.35 * min(1.0, run / LONG_RUN) + 0.15 * min(1.0, run / WHOLE_RUN)
    return MEMORY_US * min(threads, 4) * share


def _statement(kernel: TileKernel, s: Statement) -> float:
    """Microseconds of one execution in one block."""
    if isinstance(s, Load):
        return 0.0
    if isinstance(s, Fill):
        return kernel.buffers[s.buffer].size / ELEMENTS_US
    if isinstance(s, Contract):
        return STATEMENT_US + _contract(s)
    reduced = (s.axis,) if isinstance(s, Reduce) else ()
    row = max((span.extent for span in (*s.spans[-1:], *reduced)), default=1)
    elements = _elements((*s.spans, *reduced)) * (1 + _weight(s.expr))
    return STATEMENT_US + elements / (ELEMENTS_US * min(1.0, row / VECTOR))


def _contract(s: Contract) -> float:
    batch, rows, cols = (_elements(spans) for spans in (s.batch, s.rows, s.cols))
    inner = s.inner.extent
    padded = ceil_div(rows, ROWS) * ROWS if rows > ROWS / 2 else rows
    wide = ceil_div(cols, VECTOR) * VECTOR
    products = batch * padded * wide * inner / PRODUCTS_US
    # Results are read and written once for so many steps.
    results = batch * rows * wide * 8 * ceil_div(inner, 64) / CACHE_US / 2
    drawn = batch * ceil_div(rows, 4 * ROWS) * cols * inner * 2 / CACHE_US
    return max(products, drawn) + results + batch * STATEMENT_US


def _elements(spans: Iterable[Span]) -> int:
    return prod(span.extent for span in spans)


def _weight(expr: Expr) -> float:
    return 0.0 if isinstance(expr, Ref) else weight(expr)
