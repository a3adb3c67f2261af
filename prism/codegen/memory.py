"""The tensors of a concrete graph: inputs, outputs, what lies between kernels, and masks."""

from __future__ import annotations

from dataclasses import replace

from prism.codegen.errors import LoweringError
from prism.codegen.tile import Tensor
from prism.instantiate.concrete import Concrete
from prism.program import Program


def tensors_of(concrete: Concrete, library: str) -> dict[str, Tensor]:
    """All tensors in memory; raises LoweringError when one is read before it is written."""
    program = concrete.program

    def tensor(name: str, axes: tuple[str, ...], role: str, bound: Program = program) -> Tensor:
        dtype = "fp32" if role == "temp" else program.dtype
        return Tensor(name, axes, tuple(bound.size(a) for a in axes), dtype, role)

    found = {name: tensor(name, node.axes, "input") for name, node in program.arguments.items()}
    for name, rule in program.generated.items():
        shape = program.shape(program.inputs[name])
        found[name] = Tensor(name, rule.axes, shape, "fp32", "mask", rule.shift(*shape))
    outputs = {name: tensor(name, node.axes, "output") for name, node in program.outputs}
    for bound, kernel in zip(concrete.bound, concrete.kernels, strict=True):
        for loader in kernel.block.loaders:
            known = found.get(loader.arg)
            if known is None:
                raise LoweringError(f"load {loader.arg}: nothing has written that tensor")
            if known.axes != loader.axes and (
                known.role in ("input", "mask") or set(known.axes) != set(loader.axes)
            ):
                raise LoweringError(
                    f"load {loader.arg}: has axes {list(loader.axes)}, "
                    f"the tensor {list(known.axes)}"
                )
        for saver in kernel.block.savers:
            name, made, axes = saver.arg, outputs.get(saver.arg), kernel.tensor_axes(saver)
            if name in found:
                raise LoweringError(f"save {name}: that tensor is written already")
            if made is not None and set(made.axes) != set(axes):
                raise LoweringError(
                    f"save {name}: has axes {list(axes)}, the output {list(made.axes)}"
                )
            # A fresh axis is outermost in memory: a block's result is one stretch, and so is each
            # row of what is summed over it.
            axes = axes[len(saver.axes) :] + saver.axes
            found[name] = made or tensor(name, axes, "temp", bound)
            if kernel.library and library == "torch":
                found[name] = replace(found[name], dtype=program.dtype)
    for name in outputs:
        if name not in found:
            raise LoweringError(f"output {name!r} is written by no kernel")
    return found
