"""The order in which a packed folder is measured, with tuning and timing that cost no time."""

import copy
import json

import pytest

from prism import cli
from prism.errors import PrismError
from prism.measure import suite as module
from prism.measure.bench import LATE
from prism.measure.folder import STATE, Folder, read_folder, read_state
from prism.measure.gpu import CACHE
from prism.measure.lock import Locked, folder_lock
from prism.measure.rounds import CUT
from prism.measure.rows import Row, read_rows, write_rows
from prism.measure.suite import Suite
from prism.measure.winner import read_winner
from prism.measure.work import LATER, LEFT_OUT

CASES = ["rmsnorm@d=256,n=4", "attention@b=1,d=64,g=2,h=128"]
FIRST, SECOND = CASES


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    out = tmp_path_factory.mktemp("pack") / "packed"
    small = ["suite=smoke", "baseline=[eager]", "pack.graphs=2", "pack.points=10"]
    assert cli.main(["pack", *small, "tune.count=10", "tune.seconds=40", f"out={out}"]) == 0
    return read_folder(out)


class Machine:
    """Stands for tuning and timing: each call moves its clock, and is remembered.

    A tuning tries one configuration for each 2 seconds it may take, at least one, and each is
    faster than the one before while `improving`.
    """

    def __init__(self):
        self.now, self.calls, self.improving = 0.0, [], True
        self.prepared: set = set()  # where cases are prepared
        self.caches: set = set()  # of Triton
        self.compiling: dict = {}  # seconds of a baseline, by name or by (name, case)
        self.fixed = 0.0  # seconds that a tuning takes at least, whatever it may take
        self.timing = 10.0  # seconds of a benchmark without compiling
        self.breaks: dict = {}  # (stage, case) -> what it raises

    def monotonic(self):
        return self.now

    def tune(self, program, graphs, device, budget, out, threads, *, context, **given):
        case = context["case"]
        self.calls.append(("tune", case, budget.count, budget.seconds))
        self.prepared.add(given["case_dir"])
        self.caches.add(CACHE.get())
        assert graphs and device.name == "cpu" and given["strategy"].propose
        self.now += 1.0
        if error := self.breaks.get(("tune", case)):
            raise error
        earlier = given["earlier"]
        known = list(earlier["candidates"]) if earlier else []
        new = min(budget.count, max(1, int(budget.seconds / 2)))
        if self.now >= given["until"]:
            new = 0
        self.now += max(2.0 * new, self.fixed - 1.0)
        records = known + [{"digest": f"d{len(known) + n}"} for n in range(new)]
        best = records[-1] if self.improving else records[0]
        found = {"status": "ok", "reason": "", "tried": len(records), "candidates": records}
        found |= {"digest": best["digest"], "seconds": {"tune": 1.0, "compile": 1.0}, **context}
        out.mkdir(parents=True, exist_ok=True)
        (out / "winner.json").write_text(json.dumps(found))
        (out / "kernel.cpp").write_text(best["digest"])
        return found

    def bench(self, program, winner, baselines, settings, out, context, case_dir):
        case = f"{context['workload']}@{context['config']}"
        self.calls.append(("bench", case))
        self.caches.add(CACHE.get())
        self.prepared.add(case_dir)
        self.now += self.timing
        if error := self.breaks.get(("bench", case)):
            raise error
        assert baselines[0].name == "eager"
        assert 5 <= settings.prepare_timeout <= 300
        compiling = {}
        for spec in baselines:
            most = self.compiling.get((spec.name, case), self.compiling.get(spec.name, 0.0))
            compiling[spec.name] = most, min(most, settings.prepare_timeout)
            self.now += compiling[spec.name][1]
        assert baselines[0].adapter.endswith("baselines/eager/adapter.py")
        late = self.now > settings.until
        kept = {k: v for k, v in context.items() if k in Row.__dataclass_fields__}
        row = Row(**kept, shape={}, dtype=program.dtype, system="prism", device="cpu")
        row.variant = read_winner(winner)["digest"]
        row.reason = LATE if late else "of no machine"
        rows = [row]
        for name, (most, waited) in compiling.items():
            other = Row(**kept, shape={}, dtype=program.dtype, system=name, reason="of no machine")
            other.compile_seconds = waited
            if waited < most:
                assert settings.limited
                other.cause, other.compile_seconds = CUT, None
                other.evidence = {"waited_seconds": waited}
            rows.append(other)
        write_rows(out, [row.to_json() for row in rows])


@pytest.fixture
def machine(monkeypatch):
    found = Machine()
    monkeypatch.setattr(module, "tune", found.tune)
    monkeypatch.setattr(module, "bench", found.bench)
    monkeypatch.setattr(module.time, "monotonic", found.monotonic)
    return found


def measure(packed, out, seconds=None):
    """Cases without a row, and the lines that were said."""
    said = []
    missing = Suite(packed, "cpu", out, seconds, 1, said.append).run()
    return missing, said


def stages(machine):
    return [call[:2] for call in machine.calls]


def rows(out, case):
    return read_rows(out / f"bench/{case}.jsonl")


def test_without_a_limit_each_case_gets_its_whole_budget_once(packed, tmp_path, machine):
    missing, said = measure(packed, tmp_path)
    assert missing == []
    assert machine.calls == [
        ("tune", FIRST, 10, 40),
        ("bench", FIRST),
        ("tune", SECOND, 10, 40),
        ("bench", SECOND),
    ]
    assert [line.partition(":")[0] for line in said] == CASES
    assert said[0].endswith(": prism of no machine, eager of no machine (10 configurations tried)")
    for case, digest in zip(CASES, ("d9", "d9"), strict=True):
        row, _ = rows(tmp_path, case)
        assert (row["variant"], row["config"]) == (digest, case.partition("@")[2])
        assert row["search"] and row["config_hash"]
        tuned = read_winner(tmp_path / "tune" / case)
        assert (tuned["strategy"], tuned["budget"]["count"]) == ("local", 10)
        assert (tmp_path / "tune" / case / "kernel.cpp").read_text() == digest
    assert read_state(tmp_path)["device"] == "cpu"
    assert len(machine.caches) == 1 and None not in machine.caches and CACHE.get() is None
    assert len(machine.prepared) == 2, "a case is prepared once, for tuning and timing"
    assert measure(packed, tmp_path) == ([], []), "what is done is not done again"
    assert len(machine.calls) == 4


def test_a_limit_gives_every_case_a_row_and_then_deepens(packed, tmp_path, machine):
    missing, said = measure(packed, tmp_path, seconds=70)
    assert missing == []
    assert stages(machine)[:4] == [
        *(("tune", FIRST), ("bench", FIRST)),
        *(("tune", SECOND), ("bench", SECOND)),
    ]
    (_, _, count, seconds) = machine.calls[0]
    assert count == 10 and seconds == pytest.approx(module.FIRST_SHARE * 70 / 2)
    (_, _, _, seconds) = machine.calls[2]
    spent = 1 + 2 * 4 + 10
    assert seconds == pytest.approx(module.FIRST_SHARE * (70 - spent)), (
        "the share is of what is left"
    )
    deeper = machine.calls[4:]
    assert deeper[0][:3] == ("tune", FIRST, 6), "it goes on with what was not tried"
    assert ("bench", FIRST) in deeper, "another winner is timed anew"
    assert machine.now <= 70
    for case in CASES:
        assert rows(tmp_path, case)[0]["variant"] == read_winner(tmp_path / "tune" / case)["digest"]


def test_a_slow_baseline_costs_no_other_case_its_row(packed, tmp_path, machine):
    machine.compiling = {"eager": 40.0}
    missing, _ = measure(packed, tmp_path, seconds=100)
    assert missing == [] and machine.now <= 100
    assert [rows(tmp_path, case)[1]["cause"] for case in CASES] == ["", CUT]
    machine.calls.clear()
    measure(packed, tmp_path, seconds=60)
    assert machine.calls[0] == ("bench", SECOND), "what had no time is made up for"
    assert rows(tmp_path, SECOND)[1]["cause"] == ""


def with_compiled(packed, cases=CASES):
    """The folder with a baseline that is slow to compile, and so many cases."""
    manifest = copy.deepcopy(packed.manifest)
    entry = manifest["devices"]["cpu"]
    spec = entry["settings"]["baseline"]["eager"]
    entry["settings"]["baseline"]["compiled"] = spec | {"name": "compiled", "slow": True}
    for known in (manifest["cases"], entry["hashes"]):
        known |= {case: known.get(case, known[FIRST]) for case in cases}
        for case in known.keys() - set(cases):
            del known[case]
    return Folder(packed.path, manifest)


@pytest.mark.parametrize("compiling", [25, 45, 60, (25, 60)])
def test_ten_cases_in_eight_minutes_all_get_rows_before_any_slow_baseline(
    packed, tmp_path, machine, compiling
):
    cases = [f"rmsnorm@n={n}" for n in range(10)]
    few = compiling if isinstance(compiling, tuple) else (compiling, compiling)
    machine.compiling = {("compiled", case): few[n % 2] for n, case in enumerate(cases)}
    machine.fixed, machine.timing = 14.0, 24.0
    folder = with_compiled(packed, cases)
    missing, _ = measure(folder, tmp_path, seconds=480)
    assert missing == [] and machine.now < 480 + machine.fixed
    order = [case for stage, case, *_ in machine.calls if stage == "bench"]
    assert order[:10] == cases and len(order) > 10
    left = [rows(tmp_path, case)[-1] for case in cases]
    assert {row["system"] for row in left} == {"compiled"}
    whole = [row["cause"] == "" for row in left]
    assert whole[0] and not all(whole)
    out = [row for row in left if row["cause"] == LEFT_OUT]
    assert len(out) > 5 and len(out) + sum(whole) + 1 >= len(left)
    for row in out:
        assert (row["reason"], row["status"], row["compile_seconds"]) == (LATER, "failed", None)
        assert row["variant"] == "" and row["search"] == {} and row["config_hash"]
    for _ in range(3):  # the same command again makes up for the rest
        machine.calls.clear()
        measure(folder, tmp_path, seconds=480)
    assert all(rows(tmp_path, case)[-1]["cause"] == "" for case in cases)


def test_with_enough_time_slow_baselines_are_not_left_for_later(packed, tmp_path, machine):
    machine.compiling = {"compiled": 40.0}
    missing, _ = measure(with_compiled(packed), tmp_path, seconds=400)
    assert missing == [] and stages(machine).count(("bench", FIRST)) == 1
    assert [row["cause"] for case in CASES for row in rows(tmp_path, case)] == [""] * 6


def test_without_a_limit_what_was_left_out_is_made_up_for(packed, tmp_path, machine):
    machine.compiling = {"compiled": 40.0}
    folder = with_compiled(packed)
    measure(folder, tmp_path, seconds=35)
    assert [rows(tmp_path, case)[-1]["cause"] for case in CASES] == [LEFT_OUT] * 2
    machine.calls.clear()
    measure(folder, tmp_path)
    assert stages(machine) == [("bench", FIRST), ("bench", SECOND)]
    assert [rows(tmp_path, case)[-1]["cause"] for case in CASES] == [""] * 2
    machine.calls.clear()
    assert measure(folder, tmp_path) == ([], []) and machine.calls == []


def test_tuning_on_loses_no_comparison_with_a_slow_baseline(packed, tmp_path, machine):
    machine.compiling = {"compiled": 10.0}
    folder = with_compiled(packed)
    measure(folder, tmp_path, seconds=124)
    assert stages(machine).count(("bench", FIRST)) == 2
    assert [rows(tmp_path, case)[-1]["cause"] for case in CASES] == [""] * 2


def test_the_same_winner_is_not_timed_again(packed, tmp_path, machine):
    machine.improving = False
    measure(packed, tmp_path, seconds=70)
    assert stages(machine).count(("bench", FIRST)) == 1
    assert stages(machine).count(("tune", FIRST)) == 2


def test_the_limit_holds_and_the_next_call_goes_on(packed, tmp_path, machine):
    missing, _ = measure(packed, tmp_path, seconds=9)
    assert missing == CASES and machine.now <= 9 + 10
    assert not (tmp_path / "bench").exists(), "half of a comparison is no row"
    tuned = read_winner(tmp_path / "work" / FIRST)["tried"]
    assert tuned > 0
    machine.calls.clear()
    missing, _ = measure(packed, tmp_path, seconds=30)
    assert machine.calls[0] == ("bench", FIRST), "tuned already"
    assert missing == []


def test_passes_end_when_all_is_tried(packed, tmp_path, machine):
    measure(packed, tmp_path, seconds=10_000)
    assert [read_winner(tmp_path / "tune" / case)["tried"] for case in CASES] == [10, 10]
    assert machine.now < 100


@pytest.mark.parametrize("error", [PrismError("no compiler"), IndexError("a fault"), ValueError()])
def test_a_case_that_fails_is_a_row_and_the_next_goes_on(packed, tmp_path, machine, error):
    machine.breaks = {("tune", FIRST): error, ("bench", SECOND): error}
    missing, said = measure(packed, tmp_path)
    assert missing == [] and len(said) == 2
    winner = read_winner(tmp_path / "tune" / FIRST)
    assert winner["status"] == "failed" and winner["reason"].startswith("tuning: ")
    (row,) = rows(tmp_path, SECOND)
    assert row["status"] == "failed" and row["reason"].startswith("benchmark: ")
    assert str(error) in row["reason"]
    assert (row["workload"], row["shape"]["h"], row["device"]) == ("attention", 128, "cpu")
    assert row["config_hash"] == packed.cases("cpu")[1].config_hash
    machine.breaks, before = {}, len(machine.calls)
    assert measure(packed, tmp_path)[0] == []
    assert stages(machine)[before:] == [("tune", FIRST), ("bench", FIRST), ("bench", SECOND)]
    assert read_winner(tmp_path / "tune" / FIRST)["status"] == "ok", "the next call tries it again"
    assert rows(tmp_path, SECOND)[0]["reason"] == "of no machine"


def test_a_tuning_that_breaks_while_it_goes_on_keeps_what_there_is(packed, tmp_path, machine):
    measure(packed, tmp_path, seconds=30)
    tried = read_winner(tmp_path / "tune" / FIRST)["tried"]
    assert 0 < tried < 10
    machine.breaks = {("tune", FIRST): RuntimeError("a fault"), ("tune", SECOND): OSError(5, "io")}
    machine.calls.clear()
    measure(packed, tmp_path, seconds=500)
    assert stages(machine) == [("tune", FIRST), ("tune", SECOND)]
    assert read_winner(tmp_path / "tune" / FIRST)["tried"] == tried


def test_older_rows_stay_where_the_time_is_over_before_new_ones(packed, tmp_path, machine):
    measure(packed, tmp_path, seconds=30)
    before = rows(tmp_path, FIRST)
    machine.breaks = {}
    machine.calls.clear()
    real = machine.tune

    def slow(*args, **given):
        found = real(*args, **given)
        machine.now = given["until"] - 1
        return found

    module.tune = slow
    missing, _ = measure(packed, tmp_path, seconds=100)
    assert stages(machine) == [("tune", FIRST), ("bench", FIRST)]
    assert missing == [] and rows(tmp_path, FIRST) == before
    assert before[0]["variant"] == read_winner(tmp_path / "tune" / FIRST)["digest"]
    module.tune = real
    machine.calls.clear()
    measure(packed, tmp_path)
    assert stages(machine) == [("bench", FIRST)], "of the winner that was found then"


def test_a_full_disk_ends_all(packed, tmp_path, machine):
    machine.breaks = {("tune", FIRST): OSError(28, "No space left on device")}
    with pytest.raises(OSError, match="No space left"):
        measure(packed, tmp_path)
    assert machine.calls == [("tune", FIRST, 10, 40)]


@pytest.mark.parametrize("stage", ["tune", "bench"])
def test_a_lock_that_another_run_holds_to_the_end_is_the_reason(packed, tmp_path, machine, stage):
    machine.breaks = {(stage, FIRST): Locked("another run held the lock")}
    with pytest.raises(Locked, match="another run held the lock"):
        measure(packed, tmp_path, 100)
    machine.breaks = {}
    measure(packed, tmp_path)
    assert rows(tmp_path, FIRST) and rows(tmp_path, SECOND)


def test_what_was_timed_but_not_published_is_published(packed, tmp_path, machine):
    """As when it is killed between the two."""
    measure(packed, tmp_path)
    (tmp_path / f"bench/{FIRST}.jsonl").unlink()
    (tmp_path / f"tune/{FIRST}/winner.json").unlink()
    (tmp_path / f"tune/{FIRST}/kernel.py").write_text("of an older one")
    machine.calls.clear()
    assert measure(packed, tmp_path) == ([], [])
    assert machine.calls == []
    assert rows(tmp_path, FIRST)[0]["variant"] == "d9"
    names = {path.name for path in (tmp_path / f"tune/{FIRST}").iterdir()}
    assert names == {"winner.json", "kernel.cpp"}


def test_other_settings_are_measured_anew_and_another_device_is_refused(packed, tmp_path, machine):
    measure(packed, tmp_path)
    state = json.loads((tmp_path / STATE).read_text())
    state["cases"][FIRST]["key"] = "of other graphs"
    (tmp_path / STATE).write_text(json.dumps(state))
    machine.calls.clear()
    _, said = measure(packed, tmp_path)
    assert said[0] == f"{FIRST}: measured with other settings before; measured anew"
    assert stages(machine) == [("tune", FIRST), ("bench", FIRST)]
    (tmp_path / STATE).write_text(json.dumps(state | {"device": "h200"}))
    with pytest.raises(PrismError, match="holds measurements of device h200; choose another out="):
        measure(packed, tmp_path)


def test_only_one_measures_into_a_folder(packed, tmp_path, machine):
    with (
        folder_lock(tmp_path),
        pytest.raises(PrismError, match="another measurement is at work there"),
    ):
        measure(packed, tmp_path)
    assert measure(packed, tmp_path)[0] == []
