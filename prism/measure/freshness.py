"""Whether a system reads its inputs anew at every call: replayed results and frozen weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from prism.measure.gate import Gate, check
from prism.measure.inputs import Rotation, widen
from prism.program import evaluate

Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


def stale_input(gate: Gate, run: Run) -> str:
    """Reverses one input at a time and runs the system; a reason when that changes nothing.

    Outputs that stay bit for bit the same are right only if the program says so too, which is
    then computed in float64. `run` takes and returns arrays in storage form.
    """
    case = gate.case
    inputs = {name: np.asarray(array) for name, array in case.inputs().items()}
    before = {name: array.copy() for name, array in run(Rotation(inputs, 1).sets[0]).items()}
    for changed, array in inputs.items():
        reversed_ = array.reshape(-1)[::-1].reshape(array.shape)
        variant = Rotation({**inputs, changed: reversed_}, 1).sets[0]
        after = run(variant)
        if any(before[name].tobytes() != after[name].tobytes() for name in before):
            continue
        wide = {name: widen(a, case.dtype) for name, a in variant.items()}
        for name, reference in evaluate(case.program, wide).items():
            if not check(name, after[name], reference, case.dtype, gate.bounds[name]).passed:
                return f"the outputs do not change with input {changed}: it is not read anew"
    return ""
