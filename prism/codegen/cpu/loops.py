"""Loop nests over the axes of a tile: neighbouring axes that are one stretch become one loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prism.codegen.cpu.spelling import extent, total
from prism.instantiate.spans import Span


@dataclass(frozen=True)
class ForLoop:
    """One loop: its variable, its length in C++, and each operand's stride in elements."""

    var: str
    length: str
    strides: Mapping[str, int]

    def open(self) -> str:
        """Its first line."""
        return f"for (long {self.var} = 0; {self.var} < {self.length}; ++{self.var}) {{"


def nest(spans: Iterable[Span], operands: Mapping[str, Mapping[str, int]]) -> list[ForLoop]:
    """The loops over `spans`, outermost first; `operands` has the strides of each by axis.

    Axes of one element vanish, and an axis merges with the one inside it when that one is never
    ragged and every operand steps through both with one stride. A merged loop has the name of its
    outermost axis.
    """
    found: list[ForLoop] = []
    inner: Span | None = None
    for span in reversed(list(spans)):
        if span.extent == 1:
            continue
        strides = {name: by.get(span.axis, 0) for name, by in operands.items()}
        if found and not inner.ragged:
            last = found[-1]
            width = int(last.length) if last.length.isdigit() else 0
            if width and all(strides[n] == last.strides[n] * width for n in operands):
                length = extent(span)
                length = str(int(length) * width) if length.isdigit() else f"{length} * {width}"
                found[-1] = ForLoop(f"i_{span.axis}", length, last.strides)
                inner = span
                continue
        found.append(ForLoop(f"i_{span.axis}", extent(span), strides))
        inner = span
    return found[::-1]


def at(name: str, loops: Iterable[ForLoop]) -> str:
    """The index of an operand inside the loops."""
    return total([(loop.var, loop.strides[name]) for loop in loops])


def wrap(loops: list[ForLoop], body: list[str], simd: bool = False) -> list[str]:
    """The body inside the loops; `simd` marks the innermost one."""
    for depth, loop in enumerate(reversed(loops)):
        pragma = ["#pragma omp simd"] if simd and depth == 0 else []
        body = [*pragma, loop.open(), *indent(body), "}"]
    return body


def indent(lines: Iterable[str]) -> list[str]:
    """Two spaces more; preprocessor lines stay at the margin."""
    return [line if line.startswith("#") or not line else "  " + line for line in lines]
