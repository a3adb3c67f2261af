"""How the search grows with the program: a family from 3 operators to a decoder layer of 30.

Each program is a beginning, or a part, of a layer of LLaMA's kind at decode. Where one has more
operators than are searched as one, it is cut into pieces, at values that must be in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from prism.program.formula import parse
from prism.program.program import Program
from prism.search.bounds import Bounds
from prism.search.members import operators
from prism.search.search import search

_AXES = {
    "X": "b m",
    "R": "b m",
    "Q": "b g s d",
    "Wq": "m g s d",
    "Wk": "m g d",
    "Wv": "m g e",
    "K": "b g h d",
    "V": "b g h e",
    "Wo": "g s e m",
    "Wgate": "m f",
    "Wup": "m f",
    "Wdown": "f m",
}
_NORM = "N = rms_norm(X, m, eps)"
_PROJECT = f"{_NORM}\nKnew = matmul(N, Wk, m)\nVnew = matmul(N, Wv, m)\nQ = matmul(N, Wq, m)"
_ATTEND = "A = matmul(softmax(matmul(Q, K, d), h), V, h)"
_OUT = "R = sum(sum(matmul(A, Wo, e), s), g) + X"
_GATE = "F = silu(matmul(M, Wgate, m)) * matmul(M, Wup, m)"
_MLP = f"M = rms_norm(R, m, eps)\n{_GATE}"
_DOWN = "O = matmul(F, Wdown, f) + R"

FAMILY: tuple[tuple[str, str, tuple[str, ...]], ...] = (  # name, formula, outputs
    ("softmax", "O = softmax(X, m)", ("O",)),
    ("gate", "F = silu(matmul(X, Wgate, m)) * matmul(X, Wup, m)", ("F",)),
    ("attention", _ATTEND, ("A",)),
    ("norm", _NORM, ("N",)),
    ("norm, linear", f"{_NORM}\nQ = matmul(N, Wq, m)", ("Q",)),
    ("attention, output, residual", f"{_ATTEND}\n{_OUT}", ("R",)),
    ("norm, projections", _PROJECT, ("Knew", "Vnew", "Q")),
    ("norm, gate", _MLP, ("F",)),
    ("norm, gate, down, residual", f"{_MLP}\n{_DOWN}", ("O",)),
    ("output and MLP", f"{_OUT}\n{_MLP}\n{_DOWN}", ("O",)),
    ("attention block", f"{_PROJECT}\n{_ATTEND}\n{_OUT}", ("Knew", "Vnew", "R")),
    ("decoder layer", f"{_PROJECT}\n{_ATTEND}\n{_OUT}\n{_MLP}\n{_DOWN}", ("Knew", "Vnew", "O")),
)


def program(name: str, formula: str, outputs: tuple[str, ...]) -> Program:
    """A member of the family; every size is a symbol."""
    made = {line.partition("=")[0].strip() for line in formula.splitlines()}
    axes = _AXES | {"A": "b g s e"}
    used = [t for t in axes if t not in made and _reads(formula, t)]
    inputs = {t: axes[t].split() for t in used}
    sizes = {axis: axis for names in inputs.values() for axis in names}
    params = {"eps": 1e-5} if "eps" in formula else {}
    return parse(name, formula, inputs, sizes, params, outputs=list(outputs))


def _reads(formula: str, tensor: str) -> bool:
    text = "".join(c if c.isalnum() else " " for c in formula)
    return tensor in text.split()


def growth(
    bounds: Bounds | None = None,
    progress: Callable[[str, int], None] = lambda _stage, _count: None,
    workers: int = 1,
) -> dict:
    """Seconds, memory and graphs of the search of each program of the family, as plain data."""
    rows = []
    for name, formula, outputs in FAMILY:
        progress(name, len(rows))
        found = program(name, formula, outputs)
        result = search(found, bounds, workers=workers)
        rows.append(
            {
                "program": name,
                "operators": operators(tuple(node for _, node in found.outputs)),
                "pieces": len(result.space.pieces),
                "seconds": {**result.seconds, "total": result.total},
                "graphs_log10": math.log10(result.space.count),
                "kernels": sum(k.count for p in result.space.pieces for k in p.kernels),
                "ended": result.ended,
                "limit_s": result.bounds.seconds,
                "peak_mib": result.peak_mib,
            }
        )
    return {"rows": rows}
