"""The tables of the search alone: its time, its graphs, its rules, its ablation, its growth."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from prism.report import telemetry
from prism.report.frames import MISSING, frame_of
from prism.report.published import Published, both, number
from prism.report.run import Run

_STAGES = ("generate", "map", "refute", "prove")
_MAPS = ("imap", "fmap", "omap")
LIMIT = "limit"  # how a row of an ablation ended that was stopped
_MOST = 2**53  # the largest count that passes through a column of numbers unchanged


def search_time(run: Run, published: Published) -> pd.DataFrame:
    """Table 2, with seconds and candidates by stage.

    A search that a limit or the user ended has no `seconds_total`: `limit_s` is how long it ran,
    and `ended` says why. `peak_mib` is the most memory, `gaps` what was not proved, for want of a
    rule or of budget (`gap_reasons`), `rules` how many rules of the prover matched.
    """
    records = [
        _search_record(workload, run.searches.get(workload), published.search_of(workload))
        for workload in run.workloads
    ]
    whole = [f"{stage}_{end}" for stage in _STAGES for end in ("in", "out")]
    text = ["workload", "published_mirage_s", "gap_reasons", "ended", "status", "reason"]
    return frame_of(records, _search_record("", None, {}), text, [*whole, "gaps", "rules"])


def _search_record(workload: str, search: Mapping | None, paper: Mapping[str, str]) -> dict:
    found = search or {}
    seconds, candidates = found.get("seconds") or {}, found.get("candidates") or {}
    stopped, total = telemetry.stopped(found.get("ended")), seconds.get("total")
    record = {
        "workload": workload,
        "seconds_total": None if stopped else total,
        "published_prism_s": number(paper.get("prism_shared_s")),
        "published_mirage_s": both(paper, "mirage", "_s"),
        "limit_s": total if stopped else None,
    }
    record |= {f"seconds_{stage}": seconds.get(stage) for stage in _STAGES}
    for stage in _STAGES:
        counts = candidates.get(stage) or {}
        record |= {f"{stage}_{end}": counts.get(end) for end in ("in", "out")}
    return record | {
        "peak_mib": found.get("peak_mib"),
        **_gaps(search),
        "rules": len(telemetry.rules(found)) if search else None,
        "ended": found.get("ended"),
        **_status(search),
    }


def graph_diversity(run: Run, published: Published) -> pd.DataFrame:
    """Table 3: proved graphs that differ in operators, kernels or mapping.

    `graphs` is empty where there are more than fit an integer; `graphs_log10` always tells. `gaps`
    are members and lemmas that were not proved, `gap_reasons` why; no graph uses them. Counts of a
    search that did not end by itself (`ended`) are lower bounds.
    """
    records = [
        _graphs_record(workload, run.searches.get(workload), published.graphs_of(workload))
        for workload in run.workloads
    ]
    whole = ("graphs", "graphs_single_kernel", "published_prism", "gaps")
    text = ["workload", "published_mirage", "gap_reasons", "ended", "status", "reason"]
    return frame_of(records, _graphs_record("", None, {}), text, whole)


def _graphs_record(workload: str, search: Mapping | None, paper: Mapping[str, str]) -> dict:
    counts = (search or {}).get("graphs") or {}
    every = counts.get("all")
    return {
        "workload": workload,
        "graphs": every if every is not None and every <= _MOST else None,
        "graphs_single_kernel": counts.get("single_kernel"),
        "published_prism": number(paper.get("prism_shared")),
        "published_mirage": both(paper, "mirage"),
        **_gaps(search),
        "graphs_log10": math.log10(every) if every else None,
        "ended": (search or {}).get("ended"),
        **_status(search),
    }


def _status(search: Mapping | None) -> dict[str, str]:
    missing = {"status": MISSING, "reason": "not searched in this run"}
    return {"status": "ok", "reason": ""} if search else missing


def rules(run: Run) -> pd.DataFrame:
    """The prover's rules by workload, those with most matches first."""
    records = [
        {"workload": workload, "rule": rule, "matches": matches, "seconds": seconds}
        | {"status": "ok", "reason": ""}
        for workload in run.workloads
        for rule, matches, seconds in telemetry.rules(run.searches.get(workload) or {})
    ]
    template = dict.fromkeys(("workload", "rule", "matches", "seconds", "status", "reason"))
    return frame_of(records, template, ("workload", "rule", "status", "reason"), ("matches",))


def ablation(found: Mapping, published: Published) -> pd.DataFrame:
    """Table 4: the search with each kind of map symbolic (S) or concrete (C).

    A row that was stopped has no seconds: `limit_s` is what it ran, `speedup_at_least` what
    symbolic maps gain at least. The paper defers sizes to instantiation in all rows, so that the
    row with concrete sizes has no published seconds.
    """
    paper = published.ablation_of(str(found.get("workload")), found.get("sizes") or {})
    symbolic = next((r for r in found["rows"] if not _concrete(r) and r["ended"] != LIMIT), None)
    records = []
    for row in found["rows"]:
        stopped = row["ended"] == LIMIT
        ratio = row["seconds"] / symbolic["seconds"] if symbolic else None
        maps = "".join(row[m] for m in _MAPS)
        records.append(
            {
                **{key: row[key] for key in (*_MAPS, "sizes")},
                "seconds": None if stopped else row["seconds"],
                "limit_s": found["limit_s"] if stopped else None,
                "published_s": paper.get(maps) if row["sizes"] == "S" else None,
                "ended": row["ended"],
                "graphs": row["graphs"],
                "speedup_of_symbolic": None if stopped else ratio,
                "speedup_at_least": ratio if stopped else None,
                "assignments": row["assignments"],
                "assignments_all": row["assignments_all"],
                "status": "ok",
                "reason": "",
            }
        )
    text = (*_MAPS, "sizes", "ended", "status", "reason")
    return frame_of(records, {}, text, ("graphs", "assignments"))


def growth(found: Mapping) -> pd.DataFrame:
    """The search of ever larger programs; one that was stopped has `limit_s` and no seconds."""
    records = []
    for row in found["rows"]:
        stopped = bool(telemetry.stopped(row["ended"]))
        total = row["seconds"]["total"]
        limit = row.get("limit_s", total)
        stages = {f"seconds_{s}": row["seconds"].get(s) for s in _STAGES}
        records.append(
            {
                **{key: row[key] for key in ("program", "operators", "pieces")},
                "seconds": None if stopped else total,
                "limit_s": limit if stopped else None,
                **{key: row[key] for key in ("graphs_log10", "kernels", "peak_mib", "ended")},
                **stages,
                "status": "ok",
                "reason": "",
            }
        )
    text = ("program", "ended", "status", "reason")
    return frame_of(records, {}, text, ("operators", "pieces", "kernels"))


def _concrete(row: Mapping) -> bool:
    return any(row[key] == "C" for key in (*_MAPS, "sizes"))


def _gaps(search: Mapping | None) -> dict[str, object]:
    if search is None:
        return {"gaps": None, "gap_reasons": ""}
    return {"gaps": len(search.get("gaps") or ()), "gap_reasons": telemetry.gap_reasons(search)}
