"""What a search costs: with maps enumerated, and of ever larger programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prism import files, terminal
from prism.stages.items import needed, threads_of


def ablate(own: dict[str, str], overrides: Sequence[str]) -> None:
    """Times the search with every choice of concrete maps; writes the seconds to `out`."""
    from prism import config, given
    from prism.search.ablate import ablate as run

    out = Path(needed(own, "out", "ablate"))
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

    out = Path(needed(own, "out", "growth"))
    terminal.writable(out)
    if "slice" in own:
        data = given.slice_of(own["slice"], "growth")
    else:
        data = config.growth_slice(config.compose(overrides))
    with given.reading("growth"):
        bounds = config.bounds_of(data["search"] | data["growth"])
    with terminal.progress("growth") as progress:
        found = run(bounds, lambda stage, count: progress(stage, count, None), threads_of({}))
    if any(given.interrupted(row) for row in found["rows"]):
        raise KeyboardInterrupt
    files.write_json(out, found, indent=1)
    terminal.growth(found)
