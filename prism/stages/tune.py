"""Tuning one configuration, and timing its winner beside the baselines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prism import terminal
from prism.stages.items import needed, on_device, threads_of, warn
from prism.stages.search import run_search


def tune(own: dict[str, str], overrides: Sequence[str]) -> None:
    """Tunes the graphs of a search for one configuration; writes the winner into folder `out`."""
    from prism import config, given
    from prism.measure.tune import TuneBudget
    from prism.measure.tune import tune as run
    from prism.model.device import Device

    out = Path(needed(own, "out", "tune"))
    terminal.writable(out / "winner.json")
    if "slice" in own:
        data, path = given.slice_of(own["slice"], "tune"), needed(own, "graphs", "tune")
        cfg = None
    else:
        cfg = on_device(overrides)
        data, path = config.case_slices(cfg, overrides=overrides)[0], own.get("graphs")
    with given.reading("tune"):
        program = config.program_of(data["workload"], data["dtype"])
        device, strategy = Device.from_json(data["device"]), data["tune"]["name"]
        budget = TuneBudget(**{key: data["tune"][key] for key in ("count", "seconds", "seed")})
    if path:
        found = given.search_result(path, program)
        if given.interrupted(found):
            warn(f"graphs={path}: its search was interrupted; tuning what it had found")
    else:
        found = run_search(config.search_slice(cfg), cfg.search.cache)
        if given.interrupted(found):
            raise KeyboardInterrupt
    with terminal.progress(f"tune {data['case']}") as progress:
        winner = run(
            program,
            given.proved(found, data["tune"]["seed"]),
            device,
            budget,
            out,
            threads_of(own),
            progress=progress,
            context={"workload": program.name, "case": data["case"]},
            strategy=strategy,
            proofs=given.proofs(program),
        )
    if winner["status"] == "ok":
        print(f"{data['case']}: {winner['median_us']:.1f} us, graph {winner['graph_id']}")
    else:
        warn(f"{data['case']}: no kernel: {winner['reason']}")


def bench(own: dict[str, str], overrides: Sequence[str]) -> None:
    """Times the winner beside the baselines; writes their rows to `out`."""
    from prism import config, given
    from prism.measure.bench import BaselineSpec, BenchSettings, failures
    from prism.measure.bench import bench as run
    from prism.model.device import Device

    out = Path(needed(own, "out", "bench"))
    terminal.writable(out)
    if "slice" in own:
        data = given.slice_of(own["slice"], "bench")
    else:
        cfg = on_device(overrides)
        _, data = config.case_slices(cfg, overrides=overrides)
    with given.reading("bench"):
        program = config.program_of(data["workload"], data["dtype"])
        baselines = [
            BaselineSpec(spec["name"], str(config.root() / spec["adapter"]), spec["options"])
            for spec in data["baseline"].values()
        ]
        settings = BenchSettings(
            **data["bench"],
            threads=threads_of(own),
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
            warn(f"{data['case']}: {line}")
