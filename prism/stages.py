"""What each stage of the command line does, given its own keys and Hydra overrides.

All raise PrismError for bad input, and KeyboardInterrupt when the user ends them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism import files, terminal
from prism.errors import PrismError
from prism.program import Program

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
    result = _run_search(data, remember)
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


def _run_search(data: Mapping, remember: bool) -> dict:
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
            _warn,
            _threads({}),
        )


def tune(own: dict[str, str], overrides: Sequence[str]) -> None:
    """Tunes the graphs of a search for one configuration; writes the winner into folder `out`."""
    from prism import config, given
    from prism.measure.tune import TuneBudget
    from prism.measure.tune import tune as run
    from prism.model.device import Device

    out = Path(_needed(own, "out", "tune"))
    terminal.writable(out / "winner.json")
    if "slice" in own:
        data, path = given.slice_of(own["slice"], "tune"), _needed(own, "graphs", "tune")
        cfg = None
    else:
        cfg = _on_device(overrides)
        data, path = config.case_slices(cfg, overrides=overrides)[0], own.get("graphs")
    with given.reading("tune"):
        program = config.program_of(data["workload"], data["dtype"])
        device, strategy = Device.from_json(data["device"]), data["tune"]["name"]
        budget = TuneBudget(**{key: data["tune"][key] for key in ("count", "seconds", "seed")})
    if path:
        found = given.search_result(path, program)
        if given.interrupted(found):
            _warn(f"graphs={path}: its search was interrupted; tuning what it had found")
    else:
        found = _run_search(config.search_slice(cfg), cfg.search.cache)
        if given.interrupted(found):
            raise KeyboardInterrupt
    with terminal.progress(f"tune {data['case']}") as progress:
        winner = run(
            program,
            given.proved(found, data["tune"]["seed"]),
            device,
            budget,
            out,
            _threads(own),
            progress=progress,
            context={"workload": program.name, "case": data["case"]},
            strategy=strategy,
            proofs=given.proofs(program),
        )
    if winner["status"] == "ok":
        print(f"{data['case']}: {winner['median_us']:.1f} us, graph {winner['graph_id']}")
    else:
        _warn(f"{data['case']}: no kernel: {winner['reason']}")


def bench(own: dict[str, str], overrides: Sequence[str]) -> None:
    """Times the winner beside the baselines; writes their rows to `out`."""
    from prism import config, given
    from prism.measure.bench import BaselineSpec, BenchSettings, failures
    from prism.measure.bench import bench as run
    from prism.model.device import Device

    out = Path(_needed(own, "out", "bench"))
    terminal.writable(out)
    if "slice" in own:
        data = given.slice_of(own["slice"], "bench")
    else:
        cfg = _on_device(overrides)
        _, data = config.case_slices(cfg, overrides=overrides)
    with given.reading("bench"):
        program = config.program_of(data["workload"], data["dtype"])
        baselines = [
            BaselineSpec(spec["name"], str(config.root() / spec["adapter"]), spec["options"])
            for spec in data["baseline"].values()
        ]
        settings = BenchSettings(
            **data["bench"],
            threads=_threads(own),
            seed=data["seed"],
            device=Device.from_json(data["device"]),
        )
    winner = given.winner(own["winner"], data["case"], program) if "winner" in own else None
    context = {
        "workload": program.name,
        "config": data["case"].partition("@")[2],
        "config_hash": data["config_hash"],
    }
    if "graphs" in own:
        context |= given.search_account(given.search_result(own["graphs"], program))
    with terminal.progress(f"bench {data['case']}") as progress:
        rows = run(program, winner, baselines, settings, out, context, progress=progress)
    for row in rows:
        time = f"{row['median_us']:.1f} us" if row["median_us"] else row["reason"]
        print(f"{data['case']}: {row['system']}: {time}")
    for line in failures(rows):
        if winner is not None or not line.startswith("prism: "):  # without one, no kernel is meant
            _warn(f"{data['case']}: {line}")


def ablate(own: dict[str, str], overrides: Sequence[str]) -> None:
    """Times the search with every choice of concrete maps; writes the seconds to `out`."""
    from prism import config, given
    from prism.search.ablate import ablate as run

    out = Path(_needed(own, "out", "ablate"))
    terminal.writable(out)
    if "slice" in own:
        data = given.slice_of(own["slice"], "ablate")
    else:
        data = config.ablation_slice(config.compose(overrides))
    with given.reading("ablate"):
        program = config.program_of(data["workload"], data["dtype"])
        bounds, limit = config.bounds_of(data["search"]), float(data["ablation"]["limit_s"])
    with terminal.progress(f"ablate {program.name}") as progress:
        found = run(
            program, bounds, limit, progress=lambda stage, count: progress(stage, count, None)
        )
    files.write_json(out, found, indent=1)
    terminal.ablation(found)


def growth(own: dict[str, str], overrides: Sequence[str]) -> None:
    """Times the search of ever larger programs; writes the seconds to `out`."""
    from prism import config, given
    from prism.search.growth import growth as run

    out = Path(_needed(own, "out", "growth"))
    terminal.writable(out)
    if "slice" in own:
        data = given.slice_of(own["slice"], "growth")
    else:
        data = config.growth_slice(config.compose(overrides))
    with given.reading("growth"):
        bounds = config.bounds_of(data["search"] | data["growth"])
    with terminal.progress("growth") as progress:
        found = run(bounds, lambda stage, count: progress(stage, count, None), _threads({}))
    if any(given.interrupted(row) for row in found["rows"]):
        raise KeyboardInterrupt
    files.write_json(out, found, indent=1)
    terminal.growth(found)


def pack(own: dict[str, str], overrides: Sequence[str]) -> None:
    """Writes a folder of proved graphs and settings, which another machine can measure."""
    from prism import config, given
    from prism.model.device import Device
    from prism.pack import check_place
    from prism.pack import pack as run
    from prism.workflow import plan

    out = Path(_needed(own, "out", "pack"))
    check_place(out)
    planned = {}
    if "slice" in own:
        data, graphs = given.slice_of(own["slice"], "pack"), _needed(own, "graphs", "pack")
    else:
        planned = plan(overrides)
        data, graphs = json.loads(planned["pack"]), own.get("graphs")
        asked = _device_asked(overrides)
        if asked and not planned["gpu"] and not _gives(overrides, "pack.device"):
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
    found = _searches(programs.values(), graphs, planned)
    with terminal.progress("pack") as progress:
        manifest = run(data, found, out, progress)
    terminal.packed(out, manifest)


def unpack(own: dict[str, str], overrides: Sequence[str]) -> None:
    """Makes the folder of a run of what `python -m prism.measure` measured of a packed folder."""
    from prism.pack import unpack as run

    if overrides:
        raise PrismError(f"{overrides[0]}: unpack reads a folder as it is; only its keys are known")
    folder, to = Path(_needed(own, "from", "unpack")), Path(_needed(own, "run", "unpack"))
    device, lines = run(folder, Path(own.get("measured", folder)), to)
    for line in lines:
        _warn(line)
    print(f"{to}: measured on device {device}; `prism report run={to}` shows it")


def offline(own: dict[str, str], overrides: Sequence[str]) -> None:
    """Compiles kernels of proved graphs for GPUs, without one; writes what came of it to `out`."""
    from prism import config, given
    from prism.model.device import Device
    from prism.offline import Case, Settings, missing
    from prism.offline import offline as run
    from prism.workflow import plan

    out = Path(_needed(own, "out", "offline"))
    terminal.writable(out)
    sources = Path(own["sources"]) if "sources" in own else None
    if sources:
        terminal.writable_folder(sources, "sources")
    planned, graphs = {}, own.get("graphs")
    if "slice" in own:
        data, graphs = given.slice_of(own["slice"], "offline"), _needed(own, "graphs", "offline")
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
    searches = {} if missing() else _searches(programs.values(), graphs, planned)
    cases = {
        case: lambda p=program: Case(
            p, given.proved(searches[p.name], data["seed"]), given.proofs(p)
        )
        for case, program in programs.items()
    }
    with terminal.progress("offline") as progress:
        found = run(cases, devices, settings, _threads({}), progress, sources)
    files.write_json(out, found | {"settings": own_settings})
    terminal.offline(found)
    if found["status"] != "ok":
        _warn(f"nothing was compiled for a GPU: {found['reason']}")


def report(own: dict[str, str], overrides: Sequence[str]) -> None:
    """Builds the report of a run's folder."""
    from prism.report import build

    if overrides:
        raise PrismError(f"{overrides[0]}: report reads a run as it is; only run=FOLDER is known")
    run = Path(_needed(own, "run", "report"))
    if not run.is_dir():
        raise PrismError(f"run={run}: no such folder; a run leaves it, such as results/paper-cpu")
    print(build(run))


# Help for the stages ----------------------------------------------------------------------


def _searches(programs: Iterable[Program], folder: str | None, planned: Mapping) -> dict[str, dict]:
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
            found[name] = _run_search(json.loads(planned["search"][name]), True)
            if given.interrupted(found[name]):
                raise KeyboardInterrupt
    return found


def _needed(own: Mapping[str, str], key: str, stage: str) -> str:
    if key not in own:
        raise PrismError(f"{stage}: {key}=... is needed; see `prism {stage} --help`")
    return own[key]


def _gives(overrides: Sequence[str], key: str) -> bool:
    from prism import config

    return any(config.key_of(item) == key for item in overrides)


def _device_asked(overrides: Sequence[str]) -> str | None:
    """The file of conf/device that the command line names; None for none and for `auto`."""
    from prism import config

    named = [item.partition("=")[2] for item in overrides if config.key_of(item) == "device"]
    return named[-1] if named and named[-1] != "auto" else None


def _offline_devices(overrides: Sequence[str]) -> list[str]:
    """Overrides that compile for the device asked for, where it is a GPU; else says that they are
    for those of `offline.devices`."""
    from prism import config

    asked, found = _device_asked(overrides), list(overrides)
    if asked is None or _gives(overrides, "offline.devices"):
        return found
    cfg = config.compose(overrides)
    if "gpu" in cfg.device:
        return [*found, f"offline.devices=[{asked}]"]
    text = f"device={asked}: is no GPU; kernels are compiled for {', '.join(cfg.offline.devices)}"
    print(f"prism: {text} (offline.devices)", file=sys.stderr)
    return found


def _on_device(overrides: Sequence[str]) -> Any:
    """The configuration of a stage that measures, after checking that its device is here."""
    from prism import config, devices

    cfg = config.compose(overrides)
    config.say_device(cfg)
    if "gpu" in cfg.device:
        devices.require(cfg.device.name, cfg.device.get("gpus", ()))
    return cfg


def _threads(own: Mapping[str, str]) -> int:
    cores = len(os.sched_getaffinity(0))
    try:
        threads = int(own.get("threads", cores))
    except ValueError:
        threads = 0
    if threads < 1:
        raise PrismError(f"threads={own['threads']}: must be a positive integer")
    if threads > cores:
        print(f"prism: threads={threads}: this machine has {cores}, using them", file=sys.stderr)
    return min(threads, cores)


def _warn(text: str) -> None:
    print(f"prism: warning: {text}", file=sys.stderr)
