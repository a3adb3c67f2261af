"""Result rows: the schema, and their file of JSON lines, which is whole or not there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from prism.errors import PrismError
from prism.files import write_text

STATUSES = ("ok", "failed", "suspect", "unavailable")


@dataclass
class Row:
    """One system on one case. Times in microseconds, `*_seconds` in seconds, None is unknown.

    `median_us`, `p20_us`, `p80_us`, `n` and `samples_us` are of the cold state (inputs rotate
    through more memory than the last-level cache holds, and a GPU's is flushed); `warm_*` repeat
    one input set. A row whose status is not "ok" has a reason, and its times, if any, are not to be
    compared.
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
    cause: str = ""  # of a system that the limit of a run kept from compiling: "cut" or "left out"
    verdict: str | None = None
    error_max: float | None = None
    error_rms: float | None = None
    bound_max: float | None = None
    bound_rms: float | None = None
    bound_note: str = ""  # why eager has no share in the bound of some output
    controls: dict[str, str] = field(default_factory=dict)
    numerics: str = "own"  # of the system itself; Prism's is a named mode
    timer: str = ""
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
    modelled_roofline_us: float | None = None  # modelled, from the device's data sheet
    modelled_bandwidth_us: float | None = None  # what of it memory needs; all where it limits
    modelled_least_us: float | None = None  # a cold time below is suspect, see model.roofline
    of_modelled_roofline: float | None = None  # of the modelled roofline in the measured median
    input_bytes: int | None = None
    copies: int | None = None
    threads: int | None = None
    seed: int | None = None
    rounds: int | None = None
    search_seconds: float | None = None
    # Of the search that found the graph: seconds and candidates by stage, matches and seconds of
    # each rule, peak memory, number of gaps.
    search: dict = field(default_factory=dict)
    compile_seconds: float | None = None
    tune_seconds: float | None = None
    graph_id: str | None = None
    source_sha256: str | None = None
    # Of the winner's kernels, from the compiler's own output: the most that one of them uses.
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    modelled_us: float | None = None  # by the analytic model; never a measured time
    evidence: dict = field(default_factory=dict)
    versions: dict = field(default_factory=dict)
    environment: dict = field(default_factory=dict)
    commit: str | None = None
    dirty: bool | None = None
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


def summary(samples: Sequence[float]) -> tuple[float | None, float | None, float | None, int]:
    """(median, p20, p80, n); None without samples."""
    if not len(samples):
        return None, None, None, 0
    median, p20, p80 = (float(q) for q in np.quantile(samples, (0.5, 0.2, 0.8)))
    return median, p20, p80, len(samples)


def write_rows(path: Path, rows: Sequence[dict]) -> None:
    """Writes rows as JSON lines, all or none. Raises PrismError when the disk refuses."""
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_rows(path: Path) -> list[dict]:
    """All rows of a file. Raises PrismError naming the file, and the line that is not a row."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise PrismError(f"cannot read {path}: {error.strerror or error}") from None
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise PrismError(f"{path}: line {number} is not a row of JSON")
        rows.append(row)
    return rows
