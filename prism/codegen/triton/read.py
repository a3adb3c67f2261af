"""The reading kernel in Triton: one launch that reads every input once and keeps nothing of it.

Its time is what no correct kernel can much undercut while the inputs are not in a cache. It has
the interface of generated modules. Inputs are contiguous, of any dtype; they are read in words of
four bytes (so up to three bytes at the end of an input are not).
"""

from __future__ import annotations

from collections.abc import Sequence

WORD = 4  # bytes
BLOCK = 4096  # words of one program: 16 KiB in flight
WARPS = 8

_TEMPLATE = '''\
"""Reads every input once: what no kernel that needs them can much undercut."""

import triton
import triton.language as tl

INPUTS = {{{inputs}}}
OUTPUTS = {{}}
TEMPS = {{"sink": (({blocks},), "fp32")}}


@triton.jit
def read({parameters}, sink, BLOCK: tl.constexpr):
    block = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
{branches}

def _launch(kernel, grid, *args, **options):
    kernel[grid](*args, **options)


def prism_run(inputs, outputs, temps, launch=_launch):
    options = dict(BLOCK={block}, num_warps={warps}, enable_fp_fusion=True)
    launch(read, ({blocks},), *inputs, *temps, **options)
'''

_BRANCH = """\
    if (block >= {first}) & (block < {end}):
        at = (block - {first}) * BLOCK + lane
        words = {name}.to(tl.pointer_type(tl.int32), bitcast=True)
        found = tl.load(words + at, mask=at < {count}, other=0)
        tl.store(sink + block, tl.sum(found, axis=0).to(tl.float32))
"""


def read_source(sizes: Sequence[int]) -> str:
    """Source of the module for inputs of so many bytes each."""
    branches, inputs, first = [], [], 0
    for number, size in enumerate(sizes):
        count = size // WORD
        end = first + -(-count // BLOCK)
        name = f"in{number}"
        inputs.append(f'"{name}": (({count},), "fp32")')
        if end > first:
            branches.append(_BRANCH.format(first=first, end=end, name=name, count=count))
        first = end
    return _TEMPLATE.format(
        inputs=", ".join(inputs),
        parameters=", ".join(f"in{number}" for number in range(len(sizes))),
        branches="".join(branches) or "    pass\n",
        blocks=max(1, first),
        block=BLOCK,
        warps=WARPS,
    )
