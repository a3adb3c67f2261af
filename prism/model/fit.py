"""Whether a tile program's blocks fit on a GPU: an estimate, made before compiling.

Two reasons rule a program out. It cannot run: its shared memory is more than a block may have, or
a tile more than Triton holds; that estimate is rather too high than too low. Or it would live on
spilled registers, more than a thread has (1020 bytes). That estimate is coarse, and `SPILLING` is
where it pays: of 550 compiled configurations of the five workloads (sm_80 and sm_90, Triton 3.9) it
lost 6% of those that fit, 2% of those that spill nothing, and caught 57% of those that spill more.
What is estimated at 1.5 times the limit of shared memory or more, or at more than 1.2 times
`SPILLING` registers, was never compiled: how many that fit are lost there is not known. The
guarantee that nothing is tried that does not fit is of shared memory alone, in those samples.
"""

from __future__ import annotations

from dataclasses import dataclass

from prism.codegen.errors import LoweringError
from prism.codegen.tile import Contract, Reduce, Statement, TileKernel, TileProgram
from prism.codegen.triton.axes import Axes
from prism.instantiate.spans import Span
from prism.model.device import THREAD_REGISTERS, Gpu
from prism.model.registers import registers
from prism.model.shared import shared_bytes

SPILLING = 500  # estimated registers a thread, of which it has 255: the compiler needs fewer


@dataclass(frozen=True)
class Fit:
    """Estimated: shared memory of a block in bytes, registers of a thread, and the `reason` why the
    program cannot run or is not worth compiling, "" where it fits."""

    shared_bytes: int
    registers: int
    reason: str


def fit(program: TileProgram, gpu: Gpu) -> Fit:
    """The most that one of the program's kernels takes. Library operators, which bring kernels of
    their own, always fit."""
    own = [kernel for kernel in program.kernels if kernel.operator is None]
    fits = [kernel_fit(program, kernel, gpu) for kernel in own]
    reason = next((f.reason for f in fits if f.reason), "")
    most = [(f.shared_bytes, f.registers) for f in fits] or [(0, 0)]
    return Fit(max(s for s, _ in most), max(r for _, r in most), reason)


def kernel_fit(program: TileProgram, kernel: TileKernel, gpu: Gpu) -> Fit:
    """The estimate for one kernel that Triton compiles."""
    try:
        axes = Axes(kernel)
        for statement in (*kernel.pre, *kernel.body, *kernel.post):
            axes.shape(_widest(statement, axes))
        shared = shared_bytes(program, kernel, axes, gpu)
        wanted = registers(program, kernel, axes)
    except LoweringError as error:
        return Fit(0, THREAD_REGISTERS, str(error))
    limit, reason = gpu.shared_kib * 1024, ""
    if shared > limit:
        reason = f"about {shared} bytes of shared memory a block, the limit is {limit}"
    elif wanted > SPILLING:
        reason = f"about {wanted} registers a thread, of which there are {THREAD_REGISTERS}"
    return Fit(shared, min(wanted, THREAD_REGISTERS), reason)


def _widest(statement: Statement, axes: Axes) -> tuple[Span, ...]:
    """The dimensions of the largest tensor by which a statement is computed."""
    if isinstance(statement, Contract):
        result = (*statement.batch, *statement.rows, *statement.cols)
        return result if axes.is_dot(statement) else (*result, statement.inner)
    if isinstance(statement, Reduce):
        return (*statement.spans, statement.axis)
    return getattr(statement, "spans", ())
