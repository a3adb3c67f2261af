"""The tracked published numbers, as the paper states them, and how they are looked up."""

import csv

import pytest
import yaml

from prism import config
from prism.report.published import PAPER, UNKNOWN, both, load, number, numbers

PUBLISHED = load()
ATTENTION = {"b": 2, "g": 8, "s": 1, "d": 128, "e": 128}
RMSNORM = {"d": 4096, "n": 8, "f": 4096}


def test_every_table_is_whole():
    counts = {"kernel": 10, "total": 10, "search": 5, "graphs": 5, "ablation": 7}
    assert PUBLISHED.whole
    assert {name: len(getattr(PUBLISHED, name)) for name in counts} == counts
    for path in PAPER.glob("*.csv"):
        with path.open(newline="") as file:
            header, *rows = csv.reader(file)
        assert rows and all(len(row) == len(header) and all(row) for row in rows), path
    kernel = {(r["workload"], r["config"]) for r in PUBLISHED.kernel}
    assert kernel == {(r["workload"], r["config"]) for r in PUBLISHED.total}


def test_configurations_name_every_axis_of_their_workload():
    for row in PUBLISHED.kernel:
        workload = yaml.safe_load(
            (config.root() / f"conf/workload/{row['workload']}.yaml").read_text()
        )
        named = [part.partition("=")[0] for part in row["config"].split(",")]
        assert named == sorted(config.axes(workload)), row


@pytest.mark.parametrize(
    ("workload", "sizes", "mirage", "total"),
    [
        ("rmsnorm", RMSNORM, 1.2, ("135", "52", "130")),
        ("rmsnorm", {"d": 1024, "n": 16, "f": 1024}, 1.1, ("116", "55", "120")),
        ("rmsnorm_mlp", {"d": 1024, "n": 8, "f": 1024}, 1.9, ("1180", "3632", UNKNOWN)),
        ("swiglu", {"d": 2048, "n": 8, "f": 2048}, 1.0, (UNKNOWN, UNKNOWN, UNKNOWN)),
        ("swiglu", {"d": 4096, "n": 8, "f": 4096}, 1.0, ("149", "88", "163")),
        ("attention", ATTENTION | {"h": 2048}, 1.3, ("152", "13", "215")),
        ("qk_attention", ATTENTION | {"h": 1024}, 1.8, ("128", "199", "276")),
        ("qk_attention", ATTENTION | {"h": 2048}, 2.2, ("153", "13", "268")),
    ],
)
def test_figure_6(workload, sizes, mirage, total):
    assert number(PUBLISHED.kernel_of(workload, sizes)["prism_vs_mirage"]) == mirage
    row = PUBLISHED.total_of(workload, sizes)
    assert (row["prism_s"], row["mirage_s"], row["tvm_s"]) == total


def test_figure_6_against_the_others():
    row = PUBLISHED.kernel_of("rmsnorm_mlp", {"d": 1024, "n": 8, "f": 1024})
    assert (row["prism_vs_torch_compile"], row["prism_vs_tvm"]) == ("4.9", "5.4")
    assert PUBLISHED.kernel_of("qk_attention", ATTENTION | {"h": 1024})["prism_vs_tvm"] == "2.8"
    stated = {
        name: numbers(PUBLISHED.kernel, f"prism_vs_{name}") for name in ("torch_compile", "tvm")
    }
    assert stated == {"torch_compile": [4.9], "tvm": [5.4, 2.8]}  # no sentence states another
    assert max(numbers(PUBLISHED.total, "prism_vs_mirage")) == 3.4


def test_tables_2_and_3():
    assert [r["prism_shared_s"] for r in PUBLISHED.search] == ["0.3", "871", "1.0", "41", "42"]
    assert both(PUBLISHED.search_of("attention"), "mirage", "_s") == "42.4; 10.0"
    assert both(PUBLISHED.search_of("rmsnorm_mlp"), "mirage", "_s") == ">3600; >3600"
    assert [r["prism_shared"] for r in PUBLISHED.graphs] == ["9", "23", "12", "14", "14"]
    assert both(PUBLISHED.graphs_of("rmsnorm_mlp"), "mirage") == "12; 14"


def test_table_4():
    rows = {r["imap"] + r["fmap"] + r["omap"]: r["search_s"] for r in PUBLISHED.ablation}
    assert rows == {
        "SSS": "0.3",
        "SSC": "2.5",
        "SCS": "5.5",
        "CSS": "20.5",
        "SCC": "5.5",
        "CSC": "22.5",
        "CCC": "312",
    }


def test_what_the_paper_does_not_have_is_empty():
    assert PUBLISHED.kernel_of("rmsnorm", RMSNORM | {"d": 8192, "f": 8192}) == {}
    assert PUBLISHED.kernel_of("rmsnorm", RMSNORM | {"f": 64}) == {}
    assert PUBLISHED.total_of("attention", ATTENTION | {"h": 1024, "s": 7}) == {}
    assert PUBLISHED.kernel_of("attention", {"h": 1024}) == {}  # other sizes are not known
    assert PUBLISHED.search_of("my_own") == PUBLISHED.graphs_of("my_own") == {}
    assert number(UNKNOWN) is number(">3600") is number("") is number(None) is None


def test_tables_that_are_not_there_are_empty(tmp_path):
    assert not load(tmp_path).whole
    assert load(tmp_path).kernel == () and load(tmp_path).search_of("rmsnorm") == {}
