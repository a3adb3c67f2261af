"""Candidates in their own processes: a right kernel passes, each wrong one is one failed row."""

import pytest

from prism.codegen import BACKENDS
from prism.errors import PrismError
from prism.measure import race as racing
from prism.measure.compile import compile_one
from prism.measure.eager_case import prepare_case
from prism.measure.executor import ProcessExecutor, Trial
from prism.measure.gate import Gate
from prism.measure.race import Candidate, Limits, Race
from prism.model.device import CPU, Device
from prism.program import Builder

HEAD = """
#include <cmath>
#include <cstdlib>
#include <new>
#include <vector>
typedef float T;
static const int N = 7, D = 33, F = 20;
static void row(const T* x, const T* w, T* o, bool eps) {
    float ss = 0;
    for (int d = 0; d < D; ++d) ss += x[d] * x[d];
    float r = 1 / std::sqrt(ss / D + (eps ? 0.5f : 0.0f));
    for (int f = 0; f < F; ++f) {
        float sum = 0;
        for (int d = 0; d < D; ++d) sum += x[d] * w[d * F + f];
        o[f] = sum * r;
    }
}
extern "C" int prism_run(const void* const* in, void* const* out, int threads) {
    const T* x = (const T*)in[0];
    const T* w = (const T*)in[1];
    T* o = (T*)out[0];
    (void)threads;
"""
LOOP = "for (int n = 0; n < N; ++n) row(x + n * D, w, o + n * F, true);"
GOOD = HEAD + LOOP + " return 0; }"

WRONG = {  # body: (cause, part of the reason)
    "for (int i = 0; i < N * F; ++i) o[i] = 0; return 0; }": ("gate", "error"),
    "for (int n = 0; n < N; ++n) row(x + n * D, w, o + (n + 1) % N * F, true); return 0; }": (
        "gate",
        "error",
    ),
    "for (int n = 0; n < N; ++n) row(x + n * D, w, o + n * F, false); return 0; }": (
        "gate",
        "error",
    ),
    "return 0; }": ("gate", "140 of 140 elements were never written"),
    LOOP.replace("n < N", "n < N - 1") + " return 0; }": (
        "gate",
        "20 of 140 elements were never written",
    ),
    LOOP + " ((T*)in[0])[3] += 1; return 0; }": ("gate", "input X: overwritten"),
    LOOP + " o[N * F] = 1; return 0; }": ("gate", "out of bounds"),
    LOOP + " return 7; }": ("gate", "returned 7"),
    LOOP + " *(volatile int*)nullptr = 1; return 0; }": ("crash", "SIGSEGV"),
    LOOP + " std::abort(); }": ("crash", "SIGABRT"),
    LOOP + " std::exit(0); }": ("crash", "ended without a result"),
    LOOP + " for (volatile int i = 0;; ++i) {} }": ("hang", "no result within 3 s"),
    LOOP + " std::vector<char> m(1ull << 40, 1); return m[5]; }": ("memory", "bad_alloc"),
}


def program():
    b = Builder("rmsnorm", {"n": 7, "d": 33, "f": 20}, "fp32", {"eps": 0.5})
    x, w = b.input("X", "n d"), b.input("W", "d f")
    return b.build(O=b.matmul(b.rms_norm(x, "d"), w, "d"))


@pytest.fixture(autouse=True, scope="module")
def own_lock(tmp_path_factory):
    """No waiting for other runs on this machine: what is tested here is not how fast it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("lock")))
        yield


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return prepare_case(program(), tmp_path_factory.mktemp("case"), 0, 1)


@pytest.fixture
def run(case, tmp_path):
    def build_and_run(source, **limits):
        compiled = compile_one(source, BACKENDS["cpu"], tmp_path)
        assert compiled.library is not None, compiled.error
        limits = {"seconds": 0.01, "timeout": 60, **limits}
        return ProcessExecutor(case, CPU, tmp_path, 1).run(compiled.library, Trial(**limits))

    return build_and_run


def test_eager_gives_the_bound(case):
    assert case.eager_record["seconds"] > 0
    gate = Gate(case)
    assert gate.check(case.eager()).passed
    assert set(gate.controls().values()) == {"failed"}


def test_without_eager_the_bound_is_that_of_rounding(tmp_path):
    case = prepare_case(program(), tmp_path / "case", 0, 1, timeout=0.01)
    assert case.eager() is None
    assert case.eager_record["reason"] == "PyTorch eager gave no result within 0.01 s"
    gate = Gate(case)
    assert gate.bounds["O"].rms < 1e-6
    assert set(gate.controls().values()) == {"failed"}


def test_a_right_kernel_passes_and_is_timed(run):
    result = run(GOOD)
    assert (result["status"], result["verdict"]["status"]) == ("ok", "PASSED")
    assert len(result["samples_us"]) >= 8 and all(0 < t < 1e6 for t in result["samples_us"])
    assert result["verdict"]["error"]["rms"] <= result["verdict"]["bound"]["rms"]


def test_rounding_otherwise_than_eager_is_not_wrong(run):
    result = run(GOOD.replace("sum += x[d] * w[d * F + f]", "sum += (x[d] * r) * w[d * F + f]")
                     .replace("o[f] = sum * r", "o[f] = sum"))  # fmt: skip
    assert result["status"] == "ok", result["reason"]


@pytest.mark.parametrize("body", WRONG, ids=range(len(WRONG)))
def test_a_wrong_kernel_is_a_failed_row_with_its_reason(run, body):
    cause, reason = WRONG[body]
    result = run(HEAD + body, timeout=3 if cause == "hang" else 60)
    assert (result["status"], result["cause"]) == ("failed", cause), result
    assert reason in result["reason"] and "\n" not in result["reason"]
    assert not result.get("samples_us")


def test_a_library_without_the_function_fails(run):
    result = run("int other() { return 0; }")
    assert result["cause"] == "load" and "prism_run" in result["reason"]


def race_of(case, folder, limits=None):
    executor = ProcessExecutor(case, CPU, folder, 1)
    return Race(executor, BACKENDS["cpu"], Device("test", "cpu"), folder, 1, limits)


def candidate(name, source):
    def write():
        if isinstance(source, Exception):
            raise source
        return source

    return Candidate(name, [{"x": 1}], {"schedule": "static"}, name, write)


def test_a_race_records_every_candidate_and_the_slow_one_loses(case, tmp_path):
    again = "for (int k = 0; k < 2000; ++k) { " + LOOP + ' asm("" ::: "memory"); }'
    slow = GOOD.replace(LOOP, again)
    sources = {"slow": slow, "broken": "int x = ;", "none": KeyError("no source"),
               "unfit": PrismError("too many scratch bytes"), "good": GOOD, "same": GOOD,
               "zero": HEAD + next(iter(WRONG))}  # fmt: skip
    limits = Limits(first_seconds=0.01, final_seconds=0.02)
    race = race_of(case, tmp_path, limits)
    batch = [candidate(name, source) for name, source in sources.items()]
    race.enter(batch[:3], len(batch))
    race.enter(batch[3:], len(batch))
    winner = race.finals()
    assert winner.graph_id in ("good", "same") and winner.finals_us
    assert race.causes() == {"compile": 1, "lower": 1, "internal": 1, "gate": 1}
    records = {c.graph_id: c.record() for c in race.candidates}
    assert list(records) == list(sources)
    assert records["slow"]["status"] == "ok"
    assert records["slow"]["median_us"] > 5 * records[winner.graph_id]["median_us"]
    assert "error:" in records["broken"]["reason"]
    assert records["none"]["reason"] == "KeyError: 'no source'"
    assert (records["none"]["cause"], records["unfit"]["cause"]) == ("internal", "lower")
    assert records["good"]["source_sha256"] == records["same"]["source_sha256"]
    assert not all(records[n]["finalist"] for n in ("good", "same"))  # one binary races once
    assert race.seconds["compile"] > 0 and race.seconds["tune"] > 0


def test_the_finals_choose_the_winner_and_not_the_first_samples(tmp_path):
    times = {"lucky": (1.0, 9.0), "steady": (2.0, 5.0), "slow": (3.0, 7.0)}  # first, finals
    names = {f"int {name};": name for name in times}
    runs = []

    class Canned:
        """An executor that only says what it is told."""

        def run(self, library, trial):
            name = names[library.with_suffix(".cpp").read_text()]
            finals = name in runs
            runs.append(name)
            return {"status": "ok", "verdict": {}, "samples_us": [times[name][finals]] * 3}

        def verify(self, library, trial):
            return {"status": "ok"}

    race = Race(Canned(), BACKENDS["cpu"], Device("test", "cpu"), tmp_path, 1)
    race.enter([candidate(name, source) for source, name in names.items()], 3)
    assert race.leader.graph_id == "lucky" and race.leader.median_us == 1
    winner = race.finals()
    assert (winner.graph_id, winner.median_us) == ("steady", 5)
    assert len(runs) == 3 * (1 + racing.PASSES)
    first = [runs[3 * (1 + number)] for number in range(racing.PASSES)]
    assert first == ["lucky", "steady", "slow"]  # every pass starts with another one


def test_a_race_without_any_right_kernel_has_no_winner(case, tmp_path):
    race = race_of(case, tmp_path)
    race.enter([candidate("zero", HEAD + next(iter(WRONG)))], 1)
    assert race.finals() is None and race.leader is None and race.causes() == {"gate": 1}
