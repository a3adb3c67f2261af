"""What a report says of its run in words: when, where, with which versions, by whose winner."""

from __future__ import annotations

from prism.report.run import REFERENCE, Case, Run

NONE = "–"
_MOVING = ("load_average", "clock_mhz", "clocks")  # differ from row to row: the first one is shown
_BUSY = 1.5  # load per core from which on a machine was not a benchmark's own
_COMPILER = {"spill_bytes": "spilled a thread", "shared_bytes": "shared a block"}
_ENDED = {
    "time": "its limit of {limit}, with configurations left to try",
    "count": "its count of configurations, within {limit}",
    "exhausted": "having tried every configuration there is, within {limit}",
}
_OWN_PLACE = ("commit", "dirty", "versions")


def ran(run: Run) -> list[tuple[str, str]]:
    """Name and value of what ran: suite, device, overrides, dates, commit, configuration hashes."""
    suite, device = run.config.get("suite"), run.config.get("device")
    commits = [
        f"{row['commit']}{' (with uncommitted changes)' if row.get('dirty') else ''}"
        for row in run.rows
        if row.get("commit")
    ]
    dates = sorted(str(row["measured_at"]) for row in run.rows if row.get("measured_at"))
    gated = [row for row in run.rows if row["system"] != REFERENCE]
    passed = sum(row["status"] == "ok" for row in gated)
    rows = f"{len(gated)} of systems, of which {passed} passed"
    if len(gated) < len(run.rows):
        rows += f"; {len(run.rows) - len(gated)} of {REFERENCE}, which has no output to check"
    hashes = {
        case.name: str(row["config_hash"])
        for case in run.cases
        for row in case.rows
        if row.get("config_hash")
    }
    facts = [
        ("Suite", suite.get("name") if isinstance(suite, dict) else suite),
        ("Device", _device(run, device.get("name") if isinstance(device, dict) else device)),
        ("Data type", ", ".join(dict.fromkeys(str(row.get("dtype")) for row in run.rows))),
        ("Overrides", " ".join(map(str, run.config.get("overrides") or [])) or "none"),
        ("Workloads", ", ".join(run.workloads)),
        ("Configurations", str(len(run.cases))),
        ("Rows", rows),
        ("Measured", " to ".join(dict.fromkeys(dates[:1] + dates[-1:]))),
        ("Commit", "; ".join(dict.fromkeys(commits))),
        ("Configuration hashes", ", ".join(f"{h} ({name})" for name, h in hashes.items())),
    ]
    if run.left_out:
        facts.append(("Left out", f"{', '.join(run.left_out)}: not in this configuration"))
    return [(name, str(value or NONE)) for name, value in facts]


def _device(run: Run, name: object) -> str:
    """The device by its configured name, and a GPU as its driver calls it."""
    found = {}
    for row in run.rows:
        inside = row.get("environment") if isinstance(row.get("environment"), dict) else {}
        gpu = inside.get("gpu")
        if row.get("device") not in (None, "cpu") and isinstance(gpu, dict) and gpu:
            found[f"{gpu.get('name')}, driver {gpu.get('driver_version')}"] = None
    return "; ".join([str(name or NONE), *found])


def environment(run: Run) -> list[tuple[str, str]]:
    """What the rows record of their machine; where rows differ, every value."""
    seen: dict[str, dict[str, None]] = {}
    libraries: dict[str, dict[str, str]] = {}
    for row in run.rows:
        inside = row.get("environment") if isinstance(row.get("environment"), dict) else {}
        for name, value in inside.items():
            if name not in _OWN_PLACE and not (name in _MOVING and name in seen):
                seen.setdefault(name, {})[fact(value, name)] = None
        for name in ("timer", "threads", "device", "container_digest"):
            if row.get(name) not in (None, ""):
                seen.setdefault(name, {})[fact(row[name])] = None
        for versions in (inside.get("versions"), row.get("versions")):
            for name, value in (versions if isinstance(versions, dict) else {}).items():
                shown = "not installed" if value is None else str(value)
                libraries.setdefault(name, {})[row["system"]] = shown
    facts = [(_name(name), "; ".join(values)) for name, values in seen.items()]
    for name, by_system in libraries.items():
        values = dict.fromkeys(by_system.values())
        each = (f"{value} ({system})" for system, value in by_system.items())
        facts.append(
            (f"version of {name}", next(iter(values)) if len(values) == 1 else "; ".join(each))
        )
    return facts


def busy(run: Run) -> str:
    """Which configurations were timed on a machine with other work; empty if none is known."""
    found = {}
    for case in run.cases:
        for row in case.rows:
            inside = row.get("environment") if isinstance(row.get("environment"), dict) else {}
            load, cores = inside.get("load_average"), inside.get("cores_available")
            if load and cores and load[0] > _BUSY * cores:
                found[case.name] = f"{case.name} (load {load[0]:.3g} on {cores} cores)"
    if not found:
        return ""
    return f"The machine was busy, so these times are inflated: {', '.join(found.values())}."


def winner(case: Case) -> list[tuple[str, str]]:
    """How a case's winner was found, its parameters, and how it was checked and built."""
    data, concrete = case.winner or {}, case.concrete
    tried = data.get("tried")
    tried = len(data.get("candidates") or []) if tried is None else tried
    facts = [("Candidates", f"{tried} tried, {data.get('passed', NONE)} passed")]
    if data.get("ended") in _ENDED:
        limit = f"{data['limit_s']:g} s" if data.get("limit_s") is not None else "its seconds"
        facts.append(("Tuning ended by", _ENDED[data["ended"]].format(limit=limit)))
    causes = ", ".join(f"{cause} {n}" for cause, n in sorted((data.get("causes") or {}).items()))
    facts.append(("Failed by cause", causes or "none"))
    if refused := data.get("refused"):
        of = f" of {total}" if (total := data.get("refused_of")) else ""
        left = "; ".join(f"{n}{of}: {why}" for why, n in refused.items())
        facts.append(("Graphs left out", left))
    internal = [c for c in data.get("candidates") or [] if c.get("cause") == "internal"]
    if internal:
        facts.append(("Problems of the generator", str(internal[0].get("reason") or NONE)))
    controls = "; ".join(f"{name}: {end}" for name, end in (data.get("controls") or {}).items())
    facts.append(("Controls, which must fail", controls or "none recorded"))
    if concrete is None:
        return facts
    for number, sizes in enumerate(concrete.get("sizes") or []):
        shown = ", ".join(f"d_{par} = {size}" for par, size in sizes.items()) or "none"
        facts.append((f"Parameters of kernel {number}", shown))
    options = concrete.get("options") or {}
    verdict = [str(data.get("verdict") or NONE)]
    verdict += [f"{k}: {fact(data[k])}" for k in ("error", "bound") if data.get(k) is not None]
    command = data.get("compile_command")
    if data.get("registers") is not None:
        compiled = [f"{data['registers']} registers a thread"]
        compiled += [f"{fact(data.get(k), k)} {words}" for k, words in _COMPILER.items()]
        facts.append(("Largest kernel, by the compiler", ", ".join(compiled)))
    if data.get("modelled_us") is not None:
        facts.append(("Modelled time, not measured", f"{data['modelled_us']:,.1f} µs"))
    if isinstance(expected := data.get("modelled"), dict):
        shown = f"most of the time is {expected.get('bound') or NONE}"
        shown += f"; waves {fact(expected.get('waves'))}; occupancy "
        shown += fact(expected.get("occupancy"))
        facts.append(("Modelled cause of it, not measured", shown))
    return facts + [
        ("Options", ", ".join(f"{k} = {v}" for k, v in options.items()) or "none"),
        ("Graph", str(data.get("graph_id") or NONE)),
        ("Verdict of the gate", "; ".join(verdict)),
        ("Source sha256", str(data.get("source_sha256") or NONE)),
        ("Compiled with", " ".join(map(str, command)) if isinstance(command, list) else NONE),
    ]


def fact(value: object, name: str = "") -> str:
    """A recorded value in words; `..._bytes` in binary units."""
    if isinstance(value, dict):
        return ", ".join(f"{_name(k)} {fact(v, k)}" for k, v in value.items()) or "none"
    if isinstance(value, list):
        return "; ".join(map(fact, value)) or "none"
    if name.endswith("_bytes") and isinstance(value, int):
        unit = next((u for u in (30, 20, 10) if value >= 1 << u), 0)
        return f"{value / (1 << unit):.4g} {({30: 'GiB', 20: 'MiB', 10: 'KiB', 0: 'bytes'})[unit]}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "unknown" if value is None else str(value)


def _name(name: str) -> str:
    return str(name).removesuffix("_bytes").replace("_", " ")
