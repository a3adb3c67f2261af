"""The roofline of a program on a GPU, and the least that any kernel for it takes: modelled."""

from __future__ import annotations

from math import prod

from prism.model.device import Gpu
from prism.program import Op, Program
from prism.program.node import REDUCE

ITEM_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}


def roofline_us(program: Program, gpu: Gpu) -> float:
    """Modelled microseconds: the larger of memory's and the arithmetic units' least time.

    Memory moves each input and each output once at the peak bandwidth, so the bound holds for
    calls that find nothing in the second-level cache (cold); a warm call whose tensors that cache
    holds may be faster. The matrix units do the products, the others the rest, each at its peak
    rate (Williams, Waterman, Patterson, "Roofline", CACM 2009). Operations are those of the program
    as it is written; algebra that saves most of a program's products would be faster still.
    Raises PrismError while a size is symbolic.
    """
    memory = compulsory_bytes(program) / (gpu.bandwidth_gbs * 1e3)
    products = product_flops(program) / (gpu.dot_tflops[program.dtype] * 1e6)
    others = other_flops(program) / (gpu.fp32_tflops * 1e6)
    return max(memory, products, others)


def least_us(program: Program, gpu: Gpu) -> float:
    """Modelled microseconds below which a cold time is wrong, whatever algebra the kernel uses.

    Inputs must come from memory. Operations do not count, as an equal program may have fewer; nor
    do outputs as far as the second-level cache can hold them back.
    """
    item = ITEM_BYTES[program.dtype]
    inputs = item * sum(prod(program.shape(node)) for node in program.arguments.values())
    outputs = compulsory_bytes(program) - inputs
    moved = inputs + max(0.0, outputs - gpu.l2_mib * 2**20)
    return moved / (gpu.bandwidth_gbs * 1e3)


def compulsory_bytes(program: Program) -> int:
    """Bytes that any implementation moves: inputs and outputs once, in the program's dtype."""
    tensors = [*program.arguments.values(), *(node for _, node in program.outputs)]
    return ITEM_BYTES[program.dtype] * sum(prod(program.shape(node)) for node in tensors)


def product_flops(program: Program) -> int:
    """Operations of the matmuls: a multiplication and an addition a term."""
    products = [n for n in program.nodes if n.op is Op.MATMUL]
    return sum(2 * prod(program.shape(n)) * program.size(n.arg) for n in products)


def other_flops(program: Program) -> int:
    """Operations of all else: one an element of the result, of a reduction one an operand's."""
    found = 0
    for node in program.nodes:
        if node.op not in (Op.INPUT, Op.MATMUL):
            found += prod(program.shape(node.src[0] if node.op in REDUCE else node))
    return found
