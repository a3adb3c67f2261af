"""From a tile program to one self-contained C++17 source file."""

from __future__ import annotations

import re
from functools import cache
from math import prod
from pathlib import Path
from textwrap import wrap

from prism.codegen import tile as t
from prism.codegen.about import about, tensors
from prism.codegen.cpu.flags import FLAGS
from prism.codegen.cpu.loops import indent
from prism.codegen.cpu.spelling import CTYPE, span_name
from prism.codegen.cpu.statements import Statements
from prism.codegen.errors import LoweringError

_HERE = Path(__file__).parent
_LIBRARY = "this backend's own kernel at its fixed schedule; no BLAS is linked."
_SIGNATURE = (
    'extern "C" int prism_run(const void* const* inputs, void* const* outputs, int threads)'
)
_PRODUCTS = {"bf16": "a factor beside bf16 is rounded to it where the processor has AVX512-BF16"}
SCHEDULES = ("static", "dynamic")  # of blocks over threads


def source(program: t.TileProgram) -> str:
    """The whole file: its `head`, the tile kernels' text, then `kernels`. It needs no other."""
    return f"{head(program)}\n{headers()}\n{kernels(program)}"


def head(program: t.TileProgram) -> str:
    """Comments: what the file is of, and how to call it."""
    names = (program.inputs, program.outputs)
    inputs, outputs = (tensors(program, group) for group in names)
    call = [
        f"  {_SIGNATURE};",
        f"reads and writes row-major arrays of {program.of.dtype}, in this order:",
        f"  inputs {inputs}; outputs {outputs}.",
        "It returns 0 when the outputs are written, 1 when there is no memory, and 2 when threads",
        "is less than 1. Compile this file with (in one line)",
        *(f"  {line}" for line in wrap(" ".join(FLAGS), 94, break_on_hyphens=False)),
        "The tile library comes first, the same in every file; the generated kernels are at the",
        "end.",
    ]
    return "".join(f"// {line}\n" for line in [*about(program, _PRODUCTS), *call])


@cache
def headers() -> str:
    """prism_tile.h, support.h and what they include, each once, as one text."""
    done: set[str] = set()

    def text(path: Path) -> str:
        if path.name in done:
            return ""
        done.add(path.name)
        body = path.read_text(encoding="utf-8").replace("#pragma once\n", "")
        return re.sub(r'#include "(\w+\.h)"\n', lambda m: text(path.parent / m[1]), body)

    return text(_HERE / "include" / "prism_tile.h") + text(_HERE / "support.h")


def kernels(program: t.TileProgram) -> str:
    """The generated part: a function a kernel, and the entry point.

    Kernels run one after another, each on all threads, in one parallel region: a thread's scratch
    memory and what lies between kernels are allocated once and kept from call to call.
    prism_run returns 0, or 1 when there is no memory, or 2 for fewer than one thread.
    """
    parts = ["#include <algorithm>", ""]
    for index, kernel in enumerate(program.kernels):
        parts += [*_kernel(program, index, kernel), ""]
    return "\n".join(parts + _entry(program)) + "\n"


def _touched(program: t.TileProgram, kernel: t.TileKernel) -> list[tuple[str, bool]]:
    """The tensors in memory of a kernel, each with whether it is written."""
    written = {s.view for s in (*kernel.body, *kernel.post) if isinstance(s, t.Store)}
    return [(view.tensor, view.name in written) for view in program.touched(kernel)]


def _kernel(program: t.TileProgram, index: int, kernel: t.TileKernel) -> list[str]:
    params = ["long block"]
    for tensor, written in _touched(program, kernel):
        kind = CTYPE[program.tensors[tensor].dtype]
        params.append(f"{'' if written else 'const '}{kind}* __restrict g_{tensor}")
    params.append("float* __restrict scratch")
    printer = Statements(program, kernel)
    body = _indices(kernel)
    body += _lengths(kernel, in_loop=False)
    place = 0
    for name, buffer in kernel.buffers.items():
        shape = ", ".join(f"{s.axis}={s.extent}" for s in buffer.spans) or "scalar"
        body.append(f"float* __restrict {name} = scratch + {place};  // {shape}")
        place += _aligned(buffer.size)
    body += [line for s in kernel.pre for line in printer.print(s)]
    if kernel.loop is not None:
        inside = _lengths(kernel, in_loop=True)
        inside += [line for s in kernel.body for line in printer.print(s)]
        head = f"for (long it = 0; it < {_count(kernel.loop)}; ++it) {{"
        body += [head, *indent(inside), "}"]
    post = [line for s in kernel.post for line in printer.print(s)]
    body += _lengths(kernel, in_loop=None, code=post) + post
    grid = ", ".join(f"{p}={n}" for p, n in kernel.grid) or "one block"
    loop = f"; loop {kernel.loop.par}={kernel.loop.count}" if kernel.loop else ""
    head = f"static void kernel{index}({', '.join(params)}) {{"
    notes = [f"// Grid {grid}{loop}."]
    if kernel.operator is not None:
        notes.insert(0, f"// Library operator {kernel.operator.value}: {_LIBRARY}")
    return [*notes, head, *indent(body), "}"]


def _floats(kernel: t.TileKernel) -> int:
    """Floats of a block's buffers."""
    return sum(_aligned(b.size) for b in kernel.buffers.values())


def _aligned(size: int) -> int:
    return (size + 15) // 16 * 16


def _indices(kernel: t.TileKernel) -> list[str]:
    """The block's index along each grid dimension; the last runs fastest."""
    lines, rest = [], "block"
    for position, (par, count) in reversed(list(enumerate(kernel.grid))):
        if count > 1:
            whole = all(n == 1 for _, n in kernel.grid[:position])
            lines.append(f"const long p_{par} = {rest if whole else f'{rest} % {count}'};")
            rest = rest if whole else f"{rest} / {count}"
    return lines


def _lengths(
    kernel: t.TileKernel, in_loop: bool | None, code: list[str] | None = None
) -> list[str]:
    """Lengths of ragged tiles: of blocks, of an iteration, or (None) as accumulators keep them.

    With `code`, only those that it names.
    """
    lines, text = [], None if code is None else "\n".join(code)
    for span in kernel.ragged:
        name = f"const long len_{span_name(span)}"
        if text is not None and not re.search(rf"\blen_{span_name(span)}\b", text):
            continue
        if span.step is None and in_loop is False:
            start = f"p_{span.grid} * {span.tile}"
            lines.append(f"{name} = std::min({span.tile}L, {span.size} - {start});")
        elif span.step is not None and in_loop is not False:
            start = f" - it * {span.step}" if in_loop else ""
            lines.append(f"{name} = std::min({span.step}L, {_whole(span)}{start});")
    return lines


def _whole(span: t.Span) -> str:
    """Elements of the block's chunk of a loop-cut axis."""
    if span.last == span.tile:
        return f"{span.tile}L"
    return f"std::min({span.tile}L, {span.size} - p_{span.grid} * {span.tile})"


def _count(loop: t.Loop) -> str:
    if loop.span is None:
        return str(loop.count)
    return f"({_whole(loop.span)} + {loop.span.step - 1}) / {loop.span.step}"


def _entry(program: t.TileProgram) -> list[str]:
    schedule = program.options.get("schedule", SCHEDULES[0])
    if schedule not in SCHEDULES:
        raise LoweringError(f"option schedule={schedule!r} is not one of {', '.join(SCHEDULES)}")
    body = ["if (threads < 1) return 2;"]
    for group, names, const in (
        ("inputs", program.inputs, "const "),
        ("outputs", program.outputs, ""),
    ):
        for index, name in enumerate(names):
            kind = f"{const}{CTYPE[program.tensors[name].dtype]}*"
            body.append(f"auto* g_{name} = static_cast<{kind}>({group}[{index}]);")
    body += _temps(program)
    body.append("int failed = 0;")
    floats = max(_floats(kernel) for kernel in program.kernels)
    body += [
        "#pragma omp parallel num_threads(threads) reduction(| : failed)",
        "{",
        "  static thread_local prism::Scratch memory;",
        f"  float* scratch = memory.get({max(floats, 16)});",
        "  if (!scratch) failed = 1;",
    ]
    for index, kernel in enumerate(program.kernels):
        names = [f"g_{tensor}" for tensor, _ in _touched(program, kernel)]
        call = f"kernel{index}({', '.join(['block', *names, 'scratch'])});"
        body += [
            f"#pragma omp for schedule({schedule})",
            f"  for (long block = 0; block < {kernel.blocks}; ++block) {{",
            f"    if (scratch) {call}",
            "  }",
        ]
    body.append("}")
    return [f"{_SIGNATURE} {{", *indent([*body, "return failed;"]), "}"]


def _temps(program: t.TileProgram) -> list[str]:
    """Memory of the tensors between kernels."""
    lines, place = [], 0
    for tensor in program.tensors.values():
        if tensor.role == "temp":
            lines.append(f"float* g_{tensor.name} = temps + {place};")
            place += _aligned(prod(tensor.shape))
    if not lines:
        return []
    return [
        "static thread_local prism::Scratch between;",
        f"float* temps = between.get({place});",
        "if (!temps) return 1;",
        *lines,
    ]
