"""`python -m prism.measure FOLDER [KEY=VALUE ...]`: measures what `prism pack` wrote.

  device=NAME   one of the folder's devices; auto (the default) finds that of this machine's GPU
  seconds=N     stop after so long, with a row for every case first; no limit by default
  out=FOLDER    where results go; into the packed folder by default
  threads=N     of a CPU's kernels and of compilers; all cores by default

It needs torch and numpy; for a GPU also triton, a C compiler ($CC, gcc or clang) and Python's
headers, of which Triton builds what launches a kernel. torch 2.11 and triton 3.6, or newer, are
tested. Started again, it goes on where it was. The exit
code is 0 when every case has a row, 1 when one has none, and 2, with one line, for bad input.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from prism.errors import PrismError

_TESTED = {"torch": (2, 11), "triton": (3, 6)}  # and what is newer
_KEYS = ("device", "seconds", "out", "threads")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the suite and returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(argv):
        print(__doc__)
        return 0
    try:
        return _run(*_parsed(argv))
    except PrismError as error:
        print(f"prism: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("prism: error: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        print(f"prism: error: {error.strerror or error}{where}", file=sys.stderr)
        return 1


def _parsed(argv: Sequence[str]) -> tuple[Path, dict[str, str]]:
    for item in argv:
        key, equal, _ = item.partition("=")
        if equal and key.isidentifier() and key not in _KEYS and not Path(item).exists():
            raise PrismError(
                f"{item}: there is no key {key!r}; known are {', '.join(_KEYS)}; what else a run "
                "reads was settled by `prism pack`"
            )
    folders = [item for item in argv if item.partition("=")[0] not in _KEYS]
    given = dict(item.split("=", 1) for item in argv if item not in folders)
    if len(folders) != 1 or folders[0].startswith("-"):
        raise PrismError(
            f"one packed folder is needed, and {' '.join(f'{k}=...' for k in _KEYS)} are known, "
            f"got {' '.join(folders) or 'none'}; see `python -m prism.measure --help`"
        )
    return Path(folders[0]), given


def _run(path: Path, given: dict[str, str]) -> int:
    for name in ("numpy", "torch"):
        _installed(name)
    from prism.codegen import BACKENDS
    from prism.measure.environment import versions
    from prism.measure.folder import read_folder
    from prism.measure.gpu import check_shared
    from prism.measure.suite import Suite
    from prism.model.device import Device

    seconds = _number(given, "seconds") if "seconds" in given else None
    cores = len(os.sched_getaffinity(0))
    threads = min(int(_number(given, "threads")), cores) if "threads" in given else cores
    folder = read_folder(path)
    packed = folder.manifest["device"]
    device = _device(given.get("device", "auto"), folder.devices, packed)
    described = Device.from_json(folder.settings(device)["device"])
    backend = described.backend
    if backend == "triton":
        _installed("triton")
    if described.torch == "cuda":
        _launchable()
        check_shared()
        _tested(versions())
    BACKENDS[backend].build([(Path("kernel"), Path("library"))], 0, 1, 1.0)  # has a compiler
    suite = Suite(folder, device, Path(given.get("out", path)), seconds, max(1, threads))
    missing = suite.run()
    if missing:
        text = f"the time was over before {len(missing)} had a row: {', '.join(missing)}"
        print(f"prism: warning: {text}; the same command goes on from here", file=sys.stderr)
    return 1 if missing else 0


def _installed(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        raise PrismError(f"{name} is not installed here; `pip install {name}` installs it")


def _launchable() -> None:
    """Raises PrismError without what Triton compiles a launcher with, as it looks for it."""
    named = os.environ.get("CC")
    if not any(shutil.which(name) for name in ([named] if named is not None else ["gcc", "clang"])):
        where = (
            f"CC={named} is not there" if named is not None else "neither gcc nor clang is there"
        )
        raise PrismError(f"Triton needs a C compiler to launch kernels, and {where}")
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")  # as Debian's
    header = Path(sysconfig.get_paths(scheme=scheme)["include"]) / "Python.h"
    if not header.is_file():
        raise PrismError(
            f"Triton needs Python's headers to launch kernels, and there is no {header}; "
            "the package python3-dev has it"
        )


def _tested(found: Mapping[str, str | None]) -> None:
    """Warns, in one line, of what is older than what is tested."""
    older = []
    for name, least in _TESTED.items():
        numbers = re.match(r"(\d+)\.(\d+)", found.get(name) or "")
        if numbers and tuple(map(int, numbers.groups())) < least:
            older.append(f"{name} {found[name]} (tested from {least[0]}.{least[1]} on)")
    if older:
        print(f"prism: warning: older than tested: {', '.join(older)}", file=sys.stderr)


def _number(given: dict[str, str], key: str) -> float:
    try:
        value = float(given[key])
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise PrismError(f"{key}={given[key]}: must be a positive number")
    return value


def _device(asked: str, devices: dict[str, list[str]], packed: str) -> str:
    """The device to measure on: its kernels need not run elsewhere, nor its rows be of another."""
    if asked != "auto" and asked not in devices:
        known = ", ".join(("auto", *devices))
        raise PrismError(f"device={asked}: is not in the packed folder; there are {known}")
    if asked != "auto" and not devices[asked]:  # the CPU
        return asked
    # GPUs numbered as nvidia-smi does, here as in child processes.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    import torch

    there = torch.cuda.is_available() and torch.cuda.get_device_name()
    if asked != "auto":
        if not there:
            raise PrismError(
                f"device={asked}: there is no such GPU here (torch {torch.__version__} sees none)"
            )
        if there not in devices[asked]:
            names = " or ".join(devices[asked])
            raise PrismError(f"device={asked} describes {names}, and this machine has {there}")
        return asked
    found = [name for name, gpus in devices.items() if there in gpus]
    if not found and (there or devices[packed]):
        what = f"the GPU {there} is not described" if there else "there is no GPU"
        hint = (
            "a file like conf/device/a100.yaml, and packing again, describes it; " if there else ""
        )
        raise PrismError(
            f"device=auto: {what} (torch {torch.__version__}); {hint}device=cpu measures on the CPU"
        )
    device = found[0] if found else packed
    print(f"prism: device auto: {device} ({there or 'packed for it'})", file=sys.stderr)
    return device


if __name__ == "__main__":
    raise SystemExit(main())
