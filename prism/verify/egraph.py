"""The bridge to egglog: axioms and expressions as text programs, e-graphs as plain tables."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from egglog.bindings import EGraph

from prism.program.node import BINARY, REDUCE, UNARY, Node, Op
from prism.verify.axioms import Axiom, Guard

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
(rule ((= e (Comb t d p)) (= a (axes t))) ((set (axes e) a)) :ruleset analysis)
(rule ((= e (Merge o t p)) (= a (axes t))) ((set (axes e) a)) :ruleset analysis)
(rule ((= e (Repl t p)) (= a (axes t))) ((set (axes e) a)) :ruleset analysis)
(relation goal (i64 T))
(relation target (i64 T))
(relation proved (i64))
(ruleset goals)
(rule ((goal n t) (target n t)) ((proved n)) :ruleset goals)
"""

_CONSTRUCTORS = frozenset(
    ("In", "Un", "Scale", "Bin", "Mat", "Fold", "Part", "Comb", "Merge", "Repl")
)


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _guard(guard: Guard) -> str:
    a, b = guard.left, guard.right
    match guard.kind:
        case "lacks":
            return f"(= axes_{a} (axes {a})) (set-not-contains axes_{a} {b})"
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


def term(node: Node, sources: Sequence[str]) -> str:
    """One node as an egglog term over the names of its sources."""
    op, arg = node.op, node.arg
    match op:
        case Op.INPUT:
            return f"(In {_quote(arg)})"
        case Op.SCALE:
            return f"(Scale {_quote(arg)} {sources[0]})"
        case Op.MATMUL:
            return f"(Mat {sources[0]} {sources[1]} {_quote(arg)})"
        case Op.PART | Op.COMB:
            name = "Part" if op is Op.PART else "Comb"
            return f"({name} {sources[0]} {_quote(arg[0])} {_quote(arg[1])})"
        case Op.RED:
            return f"(Merge {_quote(arg[0])} {sources[0]} {_quote(arg[1])})"
        case Op.REPL:
            return f"(Repl {sources[0]} {_quote(arg)})"
    if op in UNARY:
        return f"(Un {_quote(op.value + (f':{arg}' if arg else ''))} {sources[0]})"
    if op in BINARY:
        return f"(Bin {_quote(op.value)} {sources[0]} {sources[1]})"
    if op in REDUCE:
        return f"(Fold {_quote(op.value)} {sources[0]} {_quote(arg)})"
    raise ValueError(f"{op} has no term")


@dataclass
class Limits:
    """When to stop saturating. A hit is never "not equal": the verdict is UNKNOWN."""

    iterations: int = 40
    nodes: int = 200_000
    seconds: float = 10.0


@dataclass
class Saturation:
    """How a run ended: "saturated" or the limit that was hit; and what it cost."""

    ended: str
    iterations: int
    seconds: float
    matches: dict[str, int] = field(default_factory=dict)


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
        self._names: dict[Node, str] = {}
        self._rulesets = tuple(rulesets)
        text = [_PRELUDE]
        for name, axioms in rulesets.items():
            text.append(f"(ruleset {name})")
            text.extend(rule_text(axiom, name) for axiom in axioms)
        self._run("\n".join(text))

    def _run(self, text: str):
        return self._graph.run_program(*self._graph.parse_program(text))

    def add(self, roots: Iterable[Node]) -> list[str]:
        """Adds expressions; returns the names by which text programs call them."""
        roots = list(roots)
        lines: list[str] = []
        for root in roots:
            stack = [(root, False)]
            while stack:
                node, done = stack.pop()
                if node in self._names:
                    continue
                if not done:
                    stack.append((node, True))
                    stack.extend((s, False) for s in node.src)
                    continue
                name = f"$t{len(self._names)}"
                self._names[node] = name
                lines.append(f"(let {name} {term(node, [self._names[s] for s in node.src])})")
                if node.op is Op.INPUT:
                    axes = " ".join(map(_quote, node.axes))
                    value = f"(set-of {axes})" if axes else "(set-empty)"
                    lines.append(f"(set (axes {name}) {value})")
        self._run("\n".join(lines))
        return [self._names[root] for root in roots]

    def goals(self, pairs: Iterable[tuple[int, Node, Node]]) -> None:
        """Declares numbered goals: is the first expression equal to the second?"""
        pairs = list(pairs)
        self.add(node for _, a, b in pairs for node in (a, b))
        self._run(
            "\n".join(
                f"(goal {n} {self._names[a]}) (target {n} {self._names[b]})" for n, a, b in pairs
            )
        )

    def saturate(self, limits: Limits) -> Saturation:
        """Runs all rulesets to a fixed point or a limit."""
        start = time.perf_counter()
        matches: dict[str, int] = {}
        rules = " ".join(f"(run {name})" for name in self._rulesets)
        schedule = f"(run-schedule (seq (saturate (run analysis)) {rules} (saturate (run analysis))))"
        for iteration in range(limits.iterations):
            report = self._run(schedule)[0].report
            for rule, count in report.num_matches_per_rule.items():
                matches[rule] = matches.get(rule, 0) + count
            elapsed = time.perf_counter() - start
            if not report.updated:
                return Saturation("saturated", iteration, elapsed, matches)
            if elapsed > limits.seconds:
                return Saturation("time limit", iteration, elapsed, matches)
            if self.size() > limits.nodes:
                return Saturation("e-node limit", iteration, elapsed, matches)
        elapsed = time.perf_counter() - start
        return Saturation("iteration limit", limits.iterations, elapsed, matches)

    def size(self) -> int:
        """Number of e-nodes."""
        sizes = self._run("(print-size)")[0].sizes
        return sum(count for name, count in sizes if name in _CONSTRUCTORS)

    def proved(self) -> set[int]:
        """Numbers of the goals that hold so far."""
        self._run("(run-schedule (run goals))")
        rows = self._graph.freeze().functions["proved"].rows
        return {self._graph.value_to_i64(row.inputs[0]) for row in rows}

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
                        node = ENode(Op.INPUT, (), text(values[0]))
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
        return classes, [class_of(functions[self._names[r]].rows[0].output) for r in roots]
