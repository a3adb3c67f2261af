"""Result rows: the schema, and their file of JSON lines, which is whole or not there."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from prism.errors import PrismError

STATUSES = ("ok", "failed", "suspect", "unavailable")


@dataclass
class Row:
    """One system on one case. Times in microseconds, `*_seconds` in seconds, None is unknown.

    `median_us`, `p20_us`, `p80_us`, `n` and `samples_us` are of the cold state (inputs rotate
    through more memory than the last-level cache holds); `warm_*` repeat one input set. A row
    whose status is not "ok" has a reason, and its times, if any, are not to be compared.
    """

    workload: str
    config: str
    shape: dict[str, int]
    dtype: str
    system: str
    variant: str = ""
    device: str = "cpu"
    status: str = "failed"
    reason: str = ""
    verdict: str | None = None
    error_max: float | None = None
    error_rms: float | None = None
    bound_max: float | None = None
    bound_rms: float | None = None
    controls: dict[str, str] = field(default_factory=dict)
    numerics: str = "own"  # of the system itself; Prism's is a named mode
    timer: str = ""
    cache: str = "cold"
    samples_us: list[float] = field(default_factory=list)
    median_us: float | None = None
    p20_us: float | None = None
    p80_us: float | None = None
    n: int = 0
    warm_samples_us: list[float] = field(default_factory=list)
    warm_median_us: float | None = None
    warm_p20_us: float | None = None
    warm_p80_us: float | None = None
    warm_n: int = 0
    read_us: float | None = None
    read_speed_fraction: float | None = None
    input_bytes: int | None = None
    copies: int | None = None
    threads: int | None = None
    seed: int | None = None
    rounds: int | None = None
    search_seconds: float | None = None
    compile_seconds: float | None = None
    tune_seconds: float | None = None
    graph_id: str | None = None
    source_sha256: str | None = None
    evidence: dict = field(default_factory=dict)
    versions: dict = field(default_factory=dict)
    environment: dict = field(default_factory=dict)
    commit: str | None = None
    dirty: bool | None = None
    container_digest: str | None = None
    config_hash: str | None = None
    measured_at: str | None = None

    def set_samples(self, cold: Sequence[float], warm: Sequence[float]) -> None:
        """Keeps raw samples and their medians and quantiles."""
        self.samples_us, self.warm_samples_us = list(cold), list(warm)
        self.median_us, self.p20_us, self.p80_us, self.n = summary(cold)
        self.warm_median_us, self.warm_p20_us, self.warm_p80_us, self.warm_n = summary(warm)

    def to_json(self) -> dict:
        """Plain data. Raises ValueError for a status outside STATUSES or one without its reason."""
        if self.status not in STATUSES:
            raise ValueError(f"row: status {self.status!r} is not one of {STATUSES}")
        if self.status != "ok" and not self.reason:
            raise ValueError(f"row: status {self.status!r} needs a reason")
        if self.status == "ok" and self.verdict not in ("PASSED", "n/a"):
            raise ValueError("row: no time without a passed gate")
        return asdict(self)


def quantile(samples: Sequence[float], q: float) -> float:
    """Linear interpolation between order statistics."""
    ordered = sorted(samples)
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def summary(samples: Sequence[float]) -> tuple[float | None, float | None, float | None, int]:
    """(median, p20, p80, n); None without samples."""
    if not samples:
        return None, None, None, 0
    return *(quantile(samples, q) for q in (0.5, 0.2, 0.8)), len(samples)


class RowWriter:
    """Appends rows to a temporary file beside `path`; `finish` gives it its name."""

    def __init__(self, path: Path):
        self.path = path
        self._temporary = path.with_name(f".{path.name}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self._temporary, "w")  # noqa: SIM115 - closed in finish or abandon
        except OSError as error:
            raise PrismError(f"cannot write {path}: {error.strerror or error}") from None

    def add(self, row: dict) -> None:
        """Writes one row through to the file."""
        try:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
        except OSError as error:
            raise PrismError(f"cannot write {self.path}: {error.strerror or error}") from None

    def finish(self) -> None:
        """Makes the file appear, whole."""
        try:
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._temporary, self.path)
        except OSError as error:
            raise PrismError(f"cannot write {self.path}: {error.strerror or error}") from None

    def abandon(self) -> None:
        """Removes the temporary file."""
        with contextlib.suppress(OSError):  # on a full disk closing fails as well
            self._file.close()
        self._temporary.unlink(missing_ok=True)


def read_rows(path: Path) -> list[dict]:
    """Rows of a file. Raises PrismError naming the file and line that is not one."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise PrismError(f"cannot read {path}: {error.strerror or error}") from None
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            raise PrismError(f"{path}: line {number} is not a row of JSON") from None
    return rows
