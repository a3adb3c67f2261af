"""The bridge to egglog: axioms and expressions as text programs, e-graphs as plain tables."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from egglog.bindings import EGraph

from prism.errors import PrismError
from prism.program.node import BINARY, LEGAL, UNARY, Node, Op, topological
from prism.verify.axiom import Axiom, Guard

_PRELUDE = """
(sort Axes (Set String))
(datatype T
  (In String) (Un String T) (Scale String T) (Bin String T T) (Mat T T String)
  (Fold String T String)
  (Part T String String) (Comb T String String) (Merge String T String) (Repl T String))
(function axes (T) Axes :merge old)
(ruleset analysis)
(rule ((= e (Un o t)) (= a (axes t))) ((set (axes e) a)) :ruleset analysis)
(rule ((= e (Scale c t)) (= a (axes t))) ((set (axes e) a)) :ruleset analysis)
(rule ((= e (Bin o s t)) (= a (axes s)) (= b (axes t)))
  ((set (axes e) (set-union a b))) :ruleset analysis)
(rule ((= e (Mat s t k)) (= a (axes s)) (= b (axes t)))
  ((set (axes e) (set-remove (set-union a b) k))) :ruleset analysis)
(rule ((= e (Fold o t k)) (= a (axes t))) ((set (axes e) (set-remove a k))) :ruleset analysis)
(rule ((= e (Part t d p)) (= a (axes t))) ((set (axes e) a)) :ruleset analysis)
(rule ((= e (Comb t d p)) (= a (axes t))) ((set (axes e) (set-insert a d))) :ruleset analysis)
(rule ((= e (Merge o t p)) (= a (axes t))) ((set (axes e) a)) :ruleset analysis)
(rule ((= e (Repl t p)) (= a (axes t))) ((set (axes e) a)) :ruleset analysis)
(relation node (i64 String String String i64 i64))
(function term (i64) T :merge old)
(ruleset build)
(relation goal (i64 i64 i64))
(relation proved (i64))
(ruleset goals)
(rule ((goal n i j) (= (term i) (term j))) ((proved n)) :ruleset goals)
"""

# Constructor, its sources and texts in the order of its fields: how a row of `node` becomes a term.
_FORMS = {
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


def _build_rule(form: str, fields: str) -> str:
    values = "".join(f" (= {x} (term i{x}))" for x in fields if x in "st")
    return (
        f'(rule ((node i "{form}" a b is it){values}) '
        f"((set (term i) ({form} {' '.join(fields)}))) :ruleset build)"
    )


def _quote(text: str) -> str:
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
    raise ValueError(guard.kind)


def rule_text(axiom: Axiom, ruleset: str) -> str:
    """The axiom as egglog rewrite rules."""
    guards = " ".join(map(_guard, axiom.guards))
    pairs = [(axiom.left, axiom.right)] + ([(axiom.right, axiom.left)] if axiom.both else [])
    lines = [
        f"(rule ((= root {left}) {guards}) ((union root {right})) "
        f":ruleset {ruleset} :name {_quote(axiom.name + suffix)})"
        for (left, right), suffix in zip(pairs, ("", ", reversed"), strict=False)
    ]
    return "\n".join(lines)


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


@dataclass(frozen=True)
class Limits:
    """When to stop saturating. A hit is never "not equal": the verdict is UNKNOWN.

    `nodes` are e-nodes; `memory_mib` is what the e-graph may take, in MiB.
    """

    iterations: int = 40
    nodes: int = 400_000
    seconds: float = 10.0
    memory_mib: float = 2048.0


@dataclass
class Saturation:
    """How a run ended: "saturated" or the limit that was hit; and what it cost."""

    ended: str
    iterations: int
    seconds: float
    matches: dict[str, int] = field(default_factory=dict)
    rule_seconds: dict[str, float] = field(default_factory=dict)
    peak_mib: float = 0.0


@dataclass(frozen=True)
class ENode:
    """A row of the frozen e-graph: a node whose sources are e-class ids."""

    op: Op
    src: tuple[int, ...]
    arg: str | None


class Session:
    """One e-graph with the axioms loaded by ruleset name."""

    def __init__(self, rulesets: dict[str, Iterable[Axiom]]):
        self._graph = EGraph()
        self._ids: dict[Node, int] = {}
        self._rulesets = tuple(rulesets)
        text = [_PRELUDE, *(_build_rule(*item) for item in _FORMS.items())]
        for name, axioms in rulesets.items():
            text.append(f"(ruleset {name})")
            text.extend(rule_text(axiom, name) for axiom in axioms)
        self._run("\n".join(text))

    def _run(self, text: str):
        return self._graph.run_program(*self._graph.parse_program(text))

    def insert(self, roots: Iterable[Node]) -> None:
        """Adds expressions.

        They travel as a table of rows, not as text: egglog checks the types of every term it
        parses, which costs far more than the proof itself.
        """
        rows: list[str] = []
        for node in topological(roots, self._ids.copy()):
            self._ids[node] = len(self._ids)
            form, *texts = encoded(node)
            sources = [self._ids[s] for s in node.src] + [0, 0]
            first, second = [*texts, "", ""][:2]
            rows.append(f"{self._ids[node]}\t{form}\t{first}\t{second}\t{sources[0]}\t{sources[1]}")
            if node.op is Op.INPUT:
                axes = " ".join(map(_quote, node.axes))
                value = f"(set-of {axes})" if axes else "(set-empty)"
                self._run(f"(set (axes (In {_quote(first)})) {value})")
        self._load("node", rows)
        self._run("(run-schedule (saturate (run build)))")

    def goals(self, pairs: Iterable[tuple[int, Node, Node]]) -> None:
        """Declares numbered goals: is the first expression equal to the second?"""
        pairs = list(pairs)
        self.insert(node for _, a, b in pairs for node in (a, b))
        self._load("goal", [f"{n}\t{self._ids[a]}\t{self._ids[b]}" for n, a, b in pairs])

    def _load(self, relation: str, rows: list[str]) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
            file.write("\n".join(rows) + "\n")
            file.flush()
            self._run(f"(input {relation} {_quote(file.name)})")

    def saturate(self, limits: Limits) -> Saturation:
        """Runs all rulesets to a fixed point or a limit."""
        start = time.perf_counter()
        found = Saturation("iteration limit", limits.iterations, 0.0)
        rules = " ".join(f"(run {name})" for name in self._rulesets)
        schedule = (
            f"(run-schedule (seq (saturate (run analysis)) {rules} (saturate (run analysis))))"
        )
        for iteration in range(limits.iterations):
            report = self._run(schedule)[0].report
            for rule, count in report.num_matches_per_rule.items():
                found.matches[rule] = found.matches.get(rule, 0) + count
            for rule, spent in report.search_and_apply_time_per_rule.items():
                seconds = spent.total_seconds()
                found.rule_seconds[rule] = found.rule_seconds.get(rule, 0.0) + seconds
            found.seconds = time.perf_counter() - start
            if not report.updated:
                found.ended = "saturated"
            elif found.seconds > limits.seconds:
                found.ended = "time limit"
            elif self.size() > limits.nodes:
                found.ended = "e-node limit"
            else:
                continue
            found.iterations = iteration
            break
        return found

    def size(self) -> int:
        """Number of e-nodes."""
        sizes = self._run("(print-size)")[0].sizes
        return sum(count for name, count in sizes if name in _FORMS)

    def proved(self) -> set[int]:
        """Numbers of the goals that hold so far."""
        self._run("(run-schedule (run goals))")
        output = self._run("(print-function proved 100000000)")[0]
        return {int(n) for n in re.findall(r"proved (\d+)", str(output))}

    def table(self, roots: Sequence[Node]) -> tuple[dict[int, list[ENode]], list[int]]:
        """The e-graph as plain data: the e-nodes of every e-class, and the classes of `roots`.

        Only operators of the program language; parallel operators are left out.
        """
        ids: dict[object, int] = {}
        classes: dict[int, list[ENode]] = {}
        functions = self._graph.freeze().functions
        text = self._graph.value_to_string

        def class_of(value) -> int:
            return ids.setdefault(value, len(ids))

        for name in ("In", "Un", "Scale", "Bin", "Mat", "Fold"):
            for row in functions[name].rows:
                values = row.inputs
                match name:
                    case "In":
                        node = ENode(Op.INPUT, (), text(values[0]).rpartition("|")[0])
                    case "Un":
                        op, _, arg = text(values[0]).partition(":")
                        node = ENode(Op(op), (class_of(values[1]),), arg or None)
                    case "Scale":
                        node = ENode(Op.SCALE, (class_of(values[1]),), text(values[0]))
                    case "Bin":
                        sources = (class_of(values[1]), class_of(values[2]))
                        node = ENode(Op(text(values[0])), sources, None)
                    case "Mat":
                        sources = (class_of(values[0]), class_of(values[1]))
                        node = ENode(Op.MATMUL, sources, text(values[2]))
                    case "Fold":
                        node = ENode(Op(text(values[0])), (class_of(values[1]),), text(values[2]))
                classes.setdefault(class_of(row.output), []).append(node)
        for nodes in classes.values():
            nodes.sort(key=lambda n: (n.op.value, n.arg or "", n.src))
        term = {
            self._graph.value_to_i64(row.inputs[0]): row.output for row in functions["term"].rows
        }
        return classes, [class_of(term[self._ids[root]]) for root in roots]
