"""The search: its result, its bounds, its budget."""

import json
import time
from collections import Counter
from dataclasses import replace

import pytest
from searching import SINGLE, search_module, whole_proof
from workloads import PROGRAMS, symbolic

from prism.errors import PrismError
from prism.program.node import Node, Op, topological
from prism.program.program import Program
from prism.search import Bounds, search
from prism.search.actions import Lemma, Transitions
from prism.sgraph import SGraph
from prism.sgraph.family import Space

# The result ---------------------------------------------------------------------------------------


def test_result_survives_json():
    result = search(PROGRAMS["softmax_matmul"])
    data = json.loads(json.dumps(result.to_json()))
    again = Space.from_json(data["space"])
    assert again == result.space and data["graphs"]["all"] == again.count
    for name in again.draw(50, 1):
        assert SGraph.from_json(again.graph(name).to_json()) == result.space.graph(name)


@pytest.mark.parametrize("name", ["", "x", "1", "0.-1", "99999.0", "0.99999999", "0.0+0.0", "a.b"])
def test_unknown_graph_ids_are_refused(name):
    with pytest.raises(PrismError, match="graph"):
        search(PROGRAMS["outer"]).space.graph(name)


def test_draws_are_uniform_over_graphs():
    space = search(PROGRAMS["swiglu"]).space
    drawn = space.draw(3000, 0, single=False)
    assert drawn == space.draw(3000, 0, single=False) and len(set(drawn)) == len(drawn) > 2000
    (piece,) = space.pieces
    per_family = Counter(int(name.partition(".")[0]) for name in drawn)
    largest = max(range(len(piece.counts)), key=lambda f: piece.counts[f])
    share = piece.counts[largest] / sum(
        n for f, n in enumerate(piece.counts) if not piece.single(f)
    )
    assert per_family[largest] / len(drawn) == pytest.approx(share, rel=0.2)
    assert space.draw(10**6, 0, single=True) == list(space.ids(single=True))


def test_counts_add_up():
    result = search(PROGRAMS["attention"])
    counts, (piece,) = result.candidates, result.space.pieces
    families = {json.dumps(k.to_json()["nodes"]) + str(k.library) for k in piece.kernels}
    assert counts["generate"]["out"] <= len(families) + 10
    assert counts["map"]["in"] - counts["map"]["out"] > 0
    assert result.rejected.total() == counts["map"]["in"] - counts["map"]["out"]
    assert counts["prove"]["in"] == counts["prove"]["out"] >= counts["refute"]["out"] > 0
    assert result.rules and all(rule["matches"] >= 0 for rule in result.rules.values())
    assert 0 < sum(result.seconds.values()) <= result.total * 1.01
    assert 10 < result.peak_mib < 2048


def test_rejections_say_why():
    rejected = search(PROGRAMS["attention"], SINGLE).rejected
    assert rejected["shapes: operands are cut differently"] > 0
    assert rejected["exp of a sum"] > 0  # the exponential of part of a contraction
    assert rejected["loop: an output is not whole after it"] > 0


def test_search_is_deterministic():
    first, second = (search(PROGRAMS["swiglu"]).to_json() for _ in range(2))
    assert first["space"] == second["space"] and first["candidates"] == second["candidates"]


def test_bounds_shrink_the_space():
    program = PROGRAMS["rmsnorm"]
    whole = search(program).space
    assert search(program, Bounds(grid=1)).space.count < whole.count
    assert search(program, Bounds(split=False)).space.count < whole.count
    assert search(program, Bounds(library=())).space.count < whole.count
    assert search(program, Bounds(kernels=2)).space.count < whole.count
    assert search(program, SINGLE).space.count == whole.single_kernel
    mlp = PROGRAMS["rmsnorm_mlp"]
    fewer, more = (search(mlp, Bounds(extra_operators=n, grid=1)).space.count for n in (0, 1))
    assert 0 < fewer < more
    flat = search(program, Bounds(loop=False, generated=1, kernels=1, library=()))
    assert 0 < flat.space.count < whole.single_kernel
    assert all(g.kernels[0].block.loop is None for _, g in flat.graphs())


@pytest.mark.parametrize("generator", ["guided", "exhaustive"])
def test_operators_outside_the_set_are_not_used(generator):
    """t/v/w may become t/(v*w), unless there is no multiplication to use."""
    program = symbolic("twice", "O = T / V / W", {"T": "n", "V": "n", "W": "n"})
    bounds = Bounds(generator=generator, generated=1, kernels=1, library=(), grid=1, split=False)
    used = [
        {n.op for _, g in search(program, b).graphs() for n in g.kernels[0].block.nodes}
        for b in (bounds, replace(bounds, operators=("exp",)))
    ]
    assert Op.MUL in used[0] and Op.MUL not in used[1] and Op.DIV in used[1]


def test_a_spent_budget_returns_what_was_found():
    result = search(PROGRAMS["rmsnorm_mlp"], Bounds(seconds=0.3))
    assert result.ended.startswith("time limit")
    assert result.space.count > 0
    graphs = [result.space.graph(i) for i in result.space.draw(20, 0)]
    assert all(v.proved for v in whole_proof(PROGRAMS["rmsnorm_mlp"], graphs))


def test_no_time_at_all_still_gives_the_program_itself():
    result = search(PROGRAMS["rmsnorm"], Bounds(seconds=1e-6))
    assert result.ended.startswith("time limit")
    graph = result.space.graph("0.0")
    assert len(graph.kernels) == 1 and not graph.kernels[0].mapping.ones
    assert whole_proof(PROGRAMS["rmsnorm"], [graph])[0].proved


def test_a_spent_memory_budget_returns_what_was_found(monkeypatch):
    """What memory the search takes beyond what its process had; here, more at every look."""
    grown = iter(range(100, 10**6))
    monkeypatch.setattr("prism.search.budget.memory_mib", lambda: float(next(grown)))
    result = search(PROGRAMS["rmsnorm_mlp"], Bounds(memory=4))
    assert result.ended.startswith("memory limit of 4 MiB, ")
    assert result.space.count > 0


@pytest.mark.parametrize(
    "where",
    ["saturated_table", "cuts", "grid_choices", "prove_all", "Loops", "grids", "names", "refuted"],
)
def test_an_interrupt_in_any_stage_returns_proved_graphs(monkeypatch, where):
    """Ctrl-C at the first, or a later, call of each stage; what comes after changes no reason."""
    program = PROGRAMS["two_outputs"]
    owner, name = (Lemma, where) if where == "refuted" else (search_module, where)
    real = getattr(owner, name)
    for last in (1, 3):
        calls = []

        def interrupted(*args, real=real, calls=calls, last=last, **more):
            calls.append(1)
            if len(calls) == last:
                raise KeyboardInterrupt
            return real(*args, **more)

        monkeypatch.setattr(owner, name, interrupted)
        result = search(program)
        monkeypatch.undo()
        if len(calls) < last:  # called once a search
            continue
        assert result.ended == "interrupted"
        graphs = [result.space.graph(i) for i in result.space.draw(30, 0)]
        assert graphs and all(v.proved for v in whole_proof(program, graphs))


def test_an_interrupt_returns_what_was_found(monkeypatch):
    calls = []

    class Interrupting(search_module.Loops):
        def run(self):
            calls.append(1)
            if len(calls) == 20:
                raise KeyboardInterrupt
            return super().run()

    monkeypatch.setattr(search_module, "Loops", Interrupting)
    result = search(PROGRAMS["rmsnorm"])
    assert result.ended == "interrupted"
    graphs = [result.space.graph(i) for i in result.space.draw(50, 0)]
    assert len(graphs) > 20 and all(v.proved for v in whole_proof(PROGRAMS["rmsnorm"], graphs))


def test_a_program_too_large_to_exhaust_still_gives_graphs_in_time():
    """Twenty terms: cuts and loops alone are exponential; the budget holds, the source is there."""
    names = [f"T{k}" for k in range(10)]
    formula = "O = " + " + ".join(f"exp({n})" for n in names)
    program = symbolic("terms", formula, dict.fromkeys(names, "n d"))
    start = time.perf_counter()
    result = search(program, Bounds(seconds=3, piece=30))
    assert time.perf_counter() - start < 10
    assert result.ended.startswith("time limit")
    assert not result.space.graph("0.0").kernels[0].mapping.ones


def test_identity_program_is_refused():
    program = symbolic("echo", "O = exp(X)", {"X": "n"})
    echo = Program("echo", (("O", program.inputs["X"]),), program.sizes)
    with pytest.raises(PrismError, match="nothing to search"):
        search(echo)
    twice = Program(
        "twice", (("O", program.outputs[0][1]), ("P", program.outputs[0][1])), {"n": "n"}
    )
    with pytest.raises(PrismError, match="two outputs are the same value"):
        search(twice)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"generator": "random"}, "generator 'random' is not one of"),
        ({"generated": 3}, "generated=3 must be from 1 to 2"),
        ({"generated": 0}, "generated=0"),
        ({"kernels": 0}, "kernels=0 must be from 1"),
        ({"grid": 7}, "grid=7 must be from 0 to 3"),
        ({"piece": 0}, "piece=0"),
        ({"library": ("nonsense",)}, "library: 'nonsense' is none of"),
        ({"operators": ("load",)}, "operators: 'load'"),
    ],
)
def test_bounds_that_mean_nothing_are_refused(wrong, message):
    with pytest.raises(PrismError, match=message):
        Bounds(**wrong)


def test_names_of_the_user_do_not_collide_with_ours():
    program = symbolic("names", "split = exp(t1)\nO = matmul(split, t2, split)",
                       {"t1": "n split", "t2": "split f"})  # fmt: skip
    result = search(program)
    assert result.space.count > result.space.single_kernel
    graphs = [g for _, g in result.graphs()][:300]
    assert all(v.proved for v in whole_proof(program, graphs))
    assert all(axis != "split" for g in graphs for k in g.kernels for axis in k.fresh)


def test_names_of_other_pieces_do_not_collide_with_ours():
    """t1_2 is what the second piece would call its own, and what the third one reads."""
    inputs = {"X": "n d", "t1_2": "n d", "W": "d f"}
    program = symbolic("names", "T = silu(exp(X) * X) + t1_2\nO = matmul(T, W, d)", inputs)
    result = search(program, Bounds(piece=2, grid=1))
    assert len(result.space.pieces) == 3
    graphs = [result.space.graph(i) for i in result.space.draw(150, 0)]
    assert any(k.writes == ("t2_2",) for g in graphs for k in g.kernels)
    assert all(v.proved for v in whole_proof(program, graphs))


def test_every_graph_writes_every_output():
    for name in ("two_outputs", "rmsnorm_mlp"):
        program = PROGRAMS[name]
        outputs = {name for name, _ in program.outputs}
        for _, graph in search(program, Bounds(grid=1, loop=False)).graphs():
            assert outputs <= {name for k in graph.kernels for name in k.writes}


def test_a_proof_that_a_limit_stopped_is_not_exhaustive():
    result = search(PROGRAMS["rmsnorm"], Bounds(nodes=50))
    assert result.gaps and result.ended != "exhausted"
    graphs = [result.space.graph(i) for i in result.space.draw(50, 0)]
    assert all(v.proved for v in whole_proof(PROGRAMS["rmsnorm"], graphs))


def test_transitions_of_axes_that_stay_whole():
    x = Node(Op.INPUT, arg="X", axes=("n", "split"))
    found = Transitions(frozenset({"split"}))
    found.add(topological([Node(Op.SUM, (x,), "split")]))
    assert all(s.axis != "split" for key in found.table for s in key[1])
