"""What the Snakefile needs: the plan of a suite, and its folder for itself.

The plan cuts the configuration into one slice for each job, so that a job is redone only when its
own slice changes.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from prism import config, devices
from prism.errors import PrismError

_held = []  # lock files, open until the process ends


def overrides_of(config_args: Sequence[str] | None) -> list[str]:
    """Hydra overrides out of Snakemake's raw `--config` arguments, split as a shell would.

    Snakemake reads each value as a number or as YAML; the raw text is what reaches Hydra here, so
    that `7e3`, dates, quotes and nested values stay as they were written.
    """
    text = ""
    for arg in config_args or ():
        key, _, value = str(arg).partition("=")
        if key != "overrides":
            raise PrismError(f"--config {key}: unknown; use --config overrides='KEY=VALUE ...'")
        text = value
    try:
        return shlex.split(text)
    except ValueError as error:
        raise PrismError(f"--config overrides={text!r}: {error}") from None


def plan(overrides: Sequence[str] = ()) -> dict:
    """What a suite consists of, as plain data.

    `run` is the results folder, `resolved` the whole configuration as YAML text, `workloads` and
    `cases` name the jobs, and `search` (by workload), `tune` and `bench` (by case) hold each job's
    slice as JSON text. A case is a workload with sizes, `rmsnorm@d=4096,n=8`. `ablate` and `growth`
    are slices too, or None: they are a suite's own, and not of a run that chooses its workloads.
    `offline` is the slice of what compiles for GPUs, `pack` that of the packed folder. `gpu` says
    whether the device is a GPU, whose cases are measured out of that folder, and `gpus` names it.
    """
    import yaml

    from prism.offline import offline_slice

    cfg = config.compose(overrides)
    config.say_device(cfg)
    keys = {config.key_of(item) for item in overrides}
    sized = sorted(key.removeprefix("workload.") for key in keys if key.startswith("workload."))
    names = [None] if "workload" in keys else list(cfg.suite.workloads)
    if sized and len(names) != 1:
        raise PrismError(
            f"workload.{sized[0]}: suite {cfg.suite.name} has {len(names)} workloads; "
            f"choose one beside it: workload=NAME workload.{sized[0]}=..."
        )
    if not names:
        raise PrismError(f"suite {cfg.suite.name}: it has no workloads")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", str(cfg.suite.name)):
        raise PrismError(
            f"suite.name={cfg.suite.name!r}: must be letters, digits, '_', '-' and '.'"
        )
    device = f"{cfg.suite.name}-{cfg.device.name}"
    workloads: dict[str, Any] = {}
    found: dict[str, Any] = {"run": f"results/{device}", "search": {}, "tune": {}, "bench": {}}
    for name in names:
        chosen_by = [*overrides] if name is None else [*overrides, f"workload={name}"]
        chosen = cfg if name is None else config.compose(chosen_by)
        label = str(chosen.workload.name)
        if label in found["search"]:
            raise PrismError(f"suite {cfg.suite.name}: two workloads have the name {label!r}")
        workloads[label] = config.plain(chosen.workload)
        found["search"][label] = json.dumps(config.search_slice(chosen))
        for sizes in _configs(chosen, sized):
            tune, bench = config.case_slices(chosen, sizes, chosen_by)
            found["tune"][tune["case"]] = json.dumps(tune)
            found["bench"][tune["case"]] = json.dumps(bench)
    hashes = {case: json.loads(text)["config_hash"] for case, text in found["bench"].items()}
    found["ablate"], found["growth"] = _extras(cfg, overrides, keys)
    resolved = {key: value for key, value in config.plain(cfg).items() if key != "workload"}
    if found["ablate"] is None:
        resolved["suite"] |= {"ablation": None}
    if found["growth"] is None:
        resolved["suite"] |= {"growth": False}
    resolved |= {"workloads": workloads, "overrides": list(overrides), "cases": hashes}
    found["resolved"] = yaml.safe_dump(resolved, sort_keys=False)
    found["pack"] = json.dumps(_pack(cfg, overrides, found, workloads))
    sized = {case: json.loads(text)["workload"] for case, text in found["bench"].items()}
    found["offline"] = json.dumps(offline_slice(cfg, sized, overrides))
    found |= {"device": cfg.device.name, "gpu": "gpu" in cfg.device, "limit": cfg.profile.seconds}
    found["gpus"] = list(cfg.device.get("gpus", ()))
    return found | {"workloads": list(found["search"]), "cases": list(found["tune"])}


def _extras(cfg: Any, overrides: Sequence[str], keys: set[str]) -> tuple[str | None, str | None]:
    """Slices of the suite's ablation and growth, as JSON text."""
    suite = config.plain(cfg.suite)
    own = any(key.split(".")[0] == "workload" or key == "suite.workloads" for key in keys)
    ablation, growth = (
        None
        if own and not any(key.startswith(f"suite.{name}") for key in keys)
        else suite.get(name)
        for name in ("ablation", "growth")
    )
    if ablation is not None and not (
        isinstance(ablation, dict)
        and isinstance(ablation.get("workload"), str)
        and isinstance(ablation.get("sizes"), dict)
    ):
        raise PrismError(
            f"suite {suite['name']}: ablation must be {{workload: NAME, sizes: {{d: 1024}}}}, "
            f"got {ablation!r}"
        )
    if not isinstance(growth, bool | None):
        raise PrismError(f"suite {suite['name']}: growth={growth!r}: must be true or false")
    slices = [None, json.dumps(config.growth_slice(cfg)) if growth else None]
    if ablation:
        rest = [item for item in overrides if config.key_of(item).split(".")[0] != "workload"]
        chosen = config.compose([*rest, f"workload={ablation['workload']}"])
        slices[0] = json.dumps(config.ablation_slice(chosen, ablation["sizes"]))
    return slices[0], slices[1]


def _pack(cfg: Any, overrides: Sequence[str], found: Mapping, workloads: Mapping) -> dict:
    """What packing reads: the cases, and the settings of every device that may measure them.

    `config` is what a run's config.yaml holds of it beside those settings.
    """
    target = cfg.device.name if "gpu" in cfg.device else cfg.pack.device
    if target == "auto":
        raise PrismError("pack.device=auto: must name a device of conf/device, such as h200")
    cases = {case: json.loads(text)["workload"] for case, text in found["bench"].items()}
    entries = {}
    described = devices.described(config.root() / "conf" / "device")
    for name in dict.fromkeys([target, *(name for name in described if name != "auto")]):
        mine = [o for o in overrides if name == cfg.device.name or not _of_device(o)]
        try:
            chosen = config.compose([*mine, f"device={name}"])
        except PrismError:  # an override that only the target understands
            if name == target:
                raise
            continue
        settings = config.settings_of(chosen)
        hashes = {}
        for case, workload in cases.items():
            search = json.loads(found["search"][workload["name"]])
            sliced = config.slices_of(case, workload, settings, search)[1]
            hashes[case] = sliced["config_hash"]
        gpus = list(chosen.device.get("gpus", ()))
        entries[name] = {"gpus": gpus, "settings": settings, "hashes": hashes}
    suite = config.plain(cfg.suite) | {"ablation": None, "growth": False}
    kept = {"suite": suite, "seed": cfg.seed, "search": config.plain(cfg.search)}
    return {
        "device": target,
        "pack": {key: cfg.pack[key] for key in ("graphs", "points")},
        "cases": cases,
        "devices": entries,
        "config": kept | {"workloads": dict(workloads)},
    }


def _of_device(override: str) -> bool:
    return config.key_of(override).startswith("device.")


def _configs(cfg: Any, overridden: Sequence[str]) -> list[dict]:
    """The sizes to run: the suite's for this workload, else the workload's own. A size given on
    the command line replaces the list by the one configuration that it describes."""
    data = config.plain(cfg.workload)
    configs = config.plain(cfg.suite).get("configs", {}).get(data["name"]) or data["configs"]
    if not isinstance(configs, list) or not all(isinstance(c, dict) and c for c in configs):
        raise PrismError(
            f"suite {cfg.suite.name}: configs of {data['name']} must be a list of sizes such as "
            f"{{d: 1024}}, got {configs!r}"
        )
    given = [axis for axis in overridden if isinstance(data.get(axis), (int, float))]
    if not given or "configs" in overridden:
        return configs
    return [{axis: data[axis] for axis in configs[0]}]


def workflow_plan(workflow: Any) -> dict:
    """`plan` for the Snakefile, whose `workflow` object this takes, and `cores`, which a job gets.

    With an executor and without `--cores` they are as many as the node that plans has.
    Bad input, or a C++ compiler that is missing and that no software deployment of Snakemake will
    bring, ends the workflow before its first job with one line and exit code 2.
    """
    try:
        found = plan(overrides_of(workflow.config_settings.config_args))
        if not (found["gpu"] or workflow.deployment_settings.deployment_method):
            _check_compiler(found["tune"].values())
        return found | {"cores": workflow.resource_settings.cores or os.cpu_count()}
    except PrismError as error:
        _end(str(error), 2)


def _check_compiler(slices: Iterable[str]) -> None:
    from prism.codegen import BACKENDS

    for backend in {json.loads(text)["device"]["backend"] for text in slices}:
        BACKENDS[backend].build([(Path("kernel"), Path("library"))], 0, 1, 1.0)


def start(workflow: Any, found: Mapping) -> None:
    """Before the first job of `plan`'s result: is its GPU here, and no other workflow at work?

    Ends with one line where a job of this machine would measure on a GPU that it does not have,
    after hours of others. Jobs that an executor sends elsewhere find theirs there.
    """
    if found["gpus"] and workflow.local_exec and workflow.is_main_process:
        due = {job.rule.name for job in workflow.dag.needrun_jobs()}
        try:
            if "profile" in due:
                devices.require(found["device"], found["gpus"])
        except PrismError as error:
            _end(str(error), 2)
    hold(found["run"])


def hold(run: str) -> None:
    """Keeps other workflows out of a run's folder until this process ends, however it ends.

    Snakemake's own lock would stay behind when the process is killed. Two workflows at once would
    remove and replace what the other one is reading: the second ends with one line, exit code 1.
    """
    path = Path(".snakemake") / f"{Path(run).name}.lock"
    try:
        path.parent.mkdir(exist_ok=True)
        file = open(path, "a")  # noqa: SIM115 - stays open
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _end(f"another snakemake is at work on {run}; wait for its end, or end it", 1)
    except OSError as error:
        _end(f"cannot lock {path}: {error.strerror}", 1)
    _held.append(file)


def _end(text: str, code: int) -> NoReturn:
    print(f"prism: error: {text}", file=sys.stderr)
    raise SystemExit(code) from None
