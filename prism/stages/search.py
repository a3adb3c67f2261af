"""The search of a workload."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism import files, terminal
from prism.errors import PrismError
from prism.program import Program
from prism.stages.items import threads_of, warn

if TYPE_CHECKING:
    from prism.sgraph import SGraph


def search(own: dict[str, str], overrides: Sequence[str]) -> None:
    """Searches a workload, or remembers it; prints what was found and writes it to `out`."""
    from prism import config, given

    out = own.get("out")
    for key in ("out", "source"):
        if key in own:
            terminal.writable(Path(own[key]), key)
    if "source" in own and ("show" not in own or "slice" in own):
        raise PrismError(f"source={own['source']}: is of the graph that show=ID names")
    if "slice" in own:  # of a workflow, where the seconds of a search are results
        data, remember = given.slice_of(own["slice"], "search"), False
    else:
        cfg = config.compose(overrides)
        data, remember = config.search_slice(cfg), cfg.search.cache
    result = run_search(data, remember)
    interrupted = given.interrupted(result)
    if "show" not in own:
        terminal.summary(result)
    if out is not None and not (interrupted and "slice" in own):  # a workflow takes whole results
        files.write_json(Path(out), result)
    if interrupted:
        raise KeyboardInterrupt  # what it found is stored and printed, but is not all
    if "show" in own:
        graph = terminal.graph(result, own["show"])
        if "source" in own:
            _print_source(own, graph, cfg)
    elif "slice" not in own:  # a workflow's output is long enough
        terminal.graphs(result)


def _print_source(own: Mapping[str, str], graph: SGraph | None, cfg: Any) -> None:
    """Writes the source of a graph for the device configured, which need not be here."""
    from prism import config
    from prism.model.device import Device
    from prism.source import source_of

    path = Path(own["source"])
    if graph is None:
        raise PrismError(f"source={path}: graph {own['show']} is not proved as a whole")
    data = config.case_slices(cfg)[0]
    program = config.program_of(data["workload"], data["dtype"])
    device = Device.from_json(data["device"])
    text, concrete = source_of(own["show"], graph, program, device, cfg.seed)
    files.write_text(path, text)
    print(f"{path}: for {data['case']} on {device.name}, {terminal.settings(concrete)}")


def run_search(data: Mapping, remember: bool) -> dict:
    """The search of a slice, as JSON data; `remember` looks into the cache first."""
    from prism import cache, config, given

    with given.reading("search"):
        program = config.symbolic(data["workload"], data["dtype"])
        bounds = config.bounds_of(data["search"])
    with terminal.progress(f"search {program.name}") as progress:
        return cache.search(
            program,
            bounds,
            lambda stage, count: progress(stage, count, None),
            remember,
            warn,
            threads_of({}),
        )


def searches(programs: Iterable[Program], folder: str | None, planned: Mapping) -> dict[str, dict]:
    """The result of the search of each program, by its name: from a folder, or searched now."""
    from prism import given

    found = {}
    for program in programs:
        name = program.name
        if name in found:
            continue
        if folder:
            found[name] = given.search_result(f"{folder}/{name}.json", program)
        else:
            found[name] = run_search(json.loads(planned["search"][name]), True)
            if given.interrupted(found[name]):
                raise KeyboardInterrupt
    return found
