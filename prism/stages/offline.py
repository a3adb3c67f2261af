"""Kernels for GPUs, compiled without one."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from prism import files, terminal
from prism.stages.items import device_asked, gives, needed, threads_of, warn
from prism.stages.search import searches


def offline(own: dict[str, str], overrides: Sequence[str]) -> None:
    """Compiles kernels of proved graphs for GPUs, without one; writes what came of it to `out`."""
    from prism import config, given
    from prism.model.device import Device
    from prism.offline import Case, Settings, missing
    from prism.offline import offline as run
    from prism.workflow import plan

    out = Path(needed(own, "out", "offline"))
    terminal.writable(out)
    sources = Path(own["sources"]) if "sources" in own else None
    if sources:
        terminal.writable_folder(sources, "sources")
    planned, graphs = {}, own.get("graphs")
    if "slice" in own:
        data, graphs = given.slice_of(own["slice"], "offline"), needed(own, "graphs", "offline")
    else:
        planned = plan(_offline_devices(overrides))
        data = json.loads(planned["offline"])
    with given.reading("offline"):
        own_settings = data["offline"]
        programs = {
            case: config.program_of(workload, own_settings["dtype"])
            for case, workload in data["cases"].items()
        }
        devices = [Device.from_json(device) for device in data["devices"].values()]
        numbers = {key: own_settings[key] for key in ("configs", "points", "limit_s")}
        settings = Settings(**numbers, seed=data["seed"])
    results = {} if missing() else searches(programs.values(), graphs, planned)
    cases = {
        case: lambda p=program: Case(
            p, given.proved(results[p.name], data["seed"]), given.proofs(p)
        )
        for case, program in programs.items()
    }
    with terminal.progress("offline") as progress:
        found = run(cases, devices, settings, threads_of({}), progress, sources)
    files.write_json(out, found | {"settings": own_settings})
    terminal.offline(found)
    if found["status"] != "ok":
        warn(f"nothing was compiled for a GPU: {found['reason']}")


def _offline_devices(overrides: Sequence[str]) -> list[str]:
    """Overrides that compile for the device asked for, where it is a GPU; else says that they are
    for those of `offline.devices`."""
    from prism import config

    asked, found = device_asked(overrides), list(overrides)
    if asked is None or gives(overrides, "offline.devices"):
        return found
    cfg = config.compose(overrides)
    if "gpu" in cfg.device:
        return [*found, f"offline.devices=[{asked}]"]
    text = f"device={asked}: is no GPU; kernels are compiled for {', '.join(cfg.offline.devices)}"
    print(f"prism: {text} (offline.devices)", file=sys.stderr)
    return found
