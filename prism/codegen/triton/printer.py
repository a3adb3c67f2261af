"""From a tile program to one self-contained Python file of Triton kernels."""

from __future__ import annotations

import re
from collections.abc import Iterable

from prism.codegen import tile as t
from prism.codegen.about import about
from prism.codegen.errors import LoweringError
from prism.codegen.triton.axes import Axes, Axis
from prism.codegen.triton.library import library
from prism.codegen.triton.products import PRODUCTS
from prism.codegen.triton.spelling import HELPERS
from prism.codegen.triton.statements import Statements

# Said at every launch, as Triton's default changes: a * b + c rounds once, as on the CPU.
FUSION = {"enable_fp_fusion": True}
WARPS, STAGES = (4, 8, 2, 1), (2, 3, 4, 1)  # of a block; of loads in flight in its loop
_FILE = '''\
"""{about}

prism_run(inputs, outputs, temps) takes sequences of tensors of the shapes and types in INPUTS,
OUTPUTS and TEMPS, in this order and with any strides; temps need not be filled.
"""

{imports}

{tensors}

{helpers}{kernels}

def call(kernel, grid, *args, **options):
    """Launches a kernel, or calls a library operator (grid None)."""
    if grid is None:
        kernel(*args)
    else:
        kernel[grid](*args, **options)


def prism_run(inputs, outputs, temps, launch=call):
{run}
'''


def source(program: t.TileProgram) -> str:
    """The whole file. It needs torch only where a library operator is called.

    Raises LoweringError for tiles that Triton cannot hold and for options it does not know.
    """
    _check_options(program)
    parts, calls = [], []
    for index, kernel in enumerate(program.kernels):
        names = [view.tensor for view in program.touched(kernel)]
        given = [f"g_{name}" for name in names]
        if kernel.operator is not None:
            parts.append(library(program, index, kernel))
            calls.append(f"launch(library{index}, None, {', '.join(given)})")
            continue
        parts.append(_kernel(program, index, kernel))
        given += [f"*g_{name}.stride()" for name in names if program.tensors[name].axes]
        given += [f"{key}={value}" for key, value in sorted((program.options | FUSION).items())]
        calls.append(f"launch(kernel{index}, ({kernel.blocks},), {', '.join(given)})")
    text = "\n\n".join(parts)
    used = {name for name in HELPERS if re.search(rf"\b{name}\(", text)}
    helpers = "".join(f"{body}\n\n" for name, body in HELPERS.items() if name in used)
    roles = {"inputs": program.inputs, "outputs": program.outputs, "temps": _temps(program)}
    run = [f"{_unpacked(names)} = {role}" for role, names in roles.items() if names]
    imports = ["import triton", "import triton.language as tl"]
    if any(kernel.operator is not None for kernel in program.kernels):
        imports.insert(0, "import torch")
    return _FILE.format(
        about="\n".join(about(program, PRODUCTS)),
        imports="\n".join(imports),
        tensors="\n".join(_table(program, role, names) for role, names in roles.items()),
        helpers=helpers,
        kernels=text,
        run=_indented([*run, *calls]),
    )


def _check_options(program: t.TileProgram) -> None:
    known = {"num_warps": WARPS, "num_stages": STAGES}
    for key, value in program.options.items():
        if value not in known.get(key, ()):
            raise LoweringError(f"option {key}={value!r} is not one of {known.get(key, ())}")


def _temps(program: t.TileProgram) -> list[str]:
    return [tensor.name for tensor in program.tensors.values() if tensor.role == "temp"]


def _unpacked(names: Iterable[str]) -> str:
    return "".join(f"g_{name}, " for name in names).rstrip()


def _table(program: t.TileProgram, role: str, names: Iterable[str]) -> str:
    found = {n: (program.tensors[n].shape, program.tensors[n].dtype) for n in names}
    return f"{role.upper()} = {found!r}"


def _indented(lines: Iterable[str], by: int = 4) -> str:
    return "\n".join(" " * by + line for line in lines)


def _kernel(program: t.TileProgram, index: int, kernel: t.TileKernel) -> str:
    axes = Axes(kernel)
    printer = Statements(program, kernel, axes)
    pre = [line for s in kernel.pre for line in printer.print(s)]
    pre = _fresh(kernel, axes, printer) + pre
    printer.in_body = True
    body = [line for s in kernel.body for line in printer.print(s)]
    printer.in_body = False
    post = [line for s in kernel.post for line in printer.print(s)]
    once = _masks(axes, [*pre, *body, *post], in_loop=False)
    lines = [*_place(kernel), *_indices(axes, [*pre, *body, *post, *once]), *once]
    lines += _masks(axes, pre, in_loop=True) + pre
    if kernel.loop is not None and kernel.loop.count == 1:
        lines += body  # in a loop its values would end with it
    elif kernel.loop is not None:
        lines.append(f"for it in range(0, {_count(kernel.loop)}):")
        inside = _masks(axes, body, in_loop=True, iteration=" - i * {}") + body
        if re.search(r"\bi\b", "\n".join(inside)):
            inside = ["i = tl.cast(it, tl.int64)", *inside]
        lines += [f"    {line}" for line in inside]
    lines += _masks(axes, post, in_loop=True) + post
    names = [view.tensor for view in program.touched(kernel)]
    params = [f"g_{name}" for name in names]
    params += printer.strides.values()
    grid = ", ".join(f"{p}={n}" for p, n in kernel.grid) or "one block"
    loop = f"; loop {kernel.loop.par}={kernel.loop.count}" if kernel.loop else ""
    head = f"@triton.jit\ndef kernel{index}({', '.join(params)}):\n    # Grid {grid}{loop}.\n"
    return head + _indented(lines) + "\n"


def _fresh(kernel: t.TileKernel, axes: Axes, printer: Statements) -> list[str]:
    """Buffers that iterations write chunk by chunk, so that they exist before the loop."""
    chunked = {s.out.buffer: s.out for s in kernel.body if getattr(s, "out", None) and s.out.at}
    return [line for name in chunked for line in printer.print(t.Fill(name, 0.0))]


def _place(kernel: t.TileKernel) -> list[str]:
    """The block's index along each grid dimension, 64-bit; the last runs fastest."""
    lines, rest = [], "block"
    for position, (par, count) in reversed(list(enumerate(kernel.grid))):
        if count > 1:
            whole = all(n == 1 for _, n in kernel.grid[:position])
            lines.append(f"p_{par} = {rest if whole else f'{rest} % {count}'}")
            rest = rest if whole else f"{rest} // {count}"
    return ["block = tl.program_id(0).to(tl.int64)", *lines] if lines else []


def _used(name: str, code: Iterable[str]) -> bool:
    return re.search(rf"\b{name}\b", "\n".join(code)) is not None


def _indices(axes: Axes, code: list[str]) -> list[str]:
    lines = []
    for axis in _by_name(axes):
        if not _used(f"o{axis.name}", code):
            continue
        index = f"tl.arange(0, {axis.size}).to(tl.int64)"
        if axis.chunk and axis.chunk != axis.step:
            index = f"tl.arange(0, {axis.size})"
            index = f"({index} // {axis.chunk} * {axis.step} + {index} % {axis.chunk}).to(tl.int64)"
        lines.append(f"o{axis.name} = {index}")
    return lines


def _masks(axes: Axes, code: list[str], in_loop: bool, iteration: str = "") -> list[str]:
    """The masks that the code names: those that hold in the whole block, or those that change from
    iteration to iteration (outside the loop: as in the first)."""
    lines = []
    for axis in _by_name(axes):
        if axis.in_loop != in_loop or not _used(f"m{axis.name}", code):
            continue
        span = axis.span
        length = _whole(span) if span.ragged else str(span.extent)
        if in_loop:
            left = length + iteration.format(span.step)
            length = f"tl.minimum({span.step}, {left})"
        mask = f"o{axis.name} < {length}"
        if axis.chunk > axis.step:
            mask = f"({mask}) & (tl.arange(0, {axis.size}) % {axis.chunk} < {axis.step})"
        lines.append(f"m{axis.name} = {mask}")
    return lines


def _by_name(axes: Axes) -> list[Axis]:
    """Each axis once: spans with one name have one length."""
    return list({axis.name: axis for axis in axes.by_span.values()}.values())


def _whole(span: t.Span) -> str:
    """Elements of the block's chunk of an axis."""
    if span.last == span.tile:
        return str(span.tile)
    return f"tl.minimum({span.tile}, {span.size} - p_{span.grid} * {span.tile})"


def _count(loop: t.Loop) -> str:
    if loop.span is None:
        return str(loop.count)
    return f"tl.cdiv({_whole(loop.span)}, {loop.span.step})"
