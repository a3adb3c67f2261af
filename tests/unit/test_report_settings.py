"""What a report does with results of other settings, with noise and with a part of a run."""

import json
import os

import pytest
from report_runs import ALL_CASES, CASE, change, make_run, put, search, table, verdicts, winner

from prism.report import build

FASTEST = "Prism has the fastest kernel on all 10 configurations"
COMPILED = "Up to 4.9x faster than torch.compile"
NOISE = "noisy: p80 is 27 times p20"


def plan(run, hashes: dict | list, **settings) -> None:
    put(run / "config.yaml", json.dumps({"cases": hashes, "suite": {"name": "test"}} | settings))


def noisy(run, case: str, system: str) -> None:
    change(run, case, system, p20_us=100.0, p80_us=2700.0)


# Other settings ---------------------------------------------------------------------------


def test_rows_with_another_configuration_hash_are_named_and_left_out(tmp_path):
    run = make_run(tmp_path)
    assert "other settings" not in build(run).read_text()
    change(run, CASE, "compiled", config_hash="0ld", median_us=9.0)
    page = build(run).read_text()
    said = "rows of compiled were made with other settings and left out: configuration hash 0ld"
    assert said in page and "not abc123" in page
    rows = {r["system"]: r for r in table(run, "kernel_time")}
    assert list(rows) == ["prism", "eager", "read"]
    assert float(rows["prism"]["ratio_to_best_baseline"]) == pytest.approx(1.8)
    plan(run, {CASE: "n3w"})
    assert list(run.glob("tables/rows.*")) and (run / "plots/relative_performance.svg").exists()
    assert f"{CASE}: not timed (no rows of this configuration)" in build(run).read_text()
    assert not list(run.glob("tables/rows.*"))
    assert not (run / "plots/relative_performance.svg").exists()
    assert verdicts(run)[FASTEST] == (
        "none of the paper's configurations was measured",
        "not measured here",
    )


def test_without_hashes_rows_are_compared_by_what_both_sides_know(tmp_path):
    run = make_run(tmp_path)
    plan(run, [CASE], dtype="bf16", seed=0)
    change(run, CASE, "eager", dtype="fp32")
    change(run, CASE, "compiled", seed=7)
    change(run, CASE, "read", shape={"n": 16, "d": 4096, "f": 4096})
    page = build(run).read_text()
    for differs in ("dtype fp32, not bf16", "seed 7, not 0", "n 16, not 8"):
        assert f"made with other settings and left out: {differs}" in page
    assert "judged by dtype, seed, sizes and budgets alone" in page
    assert [r["system"] for r in table(run, "kernel_time")] == ["prism"]


def test_searches_and_winners_of_other_settings_are_left_out(tmp_path):
    run = make_run(tmp_path)
    bounds = {"name": "guided", "grid": 3, "seconds": 60}
    tune = {"name": "random", "count": 80, "seconds": 60, "seed": 0}
    plan(run, {CASE: "abc123"}, dtype="bf16", search=bounds, tune=tune)
    budget = {"count": 80, "seconds": 60, "seed": 0}
    tuned = winner(ALL_CASES[CASE]) | {"dtype": "bf16", "strategy": "random", "budget": budget}
    found = search("rmsnorm") | {"bounds": {"generator": "guided", "grid": 3, "seconds": 60}}
    put(run / f"tune/{CASE}/winner.json", tuned)
    put(run / "search/rmsnorm.json", found)
    assert "other settings" not in build(run).read_text()
    put(run / f"tune/{CASE}/winner.json", tuned | {"budget": budget | {"count": 5}})
    put(run / "search/rmsnorm.json", found | {"bounds": found["bounds"] | {"grid": 2}})
    page = build(run).read_text()
    assert "search/rmsnorm.json was made with other settings and left out: grid 2, not 3" in page
    assert f"tune/{CASE} was made with other settings and left out: count 5, not 80" in page
    assert table(run, "search_time")[0]["seconds_total"] == ""
    assert 'class="picture"' not in page


# Noise ------------------------------------------------------------------------------------


def test_a_noisy_row_is_marked_and_gives_no_verdict(tmp_path):
    run = make_run(tmp_path)
    noisy(run, CASE, "prism")
    found = verdicts(run)
    assert found[FASTEST][1] == found[COMPILED][1] == "too noisy here"
    assert "fastest on 0 of 1 measured" in found[FASTEST][0]
    rows = {r["system"]: r for r in table(run, "kernel_time")}
    assert rows["prism"]["reason"] == NOISE and rows["eager"]["reason"] == ""
    page = (run / "report.html").read_text()
    assert f'<td class="number noisy">1.50x {NOISE}</td>' in page
    change(run, CASE, "prism", median_us=900.0)  # slower, but as noisy
    assert verdicts(run)[FASTEST][1] == "too noisy here"


def test_a_ratio_to_a_noisy_baseline_is_noisy(tmp_path):
    run = make_run(tmp_path)
    noisy(run, CASE, "compiled")
    assert verdicts(run)[FASTEST][1] == "too noisy here"
    rows = {r["system"]: r["reason"] for r in table(run, "kernel_time")}
    assert rows["prism"] == "noisy baseline compiled: p80 is 27 times p20"


def test_a_suspicion_raised_by_a_stalled_read_is_no_verdict(tmp_path):
    run = make_run(tmp_path)
    change(run, CASE, "prism", status="suspect", reason="faster than reading")
    assert verdicts(run)[FASTEST][1] == "does not hold"
    noisy(run, CASE, "read")
    assert verdicts(run)[FASTEST][1] == "too noisy here"
    reason = "faster than reading; noisy read: p80 is 27 times p20"
    assert table(run, "kernel_time")[0]["reason"] == reason
    assert f"suspect: {reason}" in (run / "report.html").read_text()


def test_sound_rows_decide_beside_noisy_ones(tmp_path):
    run = make_run(tmp_path, list(ALL_CASES))
    noisy(run, CASE, "prism")
    measured, verdict = verdicts(run)[FASTEST]
    assert measured.startswith("on cpu, bf16: fastest on 9 of 10 measured")
    assert measured.endswith("1 too noisy to tell") and verdict == "holds where measured"
    change(run, list(ALL_CASES)[1], "prism", median_us=900.0)
    assert verdicts(run)[FASTEST][1] == "does not hold"


# Counts -----------------------------------------------------------------------------------


def test_a_part_of_a_run_counts_what_was_measured(tmp_path):
    run = make_run(tmp_path, list(ALL_CASES)[:8])
    for case in list(ALL_CASES)[5:8]:
        os.remove(run / f"bench/{case}.jsonl")
    change(run, CASE, "prism", median_us=900.0)
    measured = verdicts(run)[FASTEST][0]
    assert (
        measured.startswith("on cpu, bf16: fastest on 4 of 5 measured")
        and "without" not in measured
    )
    assert measured.endswith("(5 of the paper's 10 configurations)")


def test_a_win_counts_only_against_all_named_baselines(tmp_path):
    run = make_run(tmp_path, list(ALL_CASES))
    change(run, CASE, "compiled", status="failed", reason="killed", median_us=None)
    measured, verdict = verdicts(run)[FASTEST]
    assert measured.startswith("on cpu, bf16: fastest on 9 of 10 measured, against eager, compiled")
    assert "on 1 more only against those with a sound time; compiled failed in 1" in measured
    assert verdict == "holds where measured"


def test_other_configurations_than_the_papers_are_told_apart_from_failures(tmp_path):
    run = make_run(tmp_path, ["rmsnorm@d=64,n=4"])
    os.remove(run / "tune/rmsnorm@d=64,n=4/winner.json")
    found = verdicts(run)
    why = ("none of the paper's configurations was measured", "not measured here")
    assert found[FASTEST] == found[COMPILED] == why


def test_rows_of_read_are_not_counted_as_passed(tmp_path):
    page = build(make_run(tmp_path)).read_text()
    assert "3 of systems, of which 3 passed; 1 of read, which has no output to check" in page


@pytest.mark.parametrize(("seconds", "verdict"), [(0.9, "holds"), (1e3, "does not hold")])
def test_search_seconds_are_held_against_totals_and_mirage(tmp_path, seconds, verdict):
    run = make_run(tmp_path, list(ALL_CASES))
    path = run / "search/rmsnorm.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"seconds": data["seconds"] | {"total": seconds}}))
    found = next(v for claim, v in verdicts(run).items() if claim.startswith("One symbolic search"))
    assert found[1] == verdict
    assert f"rmsnorm {seconds:.3g} s (published 0.3)" in found[0]
    assert "no slower than published on 4 of 5" in found[0]
    assert f"bound of 10 s: {verdict})" in found[0]


def test_numbers_of_one_column_have_one_format(tmp_path):
    page = build(make_run(tmp_path, list(ALL_CASES))).read_text()
    searched = page[page.index('id="search"') : page.index('id="graphs"')]
    for seconds in ("0.3", "871.0", "1.0", "41.0", "42.0"):
        assert f'<td class="number published">{seconds}</td>' in searched
    assert '<td class="number">40→20</td>' in searched and "counted by cause" in searched
