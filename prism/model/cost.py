"""The modelled time of a tile program on a GPU. It ranks configurations; it is no measurement.

A kernel's blocks run in waves of as many as the multiprocessors hold. For a wave the model takes
the longest of
- memory: its bytes over the bandwidth, or over what the loads in flight can draw (Little's law:
  bytes in flight over the latency of memory), whichever is slower;
- cache: bytes that the blocks request, and registers that they spill, over the multiprocessors'
  ports;
- products and others: operations over the rate of the multiprocessors in use;
- latency: the statements of a block, one after another;
and of the rest of memory and arithmetic the share that too few blocks, stages and warps leave
uncovered. To that comes one latency of memory for the first load, and the launch of each kernel.

It ignores: bank conflicts, layout conversions and barriers, instruction caches, contention for
channels of memory, clocks that fall under load, and how well the compiler schedules.
"""

from __future__ import annotations

from dataclasses import dataclass

from prism.codegen.tile import Contract, Store, TileKernel, TileProgram
from prism.codegen.triton.axes import Axes
from prism.instantiate.spans import ceil_div
from prism.model.device import THREAD_REGISTERS, WARP, Gpu
from prism.model.registers import registers
from prism.model.shared import operand_bytes
from prism.model.traffic import tensor_bytes, traffic
from prism.model.work import warp_groups, whole_work, work

# Not in data sheets; orders of magnitude as microbenchmarks find them (Abdelkhalik et al.,
# "Demystifying the Nvidia Ampere architecture through microbenchmarking", 2022; Luo et al.,
# "Benchmarking and dissecting the Nvidia Hopper GPU architecture", 2024).
MEMORY_LATENCY_US = 0.6  # of a load from memory, under load
STATEMENT_CYCLES = 150  # of a product or a reduction, until the next statement has its result
PORT_BYTES = 64  # a clock, from the second-level cache into one multiprocessor
FULL_WARPS = 8  # of a multiprocessor: with fewer, its units do not always have work
RESERVED_SHARED = 1024  # bytes that the system takes of each block's shared memory
NO_WGMMA = 0.6  # share of Hopper's rate that the older matrix instructions reach


@dataclass(frozen=True)
class Cost:
    """Modelled. `us` microseconds of all kernels with their launches; `bytes` between memory and
    the second-level cache; `flops` operations, padding included; `waves` of the kernel with most,
    a fraction of one where blocks do not fill the GPU; `occupancy`, the least of a kernel: resident
    warps over the most there may be; `launches` of kernels; `bound` names the largest part of `us`:
    memory, cache, products, others, latency or launch."""

    us: float
    bytes: float
    flops: float
    waves: float
    occupancy: float
    launches: int
    bound: str


def cost(program: TileProgram, gpu: Gpu) -> Cost:
    """Modelled time of the kernels one after another. A block that does not fit (see `fit`) counts
    as one a multiprocessor. Raises LoweringError for a tile that Triton cannot hold."""
    costs = [
        _kernel_cost(program, kernel, gpu)
        if kernel.operator is None
        else _library_cost(program, kernel, gpu)
        for kernel in program.kernels
    ]
    launches = sum(c.launches for c in costs)
    parts = {"launch": gpu.launch_us * launches}
    for one in costs:
        parts[one.bound] = parts.get(one.bound, 0.0) + one.us
    return Cost(
        us=sum(parts.values()),
        bytes=sum(c.bytes for c in costs),
        flops=sum(c.flops for c in costs),
        waves=max(c.waves for c in costs),
        occupancy=min(c.occupancy for c in costs),
        launches=launches,
        bound=max(parts, key=parts.get),
    )


def resident(program: TileProgram, kernel: TileKernel, axes: Axes, gpu: Gpu, wanted: int) -> int:
    """Modelled number of blocks that a multiprocessor holds at once, at least 1; a thread wants
    `wanted` registers."""
    threads = WARP * program.options["num_warps"]
    shared = operand_bytes(program, kernel, axes, gpu) + RESERVED_SHARED
    limits = (
        gpu.blocks_sm,
        gpu.threads_sm // threads,
        gpu.registers // (min(wanted, THREAD_REGISTERS) * threads),
        gpu.shared_sm_kib * 1024 // shared,
    )
    return max(1, min(limits))


def _kernel_cost(program: TileProgram, kernel: TileKernel, gpu: Gpu) -> Cost:
    axes = Axes(kernel)
    moved, done = traffic(kernel, program.tensors, gpu), work(kernel, axes)
    warps = program.options["num_warps"]
    wanted = registers(program, kernel, axes)
    held = resident(program, kernel, axes, gpu, wanted)
    blocks, at_once = kernel.blocks, held * gpu.sms
    iterations = kernel.loop.count if kernel.loop else 1
    # What a thread cannot hold it writes and reads once an iteration.
    spilled = 2 * 4 * max(0, wanted - THREAD_REGISTERS) * WARP * warps * iterations
    cached = moved.cache + blocks * spilled
    # Operations a microsecond and multiprocessor; the peak of fp32 counts an FMA as two.
    dot_rate = gpu.dot_tflops[_dtype(program)] * 1e6 / gpu.sms
    other_rate = gpu.fp32_tflops * 1e6 / 2 / gpu.sms
    statements = (*kernel.pre, *kernel.body, *kernel.post)
    products = [s for s in statements if isinstance(s, Contract) and axes.is_dot(s)]
    # Loads run ahead in loops with products alone.
    piped = iterations > 1 and any(s in kernel.body for s in products)
    stages = program.options["num_stages"] if piped else 1
    if gpu.arch >= 90 and not all(warp_groups(s, axes, gpu, warps) for s in products):
        dot_rate *= NO_WGMMA
    cycle = 1 / gpu.clock_mhz  # microseconds
    # A block has its first loads in flight, then those of the iterations ahead.
    flight = max(moved.first, moved.step * max(1, min(stages - 1, iterations)), 1.0)

    def wave(count: int) -> dict[str, float]:
        """Microseconds of `count` blocks at once, by part."""
        used = min(gpu.sms, count)
        here = ceil_div(count, used)  # blocks of the busiest multiprocessor
        drawn = count * flight / MEMORY_LATENCY_US
        share = count / blocks
        busy = min(1.0, here * warps / FULL_WARPS)
        return {
            "memory": share * moved.memory / min(gpu.bandwidth_gbs * 1e3, drawn),
            "cache": share * cached / (used * PORT_BYTES * gpu.clock_mhz),
            "products": here * done.products / (dot_rate * busy),
            "others": here * done.others / (other_rate * busy),
            "latency": done.chain * STATEMENT_CYCLES * cycle,
        }

    def spent(parts: dict[str, float], count: int) -> float:
        longest = max(parts.values())
        depth = stages * ceil_div(count, gpu.sms)
        moving = max(parts["memory"], parts["cache"])
        computing = parts["products"] + parts["others"]
        return max(longest, moving + computing / depth, computing + moving / depth)

    full, rest = divmod(blocks, at_once)
    us, parts = MEMORY_LATENCY_US, {}
    for times, count in ((full, at_once), (1, rest)):
        if times and count:
            found = wave(count)
            us += times * spent(found, count)
            parts = {k: parts.get(k, 0.0) + times * v for k, v in found.items()}
    return Cost(
        us=us,
        bytes=moved.memory,
        flops=blocks * (done.products + done.others),
        waves=blocks / at_once,
        occupancy=held * warps * WARP / gpu.threads_sm,
        launches=1,
        bound=max(parts, key=parts.get),
    )


def _library_cost(program: TileProgram, kernel: TileKernel, gpu: Gpu) -> Cost:
    """A vendor's kernel at the peak rates, then one that copies its result to where it belongs."""
    done = whole_work(kernel)
    sizes = [tensor_bytes(program.tensors[view.tensor]) for view in program.touched(kernel)]
    stored = [s.view for s in kernel.post if isinstance(s, Store)]
    copied = sum(tensor_bytes(program.tensors[kernel.views[name].tensor]) for name in stored)
    moved = sum(sizes) + 2 * copied
    parts = {
        "memory": moved / (gpu.bandwidth_gbs * 1e3),
        "products": done.products / (gpu.dot_tflops[_dtype(program)] * 1e6),
        "others": done.others / (gpu.fp32_tflops * 1e6 / 2),
    }
    return Cost(
        us=2 * MEMORY_LATENCY_US + max(parts.values()),
        bytes=moved,
        flops=done.products + done.others,
        waves=1.0,
        occupancy=1.0,
        launches=2,
        bound=max(parts, key=parts.get),
    )


def _dtype(program: TileProgram) -> str:
    """Of what the matrix units multiply."""
    return program.tensors[program.outputs[0]].dtype
