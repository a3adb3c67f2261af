"""The report of synthetic runs: fixtures in a temporary folder, never measured numbers."""

import json
import os
import re
import shutil

import pandas as pd
import pytest
from report_runs import ALL_CASES, CASE, change, make_run, put, row, search, table, verdicts, winner

from prism.errors import PrismError
from prism.report import build, facts
from prism.report.published import PAPER
from prism.report.run import Case

KERNEL_TIME = ["workload", "config", "dtype", "system", "status", "reason", "median_us", "p20_us"]
KERNEL_TIME += ["p80_us", "ratio_to_best_baseline", "read_speed_fraction"]
OPTIMIZATION_TIME = ["workload", "config", "system", "search_s", "compile_s", "tune_s"]
OPTIMIZATION_TIME += ["other_s", "total_s"]
SEARCH_TIME = ["workload", "seconds_total", "published_prism_s", "published_mirage_s"]
DIVERSITY = ["workload", "graphs", "graphs_single_kernel", "published_prism", "published_mirage"]


def test_tables_have_the_columns_that_others_read(tmp_path):
    run = make_run(tmp_path)
    assert build(run) == run / "report.html"
    for name, columns in (
        ("kernel_time", KERNEL_TIME),
        ("optimization_time", OPTIMIZATION_TIME),
        ("search_time", SEARCH_TIME),
        ("graph_diversity", DIVERSITY),
    ):
        for frame in (
            pd.read_csv(run / f"tables/{name}.csv"),
            pd.read_parquet(run / f"tables/{name}.parquet"),
        ):
            assert list(frame.columns)[: len(columns)] == columns
            assert len(frame)
        assert "nan" not in (run / f"tables/{name}.csv").read_text().lower()


def test_ratios_are_against_the_best_passing_baseline_and_never_read(tmp_path):
    run = make_run(tmp_path)
    change(run, CASE, "compiled", median_us=140.0)
    build(run)
    ratio = {
        r["system"]: r["ratio_to_best_baseline"] and float(r["ratio_to_best_baseline"])
        for r in table(run, "kernel_time")
    }
    assert "without compiled" not in (run / "report.html").read_text()
    assert ratio == pytest.approx({"prism": 1.4, "eager": 140 / 180, "compiled": 1, "read": ""})
    failing = {"status": "suspect", "reason": "faster than reading"}
    change(run, CASE, "compiled", **failing)
    build(run)
    rows = {r["system"]: r for r in table(run, "kernel_time")}
    assert float(rows["prism"]["ratio_to_best_baseline"]) == pytest.approx(1.8)
    assert rows["prism"]["without_baselines"] == "compiled (suspect)"
    page = (run / "report.html").read_text()
    assert '<td class="number noisy">1.80x without compiled (suspect)</td>' in page
    assert rows["compiled"]["ratio_to_best_baseline"] == ""


def test_failed_cells_stay_with_their_reason(tmp_path):
    run = make_run(tmp_path)
    (run / f"bench/{CASE}.jsonl").write_text(
        "".join(json.dumps(row(CASE, s, t)) + "\n" for s, t in (("prism", None), ("eager", 180)))
    )
    build(run)
    failed = next(r for r in table(run, "kernel_time") if r["system"] == "prism")
    assert (failed["status"], failed["reason"]) == ("failed", "killed by SIGSEGV")
    assert failed["median_us"] == failed["ratio_to_best_baseline"] == ""
    page = (run / "report.html").read_text()
    assert "killed by SIGSEGV" in page and 'class="bad"' in page
    assert "without a comparable time" in page or "no passing kernel of Prism" in page


def test_optimization_time_adds_up_and_shares_the_search(tmp_path):
    run = make_run(tmp_path, list(ALL_CASES)[:2])
    build(run)
    rows = {(r["config"], r["system"]): r for r in table(run, "optimization_time")}
    ours = rows["d=4096,n=8", "prism"]
    spent = [float(ours[c]) for c in OPTIMIZATION_TIME[3:]]
    assert spent == pytest.approx([0.21, 8, 31, 5, 44.21])  # tuning's own total is 44
    assert float(rows["d=1024,n=16", "prism"]["search_s"]) == 0.21
    compiled = rows["d=1024,n=16", "compiled"]
    assert (compiled["other_s"], float(compiled["total_s"])) == ("", 20)
    assert (ours["published_prism_s"], ours["published_tvm_s"]) == ("135", "130")
    assert all(system != "read" for _, system in rows)


def test_published_numbers_stand_only_beside_the_papers_configurations(tmp_path):
    larger = "rmsnorm@d=8192,n=8"
    narrow, grouped = "rmsnorm@d=4096,f=64,n=8", "attention@group=7,h=1024"
    run = make_run(tmp_path, [*ALL_CASES, "residual_rmsnorm@d=64,n=4", larger, narrow, grouped])
    shapes = {larger: {"d": 8192, "n": 8, "f": 8192}, narrow: {"d": 4096, "n": 8, "f": 64}}
    shapes[grouped] = ALL_CASES["attention@h=1024"] | {"s": 7}
    for case, shape in shapes.items():
        os.remove(run / f"tune/{case}/winner.json")
        for system in ("prism", "eager", "compiled", "read"):
            change(run, case, system, shape=shape)
    build(run)
    shown = {
        (r["workload"], r["config"]): r["published_prism_vs_mirage"]
        for r in table(run, "kernel_time")
        if r["system"] == "prism"
    }
    assert shown["rmsnorm", "d=4096,n=8"] == "1.2"
    assert shown["rmsnorm_mlp", "d=1024,n=8"] == "1.9"
    assert shown["qk_attention", "h=2048"] == "2.2"
    assert shown["residual_rmsnorm", "d=64,n=4"] == shown["rmsnorm", "d=8192,n=8"] == ""
    searched = {r["workload"]: r for r in table(run, "search_time")}
    assert searched["rmsnorm_mlp"]["published_mirage_s"] == ">3600; >3600"
    assert searched["residual_rmsnorm"]["published_prism_s"] == ""
    assert shown["rmsnorm", "d=4096,f=64,n=8"] == shown["attention", "group=7,h=1024"] == ""
    assert sum(r["published_prism_vs_mirage"] != "" for r in table(run, "kernel_time")) == 10
    stated = {
        (r["config"], r["published_prism_vs_torch_compile"], r["published_prism_vs_tvm"])
        for r in table(run, "kernel_time")
        if (r["workload"], r["system"]) == ("rmsnorm_mlp", "prism")
    }
    assert stated == {("d=1024,n=8", "4.9", "5.4"), ("d=1024,n=16", "unknown", "unknown")}
    assert sum(r["published_prism_s"] != "" for r in table(run, "optimization_time")) == 30
    fastest = verdicts(run)["Prism has the fastest kernel on all 10 configurations"]
    assert fastest[0].startswith("on cpu, bf16: fastest on 10 of 10 measured")


def test_rows_keep_raw_samples(tmp_path):
    run = make_run(tmp_path)
    build(run)
    rows = pd.read_parquet(run / "tables/rows.parquet")
    assert list(rows.samples_us[0]) == pytest.approx([90, 100, 120])
    assert json.loads(rows.environment[0])["cpu"] == "Testing CPU"
    assert len(pd.read_csv(run / "tables/rows.csv")) == 4


def test_page_is_self_contained_and_holds_everything(tmp_path):
    run = make_run(tmp_path, list(ALL_CASES))
    page = build(run).read_text()
    assert not re.search(r"""(?:src|href|data)\s*=\s*["']?\s*(?:https?:|//|file:)""", page)
    assert not re.search(r"url\(\s*[\"']?(?!#)", page) and "@import" not in page
    assert "<script" not in page and "<iframe" not in page
    assert page.count('<div class="plot">') == 4 and page.count('<div class="picture">') == 10
    assert page.count("Generated source") == 10 and "a&lt;b &amp;&amp; c&gt;d" in page
    assert "d_x = 64" in page and "%2 = matmul %0 %1 over d" in page
    assert "not complete" not in page
    assert '<th scope="row">memory</th><td>2 GiB</td>' in page
    assert page.count("version of torch") == 1 and "2.13.0" in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)
    assert sorted(p.name for p in (run / "plots").iterdir()) == [
        "graph_diversity.svg",
        "optimization_time.svg",
        "relative_performance.svg",
        "search_time.svg",
    ]


SEARCHED = (
    "One symbolic search serves all configurations of a workload, in 0.3 to 871 s, less than "
    "Mirage's searches of them (Table 2, 96 threads)"
)


def test_claims_say_holds_does_not_hold_or_why_not_measured(tmp_path):
    run = make_run(tmp_path, list(ALL_CASES))
    found = verdicts(run)
    fastest = found["Prism has the fastest kernel on all 10 configurations"]
    against = "against eager, compiled (not run: tvm, mirage)"
    assert fastest == (
        f"on cpu, bf16: fastest on 10 of 10 measured, {against}",
        "holds where measured",
    )
    compiled = found["Up to 4.9x faster than torch.compile"]
    assert compiled[0].startswith("on cpu, bf16: up to 1.50x (rmsnorm d=4096,n=8)")
    assert compiled[1] == "does not hold"
    tvm = found["Up to 5.4x faster than TVM (Ansor)"]
    assert tvm == ("tvm is not among the systems of this run", "not measured here")
    cut = "Symbolic maps cut the search of RMSNorm from 312 s to 0.3 s (Table 4)"
    assert found[cut][1] == "not measured here"
    assert found["Up to 3.4x less total optimization time than Mirage"][1] == "not measured here"
    mirage = found["Up to 2.2x faster than the best superoptimizer (Mirage)"]
    assert mirage == ("mirage is not among the systems of this run", "not measured here")
    searched = found[SEARCHED]
    assert "rmsnorm 0.21 s (published 0.3)" in searched[0] and searched[1] == "holds"
    counted = found["9 to 23 unique graphs a workload, more than Mirage (Table 3)"]
    assert counted[1] == "does not hold" and "a wider space than the paper" in counted[0]
    assert found["One search of a workload serves all its configurations"][1] == "holds"
    change(run, CASE, "prism", median_us=160.0)
    fastest = verdicts(run)["Prism has the fastest kernel on all 10 configurations"]
    assert fastest == (f"on cpu, bf16: fastest on 9 of 10 measured, {against}", "does not hold")
    change(run, CASE, "prism", status="failed", reason="killed", median_us=None)
    fastest = verdicts(run)["Prism has the fastest kernel on all 10 configurations"]
    assert fastest[0].endswith("1 without a comparable time") and fastest[1] == "does not hold"


def test_a_claim_on_a_part_of_the_workloads_only_holds_where_measured(tmp_path):
    found = verdicts(make_run(tmp_path))
    measured, verdict = found[SEARCHED]
    assert measured.endswith("(1 of the paper's 5 workloads)")
    assert verdict == "holds where measured"


def test_claims_take_their_numbers_from_the_published_tables(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", list(ALL_CASES))
    paper = tmp_path / "paper"
    shutil.copytree(PAPER, paper)
    for name, old, new in (("figure6_kernel", "4.9", "1.4"), ("table4_ablation", "312", "77")):
        path = paper / f"{name}.csv"
        path.write_text(path.read_text().replace(old, new))
    monkeypatch.setattr("prism.report.published.load.__defaults__", (paper,))
    found = verdicts(run)
    assert found["Up to 1.4x faster than torch.compile"][1] == "holds"
    assert "Symbolic maps cut the search of RMSNorm from 77 s to 0.3 s (Table 4)" in found
    os.remove(paper / "table4_ablation.csv")
    assert not verdicts(run)
    assert "results/paper) are not all there" in (run / "report.html").read_text()


def test_page_says_what_failed_in_tuning_and_which_numerics_a_row_has(tmp_path):
    run = make_run(tmp_path)
    page = build(run).read_text()
    for name, value in (
        ("Candidates", "3 tried, 1 passed"),
        ("Failed by cause", "compile 1, internal 1"),
        ("Problems of the generator", "no rule for &lt;gelu&gt;"),
        (
            "Controls, which must fail",
            "zeros: failed; constant: passed: the gate cannot tell it apart",
        ),
    ):
        assert f'<th scope="row">{name}</th><td>{value}</td>' in page
    assert '<td class="word">paper</td>' in page and '<td class="word">own</td>' in page
    assert "exp(x) / sum without the maximum" in page
    assert "The machine was busy" not in page


def test_a_busy_machine_is_named_with_the_times(tmp_path):
    run = make_run(tmp_path, list(ALL_CASES)[:2])
    change(run, CASE, "eager", environment={"cores_available": 2, "load_average": [7.25, 3, 1]})
    page = build(run).read_text()
    warning = f"The machine was busy, so these times are inflated: {CASE} (load 7.25 on 2 cores)."
    assert warning in page[page.index('id="kernels"') : page.index('id="optimization"')]


HOSTILE = '<script>alert("x")</script>&'


def test_names_are_escaped_everywhere(tmp_path):
    run = make_run(tmp_path)
    changes = {"reason": HOSTILE, "status": "failed", "commit": HOSTILE, "config": HOSTILE}
    changes |= {"versions": {HOSTILE: HOSTILE}, "environment": {HOSTILE: HOSTILE}}
    change(run, CASE, "compiled", **changes)
    with (run / f"bench/{CASE}.jsonl").open("a") as file:
        file.write(json.dumps(row(CASE, "$" + HOSTILE, 300.0)))
    spoiled = winner(ALL_CASES[CASE]) | {"graph_id": HOSTILE, "verdict": HOSTILE}
    spoiled["concrete"]["options"] = {HOSTILE: HOSTILE}
    put(run / f"tune/{CASE}/winner.json", spoiled)
    put(run / f"tune/{CASE}/kernel.cpp", HOSTILE)
    os.remove(run / "config.yaml")
    put(run / "search/odd.json", search(HOSTILE))
    page = build(run).read_text()
    assert "<script" not in page and "&lt;script&gt;" in page


def test_partial_runs_say_what_is_missing(tmp_path):
    run = make_run(tmp_path, list(ALL_CASES)[:3])
    second, third = list(ALL_CASES)[1:3]
    os.remove(run / f"bench/{second}.jsonl")
    os.remove(run / "search/rmsnorm_mlp.json")
    put(run / f"tune/{third}/winner.json", {"status": "failed", "reason": "all 6 crashed"})
    with (run / f"bench/{CASE}.jsonl").open("a") as file:
        file.write('{"workload": "rmsn')
    page = build(run).read_text()
    for text in (
        f"{second}: not timed",
        "rmsnorm_mlp: not searched",
        f"{third}: tuning has no winner: all 6 crashed",
        f"bench/{CASE}.jsonl is damaged and was left out: line 5 is not a row",
        f"{CASE}: not timed",
    ):
        assert text in page
    rows = table(run, "kernel_time")
    missing = next(r for r in rows if r["config"] == "d=1024,n=16" and r["workload"] == "rmsnorm")
    assert (missing["system"], missing["status"]) == ("prism", "missing")
    assert [r["seconds_total"] for r in table(run, "search_time")] == ["0.21", ""]


def test_leftovers_of_other_settings_are_named_and_not_mixed_in(tmp_path):
    run = make_run(tmp_path)
    other = list(ALL_CASES)[1]
    put(run / f"bench/{other}.jsonl", json.dumps(row(other, "prism", 9.0)))
    put(run / "search/swiglu.json", search("swiglu"))
    page = build(run).read_text()
    assert f"{other}, search of swiglu: not in this configuration" in page
    assert {r["config"] for r in table(run, "kernel_time")} == {"d=4096,n=8"}
    assert [r["workload"] for r in table(run, "search_time")] == ["rmsnorm"]


def test_a_search_alone_gives_a_report(tmp_path):
    put(tmp_path / "search/swiglu.json", search("swiglu"))
    page = build(tmp_path).read_text()
    assert "swiglu: no configuration was tuned or timed" in page
    assert "No plot: this run has no measured value" in page
    assert table(tmp_path, "kernel_time") == []


def test_same_results_give_the_same_files(tmp_path):
    run = make_run(tmp_path, list(ALL_CASES)[:4])

    def files() -> dict:
        found = [run / "report.html", *run.glob("tables/*"), *run.glob("plots/*")]
        return {path: path.read_bytes() for path in found}

    build(run)
    first = files()
    build(run)
    assert files() == first and len(first) == 1 + 12 + 4


def test_nothing_is_built_without_results(tmp_path):
    with pytest.raises(PrismError, match="not a folder of a run"):
        build(tmp_path / "nowhere")
    put(tmp_path / "config.yaml", "cases: {rmsnorm@n=8: abc}")
    with pytest.raises(PrismError, match="holds no results") as error:
        build(tmp_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "report.html").exists()


def test_a_full_disk_leaves_the_old_report(tmp_path, monkeypatch):
    run = make_run(tmp_path)
    before = build(run).read_text()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("prism.files.os.replace", full)
    with pytest.raises(PrismError, match="cannot write .*No space left on device"):
        build(run)
    assert (run / "report.html").read_text() == before
    assert not list(run.rglob(".*.html")) and not list(run.glob("tables/.*"))


def test_graphs_left_out_are_told_of_how_many():
    left = {"refused": {"no stable form: x": 3}, "refused_of": 9}
    for data, text in ((left, "3 of 9: no stable form: x"), ({"refused": {"y": 2}}, "2: y")):
        assert dict(facts.winner(Case("rmsnorm@n=4", winner=data)))["Graphs left out"] == text
    assert "Graphs left out" not in dict(facts.winner(Case("rmsnorm@n=4", winner={"refused": {}})))
