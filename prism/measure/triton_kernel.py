"""A generated Triton module in this process: the call on given tensors, and its gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from prism.codegen.triton import module as generated
from prism.measure.gate import Gate, Verdict
from prism.measure.gate_kernel import gate_kernel
from prism.measure.inputs import Case
from prism.measure.tensors import Copies, TensorOutputs, octets, strided
from prism.measure.timers import Call

OTHERWISE = "non-contiguous inputs"


class TritonKernel:
    """A loaded module with its intermediates. Raises PrismError for a file that is none.

    `reads_only` is for the reading kernel, which is given no outputs.
    """

    def __init__(self, path: Path, case: Case, device: str, reads_only: bool = False):
        self._module = generated.load(path)
        self._temps = generated.temps(self._module, device)
        self._device = device
        self._shapes = {} if reads_only else case.shapes()
        self._dtype = case.dtype

    def bind(self, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]) -> Call:
        """A call on fixed tensors, in the program's order; it returns the outputs."""
        given, made = list(inputs.values()), list(outputs.values())
        run, temps = self._module.prism_run, self._temps

        def call() -> list[torch.Tensor]:
            run(given, made, temps)
            return made

        return call

    def gate(self, gate: Gate, copies: Copies, other_strides: bool = False) -> Verdict:
        """Gates the kernel on the first copy, and on one with `other_strides` where asked to."""
        verdict = self._gate(gate, copies.sets[0], lambda: copies.overwritten(0))
        if not verdict.passed or not other_strides:
            return verdict
        found = self._gate(gate, strided(copies.sets[0]), lambda: "")
        return found if found.passed else replace(found, reason=f"{OTHERWISE}: {found.reason}")

    def _gate(
        self, gate: Gate, inputs: Mapping[str, torch.Tensor], overwritten: Callable[[], str]
    ) -> Verdict:
        outputs = TensorOutputs(self._shapes, self._dtype, self._device)
        call = self.bind(inputs, outputs.tensors)

        def run() -> None:
            call()

        return gate_kernel(gate, outputs, run, overwritten, self._poison)

    def rotating_calls(self, copies: Copies, most: int | None = None) -> list[Call]:
        """One call a copy of the inputs (`most` of them), each with outputs of its own."""
        return [self.bind(inputs, self._outputs()) for inputs in copies.sets[:most]]

    def _outputs(self) -> dict[str, torch.Tensor]:
        outputs = TensorOutputs(self._shapes, self._dtype, self._device)
        outputs.poison(0)
        return outputs.tensors

    def _poison(self, pattern: int) -> None:
        for temp in self._temps:
            octets(temp).fill_(pattern)
