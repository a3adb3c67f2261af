"""The report of a GPU's rows and of what compiled for GPUs: made-up rows, never measured ones."""

import json
import re

import pytest
from report_runs import (
    ALL_CASES,
    CASE,
    GPU_TIMER,
    change,
    make_gpu_run,
    make_run,
    offline,
    put,
    row,
    table,
    verdicts,
)

from prism.measure.rounds import LATE
from prism.report import build
from prism.report.page import COLUMNS

ATTENTION = "attention@h=1024"
FASTEST = "Prism has the fastest kernel on all 10 configurations"
COMPILES = "Every configuration that is tried compiles for sm_80 and sm_90, without a GPU"


BEST = "At least as fast as the best of eager and torch.compile in each configuration"
MEAN = "1.5 times as fast as the best of eager and torch.compile in the geometric mean over the "
MEAN += "configurations"
BANDWIDTH = "At least 70% of the modelled bandwidth, cold, where memory is the bound"


def section(page: str, anchor: str) -> str:
    return re.split(r"<h2", page[page.index(f'<h2 id="{anchor}"') + 3 :])[0]


# Rows of a GPU ----------------------------------------------------------------------------


def test_rows_of_a_gpu_have_a_modelled_bound_and_the_compilers_figures(tmp_path):
    run = make_gpu_run(tmp_path)
    page = build(run).read_text()
    rows = {r["system"]: r for r in table(run, "kernel_time")}
    ours = rows["prism"]
    assert (ours["modelled_roofline_us"], ours["of_modelled_roofline"]) == ("50.0", "0.5")
    assert (ours["modelled_us"], ours["registers"], ours["spill_bytes"]) == ("70.5", "128", "16")
    assert (ours["modelled_bandwidth_us"], ours["least_replay_us"]) == ("50.0", "2.25")
    assert ours["shared_bytes"] == "98304" and rows["eager"]["registers"] == ""
    assert rows["eager"]["modelled_us"] == "", "nobody models a library's kernel"
    kernels = section(page, "kernels")
    for heading in ("modelled bound µs", "share of modelled bound", "modelled µs"):
        assert f'<th class="number modelled">{heading}</th>' in kernels
    assert '<td class="number modelled">50%</td>' in kernels and "warm median µs" in kernels
    assert '<th class="number">least replay µs</th>' in kernels
    assert "it is what the replay of a CUDA graph took whose one kernel does nothing" in kernels
    for fact in ("h200; Testing GPU, driver 1.2.3", "3.6.0", GPU_TIMER):
        assert fact in page
    assert "128 registers a thread, 16 bytes spilled a thread, 96 KiB shared a block" in page
    assert '<th scope="row">Modelled time, not measured</th><td>70.5 µs</td>' in page
    assert "cause of it, not measured</th><td>most of the time is memory; waves 2.5; " in page
    assert "Tuning ended by</th><td>its limit of 45 s, with configurations left to try</td>" in page
    assert "idle before clocks.sm 1980 MHz" in page and "2026-05-01T10:00:00" in page


def test_rows_of_a_cpu_have_no_empty_columns_of_a_gpu(tmp_path):
    page = build(make_run(tmp_path)).read_text()
    kernels = section(page, "kernels")
    assert "modelled bound µs" not in kernels and ">registers<" not in kernels
    assert ">timer<" not in kernels and "least replay µs" not in kernels
    assert 'id="offline"' not in page
    assert not {BEST, MEAN, BANDWIDTH} & verdicts(make_run(tmp_path)).keys()


def test_modelled_figures_are_in_no_plot(tmp_path):
    run = make_gpu_run(tmp_path / "gpu", list(ALL_CASES))
    put(run / "offline.json", offline(list(ALL_CASES)))
    build(run)
    plots = {p.name: p.read_text() for p in (run / "plots").iterdir()}
    other = make_gpu_run(tmp_path / "other", list(ALL_CASES))
    for case in ALL_CASES:
        for system in ("prism", "eager", "compiled", "read", "sdpa"):
            change(
                other,
                case,
                system,
                modelled_roofline_us=1.0,
                of_modelled_roofline=0.01,
                modelled_us=2.0,
            )
    build(other)
    assert plots == {p.name: p.read_text() for p in (other / "plots").iterdir()}


def test_timers_have_a_column_where_they_differ(tmp_path):
    run = make_gpu_run(tmp_path)
    assert ">timer<" not in section(build(run).read_text(), "kernels")
    direct = "CUDA events around one direct call; not captured: no stream"
    change(run, CASE, "compiled", timer=direct)
    kernels = section(build(run).read_text(), "kernels")
    assert ">timer<" in kernels and direct in kernels and GPU_TIMER in kernels


def test_sdpa_is_compared_but_is_no_baseline(tmp_path):
    run = make_gpu_run(tmp_path, [CASE, ATTENTION])
    measured, verdict = verdicts(run)[FASTEST]
    rows = {(r["workload"], r["system"]): r for r in table(run, "kernel_time")}
    expert = rows["attention", "sdpa"]
    assert float(expert["ratio_to_best_baseline"]) == pytest.approx(150 / 90)
    assert float(rows["attention", "prism"]["ratio_to_best_baseline"]) < 150 / 90
    assert "fastest on 2 of 2 measured, against eager, compiled (not run" in measured
    assert "no slower than the expert's sdpa on 0 of 1" in measured
    assert verdict == "holds where measured", "sdpa is none of the paper's baselines"
    other = rows["rmsnorm", "sdpa"]
    assert (other["status"], other["reason"]) == ("unavailable", "sdpa: not an attention")
    page = (run / "report.html").read_text()
    assert "unavailable: sdpa: not an attention" in page
    assert 'class="bad"' not in section(page, "kernels"), "it did not fail"


def test_claims_name_the_device_and_the_data_type(tmp_path):
    for device in ("a100", "h200"):
        found = verdicts(make_gpu_run(tmp_path / device, list(ALL_CASES), device))
        for claim in (FASTEST, "Up to 4.9x faster than torch.compile"):
            assert found[claim][0].startswith(f"on {device}, fp16: ")


def test_the_projects_own_claims_of_a_gpu(tmp_path):
    cases = list(ALL_CASES)[:2]
    run = make_gpu_run(tmp_path, cases)
    for case in cases:
        change(run, case, "prism", median_us=60.0)
        change(run, case, "compiled", median_us=90.0)
    found = verdicts(run)
    start = "on h200: 2 of 2 configurations have all three times"
    assert found[BEST] == (f"{start}; no slower in 2", "holds")
    assert found[MEAN] == (f"{start}; 1.50x over these", "holds")
    start = "on h200: 2 of 2 memory-bound configurations measured"
    assert found[BANDWIDTH] == (f"{start}; so much in 2", "holds")
    change(run, CASE, "prism", median_us=100.0, modelled_bandwidth_us=4.0, modelled_roofline_us=4.0)
    found = verdicts(run)
    assert found[BEST][1] == found[MEAN][1] == found[BANDWIDTH][1] == "does not hold"
    assert "no slower in 1; slower in rmsnorm d=4096,n=8 (0.90x)" in found[BEST][0]
    assert "1.16x over these" in found[MEAN][0]
    assert "so much in 1; less in rmsnorm d=4096,n=8 (4%); in 1 the modelled" in found[BANDWIDTH][0]
    change(run, CASE, "prism", modelled_bandwidth_us=3.0)  # arithmetic is its bound
    measured, verdict = verdicts(run)[BANDWIDTH]
    assert measured.startswith("on h200: 1 of 1 memory-bound") and verdict == "holds"


def test_the_claims_of_a_gpu_without_some_times(tmp_path):
    cases = list(ALL_CASES)[:2]
    run = make_gpu_run(tmp_path, cases)
    for case in cases:
        change(run, case, "prism", median_us=60.0)
        change(run, case, "compiled", status="failed", reason="no time left")
    found = verdicts(run)
    assert found[BEST][1] == found[MEAN][1] == "not measured here"
    change(run, cases[1], "compiled", status="ok", reason="")
    found = verdicts(run)
    assert found[BEST][1] == found[MEAN][1] == "holds where measured"
    assert "1 of 2 configurations have all three times" in found[BEST][0]
    change(run, cases[1], "prism", median_us=140.0)
    assert verdicts(run)[MEAN][1] == "not measured here", "the other may make up for it"
    change(run, CASE, "prism", median_us=500.0)
    assert verdicts(run)[BEST][1] == "does not hold", "slower than eager alone"
    change(run, CASE, "prism", median_us=60.0, p80_us=900.0, p20_us=9.0)
    change(run, cases[1], "compiled", status="failed", reason="no time left")
    assert verdicts(run)[BEST][1] == "too noisy here"
    for reason, verdict in ((LATE, "not measured here"), ("crashed", "does not hold")):
        for case in cases:
            change(run, case, "prism", status="failed", reason=reason, p80_us=None, median_us=None)
        found = verdicts(run)
        assert {found[claim][1] for claim in (BEST, MEAN, BANDWIDTH)} == {verdict}


def test_a_run_is_of_one_device(tmp_path):
    run = make_gpu_run(tmp_path)
    with (run / f"bench/{CASE}.jsonl").open("a") as file:
        file.write(json.dumps(row(CASE, "prism", 1.0) | {"config_hash": "abc123"}) + "\n")
    said = "rows of prism were made with other settings and left out: device cpu, not h200"
    assert said in build(run).read_text()
    ours = [r for r in table(run, "kernel_time") if r["system"] == "prism"]
    assert [(r["device"], r["median_us"]) for r in ours] == [("h200", "100.0")]
    (run / "config.yaml").unlink()
    assert said in build(run).read_text(), "without a configuration most rows decide"
    tuned = json.loads((run / f"tune/{CASE}/winner.json").read_text()) | {"device": "a100"}
    put(run / f"tune/{CASE}/winner.json", tuned)
    said = f"tune/{CASE} was made with other settings and left out: device a100, not h200"
    assert said in build(run).read_text()


def test_times_of_the_interpreter_are_no_results(tmp_path):
    run = make_gpu_run(tmp_path, device="interpreter")
    measured, verdict = verdicts(run)[FASTEST]
    rows = table(run, "kernel_time")
    assert {r["status"] for r in rows} == {"suspect"}
    assert all(r["ratio_to_best_baseline"] == "" for r in rows)
    assert "timed in Triton&#39;s interpreter" in (run / "report.html").read_text()
    assert verdict == "not measured here"
    assert measured == "none of the paper's configurations was measured"


# What compiled for GPUs -------------------------------------------------------------------


def test_what_compiled_is_a_table_by_case_and_device(tmp_path):
    run = make_run(tmp_path, list(ALL_CASES)[:2])
    put(run / "offline.json", offline(list(ALL_CASES)[:2]))
    page = build(run).read_text()
    rows = table(run, "offline")
    assert [(r["config"], r["device"]) for r in rows] == [
        ("d=4096,n=8", "a100"),
        ("d=4096,n=8", "h200"),
        ("d=1024,n=16", "a100"),
        ("d=1024,n=16", "h200"),
    ]
    small, large = rows[:2]
    counts = ("configurations", "pruned", "tried", "compiled", "spilling")
    assert [small[c] for c in counts] == ["2", "3", "1", "1", "0"]
    assert [large[c] for c in counts] == ["2", "3", "2", "2", "1"]
    assert (small["failed"], small["status"], small["reason"]) == ("fit 1", "ok", "")
    figures = ("registers_median", "registers_max", "spill_bytes_max")
    assert [float(large[c]) for c in figures] == [96, 128, 8]
    assert [float(large[f"shared_kib_{c}"]) for c in ("median", "max")] == [10, 16]
    errors = [float(large[f"modelled_shared_error_kib_{c}"]) for c in ("min", "max")]
    assert errors == [0.0, 4.0]
    assert (float(small["modelled_best_us"]), float(large["modelled_best_us"])) == (9.5, 8.5)
    shown = section(page, "offline")
    assert '<th class="number modelled">best modelled µs</th>' in shown
    assert (small["modelled_best_bound"], large["modelled_best_bound"]) == ("launch", "cache")
    assert (large["modelled_best_waves"], large["modelled_best_occupancy"]) == ("0.5", "0.1")
    assert '<th class="modelled">its modelled bound</th>' in shown
    assert '<td class="number">2 of 2</td>' in shown and "96; 128" in shown
    assert '<td class="number modelled">+0 to +4</td>' in shown and "10; 16" in shown
    assert "nothing here was run or timed" in shown and "<svg" not in shown
    assert "not complete" not in page


def test_the_claim_counts_what_was_tried(tmp_path):
    run = make_run(tmp_path)
    put(run / "offline.json", offline())
    measured, verdict = verdicts(run)[COMPILES]
    assert measured.startswith("3 of 3 compilations of 2 configurations, in 1.5 s with 2 at once")
    assert "bound" not in measured, "of so few, starting takes most"
    assert measured.endswith("1 do not fit a device and were not tried") and verdict == "holds"
    page = (run / "report.html").read_text()
    assert '<td class="word">this project</td>' in page


@pytest.mark.parametrize(("seconds", "told"), [(130, "86.7 s, holds"), (140, "does not hold")])
def test_many_configurations_are_held_against_the_bound(tmp_path, seconds, told):
    found = offline()
    rows = [row for row in found["rows"] if row["status"] == "ok"]
    found["rows"] = [row | {"digest": f"d{n}"} for n in range(150) for row in rows]
    run = make_run(tmp_path)
    put(run / "offline.json", found | {"seconds": {"compile": seconds}})
    measured, _ = verdicts(run)[COMPILES]
    assert "450 of 450 compilations of 150 configurations" in measured
    assert "bound of 90 s for 100 on two cores: " in measured and told in measured


@pytest.mark.parametrize(
    ("cause", "verdict", "part"),
    [
        ("compile", "does not hold", "3 of 4 compilations"),
        ("timeout", "does not hold", "3 of 4 compilations"),
        ("lower", "holds where measured", "1 not lowered and were not tried"),
        ("proof", "holds where measured", "1 not proved and were not tried"),
    ],
)
def test_a_failure_stays_with_its_reason(tmp_path, cause, verdict, part):
    found = offline()
    failed = next(r for r in found["rows"] if r["status"] != "ok")
    failed |= {"cause": cause, "reason": "<no> layout"}
    run = make_run(tmp_path)
    put(run / "offline.json", found)
    measured, end = verdicts(run)[COMPILES]
    assert part in measured and end == verdict
    (small, _) = table(run, "offline")
    assert (small["status"], small["reason"]) == ("failed", "<no> layout")
    assert small["failed"] == f"{cause} 1"
    shown = section((run / "report.html").read_text(), "offline")
    assert "&lt;no&gt; layout" in shown and '<tr class="bad">' in shown


def test_without_triton_the_report_says_so(tmp_path):
    run = make_run(tmp_path)
    reason = "triton is not installed: pip install triton"
    put(run / "offline.json", offline(status="unavailable", reason=reason, rows=[]))
    assert verdicts(run)[COMPILES] == (reason, "not measured here")
    rows = table(run, "offline")
    assert [(r["device"], r["status"], r["reason"]) for r in rows] == [
        ("a100", "unavailable", reason),
        ("h200", "unavailable", reason),
    ]
    assert all(r["compiled"] == r["configurations"] == "" for r in rows)
    page = (run / "report.html").read_text()
    assert reason in section(page, "offline") and "not complete" not in page


def test_other_settings_and_damage_are_named_and_left_out(tmp_path):
    run = make_run(tmp_path)
    config = json.loads((run / "config.yaml").read_text())
    put(run / "config.yaml", config | {"offline": {"configs": 2, "dtype": "fp16"}})
    assert "offline: not compiled (no offline.json)" in build(run).read_text()
    put(run / "offline.json", offline())
    assert "offline" not in "".join(re.findall("<li>.*</li>", build(run).read_text()))
    assert (run / "tables/offline.csv").exists()
    for changed, why in (
        (offline(settings={"configs": 3, "dtype": "fp16"}), "configs 3, not 2"),
        (offline(["rmsnorm@d=1024,n=16"]), "cases ['rmsnorm@d=1024,n=16'], not ['rmsnorm@d=4096"),
    ):
        put(run / "offline.json", changed)
        page = build(run).read_text().replace("&#39;", "'")
        assert f"offline.json was made with other settings and left out: {why}" in page
        assert not (run / "tables/offline.csv").exists()
    for damaged in ({"status": "ok"}, offline(rows=[]), offline(rows=[{"case": "c"}])):
        put(run / "offline.json", damaged)
        assert "offline.json is damaged and was left out" in build(run).read_text()
        assert COMPILES not in (run / "report.html").read_text()


def test_headings_of_modelled_columns_say_so():
    for columns in COLUMNS.values():
        for column, (heading, _) in columns.items():
            assert ("modelled" in column) == ("modelled" in heading), column
