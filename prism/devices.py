"""Which NVIDIA GPU is here, told without torch, and which file of conf/device describes it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from prism.errors import PrismError
from prism.measure.gpu import partitioned, smi

ELSEWHERE = "`prism pack` and, where there is one, `python -m prism.measure` measure on it"

SPLIT = "is split into MIG instances, which no file in conf/device describes"
_NAME = re.compile(r"[A-Za-z][\w .()/+-]{1,99}", re.ASCII)
_NONE = "No devices were found"  # what some drivers say, and call it a success


@cache
def gpu() -> str | None:
    """The first NVIDIA GPU that a process here may use, as its driver calls it; None without.

    CUDA_VISIBLE_DEVICES is heeded.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    first = (visible or "").split(",")[0].strip()
    if visible is not None and first in ("", "-1"):
        return None
    rows = smi("--query-gpu=name", *([f"--id={first}"] if first else []))
    name = rows[0][0].strip() if rows and rows[0] else ""
    return name if _NAME.fullmatch(name) and name != _NONE else None


def pick(described: Mapping[str, Iterable[str]]) -> tuple[str, str]:
    """The device of this machine, and why it is that one.

    `described` are GPUs' names, by the device that describes them.
    """
    name = gpu()
    if name is None:
        return "cpu", "no NVIDIA GPU found"
    if partitioned():
        return "cpu", f"GPU {name} {SPLIT}"
    for device, names in described.items():
        if name in names:
            return device, f"found {name}"
    hint = "add one like conf/device/a100.yaml"
    return "cpu", f"GPU {name} has no description in conf/device; {hint}"


def described(folder: Path) -> dict[str, list[str]]:
    """The names in `gpus` of each description in a folder. Raises PrismError for a damaged one."""
    import yaml

    found = {}
    for path in sorted(folder.glob("*.yaml")):
        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
            found[path.stem] = [str(name) for name in data.get("gpus", ())]
        except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
            why = " ".join(str(error).split())
            raise PrismError(f"{path}: not the description of a device: {why}") from None
    return found


def require(device: str, names: Iterable[str]) -> None:
    """Raises PrismError where this machine has none of the GPUs `names` that a device describes."""
    name, names = gpu(), list(names)
    if name is None:
        raise PrismError(f"device {device}: this machine has no NVIDIA GPU; {ELSEWHERE}")
    if partitioned():
        raise PrismError(f"device {device}: this machine's {name} {SPLIT}")
    if name not in names:
        raise PrismError(
            f"device {device} describes {' or '.join(names) or 'no GPU by name'}, and this "
            f"machine has {name}; {ELSEWHERE}, and a GPU needs a file like conf/device/a100.yaml"
        )
