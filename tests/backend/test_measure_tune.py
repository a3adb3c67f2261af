"""Tuning end to end on a small case: record, winner, exact replay, nothing found."""

import json
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from prism.errors import PrismError
from prism.given import proofs
from prism.measure import gate
from prism.measure import tune as tuning
from prism.measure.compile import sha256
from prism.measure.race import Limits
from prism.measure.tune import TuneBudget, tune
from prism.measure.winner import replay
from prism.model.device import CPU, Device
from prism.program import Builder
from prism.program.node import Node, Op
from prism.sgraph import BlockGraph, Kernel, MapVar, SGraph, make_mapping

LIMITS = Limits(first_seconds=0.01, final_seconds=0.02)


@pytest.fixture(autouse=True, scope="module")
def own_lock(tmp_path_factory):
    """No waiting for other runs on this machine: what is tested here is not how fast it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("lock")))
        yield


def program(dtype="bf16"):
    b = Builder("rmsnorm", {"n": 4, "d": 128, "f": 96}, dtype, {"eps": 1e-5})
    x, w = b.input("X", "n d"), b.input("W", "d f")
    return b.build(O=b.matmul(b.rms_norm(x, "d"), w, "d"))


def graph(norm=True):
    """The fused kernel: columns over the grid, the contraction over the loop, one division."""
    x, w = Node(Op.LOAD, (), "X", ("n", "d")), Node(Op.LOAD, (), "W", ("d", "f"))
    squares = Node(Op.ACCUM, (Node(Op.SUM, (Node(Op.SQUARE, (x,)),), "d"),), "sum")
    product = Node(Op.ACCUM, (Node(Op.MATMUL, (x, w), "d"),), "sum")
    mean = Node(Op.SHIFT, (Node(Op.SCALE, (squares,), "1 / d"),), "eps")
    root = Node(Op.SQRT, (mean,)) if norm else mean
    save = Node(Op.SAVE, (Node(Op.DIV, (product, root)),), "O")
    ones = [("W", "f", "x"), ("O", "f", "x"), ("X", "d", "i"), ("W", "d", "i")]
    mapping = make_mapping(MapVar(*one) for one in ones)
    return SGraph((Kernel(BlockGraph(("x",), "i", (save,)), mapping),))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    out = tmp_path_factory.mktemp("tuned") / "case"
    budget = TuneBudget(count=4, seconds=60, seed=1)
    graphs = [("right", graph()), ("wrong", graph(norm=False))]
    return out, tune(program(), graphs, CPU, budget, out, 1, limits=LIMITS)


def test_the_winner_is_stored_with_every_candidate(tuned):
    out, result = tuned
    assert json.loads((out / "winner.json").read_text()) == result
    assert sorted(p.name for p in out.iterdir()) == ["kernel.cpp", "winner.json"]
    assert result["status"] == "ok" and result["graph_id"] == "right"
    assert result["verdict"] == "PASSED" and result["error"]["rms"] <= result["bound"]["rms"]
    assert result["tried"] == 4 == len(result["candidates"])
    for candidate in result["candidates"]:
        right = candidate["graph_id"] == "right"
        assert candidate["status"] == ("ok" if right else "failed")
        assert right or (candidate["cause"] == "gate" and "error" in candidate["reason"])
    assert result["median_us"] > 0 and set(result["seconds"]) == {"compile", "tune", "total"}
    assert sha256((out / "kernel.cpp").read_text()) == result["source_sha256"]


def test_a_result_says_what_it_was_given_and_what_ended_it(tuned, tmp_path):
    _, result = tuned
    assert (result["limit_s"], result["ended"]) == (60, "count")
    graphs, budget = [("right", graph())], TuneBudget(count=1, seconds=5, seed=1)
    planned = {"budget": {"count": 100, "seconds": 45, "seed": 1}}
    more = tune(
        program(), graphs, CPU, budget, tmp_path, 1, limits=LIMITS, earlier=result, context=planned
    )
    assert (more["limit_s"], more["budget"]["seconds"]) == (65, 45)
    until = time.monotonic() - 1
    late = tune(program(), graphs, CPU, budget, tmp_path, 1, limits=LIMITS, until=until)
    none = tune(program(), [], CPU, budget, tmp_path, 1, limits=LIMITS)
    assert (late["ended"], none["ended"]) == ("time", "exhausted")


@pytest.mark.parametrize(("seconds", "sizes"), [(12, [8, 8, 8]), (300, [24])])
def test_a_short_tuning_compiles_few_at_once(monkeypatch, seconds, sizes):
    asked = []

    class Few:
        def propose(self, space, history, count):
            asked.append(count)
            one = SimpleNamespace(sizes=[], options={}, digest=lambda: "d")
            return [("g", one)] * count

    race = SimpleNamespace(candidates=[], late=False)
    race.enter = lambda batch, *rest: race.candidates.extend(batch)
    monkeypatch.setattr(tuning.os, "sched_getaffinity", lambda _: range(16))
    budget = TuneBudget(24, seconds, 0)
    given = (race, Few(), None, None, budget, time.perf_counter(), None, [])
    assert tuning._tune(*given)[1] == "count" and asked == sizes


def test_a_graph_that_is_not_proved_is_not_even_compiled(tmp_path):
    """Whatever made the list of graphs: each is proved as a whole first, for its program."""
    graphs = [("right", graph()), ("wrong", graph(norm=False))]
    budget = TuneBudget(count=4, seconds=60, seed=1)
    result = tune(
        program(), graphs, CPU, budget, tmp_path / "c", 1, limits=LIMITS, proofs=proofs(program())
    )
    tried = {c["graph_id"]: c for c in result["candidates"]}
    assert result["graph_id"] == "right" and set(tried) == {"right", "wrong"}
    wrong = tried["wrong"]
    assert wrong["cause"] == "proof" and "axiom gap" in wrong["reason"]
    assert wrong["source_sha256"] is None and result["causes"].keys() == {"proof"}


def test_proofs_name_what_is_wrong_with_a_graph():
    right = graph()
    (kernel,) = right.kernels
    ones = kernel.mapping.ones
    dropped = SGraph((replace(kernel, mapping=make_mapping(v for v in ones if v.par != "i")),))
    other = SGraph((renamed_output(kernel, "P"),))
    reasons = proofs(program())([right, graph(norm=False), dropped, other])
    assert reasons[0] == "" and "axiom gap" in reasons[1] and "axiom gap" in reasons[2]
    assert "does not write O" in reasons[3]


def renamed_output(kernel, name):
    """The kernel saving a tensor of another name."""
    (saver,) = kernel.block.savers
    block = replace(kernel.block, savers=(Node(Op.SAVE, saver.src, name),))
    ones = {v._replace(tensor=name) if v.tensor == "O" else v for v in kernel.mapping.ones}
    return Kernel(block, make_mapping(ones))


def test_the_same_seed_tries_the_same_configurations(tuned, tmp_path):
    _, first = tuned
    budget = TuneBudget(count=4, seconds=60, seed=1)
    graphs = [("right", graph()), ("wrong", graph(norm=False))]
    again = tune(program(), graphs, CPU, budget, tmp_path / "c", 1, limits=LIMITS)
    tried = [[c["digest"] for c in result["candidates"]] for result in (first, again)]
    assert tried[0] == tried[1]


def test_the_winner_is_replayed_exactly_and_gated_again(tuned):
    out, result = tuned
    again = replay(out, CPU, 1)
    assert again["status"] == "ok" and again["median_us"] > 0
    assert again["verdict"]["error"] == result["error"]


def test_a_changed_source_is_not_replayed(tuned, tmp_path):
    out, _ = tuned
    for name in ("winner.json", "kernel.cpp"):
        (tmp_path / name).write_text((out / name).read_text())
    (tmp_path / "kernel.cpp").write_text((out / "kernel.cpp").read_text() + "\n// changed\n")
    with pytest.raises(PrismError, match="is not the source that won"):
        replay(tmp_path, CPU, 1)
    (tmp_path / "winner.json").write_text("{")
    with pytest.raises(PrismError, match="is damaged"):
        replay(tmp_path, CPU, 1)


def test_nothing_that_passes_is_a_result_with_counts(tmp_path):
    (tmp_path / "kernel.cpp").write_text("// of an earlier run")
    budget = TuneBudget(count=2, seconds=60)
    result = tune(program(), [("wrong", graph(norm=False))], CPU, budget, tmp_path, 1)
    assert result["status"] == "failed" and result["causes"] == {"gate": 2}
    assert result["reason"].startswith("none of 2 configurations passed (gate 2); the first: gate")
    assert not (tmp_path / "kernel.cpp").exists()
    with pytest.raises(PrismError, match="there is no winner to replay"):
        replay(tmp_path, CPU, 1)
    empty = tune(program(), [], CPU, budget, tmp_path, 1)
    assert empty["status"] == "failed" and "no valid configuration" in empty["reason"]


def test_a_blind_gate_has_no_winner(tmp_path, monkeypatch, tuned):
    monkeypatch.setattr(gate, "bound_of", lambda *_: (gate.Error(1e9, 1e9), ""))
    budget = TuneBudget(count=2, seconds=60)
    result = tune(program(), [("right", graph())], CPU, budget, tmp_path, 1, limits=LIMITS)
    assert result["status"] == "failed" and result["tried"] == 0
    assert "cannot tell a wrong output from a right one: control zeros" in result["reason"]
    assert not (tmp_path / "kernel.cpp").exists()
    again = replay(tuned[0], CPU, 1)
    assert again["status"] == "failed" and again["reason"] == result["reason"]


def test_what_the_user_gets_wrong_is_one_line(tmp_path, monkeypatch):
    budget = TuneBudget(count=1, seconds=60)
    with pytest.raises(PrismError, match="backend 'abacus' is not known"):
        tune(program(), [("g", graph())], Device("abacus", "abacus"), budget, tmp_path, 1)
    with pytest.raises(PrismError, match="strategy 'oracle' is not known"):
        tune(program(), [("g", graph())], CPU, budget, tmp_path, 1, strategy="oracle")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(PrismError, match="no-such-compiler"):
        tune(program(), [("g", graph())], CPU, budget, tmp_path, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("compiler", ["false", "true"])
def test_a_compiler_that_does_not_work_is_one_clear_error(tmp_path, monkeypatch, compiler):
    monkeypatch.setenv("CXX", compiler)
    build = Builder("double", {"n": 64}, "fp32")
    x = build.input("X", "n")
    program = build.build(O=build.add(x, x))
    with pytest.raises(PrismError, match="compiler .* does not work"):
        tune(program, [], CPU, TuneBudget(1, 1.0, 0), tmp_path / "out", 1)
    assert not (tmp_path / "out").exists()
