"""Whether a system reads its inputs anew at every call: replayed results and frozen weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from prism.measure.gate import Error, Gate, check
from prism.measure.inputs import Rotation, widen
from prism.program import evaluate

Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
SLACK = 2.0  # the gate's bounds are of other values; what is replayed is wrong by far more


def stale_input(gate: Gate, run: Run) -> str:
    """Changes the inputs and runs the system; a reason when its outputs do not follow.

    First one input at a time: outputs that stay bit for bit the same are right only if the program
    says so too, which is then computed in float64. Then all of them, each in another order, with
    outputs that must be right as a whole: one of which a part is replayed changes too. `run` takes
    and returns arrays in storage form.
    """
    inputs = {name: np.asarray(array) for name, array in gate.case.inputs().items()}
    before = {name: array.copy() for name, array in run(Rotation(inputs, 1).sets[0]).items()}
    for changed, array in inputs.items():
        variant = Rotation({**inputs, changed: _reordered(array, 0)}, 1).sets[0]
        after = run(variant)
        if any(before[name].tobytes() != after[name].tobytes() for name in before):
            continue
        if _wrong(gate, variant, after):
            return f"the outputs do not change with input {changed}: it is not read anew"
    all_changed = {name: _reordered(a, n) for n, (name, a) in enumerate(inputs.items())}
    variant = Rotation(all_changed, 1).sets[0]
    if reason := _wrong(gate, variant, run(variant)):
        return f"with other values in the inputs, not all of which are read anew: {reason}"
    return ""


def _reordered(array: np.ndarray, shift: int) -> np.ndarray:
    """Its elements in reverse, rotated by `shift`."""
    return np.roll(array.reshape(-1)[::-1], shift).reshape(array.shape)


def _wrong(gate: Gate, variant: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> str:
    """What is wrong with the outputs for these inputs; empty when nothing is."""
    case = gate.case
    wide = {name: widen(array, case.dtype) for name, array in variant.items()}
    for name, reference in evaluate(case.program, wide).items():
        bound = Error(SLACK * gate.bounds[name].max, SLACK * gate.bounds[name].rms)
        verdict = check(name, outputs[name], reference, case.dtype, bound)
        if not verdict.passed:
            return verdict.reason
    return ""
