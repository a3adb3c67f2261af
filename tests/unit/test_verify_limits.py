"""Budgets of a proof, hard stops, unsound rules, commutativity without explosion."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from egglog.bindings import EGraph

from prism.errors import PrismError
from prism.program.node import Node, Op
from prism.verify import Limits, Outcome, child, prove_all, saturated_table
from prism.verify.axiom import Axiom
from prism.verify.axioms import ALGEBRA
from prism.verify.egraph import Session

prover = sys.modules["prism.verify.prove"]


def tensor(name, axes="n d"):
    return Node(Op.INPUT, arg=name, axes=axes.split())


X, Y = tensor("X"), tensor("Y")
GROWN = '(Bin "add" (Un o (Bin "mul" t t)) (Un o (Bin "div" t t)))'
EXPLOSIVE = Axiom("growing", "", "(Un o t)", GROWN)


def explosive(monkeypatch):
    """Rules that never saturate: every round doubles the e-graph and more."""
    monkeypatch.setattr(prover, "PHASES", ((*ALGEBRA, EXPLOSIVE),))


def goal():
    """What holds by algebra and what does not."""
    return [
        [(Node(Op.SUM, (Node(Op.EXP, (X,)),), "d"), Node(Op.SUM, (Node(Op.EXP, (Y,)),), "d"))],
        [(Node(Op.EXP, (X,)), Node(Op.EXP, (Y,)))],
    ]


def test_a_time_limit_is_hard(monkeypatch):
    explosive(monkeypatch)
    start = time.perf_counter()
    limits = Limits(iterations=1000, nodes=10**9, seconds=1, memory_mib=8192)
    proofs = prove_all(goal(), limits)
    assert time.perf_counter() - start < 3
    assert [v.outcome for v in proofs.verdicts] == [Outcome.UNKNOWN] * 2
    assert {v.reason for v in proofs.verdicts} == {"time limit"} == {proofs.saturation.ended}


def test_an_iteration_is_stopped_within():
    """One iteration of a product of products would take hours."""

    def explode():
        kept.append(EGraph())
        program = (
            "(datatype T (A i64) (F T T)) (ruleset r)"
            "(rule ((= x (F a b)) (= y (F c d))) ((F x y)) :ruleset r)"
            "(F (A 1) (A 2)) (run-schedule (repeat 9 (run r)))"
        )
        kept[-1].run_program(*kept[-1].parse_program(program))

    kept = []
    start = time.perf_counter()
    assert child.call(explode, 0.5, 8192).stopped == "time limit"
    assert time.perf_counter() - start < 1.5


def test_a_memory_limit_is_hard(monkeypatch):
    explosive(monkeypatch)
    limits = Limits(iterations=1000, nodes=10**9, seconds=60, memory_mib=64)
    proofs = prove_all(goal(), limits)
    assert {v.reason for v in proofs.verdicts} == {"memory limit"}
    assert {v.outcome for v in proofs.verdicts} == {Outcome.UNKNOWN}
    assert 0 < proofs.peak_mib < 1024


def test_memory_of_python_counts_too():
    assert child.call(lambda: len(bytearray(200 << 20)), 10, 100).stopped == "memory limit"
    ending = child.call(lambda: len(bytearray(50 << 20)), 10, 100)
    assert ending.value == 50 << 20 and ending.peak_mib > 50


@pytest.mark.parametrize(
    ("limits", "reason"),
    [(Limits(iterations=1), "iteration limit"), (Limits(nodes=10), "e-node limit")],
)
def test_soft_limits_are_unknown(limits, reason):
    scaled = normed = X
    for k in range(4):
        w, v = tensor(f"W{k}", f"{'dfghe'[k]} {'dfghe'[k + 1]}"), tensor(f"V{k}", "n")
        scaled = Node(Op.MATMUL, (Node(Op.DIV, (scaled, v)), w), "dfghe"[k])
        normed = Node(Op.MATMUL, (normed, w), "dfghe"[k])
    for k in (3, 1, 0, 2):
        normed = Node(Op.DIV, (normed, tensor(f"V{k}", "n")))
    assert prove_all([[(scaled, normed)]]).verdicts[0].proved
    verdict = prove_all([[(scaled, normed)]], limits).verdicts[0]
    assert verdict.outcome is Outcome.UNKNOWN and verdict.reason == reason


def test_what_was_proved_before_a_limit_stays_proved(monkeypatch):
    """The phase that explodes is for the open goals alone."""
    phases = (ALGEBRA, (EXPLOSIVE,))
    monkeypatch.setattr(prover, "PHASES", phases)
    scaled = Node(Op.SUM, (Node(Op.SCALE, (X,), "c"),), "d")
    proved = [(scaled, Node(Op.SCALE, (Node(Op.SUM, (X,), "d"),), "c"))]
    limits = Limits(iterations=1000, nodes=10**9, seconds=1, memory_mib=8192)
    verdicts = prove_all([proved, *goal()], limits).verdicts
    assert [v.outcome.value for v in verdicts] == ["PROVED", "UNKNOWN", "UNKNOWN"]


def terms(order, rng):
    """The sum of terms, bracketed at random."""
    found = list(order)
    while len(found) > 1:
        pair = [found.pop(rng.randrange(len(found))) for _ in range(2)]
        found.append(Node(Op.ADD, pair))
    return found[0]


def test_a_sum_of_eight_terms_in_another_order():
    names = [tensor(f"T{k}") for k in range(8)]
    rng = random.Random(8)
    plain = names[0]
    for name in names[1:]:
        plain = Node(Op.ADD, (plain, name))
    twice = terms([*names[:-1], names[0]], rng)
    start = time.perf_counter()
    proofs = prove_all([[(terms(names, rng), plain)], [(twice, plain)]])
    assert time.perf_counter() - start < 5
    right, wrong = proofs.verdicts
    assert right.outcome is Outcome.PROVED
    assert wrong.outcome is Outcome.UNKNOWN and wrong.reason == "axiom gap at pair 0"
    assert proofs.nodes < Limits().nodes


def test_more_terms_than_the_budget_allows_are_unknown():
    names = [tensor(f"T{k}") for k in range(12)]
    rng = random.Random(12)
    left, right = terms(names, rng), terms([*names[:-1], names[0]], rng)
    verdict = prove_all([[(left, right)]], Limits(nodes=20_000)).verdicts[0]
    assert verdict.outcome is Outcome.UNKNOWN and verdict.reason == "e-node limit"


def test_products_and_sums_mixed():
    """Laws of the later phases together."""
    s, t, v = tensor("S"), tensor("T"), tensor("V", "n")

    def mul(a, b):
        return Node(Op.MUL, (a, b))

    left = Node(Op.SUM, (mul(v, Node(Op.ADD, (s, t))),), "d")
    right = Node(Op.ADD, tuple(mul(Node(Op.SUM, (x,), "d"), v) for x in (t, s)))
    assert prove_all([[(left, right)]]).verdicts[0].proved
    wrong = Node(Op.ADD, tuple(mul(Node(Op.SUM, (x,), "d"), v) for x in (t, t)))
    assert not prove_all([[(left, wrong)]]).verdicts[0].proved


@pytest.mark.parametrize(
    ("left", "right", "names"),
    [
        ('(Bin "sub" s t)', ("s", "t"), ("X", "Y")),
        ("(Scale c t)", ("t",), ("2", "3")),
    ],
)
def test_a_rule_that_makes_two_constants_equal_stops_the_run(monkeypatch, left, right, names):
    wrong = tuple(Axiom(f"wrong {r}", "", left, r) for r in right)
    monkeypatch.setattr(prover, "PHASES", ((*ALGEBRA, *wrong),))
    difference = Node(Op.SUB, (X, Y))
    total = Node(Op.ADD, (Node(Op.SCALE, (X,), "2"), Node(Op.SCALE, (X,), "3")))
    with pytest.raises(PrismError) as caught:
        prove_all([[(total, difference)]])
    message = str(caught.value)
    assert message.startswith("axioms: an unsound rule has made ") and "\n" not in message
    assert all(name in message.split() for name in names), message


def test_goals_of_several_pairs_need_them_all():
    same, other = (X, X), (X, Y)
    verdicts = prove_all([[same], [same, other], [other], []]).verdicts
    assert [v.proved for v in verdicts] == [True, False, False, True]
    assert verdicts[1].reason == "axiom gap at pair 1"


def test_an_input_is_known_by_its_name_and_its_axes():
    narrow = tensor("X", "n")
    widened = Node(Op.MUL, (X, narrow))
    assert not prove_all([[(X, narrow)]]).verdicts[0].proved
    classes, roots, cost = saturated_table([widened])
    assert cost.ended == "saturated" and len(classes) == 3
    names = [n.arg for nodes in classes.values() for n in nodes if n.op is Op.INPUT]
    assert names == ["X", "X"]


def test_a_table_that_is_stopped_holds_the_roots(monkeypatch):
    monkeypatch.setattr(prover, "ALGEBRA", (*ALGEBRA, EXPLOSIVE))
    root = Node(Op.SUM, (Node(Op.EXP, (X,)),), "d")
    limits = Limits(iterations=1000, nodes=10**9, seconds=60, memory_mib=64)
    classes, (number,), cost = saturated_table([root], limits)
    assert cost.ended == "memory limit"
    assert [(n.op, n.arg) for n in classes[number]] == [(Op.SUM, "d")] and len(classes) == 3


def test_costs_are_told():
    proofs = prove_all(goal())
    assert proofs.peak_mib > 10 and proofs.saturation.seconds > 0 and proofs.nodes >= 6
    assert proofs.rule_seconds.keys() == proofs.saturation.matches.keys()
    assert 0 < sum(proofs.rule_seconds.values()) < proofs.saturation.seconds


def test_an_e_graph_lives_in_a_child_only():
    with pytest.raises(RuntimeError, match="child process"):
        Session()


def test_errors_in_the_child_come_back():
    def wrong():
        raise PrismError("one clear line")

    with pytest.raises(PrismError, match="one clear line"):
        child.call(wrong, 5, 100)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        child.call(lambda: 1 / 0, 5, 100)
    assert "SIGUSR2" in child.call(lambda: os.kill(os.getpid(), signal.SIGUSR2), 5, 100).stopped


def test_a_call_costs_no_new_interpreter():
    here = object()  # not pickled: a fork has it at the same address

    def work():
        return os.getppid(), os.getpid(), id(here)

    parent, own, seen = child.call(work, 5, 100).value
    assert (parent, seen) == (os.getpid(), id(here)) and own != os.getpid()


SLEEPER = """
import os, time
from prism.verify.child import call
def work():
    print(os.getpid(), flush=True)
    time.sleep(60)
try:
    call(work, 60, 1000)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def gone(pid, seconds=5):
    """Whether the process ends within the time; a zombie has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and the death signal of Linux")
@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGKILL, ""), (signal.SIGTERM, ""), (signal.SIGINT, "interrupted")]
)
def test_the_child_dies_with_its_parent(number, said):
    parent = subprocess.Popen(
        [sys.executable, "-c", SLEEPER],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    pid = int(parent.stdout.readline())
    parent.send_signal(number)
    assert parent.stdout.read().strip() == said
    parent.wait(10)
    assert gone(pid)
