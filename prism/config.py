"""Configuration: one place where Hydra composes `conf/`, and what the rest gets of it.

Everything that leaves this module is plain data. `plan` cuts the configuration of a suite into one
slice for each job of the workflow, so that a job is redone only when its own slice changes.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prism.errors import PrismError
from prism.program import DTYPES, Program, parse

ROOT = Path(__file__).resolve().parent.parent
_KEYS = {"name", "inputs", "formula", "outputs", "configs"}
_NO_GPU = "; a backend for GPUs does not exist yet"


def root() -> Path:
    """The repository's root, where conf/ and baselines/ are. Raises PrismError without them."""
    if not (ROOT / "conf" / "config.yaml").is_file():
        raise PrismError(
            f"no conf/config.yaml in {ROOT}: prism runs from a clone of its repository "
            f"(install it there with `pip install -e .`)"
        )
    return ROOT


# Composition ------------------------------------------------------------------------------


def compose(overrides: Sequence[str] = ()) -> Any:
    """The composed DictConfig of `conf/` under Hydra overrides, checked.

    Raises PrismError with one line for an unknown workload, suite, device or key, for a size that
    is not a positive integer, and for a dtype that the device cannot do.
    """
    cfg = _compose(overrides)
    device = cfg.device
    if cfg.dtype not in device.dtypes:
        raise PrismError(
            f"dtype {cfg.dtype!r}: device {device.name} can do {', '.join(device.dtypes)}"
        )
    workload_of(cfg)
    return cfg


def _compose(overrides: Sequence[str]) -> Any:
    import hydra
    import yaml
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        with hydra.initialize_config_dir(str(root() / "conf"), version_base="1.3"):
            cfg = hydra.compose("config", overrides=list(overrides))
        plain(cfg)  # resolves every interpolation, to fail here
        return cfg
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise PrismError(_one_line(error)) from None


def _one_line(error: Exception) -> str:
    """Hydra's errors as one line; a missing choice lists what there is."""
    missing = getattr(error, "missing_cfg_file", None)
    if missing:
        group, _, choice = str(missing).removesuffix(".yaml").rpartition("/")
        known = ", ".join(getattr(error, "options", None) or ()) or "none"
        hint = _NO_GPU if group == "device" else ""
        return f"{group or 'config'} {choice!r} is not in conf/{group}; known are {known}{hint}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = getattr(error, "__cause__", None)
    if cause is not None and str(cause).strip():
        lines.append(str(cause).strip().splitlines()[0])
    return "configuration: " + "; ".join(dict.fromkeys(lines))


def plain(cfg: Any) -> dict:
    """A DictConfig as dictionaries, lists and scalars, with interpolations resolved."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)


def say_device(cfg: Any) -> None:
    """Says on stderr what `device=auto` came to."""
    if "chosen" in cfg.device:
        print(f"prism: device {cfg.device.chosen}: {cfg.device.name}", file=sys.stderr)


# Workloads --------------------------------------------------------------------------------


def workload_of(cfg: Any, sizes: Mapping[str, int] | None = None) -> dict:
    """The configured workload as plain data, with `sizes` set before interpolation (f: ${.d}).

    Raises PrismError naming the workload and the key that is wrong.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    workload = cfg.workload.copy()
    workload._set_parent(cfg)
    name = str(workload.get("name"))
    for axis, size in (sizes or {}).items():
        if axis not in workload or axis in _KEYS:
            raise PrismError(f"workload {name}: configs: {axis!r} is not a size of it")
        OmegaConf.update(workload, axis, size)
    try:
        data = plain(workload)
    except OmegaConfBaseException as error:
        raise PrismError(f"workload {name}: {_one_line(error)}") from None
    _check_workload(data)
    program_of(data)
    return data


def _check_workload(data: dict) -> None:
    name = data.get("name")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", str(name)):
        raise PrismError(f"workload {name!r}: `name` must be letters, digits, '_', '-' and '.'")
    kinds = {"inputs": (dict, "{TENSOR: [axis, ...]}"), "formula": (str, "text")}
    for key, (kind, text) in kinds.items():
        if not isinstance(data.get(key), kind):
            raise PrismError(f"workload {name}: `{key}` must be {text}, got {data.get(key)!r}")
    configs = data.get("configs")
    if not isinstance(configs, list) or not all(c and isinstance(c, dict) for c in configs):
        raise PrismError(f"workload {name}: `configs` must be a list of sizes such as {{d: 1024}}")
    for tensor, names in data["inputs"].items():
        if not isinstance(names, list) or not all(isinstance(axis, str) for axis in names):
            raise PrismError(f"workload {name}: `inputs.{tensor}` must be a list of axis names")


def axes(workload: Mapping) -> list[str]:
    """The axes of a workload's inputs, in order of appearance."""
    return list(dict.fromkeys(axis for names in workload["inputs"].values() for axis in names))


def program_of(
    workload: Mapping, dtype: str = "bf16", sizes: Mapping[str, int | str] | None = None
) -> Program:
    """The program of a workload's plain data. Keys that are axes are sizes; other numbers are
    parameters that the formula may read. Raises PrismError for what it does not understand.
    """
    name, names = workload["name"], axes(workload)
    given = {axis: workload[axis] for axis in names if axis in workload} | dict(sizes or {})
    if sizes is None:
        for axis, size in given.items():
            if isinstance(size, str):
                raise PrismError(f"workload {name}: size {axis}={size!r} must be an integer")
    params = {
        key: value
        for key, value in workload.items()
        if key not in _KEYS and key not in names and re.search(rf"\b{key}\b", workload["formula"])
    }
    return parse(
        name,
        workload["formula"],
        workload["inputs"],
        given,
        params,
        dtype,
        workload.get("outputs"),
    )


def symbolic(workload: Mapping, dtype: str = "bf16") -> Program:
    """The program with every size a symbol, so that one search serves all configurations."""
    return program_of(workload, dtype, {axis: axis for axis in axes(workload)})


def case_name(workload: str, sizes: Mapping[str, int]) -> str:
    """`rmsnorm@d=4096,n=8`."""
    return f"{workload}@{','.join(f'{axis}={sizes[axis]}' for axis in sorted(sizes))}"
