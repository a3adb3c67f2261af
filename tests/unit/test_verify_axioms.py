"""Axioms on random instances, plausible mistakes, guards, and laws that follow from others."""
# ruff: noqa: E501

import random
from dataclasses import replace

import pytest

from prism.program.node import Node, Op
from prism.verify import Outcome, prove_all
from prism.verify.axiom import (
    Axiom,
    Use,
    applicable,
    differ,
    has,
    lacks,
    monotone,
    read,
    rules,
    within,
)
from prism.verify.axioms import AC, ALGEBRA, COMBS, DERIVED, MORE, PARALLEL, PHASES
from prism.verify.derived import compound_sums
from prism.verify.instances import agrees, instance, layout

LOADED = ALGEBRA + PARALLEL + COMBS + AC + MORE
AXIOMS = LOADED + DERIVED
SUM, MAX = '"sum"', '"max"'


def test_axiom_names_are_unique():
    assert len({a.name for a in AXIOMS}) == len(AXIOMS)
    assert tuple(a for phase in PHASES for a in phase) == LOADED
    apart_from_mirrors = {a.name.partition(", ")[0] for a in LOADED}
    assert len(apart_from_mirrors) >= 90


@pytest.mark.parametrize("axiom", AXIOMS, ids=lambda a: a.name)
def test_axiom_holds_on_random_instances(axiom):
    rng = random.Random(axiom.name)
    for seed in range(100):
        sides = instance(axiom, rng)
        assert agrees(sides, seed), sides
        assert layout(sides.right)[0] == layout(sides.left)[0]


# The paper's Table 1, law by law; forms 6 to 8 of the compound sums under the sum that they need.
TABLE_1 = [
    ("(Mat s (Mat t u e) k)", "(Mat (Mat s t k) u e)", (lacks("s", "e"), lacks("u", "k"))),
    ('(Mat (Bin "add" s t) u k)', '(Bin "add" (Mat s u k) (Mat t u k))', (within("s", "t"), within("t", "s"))),
    ('(Mat u (Bin "add" s t) k)', '(Bin "add" (Mat u s k) (Mat u t k))', (within("s", "t"), within("t", "s"))),
    ('(Mat (Bin "mul" s v) t k)', '(Bin "mul" (Mat s t k) v)', (lacks("v", "k"), within("v", "s"))),
    ('(Mat s (Bin "mul" t v) k)', '(Bin "mul" (Mat s t k) v)', (lacks("v", "k"), within("v", "t"))),
    ('(Mat (Bin "div" s v) t k)', '(Bin "div" (Mat s t k) v)', (lacks("v", "k"), within("v", "s"))),
    ("(Part (Repl t p) d q)", "(Repl (Part t d q) p)", (differ("p", "q"),)),
    ("(Comb (Repl t p) d q)", "(Repl (Comb t d q) p)", (differ("p", "q"),)),
    ("(Merge o (Part t d q) p)", "(Part (Merge o t p) d q)", (differ("p", "q"),)),
    ("(Comb (Merge o t p) d q)", "(Merge o (Comb t d q) p)", (differ("p", "q"),)),
    ("(Part (Part t d p) e q)", "(Part (Part t e q) d p)", (differ("d", "e"), differ("p", "q"))),
    ("(Comb (Comb t d p) e q)", "(Comb (Comb t e q) d p)", (differ("d", "e"), differ("p", "q"))),
    ("(Comb (Part t d p) d p)", "t", ()),
    (f"(Merge {SUM} (Mat (Part s k p) (Part t k p) k) p)", "(Mat s t k)", ()),
    ("(Comb (Mat (Part s d p) (Repl t p) k) d p)", "(Mat s t k)", (differ("d", "k"), lacks("t", "d"))),
    ("(Comb (Mat (Repl s p) (Part t d p) k) d p)", "(Mat s t k)", (differ("d", "k"), lacks("s", "d"))),
    ("(Comb (Mat (Part s d p) (Part t d p) k) d p)", "(Mat s t k)", (differ("d", "k"),)),
    ("(Fold o (Part t e p) d)", "(Part (Fold o t d) e p)", (differ("d", "e"),)),
    ("(Fold o (Comb t e p) d)", "(Comb (Fold o t d) e p)", (differ("d", "e"),)),
    ("(Fold o (Repl t p) d)", "(Repl (Fold o t d) p)", ()),
    ("(Part (Un o t) d p)", "(Un o (Part t d p))", ()),
    ("(Comb (Un o t) d p)", "(Un o (Comb t d p))", ()),
    ("(Repl (Un o t) p)", "(Un o (Repl t p))", ()),
    ("(Part (Bin o s t) d p)", "(Bin o (Part s d p) (Part t d p))", (has("s", "d"), has("t", "d"))),
    ("(Comb (Bin o s t) d p)", "(Bin o (Comb s d p) (Comb t d p))", (has("s", "d"), has("t", "d"))),
    ("(Repl (Bin o s t) p)", "(Bin o (Repl s p) (Repl t p))", ()),
    *((a.left, a.right, a.guards) for a in DERIVED if "(form" in a.name),
]  # fmt: skip


def test_the_papers_table_holds_and_is_proved():
    goals = []
    for number, (left, right, guards) in enumerate(TABLE_1):
        rng = random.Random(number)
        for seed in range(10):
            sides = instance(Axiom("", "", left, right, guards), rng)
            assert agrees(sides, seed), sides
            goals.append([(sides.left, sides.right)])
    assert len(TABLE_1) == 34
    verdicts = prove_all(goals).verdicts
    assert not [goal for goal, v in zip(goals, verdicts, strict=True) if not v.proved]


def variables(pattern):
    if isinstance(pattern, str):
        return set() if pattern.startswith('"') else {pattern}
    return set().union(*(variables(p) for p in pattern[1:]))


def test_rules_introduce_no_variable():
    for axiom in AXIOMS:
        for rule in rules(axiom):
            assert variables(read(rule.right)) <= variables(read(rule.left)), rule
            known = variables(read(rule.left))
            assert all({g.left, g.right} <= known for g in rule.guards), rule


PART = "(Part (Part t d p) d q)"
WRONG = [
    # parallel operators against each other
    Axiom("red of repl is identity", "", f"(Merge {SUM} (Repl t p) p)", "t"),
    Axiom("red of part is identity", "", f"(Merge {SUM} (Part t d p) p)", "t"),
    Axiom("red max of part is identity", "", f"(Merge {MAX} (Part t d p) p)", "t"),
    Axiom("comb along another axis", "", "(Comb (Part t d p) e p)", "t"),
    Axiom("comb of repl is identity", "", "(Comb (Repl t p) d p)", "t", (has("t", "d"),)),
    Axiom("part and comb of one axis commute", "", "(Part (Comb t d p) d q)", "(Comb (Part t d q) d p)", (differ("p", "q"), has("t", "d"))),
    Axiom("nested parts of one axis commute", "", PART, "(Part (Part t d q) d p)"),
    Axiom("nested combs of one axis commute", "", "(Comb (Comb t d p) d q)", "(Comb (Comb t d q) d p)", (has("t", "d"),)),
    Axiom("inner part removed first", "", f"(Comb {PART} d p)", "(Part t d q)", (differ("p", "q"),)),
    Axiom("reds of two kinds commute", "", f"(Merge {SUM} (Merge {MAX} t p) q)", f"(Merge {MAX} (Merge {SUM} t q) p)"),
    Axiom("red of a comb forgets the axis", "", "(Merge o (Comb t d q) p)", "(Comb (Merge o t q) d p)", (differ("p", "q"),)),
    # reductions
    Axiom("sum over the partitioned axis", "", f"(Fold {SUM} (Part t k p) k)", f"(Repl (Fold {SUM} t k) p)"),
    Axiom("reduction and part of one axis commute", "", "(Fold o (Part t k p) k)", "(Part (Fold o t k) k p)"),
    Axiom("sum over a fresh axis is the part", "", f"(Fold {SUM} (Comb t k p) k)", f"(Merge {MAX} t p)", (lacks("t", "k"),)),
    Axiom("a fresh axis of maxima summed", "", f"(Fold {SUM} (Comb (Fold {MAX} (Part t k p) k) k p) k)", f"(Fold {MAX} t k)"),
    Axiom("a fresh axis of sums, maximum taken", "", f"(Fold {MAX} (Comb (Fold {SUM} (Part t k p) k) k p) k)", f"(Fold {SUM} t k)"),
    Axiom("a copied tensor summed over a fresh axis", "", f"(Fold {SUM} (Comb (Repl t p) k p) k)", "t", (lacks("t", "k"),)),
    Axiom("a comb reduced as if fresh", "", "(Fold o (Comb t k p) k)", "(Merge o t p)", (has("t", "k"),)),
    Axiom("sum, then max is max, then sum", "", f"(Fold {SUM} (Fold {MAX} t k) e)", f"(Fold {MAX} (Fold {SUM} t e) k)"),
    Axiom("sum of one piece", "", f"(Merge {MAX} (Fold {SUM} (Part t k p) k) p)", f"(Fold {SUM} t k)"),
    Axiom("compound sum, form 6 as printed", "", f"(Merge {SUM} (Part (Merge {SUM} (Part t d p) p) d q) q)", f"(Merge {SUM} (Part t d p) p)"),
    Axiom("compound sum, form 7 as printed", "", f"(Merge {SUM} (Merge {SUM} {PART} p) q)", f"(Merge {SUM} (Part t d p) p)"),
    Axiom("compound sum, form 8 as printed", "", f"(Merge {SUM} (Merge {SUM} {PART} q) p)", f"(Merge {SUM} (Part t d p) p)"),
    Axiom("compound sum without the last reduction", "", f"(Merge o {PART} q)", "(Part t d p)"),
    # matmul
    Axiom("matmul of parts without red", "", "(Mat (Part s k p) (Part t k p) k)", "(Repl (Mat s t k) p)"),
    Axiom("matmul of max", "", f"(Merge {MAX} (Mat (Part s k p) (Part t k p) k) p)", "(Mat s t k)"),
    Axiom("matmul of one part and one whole", "", f"(Merge {SUM} (Mat (Part s d p) (Repl t p) k) p)", "(Mat s t k)", (differ("d", "k"),)),
    Axiom("matmul over a fresh axis stays one", "", "(Mat (Comb s k p) (Comb t k p) k)", f"(Merge {SUM} (Mat s t e) p)", (lacks("s", "k"), lacks("t", "k"))),
    Axiom("matmul of two reds", "", f"(Mat (Merge {SUM} s p) (Merge {SUM} t p) k)", f"(Merge {SUM} (Mat s t k) p)"),
    Axiom("matmul is associative over a shared axis", "", "(Mat s (Mat t u e) k)", "(Mat (Mat s t k) u e)", (lacks("s", "e"),)),
    Axiom("matmul loses an axis of the factor", "", '(Mat (Bin "mul" s v) t k)', "(Mat s t k)"),
    Axiom("matmul by a row of the contracted axis", "", '(Mat (Bin "mul" s v) t k)', '(Bin "mul" (Mat s t k) v)', (has("v", "k"),)),
    Axiom("matmul distributes over mul", "", '(Mat (Bin "mul" s t) u k)', '(Bin "mul" (Mat s u k) (Mat t u k))', (has("s", "k"), has("t", "k"))),
    Axiom("matmul of the dividend", "", '(Mat (Bin "div" v s) t k)', '(Bin "div" v (Mat s t k))', (lacks("v", "k"),)),
    # elementwise operators
    Axiom("unary moves through red", "", f'(Merge {SUM} (Un "exp" t) p)', f'(Un "exp" (Merge {SUM} t p))'),
    Axiom("square moves through red", "", f'(Un "square" (Merge {SUM} t p))', f'(Merge {SUM} (Un "square" t) p)'),
    Axiom("relu moves through red", "", f'(Un "relu" (Merge {SUM} t p))', f'(Merge {SUM} (Un "relu" t) p)'),
    Axiom("any operator moves through max", "", f"(Fold {MAX} (Un o t) k)", f"(Un o (Fold {MAX} t k))"),
    Axiom("any operator moves through red max", "", f"(Merge {MAX} (Un o t) p)", f"(Un o (Merge {MAX} t p))"),
    Axiom("monotone operators move through sum", "", f"(Fold {SUM} (Un o t) k)", f"(Un o (Fold {SUM} t k))", (monotone("o"),)),
    Axiom("max of a difference", "", f'(Fold {MAX} (Bin "sub" v t) k)', f'(Bin "sub" v (Fold {MAX} t k))', (lacks("v", "k"),)),
    Axiom("max of a product", "", f'(Fold {MAX} (Bin "mul" t v) k)', f'(Bin "mul" (Fold {MAX} t k) v)', (lacks("v", "k"),)),
    Axiom("max distributes over add", "", f'(Fold {MAX} (Bin "add" s t) k)', f'(Bin "add" (Fold {MAX} s k) (Fold {MAX} t k))', (has("s", "k"), has("t", "k"))),
    Axiom("red max distributes over add", "", f'(Merge {MAX} (Bin "add" s t) p)', f'(Bin "add" (Merge {MAX} s p) (Merge {MAX} t p))'),
    Axiom("binary of comb and a term that is not split", "", "(Bin o (Comb s d p) t)", "(Comb (Bin o s (Repl t p)) d p)", (has("t", "d"), has("s", "d"))),
    Axiom("binary of combs of two axes", "", "(Bin o (Comb s d p) (Comb t e p))", "(Comb (Bin o s t) d p)", (differ("d", "e"), has("s", "d"), has("t", "e"), lacks("s", "e"), lacks("t", "d"))),
    Axiom("binary of part and repl, axis not lacked", "", "(Bin o (Part s d p) (Part t e p))", "(Part (Bin o s t) d p)", (differ("d", "e"), lacks("s", "e"), lacks("t", "d"))),
    # linear maps
    Axiom("mul of two reds", "", f'(Bin "mul" (Merge {SUM} s p) (Merge {SUM} t p))', f'(Merge {SUM} (Bin "mul" s t) p)'),
    Axiom("div by a red", "", f'(Bin "div" (Merge {SUM} s p) (Merge {SUM} t p))', f'(Merge {SUM} (Bin "div" s t) p)'),
    Axiom("division before the merge", "", f'(Merge {SUM} (Bin "div" s t) p)', f'(Bin "div" (Merge {SUM} s p) (Merge {SUM} t p))'),
    Axiom("red of add with a replicated term", "", f'(Merge {SUM} (Bin "add" t (Repl v p)) p)', f'(Bin "add" (Merge {SUM} t p) v)'),
    Axiom("max of a scaled term", "", f"(Merge {MAX} (Scale c t) p)", f"(Scale c (Merge {SUM} t p))"),
    Axiom("max of products", "", f'(Merge {MAX} (Bin "mul" t (Repl v p)) p)', f'(Bin "mul" (Merge {MAX} t p) t)'),
    Axiom("sum commutes with div by the summed axis", "", f'(Fold {SUM} (Bin "div" t v) k)', f'(Bin "div" (Fold {SUM} t k) v)', (within("v", "t"),)),
    Axiom("sum of products", "", f'(Fold {SUM} (Bin "mul" s t) k)', f'(Bin "mul" (Fold {SUM} s k) (Fold {SUM} t k))'),
    Axiom("sum of an add that broadcasts", "", f'(Fold {SUM} (Bin "add" s t) k)', f'(Bin "add" (Fold {SUM} s k) t)', (lacks("t", "k"),)),
    # algebra
    Axiom("div is associative", "", '(Bin "div" (Bin "div" s t) v)', '(Bin "div" s (Bin "div" t v))'),
    Axiom("sub is associative", "", '(Bin "sub" (Bin "sub" s t) v)', '(Bin "sub" s (Bin "sub" t v))'),
    Axiom("sub commutes", "", '(Bin "sub" s t)', '(Bin "sub" t s)'),
    Axiom("div commutes", "", '(Bin "div" s t)', '(Bin "div" t s)'),
    Axiom("div distributes from the left", "", '(Bin "div" v (Bin "add" s t))', '(Bin "add" (Bin "div" v s) (Bin "div" v t))'),
    Axiom("square of a sum", "", '(Un "square" (Bin "add" s t))', '(Bin "add" (Un "square" s) (Un "square" t))'),
    Axiom("exp of a product", "", '(Un "exp" (Bin "mul" s t))', '(Bin "mul" (Un "exp" s) (Un "exp" t))'),
    Axiom("root of a square", "", '(Un "sqrt" (Un "square" t))', "t"),
    Axiom("scale moves through a nonlinear operator", "", '(Un "exp" (Scale c t))', '(Scale c (Un "exp" t))'),
    Axiom("scale of a matmul counted twice", "", "(Mat (Scale c s) (Scale c t) k)", "(Scale c (Mat s t k))"),
    Axiom("scale of a sum given to one term", "", '(Scale c (Bin "add" s t))', '(Bin "add" (Scale c s) t)'),
    Axiom("two constants are one", "", "(Scale b (Scale c t))", "(Scale b (Scale b t))"),
]  # fmt: skip


def test_mistakes_are_many():
    assert len({a.name for a in WRONG}) == len(WRONG) >= 60


@pytest.mark.parametrize("axiom", WRONG, ids=lambda a: a.name)
def test_plausible_mistakes_fail(axiom):
    rng = random.Random(axiom.name)
    assert not all(agrees(instance(axiom, rng), seed) for seed in range(60))


# Operands of well-typed sides agree on how axes are split, which implies these; what they keep out
# are ill-typed sides, of which a corpus of wrong graphs has many.
IMPLIED = {
    "matmul is associative": "differ",
    "parallel matmul (row partition)": "differ lacks",
    "parallelized matmul (row partition)": "differ lacks",
    "binary of part and repl": "lacks",
    "comb and red commute": "differ",
    "part and repl commute": "differ p",
    "repl and repl commute": "differ p",
    "nested part commute": "differ p",
    "nested comb commute": "differ p",
    "part cancels comb": "has",
    "binary and comb commute": "has",
    "binary and comb of a fresh axis commute": "lacks",
    "binary of comb and a whole term": "has s",
    "matmul and comb commute (leading)": "has",
    "matmul and comb commute (fresh leading)": "lacks",
    "matmul and comb commute (row)": "differ",
    "matmul of combs along the contracted axis": "has",
    "matmul over a fresh axis": "lacks",
    "matmul of comb along the contracted axis": "has",
    "sum of a matmul": "differ",
}


def implied(axiom, guard):
    kinds = IMPLIED.get(axiom.name.partition(",")[0], "").split()
    named = [k for k in kinds if len(k) == 1]
    return guard.kind in kinds and (not named or guard.left in named)


@pytest.mark.parametrize("axiom", [a for a in AXIOMS if a.guards], ids=lambda a: a.name)
def test_every_guard_that_soundness_needs_is_needed(axiom):
    """Without it the law fails somewhere; `within` guards only keep broadcasts from growing."""
    for guard in axiom.guards:
        if guard.kind == "within" or implied(axiom, guard):
            continue
        loose = replace(axiom, guards=tuple(g for g in axiom.guards if g != guard))
        rng = random.Random(axiom.name)
        assert not all(agrees(instance(loose, rng), seed) for seed in range(400)), guard


def test_derived_laws_follow_from_the_loaded_ones():
    goals, names = [], []
    for axiom in DERIVED:
        rng = random.Random(axiom.name)
        for _ in range(3):
            sides = instance(axiom, rng)
            goals.append([(sides.left, sides.right)])
            names.append((axiom.name, sides))
    verdicts = prove_all(goals).verdicts
    gaps = [name for name, v in zip(names, verdicts, strict=True) if not v.proved]
    assert len(goals) == 3 * len(DERIVED) >= 300 and not gaps


def test_compound_sums_are_a_schema():
    """Orders of three dimensions, each removed by red or comb, before or after the sum."""
    assert len(list(compound_sums(1))) == 4
    assert len(list(compound_sums(3))) == 6 * (8 + 4)


def test_wrong_instances_are_never_proved():
    goals, names = [], []
    for axiom in WRONG:
        rng = random.Random(axiom.name)
        for seed in range(12):
            sides = instance(axiom, rng)
            if sides.right is not None and not agrees(sides, seed):
                goals.append([(sides.left, sides.right)])
                names.append((axiom.name, sides))
    verdicts = prove_all(goals).verdicts
    assert len(goals) > 5 * len(WRONG)
    wrong = [n for n, v in zip(names, verdicts, strict=True) if v.outcome is Outcome.PROVED]
    assert not wrong


def test_only_rules_that_can_apply_are_loaded():
    """No maximum, no rules on maxima, and those of a reduction over the loop all the same."""
    x = Node(Op.INPUT, arg="X", axes=("n", "d"))
    present = {Use("In", None), Use("Fold", SUM), Use("Part", None)}
    loaded = applicable(ALGEBRA + PARALLEL, present)
    assert 0 < len(loaded) < 20
    assert not any("max" in rule.left for rule in loaded)
    split = Node(Op.RED, (Node(Op.SUM, (Node(Op.PART, (x,), ("d", "i")),), "d"),), ("sum", "i"))
    assert prove_all([[(split, Node(Op.SUM, (x,), "d"))]]).verdicts[0].proved
