"""Whether a tile program's blocks fit on a GPU: an estimate, made before compiling.

What a block holds follows from how Triton lays tiles out: values in registers, spread over the
block's threads; in shared memory the operands that a loop loads for its products, once for each
stage ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from prism.codegen.errors import LoweringError
from prism.codegen.tile import Contract, Load, TileKernel, TileProgram
from prism.codegen.triton.axes import Axes
from prism.model.device import THREAD_REGISTERS, WARP, Gpu
from prism.model.roofline import ITEM_BYTES

OTHER_REGISTERS = 40  # of a thread, for addresses, masks and indices
SPILLED = 4  # times as many registers as a thread has: beyond, a block lives in spilled memory


@dataclass(frozen=True)
class Fit:
    """Estimated: shared memory of a block in bytes, registers of a thread, and the `reason` why the
    program cannot run or is not worth compiling, "" where it can."""

    shared_bytes: int
    registers: int
    reason: str


def fit(program: TileProgram, gpu: Gpu) -> Fit:
    """The estimate for the kernel that takes most."""
    fits = [kernel_fit(program, kernel, gpu) for kernel in program.kernels]
    reason = next((f.reason for f in fits if f.reason), "")
    return Fit(max(f.shared_bytes for f in fits), max(f.registers for f in fits), reason)


def kernel_fit(program: TileProgram, kernel: TileKernel, gpu: Gpu) -> Fit:
    """The estimate for one kernel."""
    axes = Axes(kernel)
    try:
        shared, wanted = _shared(program, kernel, axes), _registers(program, kernel, axes)
    except LoweringError as error:
        return Fit(0, THREAD_REGISTERS, str(error))
    limit = gpu.shared_kib * 1024
    reason = ""
    if shared > limit:
        reason = f"about {shared} bytes of shared memory a block, the limit is {limit}"
    elif wanted > SPILLED * THREAD_REGISTERS:
        reason = f"about {wanted} registers a thread, there are {THREAD_REGISTERS}"
    return Fit(shared, min(wanted, THREAD_REGISTERS), reason)


def _shared(program: TileProgram, kernel: TileKernel, axes: Axes) -> int:
    """Bytes of shared memory."""
    looped = {s.view for s in kernel.body if isinstance(s, Load)}
    ahead = max(1, program.options["num_stages"] - 1)
    found = 0
    for name in _operands(kernel, axes):
        if name in kernel.views:
            found += _bytes(program, kernel, axes, name) * (ahead if name in looped else 1)
    return found


def _operands(kernel: TileKernel, axes: Axes) -> list[str]:
    """What products read, each once."""
    statements = (*kernel.pre, *kernel.body, *kernel.post)
    dots = [s for s in statements if isinstance(s, Contract) and axes.is_dot(s)]
    return list(dict.fromkeys(name for s in dots for name in (s.a, s.b)))


def _bytes(program: TileProgram, kernel: TileKernel, axes: Axes, name: str) -> int:
    if name in kernel.views:
        view = kernel.views[name]
        return prod(axes.shape(view.spans)) * ITEM_BYTES[program.tensors[view.tensor].dtype]
    return prod(axes.shape(kernel.buffers[name].spans)) * ITEM_BYTES["fp32"]


def _registers(program: TileProgram, kernel: TileKernel, axes: Axes) -> int:
    """Registers a thread, were there enough of them."""
    held = [*kernel.views, *kernel.buffers]
    words = sum(_bytes(program, kernel, axes, name) for name in held) / 4
    return OTHER_REGISTERS + round(words / (WARP * program.options["num_warps"]))
