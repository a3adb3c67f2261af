"""Reading the folder of one run: what was searched, tuned and timed, and what is missing of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from prism.errors import PrismError
from prism.measure.rows import read_rows
from prism.report import settings
from prism.report.extras import KINDS, read_extra, read_json

PRISM = "prism"
REFERENCE = "read"  # a kernel that only reads the inputs: what any kernel could at best reach
EXPERT = "sdpa"  # an expert's kernel, for attention alone: a system to compare with, no baseline
INTERPRETER = "interpreter"  # Triton's, in which the code for GPUs is rehearsed
_REHEARSED = {"status": "suspect", "reason": "timed in Triton's interpreter, which is no device"}
_ORDER = ("rmsnorm", "rmsnorm_mlp", "swiglu", "attention", "qk_attention")  # as in the paper
_SYSTEMS = (PRISM, "eager", "compiled", EXPERT)


@dataclass
class Case:
    """One workload in one configuration: its bench rows, and its tuned winner if there is one."""

    name: str
    rows: list[dict] = field(default_factory=list)
    winner: dict | None = None
    source: str | None = None

    @property
    def workload(self) -> str:
        """The part of the name before `@`."""
        return self.name.partition("@")[0]

    @property
    def config(self) -> str:
        """The sizes that make the configuration, such as `d=4096,n=8`."""
        return self.name.partition("@")[2]

    @property
    def concrete(self) -> dict | None:
        """The winner's concrete graph as JSON data, if tuning found one."""
        return (self.winner or {}).get("concrete")

    @property
    def sizes(self) -> dict[str, int]:
        """Every axis size that is known of this case."""
        known: dict[str, int] = {}
        for shape in [row.get("shape") for row in self.rows]:
            known |= shape if isinstance(shape, dict) else settings.sizes_in(str(shape or ""))
        known |= ((self.concrete or {}).get("program") or {}).get("sizes") or {}
        return known | settings.sizes_in(self.config)


@dataclass
class Run:
    """A run's results. `problems` says, in words, what could not be read or is not there.

    `left_out` names results in the folder that its configuration does not plan, leftovers of an
    earlier run. Those of planned cases that were made with other settings are left out as well,
    and `problems` names them.
    """

    path: Path
    config: dict
    searches: dict[str, dict]
    cases: list[Case]
    problems: list[str]
    left_out: list[str] = field(default_factory=list)
    ablation: dict | None = None
    growth: dict | None = None
    offline: dict | None = None

    @property
    def rows(self) -> list[dict]:
        """All bench rows, in the order of the cases."""
        return [row for case in self.cases for row in case.rows]

    @property
    def workloads(self) -> list[str]:
        """Every workload that was planned, searched or timed, in the paper's order."""
        names = {*self.searches, *(case.workload for case in self.cases)}
        return sorted(names, key=_workload_key)


def read(run_dir: Path) -> Run:
    """Reads what is there. Raises PrismError when the folder is missing or holds no results."""
    if not run_dir.is_dir():
        raise PrismError(f"report: {run_dir} is not a folder of a run")
    problems: list[str] = []
    config = _config(run_dir / "config.yaml", problems)
    searches: dict[str, dict] = {}
    planned = config.get("cases")
    planned = [str(name) for name in planned] if isinstance(planned, (dict, list)) else []
    cases = {name: Case(name) for name in planned}
    for path in sorted(run_dir.glob("search/*.json")):
        data = read_json(path, problems)
        if data is not None:
            searches[str(data.get("workload") or path.stem)] = data
    for path in sorted(run_dir.glob("tune/*/winner.json")):
        case = cases.setdefault(path.parent.name, Case(path.parent.name))
        case.winner = read_json(path, problems)
        sources = sorted(path.parent.glob("kernel.*"))
        texts = [s.read_text(encoding="utf-8", errors="replace") for s in sources if s.is_file()]
        case.source = texts[0] if texts else None
    for path in sorted(run_dir.glob("bench/*.jsonl")):
        name = path.name.removesuffix(".jsonl")
        case = cases.setdefault(name, Case(name))
        case.rows = sorted(_rows(path, case, problems), key=_system_key)
    extras = {name: read_extra(run_dir, name, config, problems) for name in KINDS}
    if (
        not searches
        and not any(extras.values())
        and all(case.winner is None and not case.rows for case in cases.values())
    ):
        raise PrismError(
            f"report: {run_dir} holds no results: no search/*.json, tune/*/winner.json or "
            f"bench/*.jsonl; run `prism search`, `prism tune` and `prism bench` first"
        )
    left_out = [name for name, data in extras.items() if data == {}]
    if planned:
        workloads = {Case(name).workload for name in planned}
        left_out += [name for name in cases if name not in planned]
        left_out += [f"search of {name}" for name in searches if name not in workloads]
        cases = {name: case for name, case in cases.items() if name in planned}
        searches = {name: data for name, data in searches.items() if name in workloads}
    _leave_out_others(config, searches, cases, problems)
    # Configurations in the order in which they were planned (the paper's), others after them.
    plan = {name: n for n, name in enumerate(planned)}
    ordered = sorted(
        cases.values(),
        key=lambda c: (_workload_key(c.workload), plan.get(c.name, len(plan)), _natural(c.config)),
    )
    found = {name: data or None for name, data in extras.items()}
    run = Run(run_dir, config, searches, ordered, problems, left_out, **found)
    _say_missing(run)
    return run


def _leave_out_others(config: dict, searches: dict, cases: dict, problems: list[str]) -> None:
    """Removes what was made with other settings than config.yaml plans, and says so."""

    def say(what: str, differs: str) -> None:
        problems.append(f"{what} made with other settings and left out: {differs}")

    if config and not all(settings.hash_of(config, name) for name in cases):
        problems.append(
            "config.yaml holds no hash for some configurations: whether their results belong to it "
            "was judged by dtype, seed, sizes and budgets alone"
        )
    device = settings.device_of(config, [row for case in cases.values() for row in case.rows])
    for name, search in list(searches.items()):
        if differs := settings.search_differs(config, search):
            say(f"search/{name}.json was", differs)
            del searches[name]
    for case in cases.values():
        found = case.winner or {}
        if differs := settings.winner_differs(config, case.name, found, device):
            say(f"tune/{case.name} was", differs)
            case.winner = case.source = None
        others: dict[str, list[str]] = {}
        kept = []
        for row in case.rows:
            differs = settings.row_differs(config, case.name, row, device)
            if differs:
                others.setdefault(differs, []).append(str(row["system"]))
            else:
                kept.append(row)
        for differs, systems in others.items():
            say(f"bench/{case.name}: rows of {', '.join(systems)} were", differs)
        case.rows = kept


def _say_missing(run: Run) -> None:
    for workload in run.workloads:
        if workload not in run.searches:
            run.problems.append(f"{workload}: not searched (no search file of this configuration)")
        if all(case.workload != workload for case in run.cases):
            run.problems.append(f"{workload}: no configuration was tuned or timed")
    for case in run.cases:
        if case.winner is None:
            run.problems.append(f"{case.name}: not tuned (no winner.json of this configuration)")
        elif case.concrete is None:
            reason = case.winner.get("reason") or "no reason given"
            run.problems.append(f"{case.name}: tuning has no winner: {reason}")
        elif case.source is None:
            run.problems.append(f"{case.name}: the generated source is missing")
        if not case.rows:
            run.problems.append(f"{case.name}: not timed (no rows of this configuration)")


def _config(path: Path, problems: list[str]) -> dict:
    if not path.is_file():
        problems.append("config.yaml is missing: the run's configuration is unknown")
        return {}
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        data = None
    if not isinstance(data, dict):
        problems.append("config.yaml cannot be read as YAML")
        return {}
    return data


def _rows(path: Path, case: Case, problems: list[str]) -> list[dict]:
    try:
        rows = read_rows(path)
    except (PrismError, ValueError) as error:
        reason = str(error).removeprefix(f"{path}: ")
        problems.append(f"bench/{path.name} is damaged and was left out: {reason}")
        return []
    whole = [row for row in rows if isinstance(row, dict) and row.get("system")]
    if len(whole) < len(rows):
        problems.append(f"bench/{path.name}: {len(rows) - len(whole)} lines name no system")
    needed = {"workload": case.workload, "config": case.config, "status": "failed"}
    whole = [row | {k: v for k, v in needed.items() if row.get(k) is None} for row in whole]
    return [row | _REHEARSED if row.get("device") == INTERPRETER else row for row in whole]


def _workload_key(name: str) -> tuple:
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)


def system_order(name: str) -> tuple:
    """Prism first, then eager, compiled and sdpa, the rest by name, the reference kernel last."""
    place = _SYSTEMS.index(name) if name in _SYSTEMS else len(_SYSTEMS)
    return (name == REFERENCE, place, name)


def _system_key(row: dict) -> tuple:
    return (str(row.get("dtype") or ""), system_order(row["system"]), str(row.get("variant") or ""))


def _natural(text: str) -> list:
    return [(0, int(t), "") if t.isdigit() else (1, 0, t) for t in re.split(r"(\d+)", text)]
