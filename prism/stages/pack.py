"""The folder that another machine measures, and what comes back."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from prism import terminal
from prism.errors import PrismError
from prism.stages.items import device_asked, gives, needed, warn
from prism.stages.search import searches


def pack(own: dict[str, str], overrides: Sequence[str]) -> None:
    """Writes a folder of proved graphs and settings, which another machine can measure."""
    from prism import config, given
    from prism.model.device import Device
    from prism.pack import check_place
    from prism.pack import pack as run
    from prism.workflow import plan

    out = Path(needed(own, "out", "pack"))
    check_place(out)
    planned = {}
    if "slice" in own:
        data, graphs = given.slice_of(own["slice"], "pack"), needed(own, "graphs", "pack")
    else:
        planned = plan(overrides)
        data, graphs = json.loads(planned["pack"]), own.get("graphs")
        asked = device_asked(overrides)
        if asked and not planned["gpu"] and not gives(overrides, "pack.device"):
            print(
                f"prism: device={asked}: the folder is packed for {data['device']} (pack.device), "
                f"and can be measured on {asked} too",
                file=sys.stderr,
            )
    with given.reading("pack"):
        names = {workload["name"]: workload for workload in data["cases"].values()}
        programs = {name: config.program_of(workload) for name, workload in names.items()}
        data["pack"]["graphs"], data["pack"]["points"]
        Device.from_json(data["devices"][data["device"]]["settings"]["device"])
    found = searches(programs.values(), graphs, planned)
    with terminal.progress("pack") as progress:
        manifest = run(data, found, out, progress)
    terminal.packed(out, manifest)


def unpack(own: dict[str, str], overrides: Sequence[str]) -> None:
    """Makes the folder of a run of what `python -m prism.measure` measured of a packed folder."""
    from prism.pack import unpack as run

    if overrides:
        raise PrismError(f"{overrides[0]}: unpack reads a folder as it is; only its keys are known")
    folder, to = Path(needed(own, "from", "unpack")), Path(needed(own, "run", "unpack"))
    device, lines = run(folder, Path(own.get("measured", folder)), to)
    for line in lines:
        warn(line)
    print(f"{to}: measured on device {device}; `prism report run={to}` shows it")
