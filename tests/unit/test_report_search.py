"""What a report says of the search itself: graphs, gaps, memory, rules, ablation, growth."""

import json
import re

import pandas as pd
import pytest
from report_runs import (
    ALL_CASES,
    CASE,
    STOPPED,
    ablation,
    growth,
    make_run,
    put,
    row,
    search,
    table,
    verdicts,
)

from prism.report import build

CUT = "Symbolic maps cut the search of RMSNorm from 312 s to 0.3 s (Table 4)"


def section(page: str, anchor: str) -> str:
    found = re.search(rf'<h2 id="{anchor}">.*?(?=<h2 )', page, re.S)
    return found[0] if found else ""


def plan(run, **suite) -> None:
    config = {"suite": {"name": "test"} | suite, "cases": {CASE: "abc123"}}
    put(run / "config.yaml", json.dumps(config | {"ablation": {"limit_s": 50.0}}))


# Graphs and telemetry ---------------------------------------------------------------------


def test_graphs_of_one_kernel_are_told_from_all(tmp_path):
    run = make_run(tmp_path)
    page = build(run).read_text()
    (counted,) = table(run, "graph_diversity")
    assert (counted["graphs"], counted["graphs_single_kernel"]) == ("12", "3")
    assert (counted["published_prism"], counted["published_mirage"]) == ("9", "1; 8")
    assert counted["gaps"] == "1" and float(counted["graphs_log10"]) == pytest.approx(1.0792, 1e-3)
    assert "graphs_unknown" not in counted
    (searched,) = table(run, "search_time")
    assert (searched["peak_mib"], searched["gaps"], searched["rules"]) == ("181.5", "1", "2")
    assert "of one generated kernel are set beside the paper" in section(page, "graphs")


def test_more_graphs_than_an_integer_holds(tmp_path):
    run = make_run(tmp_path)
    put(run / "search/rmsnorm.json", search("rmsnorm", 12, every=3 * 10**25))
    page = build(run).read_text()
    (counted,) = table(run, "graph_diversity")
    assert (counted["graphs"], counted["graphs_single_kernel"]) == ("", "12")
    assert "about 10^25.5" in section(page, "graphs")
    said, verdict = verdicts(run)["9 to 23 unique graphs a workload, more than Mirage (Table 3)"]
    assert "rmsnorm 12 (published 9)" in said and said.endswith("several kernels: rmsnorm 10^25.5")
    assert verdict == "holds where measured"


def test_rules_are_listed_by_workload_with_matches_and_seconds(tmp_path):
    run = make_run(tmp_path, list(ALL_CASES)[:3])
    shown = section(build(run).read_text(), "rules")
    assert shown.count("<details>") == 2 and "rmsnorm_mlp: 1,230 matches in 0.064 s" in shown
    assert '<td class="number">1,200</td><td class="number">62.50</td>' in shown
    rows = table(run, "rules")
    assert [(r["workload"], r["rule"], r["matches"]) for r in rows][:2] == [
        ("rmsnorm", "part of repl", "1200"),
        ("rmsnorm", "axes of results", "30"),
    ]
    assert list(pd.read_parquet(run / "tables/rules.parquet").seconds)[:2] == [0.0625, 0.0015]


def test_a_winner_that_the_search_does_not_hold_fails_the_claim(tmp_path):
    run = make_run(tmp_path, list(ALL_CASES)[:2])
    claim = "One search of a workload serves all its configurations"
    assert verdicts(run)[claim][1] == "holds"
    path = run / f"tune/{CASE}/winner.json"
    put(path, json.loads(path.read_text()) | {"graph_id": "0.77"})
    assert verdicts(run)[claim] == (
        "winners of all configurations come from one search: none; not so: rmsnorm",
        "does not hold",
    )


# Limits -----------------------------------------------------------------------------------

SECONDS = "One symbolic search serves all configurations of a workload, in 0.3 to 871 s, "
SECONDS += "less than Mirage's searches of them (Table 2, 96 threads)"


def stop(run, workload: str, **changes) -> None:
    path = run / f"search/{workload}.json"
    put(path, json.loads(path.read_text()) | STOPPED | changes)


def test_a_search_that_was_stopped_has_no_time(tmp_path):
    run = make_run(tmp_path, list(ALL_CASES)[:3])
    stop(run, "rmsnorm_mlp")
    page = build(run).read_text()
    whole, stopped = table(run, "search_time")
    assert (whole["seconds_total"], whole["limit_s"], whole["ended"]) == ("0.21", "", "exhausted")
    assert (stopped["seconds_total"], stopped["limit_s"]) == ("", "60.0")
    assert stopped["ended"] == STOPPED["ended"]
    assert "&gt; 60 s (limit)" in section(page, "search")
    for name in ("optimization_time", "graph_diversity"):
        ended = {
            r["workload"]: r["ended"]
            for r in table(run, name)
            if r.get("system") in (None, "prism")
        }
        assert ended == {"rmsnorm": "exhausted", "rmsnorm_mlp": STOPPED["ended"]}, name
    assert {r["ended"] for r in table(run, "optimization_time") if r["system"] == "eager"} == {""}
    shown = section(page, "optimization"), section(page, "graphs")
    assert all(f'<td class="word">{STOPPED["ended"]}</td>' in part for part in shown)


def test_how_a_search_ended_is_no_column_where_all_did_by_themselves(tmp_path):
    page = build(make_run(tmp_path)).read_text()
    assert "search ended</th>" not in page and "exhausted</td>" in section(page, "search")


def test_seconds_of_a_stopped_search_do_not_make_the_claim_hold(tmp_path):
    run = make_run(tmp_path, list(ALL_CASES))
    assert verdicts(run)[SECONDS][1] == "holds"
    stop(run, "rmsnorm_mlp")  # 60 s are less than the published 871
    said, verdict = verdicts(run)[SECONDS]
    assert verdict == "not decided: stopped"
    assert said.startswith("at least 60.8 s in all, published 955.3; ")
    assert "on 4 of 5 workloads; at least 60 s for the longest" in said
    assert "bound of 10 s: does not hold); no slower than published on 4 of 5" in said
    assert "rmsnorm_mlp at least 60 s (published 871)" in said
    stop(run, "rmsnorm_mlp", seconds=STOPPED["seconds"] | {"total": 5.0})
    assert "bound of 10 s: not decided: stopped)" in verdicts(run)[SECONDS][0]
    stop(run, "rmsnorm")  # 60 s are more than Mirage's 24.6
    assert verdicts(run)[SECONDS][1] == "does not hold"


def test_too_few_graphs_of_a_stopped_search_decide_nothing(tmp_path):
    claim = "9 to 23 unique graphs a workload, more than Mirage (Table 3)"
    run = make_run(tmp_path)
    assert verdicts(run)[claim][1] == "does not hold"
    stop(run, "rmsnorm", ended="p_1: interrupted")
    said, verdict = verdicts(run)[claim]
    assert verdict == "not decided: stopped" and "rmsnorm at least 3 (published 9)" in said
    assert "&gt; 60 s (interrupted)" in section((run / "report.html").read_text(), "search")


def test_a_total_with_a_stopped_search_is_not_held_against_mirage(tmp_path):
    run = make_run(tmp_path)
    path = run / f"bench/{CASE}.jsonl"
    slow = row(CASE, "mirage", 110.0) | {"tune_seconds": 5000.0}
    path.write_text(path.read_text() + json.dumps(slow) + "\n")
    claim = "Up to 3.4x less total optimization time than Mirage"
    assert verdicts(run)[claim][1] == "holds"
    stop(run, "rmsnorm")
    said, verdict = verdicts(run)[claim]
    assert verdict == "not decided: stopped" and said.endswith(
        "1 left out whose search was stopped"
    )


def test_gaps_are_counted_by_reason(tmp_path):
    run = make_run(tmp_path)
    reasons = ["not tried", "axiom gap at pair 0", "axiom gap at pair 3", "time limit"]
    found = search("rmsnorm") | {"gaps": [{"what": "exp(X)", "reason": r} for r in reasons]}
    put(run / "search/rmsnorm.json", found)
    page = build(run).read_text()
    for name, anchor in (("search_time", "search"), ("graph_diversity", "graphs")):
        (counted,) = table(run, name)
        assert counted["gaps"] == "4"
        assert counted["gap_reasons"] == "axiom gap 2, not tried 1, time limit 1"
        assert ">4: axiom gap 2, not tried 1, time limit 1</td>" in section(page, anchor)


# Ablation ---------------------------------------------------------------------------------


def test_a_limit_is_never_a_time(tmp_path):
    run = make_run(tmp_path)
    put(run / "ablation.json", ablation(50.0, CCCS=8.0, CCCC=1e9))
    shown = section(build(run).read_text(), "ablation")
    rows = {r["imap"] + r["fmap"] + r["omap"] + r["sizes"]: r for r in table(run, "ablation")}
    assert len(rows) == 9
    assert list(rows["SSSS"])[:9] == [
        *("imap", "fmap", "omap", "sizes", "seconds", "limit_s", "published_s", "ended", "graphs")
    ]
    whole, stopped = rows["CCCS"], rows["CCCC"]
    assert (whole["seconds"], whole["limit_s"], whole["published_s"]) == ("8.0", "", "312.0")
    assert float(whole["speedup_of_symbolic"]) == pytest.approx(200)
    assert (stopped["seconds"], stopped["limit_s"], stopped["ended"]) == ("", "50.0", "limit")
    assert stopped["published_s"] == stopped["speedup_of_symbolic"] == ""
    assert float(stopped["speedup_at_least"]) == pytest.approx(1250)
    assert rows["CCSS"]["published_s"] == "", "a row that Table 4 does not have"
    assert "&gt; 50 s (limit)" in shown and "≥ 1,250.0x" in shown and "200.0x" in shown
    assert '<div class="plot">' in shown and (run / "plots/ablation.svg").exists()
    assert len(pd.read_parquet(run / "tables/ablation.parquet")) == 9


@pytest.mark.parametrize(
    ("seconds", "verdict", "part"),
    [
        ({"CCCS": 41.0}, "holds", "concrete maps take 41 s, 1,025 times the 0.04 s of symbolic"),
        ({"CCCS": 8.0}, "does not hold", "held against 1,000 times: concrete maps take 8 s, 200"),
        ({"CCCS": 1e9}, "holds", "concrete maps take at least 1,250 times (limit) the 0.04 s"),
        ({"CCCS": 1e9, "SSSS": 2.0}, "not decided: stopped", "at least 25 times (limit)"),
        ({"CCCC": 1e9}, "does not hold", "as Mirage searches, concrete maps take at least 1,250"),
        ({"SSSS": 1e9}, "not measured here", "the symbolic search itself has no time"),
    ],
)
def test_the_claim_of_table_4(tmp_path, seconds, verdict, part):
    run = make_run(tmp_path)
    put(run / "ablation.json", ablation(50.0, **seconds))
    found = verdicts(run)[CUT]
    assert found[1] == verdict and part in found[0]


def test_an_ablation_of_other_sizes_says_nothing_of_table_4(tmp_path):
    run = make_run(tmp_path)
    put(run / "ablation.json", ablation(CCCS=49.0) | {"sizes": {"n": 4, "d": 256, "f": 256}})
    why = ("not measured in the paper's configuration", "not measured here")
    assert verdicts(run)[CUT] == why
    assert {r["published_s"] for r in table(run, "ablation")} == {""}


def test_without_an_ablation_nothing_is_claimed_or_left_behind(tmp_path):
    run = make_run(tmp_path)
    put(run / "ablation.json", ablation())
    put(run / "growth.json", growth())
    build(run)
    names = ("ablation", "growth")
    left = [run / f"{d}/{n}" for n in names for d in ("tables", "plots")]
    assert all(list(path.parent.glob(f"{path.name}.*")) for path in left)
    for name in names:
        (run / f"{name}.json").unlink()
    assert verdicts(run)[CUT] == ("no search with concrete maps in this run", "not measured here")
    assert not any(list(path.parent.glob(f"{path.name}.*")) for path in left)
    page = (run / "report.html").read_text()
    assert not section(page, "ablation") and 'href="#ablation"' not in page


def test_what_the_configuration_says_of_the_extras(tmp_path):
    run = make_run(tmp_path)
    plan(run, ablation={"workload": "rmsnorm", "sizes": {"d": 4096, "n": 8}}, growth=True)
    page = build(run).read_text()
    assert "ablation: not timed (no ablation.json)" in page
    assert "growth: not timed (no growth.json)" in page
    put(run / "ablation.json", ablation(7.0))
    put(run / "growth.json", {"rows": [{"program": "half"}]})
    page = build(run).read_text()
    other = "ablation.json was made with other settings and left out: limit_s 7.0, not 50.0"
    assert other in page and "growth.json is damaged and was left out" in page
    put(run / "ablation.json", ablation(50.0) | {"sizes": {"n": 16, "d": 4096}})
    assert "left out: n 16, not 8" in build(run).read_text()
    plan(run, ablation=None, growth=False)
    page = build(run).read_text()
    assert "ablation, growth: not in this configuration" in page
    assert not (run / "tables/ablation.csv").exists()


# Growth -----------------------------------------------------------------------------------


def test_growth_is_a_table_with_limits_apart(tmp_path):
    put(tmp_path / "growth.json", growth())
    shown = section(build(tmp_path).read_text(), "growth")
    first, _, last = table(tmp_path, "growth")
    assert (first["program"], first["operators"], first["pieces"]) == ("chain7", "7", "1")
    assert (first["seconds"], first["limit_s"], first["seconds_map"]) == ("0.2", "", "0.1")
    assert (last["seconds"], last["limit_s"], last["ended"]) == ("", "60.0", "time limit of 60 s")
    assert "&gt; 60 s (limit)" in shown and "30 operators" in shown
