"""Inputs and outputs of a case as PyTorch tensors on a device; the gate of calls on them.

Imported only where a child runs PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from prism.errors import PrismError
from prism.measure.freshness import stale_input
from prism.measure.gate import GUARD_BYTES, Gate, Outputs, Verdict, worst
from prism.measure.inputs import Case, Rotation
from prism.measure.timers import Call
from prism.measure.torch_program import from_torch, to_torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
GATE_RUNS = 2
Tensors = dict[str, torch.Tensor]


def set_up(threads: int) -> None:
    """Threads of PyTorch, no gradients, and fp32 as environment.FP32_POLICY says."""
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    torch.set_float32_matmul_precision("highest")


def on_device(arrays: Mapping[str, np.ndarray], dtype: str, device: str) -> Tensors:
    """Tensors of arrays in storage form; on the CPU they share memory."""
    return {name: to_torch(array, dtype).to(device) for name, array in arrays.items()}


def octets(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor."""
    return tensor.reshape(-1).view(torch.uint8)


class Copies:
    """`count` rotating copies of a case's inputs on a device, and one more to compare with.

    On the CPU they lie in the memory of a `Rotation`, as those of compiled kernels do.
    """

    def __init__(self, case: Case, count: int, device: str):
        self.case, self.device = case, device
        if device == "cpu":
            sets = Rotation(case.inputs(), count + 1).sets
            made = [on_device(arrays, case.dtype, device) for arrays in sets]
        else:
            made = _spread(Rotation(case.inputs(), 1), case.dtype, count + 1, device)
        *self.sets, self._original = made

    def overwritten(self, number: int) -> str:
        """A reason when a copy is not as it was, else an empty string."""
        for name, original in self._original.items():
            if not torch.equal(octets(self.sets[number][name]), octets(original)):
                return f"input {name}: overwritten"
        return ""

    def fill(self, number: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Puts other values (storage form) into a copy."""
        for name, tensor in on_device(arrays, self.case.dtype, "cpu").items():
            self.sets[number][name].copy_(tensor)

    def restore(self) -> None:
        """Makes all copies what they were."""
        arrays = Rotation(self.case.inputs(), 1).sets[0]
        for name, tensor in on_device(arrays, self.case.dtype, self.device).items():
            for copy in (*self.sets, self._original):
                copy[name].copy_(tensor)

    def synchronize(self) -> None:
        """Waits for the device; raises what went wrong on it."""
        if self.device == "cuda":
            torch.cuda.synchronize()


def _spread(rotation: Rotation, dtype: str, count: int, device: str) -> list[Tensors]:
    """`count` copies of a rotation's only set, one after another in one allocation."""
    one = torch.from_numpy(rotation.memory).to(device)
    memory = one.repeat(count, 1)
    start = rotation.memory.ctypes.data
    made: list[Tensors] = []
    for row in memory:
        views = {}
        for name, array in rotation.sets[0].items():
            offset = array.ctypes.data - start
            view = row[offset : offset + array.nbytes].view(DTYPES[dtype])
            views[name] = view.view(array.shape)
        made.append(views)
    return made


def strided(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """The same values with other strides: the last two axes the other way round in memory, and of
    one axis every second element."""
    made = {}
    for name, tensor in tensors.items():
        if tensor.ndim >= 2:
            made[name] = tensor.mT.contiguous().mT
        elif tensor.ndim == 1:
            made[name] = torch.stack((tensor, tensor), dim=1)[:, 0]
        else:
            made[name] = tensor.clone()
    return made


class TensorOutputs(Outputs):
    """Poisoned outputs on a device, mirrored by the host bytes on which all checks are made."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], dtype: str, device: str):
        super().__init__(shapes, dtype)
        self.tensors: Tensors = {}
        self._device: Tensors = {}
        for name, array in self.arrays.items():
            octets = torch.empty(self.raw[name].size, dtype=torch.uint8, device=device)
            inside = octets[GUARD_BYTES : GUARD_BYTES + array.nbytes]
            self._device[name] = octets
            self.tensors[name] = inside.view(DTYPES[dtype]).view(array.shape)

    def poison(self, pattern: int) -> None:
        """Fills outputs and guards with the byte `pattern`, there and here."""
        super().poison(pattern)
        for octets in self._device.values():
            octets.fill_(pattern)

    def fetch(self) -> None:
        """Copies all bytes to the host."""
        for name, octets in self._device.items():
            self.raw[name][...] = octets.cpu().numpy()


def fetched(case: Case, outputs: Sequence[torch.Tensor]) -> dict[str, np.ndarray]:
    """Outputs of a call by name, in storage form. Raises PrismError for another number of them."""
    names = list(case.shapes())
    if len(outputs) != len(names):
        raise PrismError(f"{len(outputs)} outputs instead of {len(names)}")
    return {name: from_torch(output) for name, output in zip(names, outputs, strict=True)}


def gate_timed(gate: Gate, copies: Copies, calls: Sequence[Call]) -> Verdict:
    """Gates the very calls that will be timed, one on each copy of the inputs.

    Their outputs are right, their inputs unchanged, and the outputs follow inputs that change in
    place: so neither results nor weights of an earlier call are kept, nor by a captured graph.
    """
    verdicts = []
    for number in range(min(GATE_RUNS, len(calls))):
        verdict = gate.check(fetched(copies.case, calls[number]()))
        if reason := copies.overwritten(number):
            return replace(verdict, status="FAILED", reason=reason)
        verdicts.append(verdict)
    verdict = worst(verdicts)

    def run(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        copies.fill(0, arrays)
        return fetched(copies.case, calls[0]())

    if verdict.passed:
        try:
            reason = stale_input(gate, run)
        finally:
            copies.restore()
        if reason:
            return replace(verdict, status="FAILED", reason=reason)
    return verdict
