"""A case: the inputs of a program, rounded to its dtype, with their float64 reference, on disk.

Inputs are normal, deterministic for a seed, and rounded to the dtype *before* the reference is
computed, so that the reference is the exact answer to what every system is given. They are scaled
as the tensors of a model are: products of two have entries of about unit size, so that a wrong tile
anywhere shows in the output; and where a program's own scale makes what it exponentiates smaller
than that, an input grows until its standard deviation is 1, so that a softmax spreads over its row.
Child processes map the raw files and make rotating copies larger than the last-level cache.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from prism.errors import PrismError
from prism.files import write_json
from prism.measure.spread import spread_logits
from prism.program import Node, Op, Program, evaluate, program_from_json, program_to_json

STORAGE = {"bf16": np.uint16, "fp16": np.float16, "fp32": np.float32}
ALIGNMENT = 64  # bytes; what torch gives its tensors
MAX_COPIES = 4096


def to_bf16(x: np.ndarray) -> np.ndarray:
    """Bit patterns (uint16) of `x` rounded to bfloat16, to nearest even; NaN stays NaN."""
    x = np.asarray(x)
    with np.errstate(over="ignore", invalid="ignore"):
        single = x.astype(np.float32)
    if x.dtype == np.float64:
        single = _round_to_odd(single, x)  # else the value would be rounded twice
    bits = np.ascontiguousarray(single).view(np.uint32)
    rounded = ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    nan = ((bits >> 16) | 0x40).astype(np.uint16)
    return np.where(np.isnan(single), nan, rounded).reshape(x.shape)


def _round_to_odd(single: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """`exact` cut to float32 with the last bit sticky: rounding it again is then right."""
    single = np.ascontiguousarray(single)
    with np.errstate(invalid="ignore"):
        away = np.isfinite(exact) & (np.abs(single.astype(np.float64)) > np.abs(exact))
        inexact = np.isfinite(exact) & (single.astype(np.float64) != exact)
    bits = single.view(np.uint32) - away.astype(np.uint32)
    return (bits | inexact.astype(np.uint32)).view(np.float32)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """float32 values of bfloat16 bit patterns."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def round_to(x: np.ndarray, dtype: str) -> np.ndarray:
    """`x` rounded to `dtype`, in its storage form (bf16 as uint16)."""
    if dtype == "bf16":
        return to_bf16(x)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(x).astype(STORAGE[dtype])


def widen(x: np.ndarray, dtype: str) -> np.ndarray:
    """float64 values of an array in storage form."""
    return (from_bf16(x) if dtype == "bf16" else np.asarray(x)).astype(np.float64)


def make_inputs(program: Program, seed: int) -> dict[str, np.ndarray]:
    """Normal inputs in storage form; each depends on the seed, its name and its axes only.

    But for a number that `spread_logits` multiplies some by, where exponentials have arguments of a
    standard deviation below 1; where it is 1 or more, and without exponentials, there is none.
    """
    arrays = {}
    for name, node in program.arguments.items():
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        values = rng.standard_normal(program.shape(node), dtype=np.float32)
        arrays[name] = values * np.float32(deviation(program, node))
    spread = spread_logits(program, arrays)
    return {name: round_to(values, program.dtype) for name, values in spread.items()}


def deviation(program: Program, node: Node) -> float:
    """Standard deviation of an input: K ** -1/4, K its longest axis that a matmul contracts.

    A contraction over K products of two such entries has standard deviation 1. `make_inputs` makes
    it larger where logits would be flat.
    """
    contracted = {n.arg for n in program.nodes if n.op is Op.MATMUL}
    extents = [program.size(axis) for axis in node.axes if axis in contracted]
    return max(extents, default=1) ** -0.25


def copies_for(input_bytes: int, cache_bytes: int, most: int = MAX_COPIES) -> int:
    """How many copies of the inputs rotate so that each is out of the cache when it is used next.

    Together at least four times the last-level cache, at least three, at most `most`.
    """
    return min(most, max(3, math.ceil(4 * cache_bytes / max(1, input_bytes))))


def longest_reduction(program: Program) -> int:
    """The largest extent that one operator of the program sums over (1 without any)."""
    reduced = [n.arg for n in program.nodes if n.op in (Op.MATMUL, Op.SUM)]
    return max((program.size(axis) for axis in reduced), default=1)


@dataclass(frozen=True)
class Case:
    """A program with sizes, its inputs and references, in a folder that children map."""

    folder: Path

    @cached_property
    def data(self) -> dict:
        """Content of case.json."""
        return json.loads((self.folder / "case.json").read_text())

    @cached_property
    def program(self) -> Program:
        """The program, with sizes bound."""
        return program_from_json(self.data["program"])

    @property
    def dtype(self) -> str:
        """The program's dtype."""
        return self.program.dtype

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every output."""
        return {name: self.program.shape(node) for name, node in self.program.outputs}

    def inputs(self) -> dict[str, np.ndarray]:
        """Inputs in storage form, mapped read-only."""
        return {
            name: self._map(f"in.{name}.raw", STORAGE[self.dtype], self.program.shape(node))
            for name, node in self.program.arguments.items()
        }

    def references(self) -> dict[str, np.ndarray]:
        """float64 outputs."""
        return {n: self._map(f"ref.{n}.raw", np.float64, s) for n, s in self.shapes().items()}

    def eager(self) -> dict[str, np.ndarray] | None:
        """PyTorch eager's outputs in storage form, or None where it gave none."""
        if not (self.folder / "eager.json").exists():
            return None
        return {
            n: self._map(f"eager.{n}.raw", STORAGE[self.dtype], s) for n, s in self.shapes().items()
        }

    @property
    def eager_record(self) -> dict:
        """What eager's run left: `seconds` and `torch`, or the `reason` why it gave nothing."""
        for name in ("eager.json", "eager_failed.json"):
            if (self.folder / name).exists():
                return json.loads((self.folder / name).read_text())
        return {}

    def _map(self, name: str, dtype, shape: tuple[int, ...]) -> np.ndarray:
        if math.prod(shape) == 0:
            return np.zeros(shape, dtype)
        return np.memmap(self.folder / name, dtype=dtype, mode="r", shape=shape or (1,)).reshape(
            shape
        )


def write_case(
    program: Program,
    folder: Path,
    seed: int,
    cache_bytes: int,
    inputs: Mapping[str, np.ndarray] | None = None,
    memory_bytes: int | None = None,
    most: int = MAX_COPIES,
) -> Case:
    """Writes a case; `inputs` (storage form) replace the random ones.

    There are at most `most` rotating copies, and with outputs of their own they take at most
    `memory_bytes`, but there is always one. Raises PrismError when the disk refuses.
    """
    arrays = dict(inputs) if inputs is not None else make_inputs(program, seed)
    reference = evaluate(program, {n: widen(a, program.dtype) for n, a in arrays.items()})
    total = sum(a.nbytes for a in arrays.values())
    written = sum(a.size for a in reference.values()) * np.dtype(STORAGE[program.dtype]).itemsize
    if memory_bytes is not None:
        most = max(1, min(most, memory_bytes // max(1, total + written)))
    record = {
        "program": program_to_json(program),
        "seed": seed,
        "input_bytes": total,
        "cache_bytes": cache_bytes,
        "copies": copies_for(total, cache_bytes, most),
        "longest_reduction": longest_reduction(program),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in arrays.items():
            np.ascontiguousarray(array).tofile(folder / f"in.{name}.raw")
        for name, array in reference.items():
            array.tofile(folder / f"ref.{name}.raw")
        write_json(folder / "case.json", record)
    except OSError as error:
        why = error.strerror or error
        raise PrismError(f"cannot write the inputs of {program.name} to {folder}: {why}") from None
    return Case(folder)


class Rotation:
    """`copies` anonymous copies of the inputs, 64-byte aligned, as every system is given them."""

    def __init__(self, inputs: Mapping[str, np.ndarray], copies: int):
        padded = sum(-(-a.nbytes // ALIGNMENT) * ALIGNMENT for a in inputs.values())
        self.memory = aligned_bytes(padded * copies)
        self.sets: list[dict[str, np.ndarray]] = []
        offset = 0
        for _ in range(copies):
            arrays = {}
            for name, array in inputs.items():
                view = self.memory[offset : offset + array.nbytes].view(array.dtype)
                arrays[name] = view.reshape(array.shape)
                arrays[name][...] = array
                offset += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
            self.sets.append(arrays)


def aligned_bytes(count: int) -> np.ndarray:
    """A zeroed byte buffer that starts at a multiple of ALIGNMENT."""
    raw = np.zeros(count + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + count]
