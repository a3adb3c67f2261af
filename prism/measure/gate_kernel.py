"""One kernel through the gate: poisoned outputs, guard zones, two patterns, unchanged inputs."""

from __future__ import annotations

from collections.abc import Callable

from prism.measure.gate import POISONS, Gate, Outputs, Verdict, worst


def gate_kernel(
    gate: Gate,
    outputs: Outputs,
    call: Callable[[], object],
    overwritten: Callable[[], str],
    poison: Callable[[int], None] | None = None,
) -> Verdict:
    """Runs the kernel once per poison pattern and checks all it wrote, and what it must not.

    `call` writes to `outputs` and may return a status other than zero; `overwritten` gives a reason
    when an input is not as it was; `poison` fills what else the kernel must not read unwritten.
    """
    verdicts: list[Verdict] = []
    untouched = []

    def failed(reason: str) -> Verdict:
        zero = verdicts[0] if verdicts else gate.check(outputs.arrays)
        return Verdict("FAILED", zero.output, zero.error, zero.bound, reason)

    for pattern in POISONS:
        outputs.poison(pattern)
        if poison is not None:
            poison(pattern)
        if status := call():
            return failed(f"the kernel returned {status}")
        outputs.fetch()
        if reason := outputs.overrun(pattern):
            return failed(reason)
        untouched.append(outputs.untouched(pattern))
        verdicts.append(gate.check(outputs.arrays))
    for name in outputs.arrays:
        missed = untouched[0][name] & untouched[1][name]
        if missed.any():
            return failed(
                f"output {name}: {int(missed.sum())} of {missed.size} elements were never written"
            )
    if reason := overwritten():
        return failed(f"{reason} by the kernel")
    return worst(verdicts)
