"""Devices as data: what kernels are made for and timed on. The values are in conf/device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from prism.codegen import BACKENDS
from prism.errors import PrismError
from prism.program.program import DTYPES

WARP = 32  # threads
THREAD_REGISTERS = 255  # 32-bit registers that one thread may use, on every architecture here
# Far beyond every GPU that kernels here are generated for: what is outside is a slip of the pen.
_RANGES = {
    "arch": (80, 130),
    "sms": (1, 2048),
    "clock_mhz": (100, 10_000),
    "bandwidth_gbs": (10, 10**6),
    "l2_mib": (0.1, 10**5),
    "shared_kib": (1, 4096),
    "shared_sm_kib": (1, 4096),
    "registers": (8192, 2**20),
    "threads_sm": (256, 2**14),
    "blocks_sm": (1, 1024),
    "launch_us": (0.001, 10**4),
    "fp32_tflops": (0.1, 10**5),
}


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU in the numbers of its data sheet; rates are peaks, dense, at `clock_mhz`.

    `arch` is the compute capability (80 of sm_80); `bandwidth_gbs` that of memory in 1e9 bytes a
    second; `l2_mib` the second-level cache; `shared_kib` the most shared memory one block may use,
    `shared_sm_kib` that of a multiprocessor; `registers` (32-bit), `threads_sm` and `blocks_sm` the
    most of a multiprocessor; `launch_us` what one kernel after another costs; `fp32_tflops` the
    rate outside the matrix units, `dot_tflops` that of products by dtype (fp32: IEEE, no TF32).
    """

    arch: int
    sms: int
    clock_mhz: float
    bandwidth_gbs: float
    l2_mib: float
    shared_kib: int
    shared_sm_kib: int
    registers: int
    threads_sm: int
    blocks_sm: int
    launch_us: float
    fp32_tflops: float
    dot_tflops: Mapping[str, float] = field(hash=False)

    def __post_init__(self):
        whole = ("arch", "sms", "shared_kib", "shared_sm_kib", "registers", "threads_sm")
        for name in (f.name for f in fields(self) if f.name != "dot_tflops"):
            _check_number(name, getattr(self, name), name in (*whole, "blocks_sm"))
        if not isinstance(self.dot_tflops, Mapping) or set(self.dot_tflops) != set(DTYPES):
            raise PrismError(f"device: gpu.dot_tflops must give a rate for {', '.join(DTYPES)}")
        for dtype, rate in self.dot_tflops.items():
            _check_number(f"dot_tflops.{dtype}", rate, whole=False)
        object.__setattr__(self, "dot_tflops", dict(self.dot_tflops))


@dataclass(frozen=True)
class Device:
    """`backend` is a key of `prism.codegen.BACKENDS`; `gpu` is None of a CPU.

    The device "interpreter" runs a GPU's kernels in Triton's interpreter on the CPU.
    """

    name: str
    backend: str
    gpu: Gpu | None = None

    @property
    def torch(self) -> str:
        """The device of tensors, in torch's words: "cuda" or "cpu"."""
        return "cuda" if self.gpu is not None and self.name != "interpreter" else "cpu"

    def to_json(self) -> dict:
        """Plain data; `from_json` gives an equal device back."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping) -> Device:
        """Raises PrismError for a missing or unknown key, for a value of another kind or of no GPU
        that kernels are generated for, and for a backend that is unknown or of other hardware."""
        _check_keys("device", data, Device, optional=("gpu",))
        for key in ("name", "backend"):
            if not isinstance(data[key], str) or not data[key]:
                raise PrismError(f"device: {key} must be a name, got {data[key]!r}")
        gpu, where = data.get("gpu"), f"device {data['name']}"
        if data["backend"] not in BACKENDS:
            known = ", ".join(BACKENDS)
            raise PrismError(
                f"{where}: backend {data['backend']!r} is not known; there are {known}"
            )
        if (gpu is None) != (data["backend"] == CPU.backend):
            kind = (
                "no GPU, and `gpu` is given" if gpu is not None else "a GPU, and `gpu` is missing"
            )
            raise PrismError(f"{where}: backend {data['backend']} is for {kind}")
        if gpu is not None:
            _check_keys(f"{where}: gpu", gpu, Gpu)
            gpu = Gpu(**gpu)
            _check_ranges(where, gpu)
        return Device(data["name"], data["backend"], gpu)


CPU = Device("cpu", "cpu")


def _check_number(name: str, value: object, whole: bool) -> None:
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < float("inf"):
        kind = "integer" if whole else "number"
        raise PrismError(f"device: gpu.{name} must be a positive {kind}, got {value!r}")


def _check_ranges(where: str, gpu: Gpu) -> None:
    found = [(name, getattr(gpu, name), bounds) for name, bounds in _RANGES.items()]
    rates = gpu.dot_tflops.items()
    found += [(f"dot_tflops.{dtype}", rate, _RANGES["fp32_tflops"]) for dtype, rate in rates]
    for name, value, (least, most) in found:
        if not least <= value <= most:
            raise PrismError(f"{where}: gpu.{name} must be from {least} to {most}, got {value}")


def _check_keys(where: str, data: object, made: type, optional: tuple[str, ...] = ()) -> None:
    if not isinstance(data, Mapping):
        raise PrismError(f"{where}: must be keys with values, got {data!r}")
    known = [f.name for f in fields(made)]
    for key in data:
        if key not in known:
            raise PrismError(f"{where}: {key!r} is not known; there are {', '.join(known)}")
    for key in known:
        if key not in data and key not in optional:
            raise PrismError(f"{where}: {key!r} is missing")
