"""Folders that travel: what a machine measures which has torch, triton and numpy alone.

`pack` writes one (see `prism.measure.folder`), with graphs that are proved here as wholes, and
`unpack` makes the folder of a run of what was measured out of it.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from prism import config, files, given
from prism.codegen import BACKENDS
from prism.errors import PrismError, reading
from prism.instantiate.concrete import Concrete
from prism.instantiate.sampling import sample
from prism.measure.bench import PRISM
from prism.measure.environment import revision
from prism.measure.folder import (
    FORMAT,
    MANIFEST,
    STATE,
    Folder,
    digest,
    program_hash,
    read_folder,
    read_state,
)
from prism.measure.rows import read_rows
from prism.measure.winner import KERNEL, WINNER, read_winner
from prism.model.device import Device
from prism.model.rank import rank
from prism.program import Program, program_to_json
from prism.sgraph import SGraph

Progress = Callable[[str, int, int | None], None]
Graphs = list[tuple[str, SGraph]]


def pack(data: Mapping, searches: Mapping[str, Mapping], out: Path, progress: Progress) -> dict:
    """Writes the folder `out`, whole or not at all, and returns its manifest.

    `data` is the slice `pack` of a workflow's plan, `searches` the results of `prism search` by
    workload. The same data and results give the same graphs. Raises PrismError for a disk that
    cannot be written, for a workload without a proved graph, and for a folder with measurements
    of other cases, settings or graphs.
    """
    _check_measured(Path(out), data["devices"])
    settings = data["devices"][data["device"]]["settings"]
    programs = {
        case: config.program_of(workload, settings["dtype"])
        for case, workload in data["cases"].items()
    }
    content, workloads = {}, {}
    for name, found in searches.items():
        mine = {case: p for case, p in programs.items() if p.name == name}
        graphs, told = _graphs(
            found, mine, data, lambda stage, n=name: progress(f"{n}: {stage}", 0, None)
        )
        program = next(iter(mine.values()))
        content[f"graphs/{name}.json"] = {
            "program": program_hash(program),
            "graphs": [[i, graph.to_json()] for i, graph in graphs],
        }
        content[f"search/{name}.json"] = found
        workloads[name] = told | {"account": given.search_account(found)}
    written = {name: json.dumps(value).encode() for name, value in content.items()}
    seals = {name: digest(value) for name, value in written.items()}
    _check_measured(Path(out), data["devices"], seals)
    manifest = {
        "format": FORMAT,
        **revision(),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": data["device"],
        "pack": data["pack"],
        "cases": {case: {"program": program_to_json(p)} for case, p in programs.items()},
        "workloads": workloads,
        "devices": data["devices"],
        "config": data["config"],
        "files": seals,
    }
    _write(Path(out), written | {MANIFEST: json.dumps(manifest, indent=1).encode() + b"\n"})
    return manifest


def check_place(out: Path) -> None:
    """Raises PrismError where no folder can be written, or another one than packed ones is."""
    try:
        there = [path.name for path in out.iterdir()] if out.exists() else []
    except OSError as error:
        raise PrismError(f"out={out}: {error.strerror}") from None
    if there and not {"graphs", MANIFEST} & set(there):
        raise PrismError(f"out={out}: is there, and no packed folder; choose another name")
    place = next(parent for parent in out.absolute().parents if parent.exists())
    if not os.access(place, os.W_OK):
        raise PrismError(f"out={out}: folder {place} cannot be written")


def _check_measured(out: Path, entries: Mapping, seals: Mapping[str, str] | None = None) -> None:
    """Raises PrismError where `out` has measurements that are not of what is packed into it.

    `entries` has the hashes of the cases by device, `seals` the digests of the files of graphs.
    """
    if not (out / STATE).is_file():
        return
    state = read_state(out)
    hashes = entries.get(state["device"], {}).get("hashes", {})
    for case, entry in state["cases"].items():
        config_hash, _, graphs = str(entry["key"]).partition(" ")
        name = f"graphs/{case.partition('@')[0]}.json"
        if hashes.get(case) != config_hash or (seals is not None and seals.get(name) != graphs):
            raise PrismError(
                f"out={out}: holds measurements of other cases, settings or graphs ({case} on "
                f"{state['device']}); pack into another folder, or remove this one"
            )


def _graphs(
    found: Mapping, programs: Mapping[str, Program], data: Mapping, progress: Callable[[str], None]
) -> tuple[Graphs, dict]:
    """The graphs of a workload to pack, each proved as a whole, and an account of them."""
    entry = data["devices"][data["device"]]["settings"]
    device, seed = Device.from_json(entry["device"]), entry["tune"]["seed"]
    progress("draw")
    known = dict(given.proved(found, seed))
    chosen: dict[str, SGraph] = {}
    for case, program in programs.items():
        progress(f"rank for {case}")
        names = _chosen(list(known.items()), program, device, data["pack"], seed)
        chosen |= {name: known[name] for name in names}
    progress("prove")
    reasons = given.proofs(next(iter(programs.values())))(list(chosen.values()))
    left = Counter(reason for reason in reasons if reason)
    kept = [item for item, reason in zip(chosen.items(), reasons, strict=True) if not reason]
    if not kept:
        name = next(iter(programs.values())).name
        why = f": {next(iter(left))}" if left else ""
        raise PrismError(f"{name}: the search has no graph that is proved as a whole{why}")
    return kept, {"graphs": len(kept), "not_proved": dict(left)}


def _chosen(
    graphs: Graphs, program: Program, device: Device, bounds: Mapping, seed: int
) -> list[str]:
    """Ids of the graphs for one configuration: half of those of random points, then those of the
    points that the device's model has first (of a CPU with as many cores as are here)."""
    manifest = BACKENDS[device.backend]
    points = sample(
        graphs, program, bounds["points"], seed, manifest.options, manifest.scratch_bytes
    )
    wanted = bounds["graphs"]
    drawn = list(dict.fromkeys(name for name, _ in points))
    cores = len(os.sched_getaffinity(0))
    ranked = dict.fromkeys(name for _, name, _ in rank(points, device, cores))
    names = dict.fromkeys(drawn[: wanted // 2])
    for name in ranked:
        if len(names) >= wanted:
            break
        names.setdefault(name)
    return list(names)


def _write(out: Path, written: Mapping[str, bytes]) -> None:
    """Everything beside `out` first, then each part put in its place; what was measured there
    stays. The manifest is last, and the digests in it tell parts of another packing."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise PrismError(f"cannot write {out}: {error.strerror}") from None
    try:
        for name, value in written.items():
            files.write_bytes(temporary / name, value)
        temporary.chmod(0o755)
        if not out.exists():
            os.replace(temporary, out)
            return
        for part in ("graphs", "search"):
            shutil.rmtree(out / part, ignore_errors=True)
            os.replace(temporary / part, out / part)
        os.replace(temporary / MANIFEST, out / MANIFEST)
    except OSError as error:
        raise PrismError(f"cannot write {out}: {error.strerror}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


# Home again -------------------------------------------------------------------------------


def unpack(folder: Path, measured: Path, run: Path) -> tuple[str, list[str]]:
    """Brings what was measured of a folder into the folder of a run, after checking all of it:
    each winner's graph is proved once more as a whole.

    `measured` is where `python -m prism.measure` wrote, by default the folder itself. Returns the
    device that the rows are of, and what the user should know, a line each: cases without rows,
    another device than the one packed for, and commits that differ. Raises PrismError, and leaves
    the run as it was, for rows and winners of other settings or graphs and for damaged files.
    """
    import yaml

    packed, state = read_folder(folder), read_state(measured)
    device, target = state["device"], packed.manifest["device"]
    if device not in packed.devices:
        raise PrismError(f"{measured / STATE}: device {device} is not in {folder / MANIFEST}")
    entry = packed.manifest["devices"][device]
    _check_state(packed, measured, state)
    said, content, commits = [], {}, Counter()
    if device != target:
        said.append(f"the rows are of device {device}; the folder was packed for {target}")
    winners: dict[str, list[tuple[Path, Concrete]]] = {}  # by workload
    for case in packed.cases(device):
        path, place = measured / "bench" / f"{case.name}.jsonl", measured / "tune" / case.name
        if not path.is_file():
            said.append(f"{case.name}: not measured")
            continue
        rows = read_rows(path)
        for row in rows:
            if row.get("config_hash") != case.config_hash or row.get("device") != device:
                raise PrismError(
                    f"{path}: holds rows of other settings (configuration hash "
                    f"{row.get('config_hash')}, device {row.get('device')}) than {folder} "
                    f"({case.config_hash}, {device})"
                )
            commits[row.get("commit")] += 1
        found, variant, concrete = _winner(place, case.program)
        timed = [row.get("variant") or "" for row in rows if row.get("system") == PRISM]
        if any(one != variant for one in timed):
            raise PrismError(
                f"{case.name}: its row is of configuration {timed[0] or 'none'}, its winner is "
                f"{variant or 'none'}; run `python -m prism.measure {folder}` once more"
            )
        if concrete is not None:
            winners.setdefault(case.workload, []).append((place / WINNER, concrete))
        content |= {f"bench/{case.name}.jsonl": path} | found
    if not content:
        raise PrismError(
            f"{measured}: nothing was measured; run `python -m prism.measure {folder}`"
        )
    _prove(winners)
    for name in packed.manifest["workloads"]:
        packed.read(f"search/{name}.json")
        content[f"search/{name}.json"] = folder / f"search/{name}.json"
    settings = {k: entry["settings"][k] for k in ("device", "dtype", "tune", "baseline", "bench")}
    resolved = packed.manifest["config"] | settings | {"cases": entry["hashes"]}
    _check_run(run, entry["hashes"])
    for name, path in content.items():
        files.write_bytes(run / name, path.read_bytes())
    files.write_text(run / "config.yaml", yaml.safe_dump(resolved, sort_keys=False))
    return device, said + _commits(packed.manifest, commits)


def _check_state(packed: Folder, measured: Path, state: Mapping) -> None:
    """Raises PrismError where what was measured is not of this folder's cases and graphs."""
    for case in packed.cases(state["device"]):
        graphs = packed.manifest["files"][f"graphs/{case.workload}.json"]
        entry = state["cases"].get(case.name)
        if entry is not None and entry["key"] != f"{case.config_hash} {graphs}":
            raise PrismError(
                f"{measured}: holds measurements of another packed folder than {packed.path} "
                f"({case.name} differs)"
            )


def _prove(winners: Mapping[str, list[tuple[Path, Concrete]]]) -> None:
    """Raises PrismError for a winner, given by workload, whose graph is not proved as a whole."""
    for found in winners.values():
        reasons = given.proofs(found[0][1].program)([concrete.graph for _, concrete in found])
        for (path, _), reason in zip(found, reasons, strict=True):
            if reason:
                raise PrismError(f"{path}: the winner's graph is not proved: {reason}")


def _check_run(run: Path, hashes: Mapping[str, str]) -> None:
    """Raises PrismError where a run of other settings is, whose config.yaml would be replaced."""
    import yaml

    path = run / "config.yaml"
    try:
        there = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None
        other = there is not None and there.get("cases") != dict(hashes)
    except (OSError, ValueError, AttributeError, yaml.YAMLError):
        other = True
    if other:
        raise PrismError(f"run={run}: holds a run of other settings; choose another folder")


def _winner(folder: Path, program: Program) -> tuple[dict[str, Path], str, Concrete | None]:
    """The files of a tuned winner by their name in a run, its digest, and what it is: none of each
    where tuning itself failed. Raises PrismError for another program's and for a damaged one."""
    path = folder / WINNER
    if not path.is_file():
        return {}, "", None
    stored = read_winner(folder)
    with reading(str(path)):
        if stored["status"] != "ok":
            return {f"tune/{folder.name}/{WINNER}": path}, stored.get("digest") or "", None
        concrete = Concrete.from_json(stored["concrete"])
    if differ := given.difference(concrete.program, program):
        raise PrismError(f"{folder}: was tuned for another program: {differ}")
    with reading(str(path)):
        variant, seal = stored["digest"], stored["source_sha256"]
        source = folder / f"{KERNEL}{BACKENDS[stored['backend']].suffix}"
    if concrete.digest() != variant:
        raise PrismError(f"{path} is damaged: its configuration has another digest than it says")
    try:
        there = digest(source.read_bytes())
    except OSError as error:
        raise PrismError(f"cannot read {source}: {error.strerror}") from None
    if there != seal:
        raise PrismError(f"{source} is not the kernel that won: winner.json has another sha256")
    return {f"tune/{folder.name}/{p.name}": p for p in (path, source)}, variant, concrete


def _commits(manifest: Mapping, measured: Mapping[str | None, int]) -> list[str]:
    """How the commits of packing and measuring differ, if they do."""
    here = revision()["commit"]
    made = [("packed", manifest["commit"]), *(("measured", commit) for commit in measured)]
    return [
        f"{what} at commit {commit or 'unknown'}, this is {here or 'unknown'}"
        for what, commit in made
        if commit != here
    ]
