"""The bridge to egglog: expressions in, verdicts and plain tables out."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from egglog.bindings import EGraph

from prism.errors import PrismError
from prism.program.node import Node, Op, topological
from prism.verify.axiom import Axiom, Use, applicable, use_of
from prism.verify.child import inside
from prism.verify.text import FORMS, MONOTONE, encoded, prelude, quote, rule_text


@dataclass(frozen=True)
class Limits:
    """When to stop saturating. A hit is never "not equal": the verdict is UNKNOWN.

    `nodes` are e-nodes; `memory_mib` is what the e-graph may take, in MiB.
    """

    iterations: int = 100
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

    def plus(self, later: Saturation) -> Saturation:
        """The cost of both runs; the ending is the later one's."""
        return Saturation(
            later.ended,
            self.iterations + later.iterations,
            self.seconds + later.seconds,
            _summed(self.matches, later.matches),
            _summed(self.rule_seconds, later.rule_seconds),
            max(self.peak_mib, later.peak_mib),
        )


def _summed(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    return {name: a.get(name, 0) + b.get(name, 0) for name in a.keys() | b.keys()}


@dataclass(frozen=True)
class ENode:
    """A row of the frozen e-graph: a node whose sources are e-class ids."""

    op: Op
    src: tuple[int, ...]
    arg: str | None


_UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_SPENT = re.compile(r'"((?:[^"\\]|\\.)*)": ([\d.]+)(ns|µs|ms|s)')


def _rule_seconds(report) -> Iterator[tuple[str, float]]:
    """Seconds of each rule, read from the report's text: its attributes hold whole seconds only."""
    _, _, text = str(report).rpartition("search_and_apply_time_per_rule: {")
    for name, number, unit in _SPENT.findall(text.partition("}")[0]):
        yield name.replace('\\"', '"'), float(number) * _UNITS[unit]


@contextmanager
def _file(text: str, suffix: str) -> Iterator[str]:
    with tempfile.NamedTemporaryFile("w", suffix=suffix) as file:
        file.write(text)
        file.flush()
        yield file.name


_kept: list[EGraph] = []  # freeing an e-graph waits for a thread that a fork leaves behind


class Session:
    """One e-graph. Only ever in a child process (see `child`)."""

    def __init__(self):
        if not inside():
            raise RuntimeError("an e-graph lives in a child process: use prism.verify.child.call")
        self._start = time.perf_counter()
        self._graph = EGraph()
        _kept.append(self._graph)
        self._ids: dict[Node, int] = {}
        self._present: set[Use] = set()
        self._goals = 0
        self._include(prelude())

    def _run(self, text: str):
        return self._graph.run_program(*self._graph.parse_program(text))

    def insert(self, roots: Iterable[Node]) -> None:
        """Adds expressions.

        They travel as a table of rows, not as text: egglog checks the types of every term it
        parses, which costs far more than the proof itself.
        """
        rows: list[str] = []
        facts: dict[str, None] = {}
        for node in topological(roots, self._ids.copy()):
            self._ids[node] = len(self._ids)
            form, *texts = encoded(node)
            sources = [self._ids[s] for s in node.src] + [0, 0]
            first, second = [*texts, "", ""][:2]
            rows.append(f"{self._ids[node]}\t{form}\t{first}\t{second}\t{sources[0]}\t{sources[1]}")
            self._present.add(use_of(form, first))
            if node.op is Op.INPUT:
                axes = " ".join(map(quote, node.axes))
                value = f"(set-of {axes})" if axes else "(set-empty)"
                facts[f"(set (axes (In {quote(first)})) {value})"] = None
            elif node.op in MONOTONE:
                facts[f"(monotone {quote(first)})"] = None
        self._load("node", rows)
        self._include("\n".join((*facts, "(run-schedule (saturate (run build)))")))

    def goals(self, pairs: Iterable[tuple[int, Node, Node]]) -> None:
        """Declares numbered goals: is the first expression equal to the second?"""
        pairs = list(pairs)
        self._goals += len(pairs)
        self.insert(node for _, a, b in pairs for node in (a, b))
        self._load("goal", [f"{n}\t{self._ids[a]}\t{self._ids[b]}" for n, a, b in pairs])

    def _load(self, relation: str, rows: list[str]) -> None:
        with _file("\n".join(rows) + "\n", ".tsv") as name:
            self._run(f"(input {relation} {quote(name)})")

    def _include(self, text: str) -> None:
        """Runs a long program: from a file, as parsing one here makes Python objects of it all."""
        with _file(text, ".egg") as name:
            self._run(f"(include {quote(name)})")

    def rules(self, axioms: Iterable[Axiom]) -> None:
        """Loads those of the axioms that can apply to what was inserted."""
        found = applicable(axioms, self._present)
        self._include("\n".join(["(ruleset axioms)", *(rule_text(r, "axioms") for r in found)]))

    def saturate(self, limits: Limits) -> Saturation:
        """Runs all rulesets to a fixed point, until every goal is proved, or to a limit.

        Raises PrismError when two different inputs or constants become equal, which an unsound
        rule alone can do.
        """
        cost = Saturation("iteration limit", 0, 0.0)
        schedule = (
            "(run-schedule (seq (saturate (run analysis)) (run axioms) (saturate (run analysis))))"
            "(run-schedule (run goals))(print-size)"
        )
        for _ in range(limits.iterations):
            run, goals, printed = self._run(schedule)
            for rule, count in run.report.num_matches_per_rule.items():
                cost.matches[rule] = cost.matches.get(rule, 0) + count
            for rule, seconds in _rule_seconds(run.report):
                cost.rule_seconds[rule] = cost.rule_seconds.get(rule, 0.0) + seconds
            cost.seconds = time.perf_counter() - self._start
            sizes = dict(printed.sizes)
            if sizes["clash"]:
                raise PrismError(self._clash())
            if not run.report.updated:
                cost.ended = "saturated"
            elif self._goals and sizes["proved"] == self._goals:
                cost.ended = "every goal proved"
            elif cost.seconds > limits.seconds:
                cost.ended = "time limit"
            elif sum(sizes[form] for form in FORMS) > limits.nodes:
                cost.ended = "e-node limit"
            else:
                cost.iterations += 1
                continue
            break
        return cost

    def _clash(self) -> str:
        output = str(self._run("(print-function clash 1)")[0])
        names = " and ".join(re.findall(r'"([^"|]*)[^"]*"', output))
        return f"axioms: an unsound rule has made {names} equal"

    def size(self) -> int:
        """Number of e-nodes."""
        sizes = self._run("(print-size)")[0].sizes
        return sum(count for name, count in sizes if name in FORMS)

    def proved(self) -> set[int]:
        """Numbers of the goals that hold so far."""
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
