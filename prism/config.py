"""Configuration: one place where Hydra composes `conf/`, and what the rest gets of it.

What stages and workflow get is plain data: a slice of the configuration, which holds all that one
job reads and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism import devices
from prism.budgets import OPERATORS, check_budgets
from prism.errors import PrismError
from prism.model.device import Device
from prism.program import Program, parse
from prism.program.program import DTYPES, NUMERICS

if TYPE_CHECKING:
    from prism.search import Bounds

ROOT = Path(__file__).resolve().parent.parent
_KEYS = {"name", "inputs", "formula", "outputs", "configs", "numerics"}


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
    """The composed DictConfig of `conf/` under Hydra overrides, checked; `device=auto` is decided.

    Raises PrismError with one line for an unknown workload, suite, device or key, for a size that
    is not a positive integer, and for a dtype that the device cannot do.
    """
    from omegaconf import open_dict

    cfg = _compose(overrides)
    if cfg.device.get("chosen") == "auto":
        name, why = devices.pick(devices.described(root() / "conf" / "device"))
        cfg = _compose([*overrides, f"device={name}", "+device.chosen=auto"])
        with open_dict(cfg):
            cfg.device.why = why
    _check_device(plain(cfg.device))
    Device.from_json(device_of(cfg))
    device = cfg.device
    if cfg.dtype not in device.dtypes:
        raise PrismError(
            f"dtype {cfg.dtype!r}: device {device.name} can do {', '.join(device.dtypes)}"
        )
    check_budgets(plain(cfg))
    workload_of(cfg)
    return cfg


def _check_device(data: Mapping) -> None:
    """Raises PrismError for what a file of conf/device has wrong beside the device itself."""
    name = data.get("name")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", str(name or "")):
        raise PrismError(f"device: name={name!r}: must be letters, digits, '_', '-' and '.'")
    dtypes = data.get("dtypes")
    if not isinstance(dtypes, list) or not dtypes or any(d not in DTYPES for d in dtypes):
        known = ", ".join(DTYPES)
        raise PrismError(f"device {name}: dtypes must be a list of some of {known}, got {dtypes!r}")
    if "gpu" not in data:
        return
    if data["gpu"] is None:
        raise PrismError(f"device {name}: gpu is null; a device without a GPU leaves it out")
    gpus = data.get("gpus")
    if not isinstance(gpus, list) or not all(isinstance(gpu, str) for gpu in gpus):
        raise PrismError(
            f"device {name}: gpus must be a list of names as `nvidia-smi --query-gpu=name` has "
            f"them, such as [NVIDIA H200], got {gpus!r}"
        )


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
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError) as error:
        raise PrismError(_one_line(error)) from None


def _one_line(error: Exception) -> str:
    """Hydra's errors as one line; a missing choice lists what there is."""
    missing = getattr(error, "missing_cfg_file", None)
    if missing:
        group, _, choice = str(missing).removesuffix(".yaml").rpartition("/")
        known = ", ".join(getattr(error, "options", None) or ()) or "none"
        return f"{group or 'config'} {choice!r} is not in conf/{group}; known are {known}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = getattr(error, "__cause__", None)
    if cause is not None and str(cause).strip():
        lines.append(str(cause).strip().splitlines()[0])
    return "configuration: " + "; ".join(dict.fromkeys(lines))


def plain(cfg: Any) -> dict:
    """A DictConfig as dictionaries, lists and scalars, with interpolations resolved."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)


def device_of(cfg: Any) -> dict:
    """The configured device as plain data, which `prism.model.device.Device.from_json` reads."""
    device = plain(cfg.device)
    return {key: device[key] for key in ("name", "backend", "gpu") if key in device}


def say_device(cfg: Any) -> None:
    """Says on stderr what `device=auto` came to, and why."""
    if "why" in cfg.device:
        print(f"prism: device auto: {cfg.device.name} ({cfg.device.why})", file=sys.stderr)


# Workloads --------------------------------------------------------------------------------


def workload_of(cfg: Any, sizes: Mapping[str, int] | None = None) -> dict:
    """The configured workload as plain data, with `sizes` set before interpolation (f: ${.d}).

    Raises PrismError naming the workload and the key that is wrong.
    """
    from omegaconf import DictConfig

    if not isinstance(cfg.workload, DictConfig):
        raise PrismError("workload: its file must hold keys such as name, inputs and formula")
    data = _resolved(cfg, sizes or {})
    check_workload(data)
    configs = data.get("configs")
    if not (configs and isinstance(configs, list) and all(isinstance(c, dict) for c in configs)):
        raise PrismError(
            f"workload {data['name']}: `configs` is "
            f"{'missing' if configs is None else 'wrong'}: must be a list of sizes such as "
            f"{{d: 1024}}, one for each configuration"
        )
    data.setdefault("numerics", cfg.numerics)
    if data["numerics"] not in NUMERICS:
        known = " or ".join(NUMERICS)
        raise PrismError(f"numerics={data['numerics']!r}: must be {known}")
    program_of(data)
    return data


def _resolved(cfg: Any, sizes: Mapping[str, int]) -> dict:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    workload = cfg.workload.copy()
    workload._set_parent(cfg)
    name = str(workload.get("name"))
    for axis, size in sizes.items():
        if axis not in workload or axis in _KEYS:
            raise PrismError(f"workload {name}: configs: {axis!r} is not a size of it")
        OmegaConf.update(workload, axis, size)
    try:
        return plain(workload)
    except OmegaConfBaseException as error:
        raise PrismError(f"workload {name}: {_one_line(error)}") from None


def check_workload(data: Mapping) -> None:
    """Raises PrismError for a workload whose plain data lacks a key or has one of another kind."""
    name = data.get("name")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", str(name or "")):
        raise PrismError(f"workload {name!r}: `name` must be letters, digits, '_', '-' and '.'")
    kinds = {"inputs": (dict, "{TENSOR: [axis, ...]}"), "formula": (str, "text")}
    for key, (kind, text) in kinds.items():
        if not isinstance(data.get(key), kind):
            raise PrismError(f"workload {name}: `{key}` must be {text}, got {data.get(key)!r}")
    for tensor, names in data["inputs"].items():
        if not isinstance(names, list) or not all(isinstance(axis, str) for axis in names):
            raise PrismError(f"workload {name}: `inputs.{tensor}` must be a list of axis names")
        if taken := _KEYS & set(names):
            raise PrismError(
                f"workload {name}: `inputs.{tensor}` has an axis named {min(taken)!r}, "
                f"which is a key of the file; name it otherwise"
            )
    outputs = data.get("outputs") or []
    if not isinstance(outputs, list) or not all(isinstance(o, str) for o in outputs):
        raise PrismError(f"workload {name}: `outputs` must be a list of names, got {outputs!r}")


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
        if key not in _KEYS
        and key not in names
        and re.search(rf"\b{re.escape(str(key))}\b", workload["formula"])
    }
    outputs = workload.get("outputs")
    program = parse(name, workload["formula"], workload["inputs"], given, params, dtype, outputs)
    return replace(program, numerics=workload.get("numerics", NUMERICS[0]))


def symbolic(workload: Mapping, dtype: str = "bf16") -> Program:
    """The program with every size a symbol, so that one search serves all configurations."""
    return program_of(workload, dtype, {axis: axis for axis in axes(workload)})


def case_name(workload: str, sizes: Mapping[str, int]) -> str:
    """`rmsnorm@d=4096,n=8`."""
    return f"{workload}@{','.join(f'{axis}={sizes[axis]}' for axis in sorted(sizes))}"


# Slices -----------------------------------------------------------------------------------


def key_of(override: str) -> str:
    """What an override sets: `workload.d` of `++workload.d=3`."""
    return override.partition("=")[0].lstrip("+~").strip()


def search_slice(cfg: Any) -> dict:
    """What the search reads: no sizes, since one search serves them all."""
    workload = workload_of(cfg)
    kept = {key: workload[key] for key in workload if key in _KEYS - {"configs", "numerics"}}
    program = program_of(workload, cfg.dtype)
    return {
        "workload": kept | dict(program.params),
        "dtype": cfg.dtype,
        "search": search_of(cfg),
        "seed": cfg.seed,
    }


def search_of(cfg: Any) -> dict:
    """The configured search without `cache`, which changes nothing that it finds."""
    return {key: value for key, value in plain(cfg.search).items() if key != "cache"}


def bounds_of(search: Mapping) -> Bounds:
    """The bounds of a search out of its slice. Raises KeyError or TypeError for other keys."""
    from prism.search import Bounds

    given = dict(search)
    given |= {key: tuple(given[key]) for key in OPERATORS & given.keys()}
    return Bounds(generator=given.pop("name"), **given)


def ablation_slice(cfg: Any, sizes: Mapping[str, int] | None = None) -> dict:
    """What the ablation of symbolic maps reads; without `sizes`, the workload's own."""
    workload = workload_of(cfg, sizes)
    program = program_of(workload, cfg.dtype)
    kept = {key: workload[key] for key in workload if key in _KEYS - {"configs"}}
    return {
        "workload": kept | dict(program.sizes) | dict(program.params),
        "dtype": cfg.dtype,
        "search": search_of(cfg),
        "ablation": plain(cfg.ablation),
    }


def growth_slice(cfg: Any) -> dict:
    """What the search of ever larger programs reads."""
    return {"search": search_of(cfg), "growth": plain(cfg.growth)}


def case_slices(
    cfg: Any, sizes: Mapping[str, int] | None = None, overrides: Sequence[str] = ()
) -> tuple[dict, dict]:
    """What tuning and benchmarking one configuration read; without `sizes`, the workload's own.

    `overrides` are those that `cfg` was composed with: the case's name tells what they change.
    """
    workload = workload_of(cfg, sizes)
    program = program_of(workload, cfg.dtype)
    label = _label(workload | dict(program.sizes), sizes or workload["configs"][0], overrides)
    case = case_name(workload["name"], label)
    kept = {key: workload[key] for key in workload if key in _KEYS - {"configs"}}
    data = kept | dict(program.sizes) | dict(program.params)
    return slices_of(case, data, settings_of(cfg), search_slice(cfg))


def settings_of(cfg: Any) -> dict:
    """What tuning and benchmarking read beside the case, and may differ from device to device."""
    return {
        "dtype": cfg.dtype,
        "device": device_of(cfg),
        "tune": plain(cfg.tune),
        "baseline": plain(cfg).get("baseline", {}),  # gone when `baseline=[]`
        "bench": plain(cfg.bench),
        "seed": cfg.seed,
    }


def slices_of(case: str, workload: Mapping, settings: Mapping, search: Mapping) -> tuple:
    """The slices of `case_slices`, given the workload of the case, what `settings_of` returns, and
    the search's slice. A baseline that names its `workloads` runs on those alone."""
    common = {"case": case, "workload": workload}
    common |= {key: settings[key] for key in ("dtype", "device")}
    tune = common | {"tune": settings["tune"]}
    baselines = {
        key: spec
        for key, spec in settings["baseline"].items()
        if workload["name"] in spec.get("workloads", (workload["name"],))
    }
    bench = common | {"baseline": baselines} | {key: settings[key] for key in ("bench", "seed")}
    whole = [{**search, "dtype": settings["dtype"]}, tune, bench]
    return tune, bench | {
        "config_hash": hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:12]
    }


def _label(workload: Mapping, shown: Iterable[str], overrides: Sequence[str]) -> dict:
    """The numbers that name a case: those `shown`, and each that an override set to something else
    than follows from these and the workload's file."""
    label = {key: workload[key] for key in shown}
    kept = [item for item in overrides if not key_of(item).startswith("workload.")]
    if len(kept) == len(overrides):
        return label
    try:
        file = _compose(kept)
    except PrismError:  # a file that leaves a size to the command line
        file = None
    for key, value in workload.items():
        if key in label or not isinstance(value, (int, float)):
            continue
        known = {} if file is None else {k: v for k, v in label.items() if k in file.workload}
        if file is None or _resolved(file, known).get(key) != value:
            label[key] = value
    return label
