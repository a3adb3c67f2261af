"""The correctness gate: no time is reported for an output that has not passed it.

Error norm. Rows run along the last axis. A row's scale is the root mean square of its float64
reference, at least fp32's unit roundoff times that of the whole output (in rows of fewer than 16
elements, all of it: a few may have cancelled). The error of an element
is its distance from the reference, divided by its row's scale or by its own size, whichever is
larger; `max` is the largest and `rms` the root mean square over the output. So a wrong row is seen
however small its values are, and rounding to the dtype never costs more than its unit roundoff.

Bound. Each of the two at most twice PyTorch eager's (same dtype, same inputs, same device) plus a
floor: (4 for max, 1 for rms) * F with F = u(dtype) + sqrt(K) * u(fp32), K the longest reduction.
An output of fewer than 16 elements is judged by `max` alone, with its 4 F: a mean of so few is no
mean, and one that cancelled decides it.
Eager counts for an output only up to an error of 24 floors (96 F for max, 24 F for rms), so that no
bound reaches the error of zeros (1 in max, in rms a fifth of it), and if at least one of its
elements can be compared. Otherwise it gave nothing usable: its share is then the rounding of the
result alone, and the reason is recorded.

Masks. NaN, +Inf and -Inf must stand exactly where the reference, rounded to the dtype, or eager
has them: where eager overflows and float64 does not, either is accepted for that element. But an
output of whose finite reference no element at all is finite fails, whatever eager has.

Controls. Zeros, a constant, noise and permuted rows must fail in every output, or the gate is
blind for the case and no system of it gets a time. One that equals the reference after rounding
(such as zeros where the program gives zeros) is no control for that output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from prism.measure.inputs import ALIGNMENT, STORAGE, Case, aligned_bytes, round_to, widen

ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24}
EAGER_FACTOR = 2.0
FLOOR = {"max": 4.0, "rms": 1.0}
EAGER_CAP = 24.0  # floors
# Two fills for outputs. 0xFFFF... is a NaN in every dtype; 0x5555... is an unlikely finite number.
POISONS = (0xFF, 0x55)
GUARD_BYTES = 4096
SHORT_ROW = 16  # elements; of fewer, the root mean square says little of what cancelled in them


@dataclass(frozen=True)
class Error:
    """The two norms of the module's docstring."""

    max: float
    rms: float


@dataclass(frozen=True)
class Verdict:
    """PASSED or FAILED with the worst output's numbers and, when FAILED, one line of reason."""

    status: str
    output: str
    error: Error
    bound: Error
    reason: str = ""

    @property
    def passed(self) -> bool:
        """Whether the status is PASSED."""
        return self.status == "PASSED"

    def to_json(self) -> dict:
        """Plain data; an error that is no number (wrong shape, wrong masks) is None."""
        data = asdict(self)
        for part in ("error", "bound"):
            data[part] = {k: v if math.isfinite(v) else None for k, v in data[part].items()}
        return data


def _rows(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, x.shape[-1]) if x.ndim > 1 else x.reshape(1, -1)


def measure_error(value: np.ndarray, reference: np.ndarray) -> Error:
    """Error of float64 `value` against `reference`, over the elements that are finite in both."""
    if reference.size == 0:
        return Error(0.0, 0.0)
    value, reference = _rows(value), _rows(reference)
    known = np.isfinite(reference)
    square = np.square(np.where(known, reference, 0.0))
    rows = np.sqrt(square.sum(axis=1) / np.maximum(known.sum(axis=1), 1))
    whole = math.sqrt(square.sum() / max(1, known.sum()))
    if value.shape[-1] < SHORT_ROW:
        rows = np.maximum(rows, whole)
    scale = np.maximum(rows, max(ROUNDOFF["fp32"] * whole, np.finfo(np.float32).tiny))
    scale = np.maximum(scale[:, None], np.where(known, np.abs(reference), 0.0))
    both = known & np.isfinite(value)
    with np.errstate(invalid="ignore"):
        error = np.where(both, np.abs(value - reference), 0.0) / scale
    rms = math.sqrt(np.square(error).sum() / max(1, both.sum()))
    return Error(float(error.max()), rms)


def bound_of(eager: Error | None, dtype: str, longest_reduction: int) -> tuple[Error, str]:
    """The bound for an output, and why eager has no share in it (empty when it has).

    `eager` is eager's error, None without one.
    """
    unit = ROUNDOFF[dtype] + math.sqrt(longest_reduction) * ROUNDOFF["fp32"]
    floor = Error(FLOOR["max"] * unit, FLOOR["rms"] * unit)
    reason = "" if eager is not None else "eager gave no element to compare"
    for norm in ("max", "rms"):
        most = EAGER_CAP * getattr(floor, norm)
        if not reason and not getattr(eager, norm) <= most:
            reason = f"eager's {norm} error {getattr(eager, norm):.3g} is over {most:.3g}"
    base = Error(ROUNDOFF[dtype], ROUNDOFF[dtype]) if reason else eager
    bound = Error(EAGER_FACTOR * base.max + floor.max, EAGER_FACTOR * base.rms + floor.rms)
    return bound, reason


def comparable(value: np.ndarray, reference: np.ndarray) -> bool:
    """Whether some element is finite in both."""
    return bool((np.isfinite(value) & np.isfinite(reference)).any())


def _kind(x: np.ndarray) -> np.ndarray:
    """0 finite, 1 NaN, 2 +Inf, 3 -Inf."""
    return np.isnan(x) + 2 * np.isposinf(x) + 3 * np.isneginf(x)


_KINDS = ("finite", "NaN", "+Inf", "-Inf")


def check(
    output: str,
    value: np.ndarray,
    reference: np.ndarray,
    dtype: str,
    bound: Error,
    eager: np.ndarray | None = None,
) -> Verdict:
    """One output in storage form against its float64 reference."""
    if value.shape != reference.shape:
        reason = f"output {output}: shape {value.shape} instead of {reference.shape}"
        return Verdict("FAILED", output, Error(math.inf, math.inf), bound, reason)
    wide = widen(value, dtype)
    want, got = _kind(widen(round_to(reference, dtype), dtype)), _kind(wide)
    wrong = got != want
    if eager is not None:
        wrong &= got != _kind(widen(eager, dtype))
    error = measure_error(wide, reference)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        reason = (
            f"output {output}: {int(wrong.sum())} of {wrong.size} elements are "
            f"{_KINDS[int(got[at])]} where {_KINDS[int(want[at])]} is right, first at {list(at)}"
        )
        return Verdict("FAILED", output, Error(math.inf, math.inf), bound, reason)
    if (want == 0).any() and not comparable(wide, reference):
        reason = f"output {output}: no element is finite, so none can be compared"
        return Verdict("FAILED", output, Error(math.inf, math.inf), bound, reason)
    for norm in ("max", "rms") if reference.size >= SHORT_ROW else ("max",):
        if not getattr(error, norm) <= getattr(bound, norm):
            reason = (
                f"output {output}: {norm} error {getattr(error, norm):.3g} is over the bound "
                f"{getattr(bound, norm):.3g}"
            )
            return Verdict("FAILED", output, error, bound, reason)
    return Verdict("PASSED", output, error, bound)


class Gate:
    """The gate of one case: references, eager's outputs and bounds, loaded once."""

    def __init__(self, case: Case):
        self.case, self.dtype = case, case.dtype
        self.references = case.references()
        self.eager = case.eager()
        self.bounds: dict[str, Error] = {}
        self.without_eager: dict[str, str] = {}  # by output: why eager has no share in its bound
        for name, reference in self.references.items():
            error = None
            if self.eager is not None:
                value = widen(self.eager[name], self.dtype)
                error = measure_error(value, reference) if comparable(value, reference) else None
            bound, reason = bound_of(error, self.dtype, case.data["longest_reduction"])
            self.bounds[name] = bound
            if reason:
                self.without_eager[name] = case.eager_record.get("reason", reason)

    def check(self, outputs: dict[str, np.ndarray]) -> Verdict:
        """All outputs (storage form): the first failure, else the one nearest its bound."""
        return worst([self.check_one(name, outputs[name]) for name in self.references])

    def check_one(self, name: str, value: np.ndarray) -> Verdict:
        """One output, in storage form."""
        eager = None if self.eager is None else self.eager[name]
        return check(name, value, self.references[name], self.dtype, self.bounds[name], eager)

    def controls(self) -> dict[str, str]:
        """Each must-fail control by its name: "failed" as it must, or of which outputs it did not.

        "passed for ..." is a blind gate, "no control for ..." an output that it is right for.
        """
        found = {}
        for label in CONTROLS:
            passed, none = [], []
            for name, reference in self.references.items():
                wrong = control(label, reference, self.dtype)
                if same(wrong, round_to(reference, self.dtype), self.dtype):
                    none.append(name)
                elif self.check_one(name, wrong).passed:
                    passed.append(name)
            kinds = (("passed for", passed), ("no control for", none))
            said = [f"{kind} {', '.join(names)}" for kind, names in kinds if names]
            found[label] = "; ".join(said) or "failed"
        return found


def blind(controls: Mapping[str, str]) -> str:
    """Why a case with these `Gate.controls` may have no time, or an empty string."""
    for label, found in controls.items():
        if found.startswith("passed"):
            return f"the gate cannot tell a wrong output from a right one: control {label} {found}"
    return ""


def same(a: np.ndarray, b: np.ndarray, dtype: str) -> bool:
    """Whether two arrays in storage form hold equal values, NaN equal to NaN."""
    return np.array_equal(widen(a, dtype), widen(b, dtype), equal_nan=True)


def worst(verdicts: list[Verdict]) -> Verdict:
    """The first FAILED one, else the one nearest its bound."""
    failed = [v for v in verdicts if not v.passed]
    return failed[0] if failed else max(verdicts, key=lambda v: v.error.rms / v.bound.rms)


CONTROLS = ("zeros", "constant", "noise", "permuted rows")


def control(label: str, reference: np.ndarray, dtype: str) -> np.ndarray:
    """An output that is wrong in the named way, in storage form, masks as in the reference."""
    known = np.isfinite(reference)
    finite = np.where(known, reference, 0.0)
    if label == "zeros":
        wrong = np.zeros_like(finite)
    elif label == "constant":
        wrong = np.full_like(finite, finite.sum() / max(1, known.sum()))
    elif label == "noise":
        scale = math.sqrt(np.square(finite).sum() / max(1, known.sum()))
        wrong = np.random.default_rng(0).standard_normal(finite.shape) * scale
    else:
        rows = _rows(finite) if finite.size else finite
        wrong = np.roll(rows, 1, axis=0 if rows.shape[0] > 1 else -1).reshape(finite.shape)
    return round_to(np.where(known, wrong, reference), dtype)


class Outputs:
    """Poisoned output buffers with guard zones around each, and the checks on them."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], dtype: str):
        self.arrays: dict[str, np.ndarray] = {}
        self.raw: dict[str, np.ndarray] = {}
        item = np.dtype(STORAGE[dtype])
        for name, shape in shapes.items():
            size = math.prod(shape) * item.itemsize
            padded = -(-size // ALIGNMENT) * ALIGNMENT
            raw = aligned_bytes(padded + 2 * GUARD_BYTES)
            self.raw[name] = raw
            self.arrays[name] = raw[GUARD_BYTES : GUARD_BYTES + size].view(item).reshape(shape)

    def poison(self, pattern: int) -> None:
        """Fills outputs and guards with the byte `pattern`."""
        for raw in self.raw.values():
            raw[...] = pattern

    def fetch(self) -> None:
        """Brings what was written into `arrays`; here it is there already."""

    def untouched(self, pattern: int) -> dict[str, np.ndarray]:
        """Per output, which elements still hold the pattern."""
        masks = {}
        for name, array in self.arrays.items():
            octets = np.ascontiguousarray(array).view(np.uint8).reshape(*array.shape, -1)
            masks[name] = (octets == pattern).all(axis=-1)
        return masks

    def overrun(self, pattern: int) -> str:
        """A reason when a guard zone was written, else an empty string."""
        for name, array in self.arrays.items():
            raw, end = self.raw[name], GUARD_BYTES + array.nbytes
            if (raw[:GUARD_BYTES] != pattern).any() or (raw[end:] != pattern).any():
                return f"output {name}: written out of bounds"
        return ""
