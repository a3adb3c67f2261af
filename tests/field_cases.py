"""Small programs from the field, as data, and what is done with each: see FieldCase.

`right` is written from the definition, in float64 PyTorch, not with anything of Prism.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from one_source import compiled
from plans import plans
from triton_interpreter import run_all

from prism.codegen import BACKENDS
from prism.codegen.interpreter import run
from prism.codegen.lower import lower
from prism.files import write_json
from prism.measure.gate import Gate, blind
from prism.measure.inputs import Rotation, make_inputs, round_to, widen, write_case
from prism.measure.library import gate_library
from prism.measure.torch_program import from_torch, to_torch, torch_callable
from prism.program import Program, evaluate, parse

TRITON = BACKENDS["triton"]
SEVERAL = 6  # concrete graphs of each plan in the interpreter, which costs little
OPTIONS = {"num_warps": 4, "num_stages": 2}
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class FieldCase:
    """A program with sizes, its inputs and right values, and the public issue it came from.

    `inputs` maps names to axes; `sizes` is "n=1 d=16". `make(arrays)` changes the random inputs,
    `right(**tensors)` gives the outputs in float64 from the inputs as they are rounded to dtype.
    `exact` is how near the float64 reference comes to it, relative to the largest value.
    `wrong` are functions like `right` whose values the gate must fail, by what is wrong in them.
    """

    name: str
    issue: str
    formula: str
    inputs: Mapping[str, str]
    sizes: str
    right: Callable
    make: Callable[[dict[str, np.ndarray]], Arrays] = lambda arrays: arrays
    dtype: str = "fp32"
    params: Mapping[str, float] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("O",)
    exact: float = 1e-12
    wrong: Mapping[str, Callable] = field(default_factory=dict)

    @cached_property
    def program(self) -> Program:
        sizes = {k: int(v) for k, v in (one.split("=") for one in self.sizes.split())}
        axes = {name: axes.split() for name, axes in self.inputs.items()}
        arguments = axes, sizes, self.params, self.dtype, self.outputs
        return parse(self.name.replace(" ", "_"), self.formula, *arguments)

    def stored(self, program: Program) -> dict[str, np.ndarray]:
        """Inputs in storage form."""
        wide = {n: widen(a, program.dtype) for n, a in make_inputs(program, 0).items()}
        return {n: round_to(a, program.dtype) for n, a in dict(self.make(wide)).items()}

    def expected(self, wide: Arrays, wrong: str = "") -> dict[str, np.ndarray]:
        """Right outputs for inputs in float64, or those of an entry of `wrong`."""
        function = self.wrong[wrong] if wrong else self.right
        found = function(**{n: torch.from_numpy(a) for n, a in wide.items()})
        found = found if isinstance(found, tuple) else (found,)
        return {n: np.asarray(x) for n, x in zip(self.outputs, found, strict=True)}


def check_reference(case: FieldCase) -> None:
    """(a) The float64 reference, and the interpreter of every plan, against the right values."""
    program = case.program
    wide = {n: widen(a, case.dtype) for n, a in case.stored(program).items()}
    expected = case.expected(wide)
    close(evaluate(program, wide), expected, case.exact)
    found = plans(program)
    assert "whole" in found
    for plan, concretes in found.items():
        for concrete in concretes[:SEVERAL]:
            what = f"{plan} {concrete.sizes}"
            close(run(lower(concrete), wide, np.float64), expected, max(case.exact, 1e-9), what)


def close(found: Arrays, expected: Arrays, tolerance: float, what: str = "") -> None:
    """Equal shapes and masks, and values near in the scale of the largest of an output."""
    for name, right in expected.items():
        scale = np.max(np.abs(right), where=np.isfinite(right), initial=0.0)
        np.testing.assert_allclose(
            found[name], right, rtol=0, atol=tolerance * scale, err_msg=f"{what} {name}"
        )


def gate_of(case: FieldCase, program: Program, folder) -> Gate:
    """The gate, with eager's outputs; its reference is the right value (see check_reference)."""
    written = write_case(program, folder, 0, 1 << 20, case.stored(program))
    tensors = [to_torch(array.copy(), program.dtype) for array in written.inputs().values()]
    for name, output in zip(written.shapes(), torch_callable(program)(*tensors), strict=True):
        from_torch(output).tofile(folder / f"eager.{name}.raw")
    write_json(folder / "eager.json", {"seconds": 0.0})
    return Gate(written)


def check_cpu(case: FieldCase, folder) -> None:
    """(b) Every plan compiled and run as the CPU backend does, through the gate."""
    gate = gate_of(case, case.program, folder / "case")
    found = {plan: concretes[0] for plan, concretes in plans(case.program).items()}
    libraries = compiled([lower(concrete) for concrete in found.values()], folder)
    rotation = Rotation(gate.case.inputs(), 1)
    for plan, library in zip(found, libraries, strict=True):
        verdict = gate_library(library, gate, rotation)
        assert verdict.passed, f"{case.name}, {plan} {found[plan].sizes}: {verdict.reason}"


def triton_failures(cases: list[FieldCase], folder) -> list[str]:
    """(c) Every plan of every case in Triton's interpreter, through the gate.

    bf16 cases run in fp16: the interpreter does not compute in bf16 (triton#11584).
    """
    gates, jobs, what = [], [], []
    for number, case in enumerate(cases):
        dtype = "fp16" if case.dtype == "bf16" else case.dtype
        program = replace(case.program, dtype=dtype)
        gate = gate_of(case, program, folder / str(number))
        wide = {n: widen(a, dtype).astype(np.float32) for n, a in gate.case.inputs().items()}
        for plan, (concrete, *_) in plans(program, TRITON.library, OPTIONS.items()).items():
            source = TRITON.source(lower(concrete, TRITON.library))
            jobs.append((source, wide, len(jobs) % 2 == 1))  # half of them with other strides
            gates.append(gate)
            what.append(f"{case.name}, {plan} {concrete.sizes}")
    failed = []
    for gate, answer, label in zip(gates, run_all(jobs), what, strict=True):
        if isinstance(answer, str):
            failed.append(f"{label}: {answer}")
            continue
        stored = {name: round_to(array, gate.dtype) for name, array in answer.items()}
        verdict = gate.check(stored)
        if not verdict.passed:
            failed.append(f"{label}: {verdict.reason}")
    return failed


def check_controls(case: FieldCase, folder) -> None:
    """(d) The gate passes the right values, rounded, and fails all wrong ones that differ."""
    gate = gate_of(case, case.program, folder)
    wide = {n: widen(a, case.dtype) for n, a in gate.case.inputs().items()}
    right = {n: round_to(a, case.dtype) for n, a in case.expected(wide).items()}
    assert gate.check(right).passed, gate.check(right).reason
    controls = gate.controls()
    assert blind(controls) == ""
    assert list(controls.values()).count("failed") >= 2, controls
    for label in case.wrong:
        wrong = {n: round_to(a, case.dtype) for n, a in case.expected(wide, label).items()}
        assert not gate.check(wrong).passed, label
