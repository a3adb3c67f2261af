"""Axioms and expressions as the text of egglog programs."""

from __future__ import annotations

from prism.errors import PrismError
from prism.program.node import BINARY, LEGAL, UNARY, Node, Op
from prism.verify.axiom import Guard, Rule

# Constructor, its sources and texts in the order of its fields: how a row of `node` becomes a term.
FORMS = {
    "In": "a",
    "Un": "as",
    "Scale": "as",
    "Bin": "ast",
    "Mat": "sta",
    "Fold": "asb",
    "Part": "sab",
    "Comb": "sab",
    "Merge": "asb",
    "Repl": "sa",
}

# The axes of a term from the axes s and t of its sources and its texts a and b.
_AXES = {
    "Un": "axes_s",
    "Scale": "axes_s",
    "Bin": "(set-union axes_s axes_t)",
    "Mat": "(set-remove (set-union axes_s axes_t) a)",
    "Fold": "(set-remove axes_s b)",
    "Part": "axes_s",
    "Comb": "(set-insert axes_s a)",
    "Merge": "axes_s",
    "Repl": "axes_s",
}

MONOTONE = frozenset({Op.EXP, Op.RELU, Op.SHIFT})

_PRELUDE = """
(sort Axes (Set String))
(datatype T
  (In String) (Un String T) (Scale String T) (Bin String T T) (Mat T T String)
  (Fold String T String)
  (Part T String String) (Comb T String String) (Merge String T String) (Repl T String))
(function axes (T) Axes :merge old)
(relation monotone (String))
(relation node (i64 String String String i64 i64))
(function term (i64) T :merge old)
(relation goal (i64 i64 i64))
(relation proved (i64))
(relation clash (String String))
(ruleset analysis)
(ruleset build)
(ruleset goals)
(rule ((goal n i j) (= (term i) (term j))) ((proved n)) :ruleset goals :name "goals")
(rule ((= (In a) (In b)) (!= a b)) ((clash a b)) :ruleset goals :name "inputs differ")
(rule ((= (Scale a t) (Scale b t)) (!= a b)) ((clash a b)) :ruleset goals :name "constants differ")
"""


def prelude() -> str:
    """Sorts and relations; how terms are built, what axes they have, when goals are proved.

    `clash` holds two different inputs, or constants, that a wrong axiom has made equal.
    """
    return "\n".join((_PRELUDE, *map(_axes_rule, _AXES), *map(_build_rule, FORMS)))


def _axes_rule(form: str) -> str:
    known = "".join(f" (= axes_{x} (axes {x}))" for x in FORMS[form] if x in "st")
    return (
        f"(rule ((= e ({form} {' '.join(FORMS[form])})){known}) "
        f'((set (axes e) {_AXES[form]})) :ruleset analysis :name "axes of {form}")'
    )


def _build_rule(form: str) -> str:
    fields = FORMS[form]
    values = "".join(f" (= {x} (term i{x}))" for x in fields if x in "st")
    return (
        f'(rule ((node i "{form}" a b is it){values}) '
        f'((set (term i) ({form} {" ".join(fields)}))) :ruleset build :name "build {form}")'
    )


def quote(text: str) -> str:
    """A string literal."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _guard(guard: Guard) -> str:
    a, b = guard.left, guard.right
    match guard.kind:
        case "lacks":
            return f"(= axes_{a} (axes {a})) (set-not-contains axes_{a} {b})"
        case "has":
            return f"(= axes_{a} (axes {a})) (set-contains axes_{a} {b})"
        case "within":
            return (
                f"(= axes_{a} (axes {a})) (= axes_{b} (axes {b})) "
                f"(= axes_{a} (set-intersect axes_{a} axes_{b}))"
            )
        case "differ":
            return f"(!= {a} {b})"
        case "monotone":
            return f"(monotone {a})"
    raise ValueError(guard.kind)


def rule_text(rule: Rule, ruleset: str) -> str:
    """A directed axiom as an egglog rule."""
    guards = " ".join(map(_guard, rule.guards))
    return (
        f"(rule ((= root {rule.left}) {guards}) ((union root {rule.right})) "
        f":ruleset {ruleset} :name {quote(rule.name)})"
    )


def encoded(node: Node) -> tuple[str, ...]:
    """One node as its constructor and the constructor's texts, without its sources.

    An input is known by its name and its axes.
    """
    op, arg = node.op, node.arg
    if op not in LEGAL["expression"]:
        raise PrismError(f"expression: operator {op.value} is not legal here")
    match op:
        case Op.INPUT:
            return ("In", f"{arg}|{','.join(node.axes)}")
        case Op.SCALE:
            return ("Scale", arg)
        case Op.MATMUL:
            return ("Mat", arg)
        case Op.PART:
            return ("Part", *arg)
        case Op.COMB:
            return ("Comb", *arg)
        case Op.RED:
            return ("Merge", *arg)
        case Op.REPL:
            return ("Repl", arg)
    if op in UNARY:
        return ("Un", op.value + (f":{arg}" if arg else ""))
    if op in BINARY:
        return ("Bin", op.value)
    return ("Fold", op.value, arg)
