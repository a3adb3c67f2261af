"""The one schedule of a library (predefined) operator.

In a kernel graph a library operator stands for the backend's own kernel of that operator, as a
vendor's matmul does on a GPU. No BLAS is linked into generated code, so that a kernel stays one
file without dependencies: on every backend, the CPU's among them, "library" means the backend's
tile kernels of that one operator (prism_gemm.h for a matmul on the CPU), under the fixed schedule
below, which is not tuned. So a library operator costs what our own plain kernel of it costs, not
what a vendor's does.

The schedule has no loop: a block computes one tile of the output over the whole contracted axis.
It cuts at most three axes of the output: the longest one into tiles of 256 columns, down to 64
where there would be fewer than 64 blocks for the threads; a matmul's batch axes into single
elements; the others into 64 rows, which a core's cache holds. A reduction, whose output is small,
is cut down to single elements instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from prism.instantiate.spans import ceil_div
from prism.program import Op, Program
from prism.program.node import REDUCE
from prism.sgraph import GRID_DIMS, BlockGraph, Kernel, MapVar, make_mapping

BLOCKS = 64  # several a thread, or one on a large CPU
COLUMNS, LEAST_COLUMNS, ROWS = 256, 64, 64  # elements of an output tile along an axis that is cut


def schedule(program: Program, kernel: Kernel) -> tuple[Kernel, Mapping[str, int]]:
    """The kernel that a library operator runs, with its sizes.

    `program` holds the extents of fresh axes too. The grid cuts axes of the output alone, and with
    them the same axes of the operands, so the result is right by construction.
    """
    (saver,) = kernel.block.savers
    counts = _counts(program, kernel)
    grid = dict(zip(GRID_DIMS, counts, strict=False))
    ones = [
        MapVar(node.arg, axis, par)
        for par, axis in grid.items()
        for node in (*kernel.block.loaders, saver)
        if axis in node.axes
    ]
    block = BlockGraph(tuple(grid), None, (saver,))
    sizes = {par: counts[axis] for par, axis in grid.items()}
    return Kernel(block, make_mapping(ones)), sizes


def _counts(program: Program, kernel: Kernel) -> dict[str, int]:
    """The axes to cut, at most one a grid dimension, each with the number of its chunks."""
    operator = kernel.operator
    batched = operator.src if operator.op is Op.MATMUL else ()
    shared = [a for a in operator.axes if batched and all(a in x.axes for x in batched)]
    free = [a for a in reversed(operator.axes) if a not in shared]
    free.sort(key=program.size, reverse=True)
    tile = dict.fromkeys(shared, 1) | dict.fromkeys(free, ROWS)
    if free:
        tile[free[0]] = COLUMNS
    order = [*free[:1], *shared, *free[1:]]
    cut = [a for a in order if program.size(a) > 1][: len(GRID_DIMS)]
    counts = {axis: ceil_div(program.size(axis), tile[axis]) for axis in cut}
    least = 1 if operator.op in REDUCE else LEAST_COLUMNS
    for axis in cut:
        missing = ceil_div(BLOCKS * counts[axis], prod(counts.values()))
        extent = max(least, ceil_div(program.size(axis), missing))
        if extent < tile[axis]:
            counts[axis] = ceil_div(program.size(axis), extent)
    return {axis: count for axis, count in counts.items() if count > 1}
