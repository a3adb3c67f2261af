"""Tuning that goes on where an earlier call ended, and that ends when its time is over."""

import time
from pathlib import Path

import pytest

from prism.measure import race as racing
from prism.measure import tune as tuning
from prism.measure.bench import BaselineSpec, BenchSettings, bench
from prism.measure.compile import Compiled
from prism.measure.folder import Case
from prism.measure.race import Candidate, Limits, Race
from prism.measure.rows import write_rows
from prism.measure.strategy import RandomStrategy
from prism.measure.tune import TuneBudget, tune
from prism.measure.work import ROWS, Work
from prism.model.device import CPU
from prism.program import Builder
from prism.program.node import Node, Op
from prism.sgraph import BlockGraph, Kernel, MapVar, SGraph, make_mapping

LIMITS = Limits(first_seconds=0.01, final_seconds=0.01)


@pytest.fixture(autouse=True, scope="module")
def own_lock(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("lock")))
        yield


def program():
    b = Builder("doubled", {"n": 8, "d": 24}, "fp32", {})
    return b.build(O=b.square(b.input("X", "n d")))


def graph():
    save = Node(Op.SAVE, (Node(Op.SQUARE, (Node(Op.LOAD, (), "X", ("n", "d")),)),), "O")
    ones = [MapVar("X", "d", "x"), MapVar("O", "d", "x")]
    return SGraph((Kernel(BlockGraph(("x",), None, (save,)), make_mapping(ones)),))


def tried(count, out, case, **given):
    budget = TuneBudget(count=count, seconds=60, seed=3)
    given = {"strategy": RandomStrategy(), "limits": LIMITS, "case_dir": case} | given
    return tune(program(), [("g", graph())], CPU, budget, out, 1, **given)


def digests(result):
    return [candidate["digest"] for candidate in result["candidates"]]


def test_a_tuning_goes_on_with_what_was_not_tried(tmp_path):
    case = tmp_path / "case"
    whole = tried(4, tmp_path / "whole", case)
    first = tried(2, tmp_path / "parts", case)
    second = tried(2, tmp_path / "parts", case, earlier=first)
    assert digests(first) + digests(second)[2:] == digests(second) == digests(whole)
    assert (second["tried"], second["passed"], len(set(digests(second)))) == (4, 4, 4)
    again = next(c for c in second["candidates"] if c["digest"] == first["digest"])
    assert again["finalist"]
    assert all(second["seconds"][name] > first["seconds"][name] for name in first["seconds"])
    assert second["digest"] in digests(whole)


def test_a_winner_that_fails_now_wins_no_more(tmp_path, monkeypatch):
    case = tmp_path / "case"
    first = tried(1, tmp_path / "out", case)
    real = tuning._source

    def source(manifest, concrete):
        if concrete.digest() == first["digest"]:
            return "no C++"
        return real(manifest, concrete)

    monkeypatch.setattr(tuning, "_source", source)
    second = tried(1, tmp_path / "out", case, earlier=first)
    assert second["digest"] != first["digest"] and second["causes"] == {"compile": 1}
    assert (second["tried"], second["passed"]) == (2, 1)


def test_after_the_time_nothing_is_tried(tmp_path):
    result = tried(2, tmp_path / "out", tmp_path / "case", until=time.monotonic())
    assert (result["status"], result["tried"], result["concrete"]) == ("failed", 0, None)


class Slow:
    """An executor whose candidates pass, a tenth of a second each."""

    def run(self, library, trial):
        time.sleep(0.1)
        return {"status": "ok", "samples_us": [1.0], "verdict": {"status": "PASSED"}}

    verify = run


@pytest.mark.parametrize(("seconds", "least", "most"), [(0.0, 8, 8), (1.0, 8, 11), (60.0, 12, 12)])
def test_a_batch_ends_with_its_time_but_not_before_some_are_tried(
    tmp_path, monkeypatch, seconds, least, most
):
    def compiled(sources, *_):
        made = (Compiled(racing.sha256(s), Path("x.so"), (), 0.0) for s in sources)
        return {one.sha256: one for one in made}

    monkeypatch.setattr(racing, "compile_all", compiled)
    race = Race(Slow(), None, CPU, tmp_path, 1, LIMITS)
    batch = [Candidate("g", [], {}, str(n), lambda n=n: f"source {n}") for n in range(12)]
    race.enter(batch, 12, time.monotonic() + seconds)
    assert least <= len(race.candidates) <= most
    assert race.candidates == batch[: len(race.candidates)], "the rest as if never entered"
    assert all(c.status == "ok" for c in race.candidates)
    assert race.finals() in race.candidates


def test_a_baseline_that_had_no_time_to_compile_is_known_by_its_reason(tmp_path):
    adapter = tmp_path / "adapter.py"
    adapter.write_text(
        "import time\nclass Adapter:\n    def __init__(self, options): pass\n"
        "    def prepare(self, program, inputs): time.sleep(60)\n"
        "    def version(self): return {}\n"
    )
    short = {"prepare_timeout": 1.0, "limited": True}
    settings = BenchSettings(device=CPU, rounds=2, seconds=0.1, threads=1, **short)
    slow, work = BaselineSpec("slow", str(adapter)), tmp_path / "work"
    bench(program(), None, [slow], settings, work / ROWS, {"config": "n=8"})
    one = Work(Case("doubled@n=8", program(), "hash", {}), work, "key")
    assert one.cut and one.timed and one.compiled == pytest.approx(1.0, abs=0.2)
    write_rows(work / ROWS, [row | {"cause": "crash"} for row in one.rows])
    assert not one.cut
