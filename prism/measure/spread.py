"""How far the logits of a program spread, and what an input must grow by for them to spread enough.

A softmax of nearly equal logits is nearly a mean: its running maximum hardly moves, and a kernel
that forgets to rescale what it summed before the maximum changed is as right as any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from prism.program import Node, Op, Program, evaluate
from prism.program.node import topological

MOST = 64.0  # what an input grows by at most


def spread_logits(program: Program, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`inputs` (floating) with some multiplied by a number in (1, 64], others unchanged.

    For every argument of an exponential, without the masks added to it: where its float64 standard
    deviation is below 1, the first input in which it is linear is divided by that. There is no
    effect where the deviation is 1 or more, where it is 0 or not finite, where no input is found,
    or without an exponential; only with one is anything evaluated.
    """
    inputs = dict(inputs)
    exponents = [unmasked(n.src[0]) for n in program.nodes if n.op is Op.EXP]
    for exponent in dict.fromkeys(exponents):
        name = next(linear_inputs(program, exponent), None)
        if name is None:
            continue
        with np.errstate(all="ignore"):
            deviation = np.std(evaluate(_only(program, exponent), inputs)["X"])
        if 0 < deviation < 1:
            inputs[name] = inputs[name] * np.float32(min(MOST, 1 / deviation))
    return inputs


def _only(program: Program, node: Node) -> Program:
    """The program whose one output, X, is `node`."""
    leaves = {n.arg for n in topological([node]) if n.op is Op.INPUT}
    generated = {name: rule for name, rule in program.generated.items() if name in leaves}
    return replace(program, outputs=(("X", node),), input_order=(), generated=generated)


def unmasked(node: Node) -> Node:
    """`node` without the inputs that are added to it."""
    while node.op is Op.ADD:
        left, right = node.src
        if right.op is Op.INPUT:
            node = left
        elif left.op is Op.INPUT:
            node = right
        else:
            break
    return node


def linear_inputs(program: Program, node: Node) -> Iterator[str]:
    """Names of the arguments in which `node` is linear, through matmuls and scales, left first."""
    if node.op is Op.INPUT and node.arg in program.arguments:
        yield node.arg
    elif node.op is Op.SCALE:
        yield from linear_inputs(program, node.src[0])
    elif node.op is Op.MATMUL:
        for side, other in (node.src, node.src[::-1]):
            elsewhere = {leaf.arg for leaf in topological([other]) if leaf.op is Op.INPUT}
            yield from (n for n in linear_inputs(program, side) if n not in elsewhere)
