"""Which exponentials may be shifted: the degree of every value in every exponential.

If e^x becomes e^(x - m), with an m that is the same for all elements of a row, a value that is
homogeneous of degree p in the exponential is multiplied by e^(-p m). So where an exponential has a
degree in every value, and degree 0 in what a program returns, the shift cancels and any m will do:
this is how softmax is made stable. A row is what m is constant along: all elements of x that are
reduced with one another while the exponential still has a degree.

An exponential may be shifted when moreover every divisor that it has a degree in is reduced over
whole rows (or a row that is small beside its neighbours would be divided by zero), and when it is
not reduced together with another one (their maxima may be far apart).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from prism.program.node import REDUCE, Node, Op, topological
from prism.program.program import Program

Group = tuple[int, Node]  # an exponential: the kernel that it is in (0 in a program), and its node
Degrees = Mapping[Group, Fraction]  # without those that are 0


@dataclass(frozen=True)
class Shifts:
    """`rows`: of each exponential that may be shifted the axes of its rows' maxima, as `Node.axes`.

    `degrees`: those of every node, a mapping for each kernel. `raw`: exponentials that may not be.
    """

    rows: Mapping[Group, tuple[str, ...]]
    degrees: tuple[Mapping[Node, Degrees], ...]
    raw: frozenset[Group]


def shifts(kernels: Sequence[Iterable[Node]], outputs: Iterable[str] | None = None) -> Shifts:
    """Exponentials of kernels, each given by its roots; they read and write tensors by name.

    `outputs` are the names that the last of them leave; a program is one kernel without a SAVE, and
    its roots are its outputs.
    """
    nodes = [topological(roots) for roots in kernels]
    roots = [set(roots) for roots in kernels]
    raw: set[Group] = set()
    while True:
        found = _Calculus(nodes, raw)
        blamed = set(found.blamed)
        for number, of in enumerate(found.degrees):
            for node in roots[number]:
                if outputs is None or node.arg in outputs:
                    blamed |= of[node].keys()
        blamed |= set(found.partial_divisors())
        if not blamed:
            return Shifts(found.rows, tuple(found.degrees), frozenset(raw))
        raw |= blamed


def stable_outputs(program: Program) -> list[Node]:
    """The nodes of a program's outputs with all exponentials shifted that may be."""
    roots = [node for _, node in program.outputs]
    rows = {node: axes for (_, node), axes in shifts([roots]).rows.items()}
    new: dict[Node, Node] = {}
    for node in topological(roots):
        src = [new[s] for s in node.src]
        if node in rows:
            most = src[0]
            for axis in node.axes:
                most = most if axis in rows[node] else Node(Op.MAX, (most,), axis)
            new[node] = Node(Op.EXP_SHIFTED, (src[0], most))
        else:
            new[node] = Node(node.op, src, node.arg) if src else node
    return [new[root] for root in roots]


class _Calculus:
    """Degrees of all nodes, and what is known not to be homogeneous (`blamed`)."""

    def __init__(self, kernels: Sequence[Sequence[Node]], raw: set[Group]):
        self.raw, self.blamed = raw, set()
        self.tensors: dict[str, Degrees] = {}
        self.degrees: list[dict[Node, Degrees]] = []
        self.reduced: dict[Group, set[str]] = {}
        self.divisors: list[tuple[Group, tuple[str, ...]]] = []
        for number, nodes in enumerate(kernels):
            self.degrees.append({})
            for node in nodes:
                self.degrees[number][node] = self._of(number, node)

    @property
    def rows(self) -> dict[Group, tuple[str, ...]]:
        return {
            group: tuple(a for a in group[1].axes if a not in reduced)
            for group, reduced in self.reduced.items()
        }

    def partial_divisors(self) -> Iterator[Group]:
        """Exponentials of divisors that are not reduced over whole rows."""
        for group, axes in self.divisors:
            if set(axes) & set(group[1].axes) & self.reduced[group]:
                yield group

    def _of(self, number: int, node: Node) -> Degrees:
        operands = [self.degrees[number][s] for s in node.src]
        first = operands[0] if operands else {}
        match node.op:
            case Op.LOAD:
                return self.tensors.get(node.arg, {})
            case Op.SAVE:
                self.tensors[node.arg] = first
                return first
            case Op.EXP if (number, node) not in self.raw and not first:
                self.reduced[number, node] = set()
                return {(number, node): Fraction(1)}
            case Op.ADD | Op.SUB:
                self.blamed |= {g for g, _ in first.items() ^ operands[1].items()}
                return first
            case Op.MUL:
                return _sum(first, operands[1], 1)
            case Op.DIV:
                self.divisors += [(group, node.src[1].axes) for group in operands[1]]
                return _sum(first, operands[1], -1)
            case Op.MATMUL:
                self._reduce(first.keys() | operands[1].keys(), node.arg)
                return _sum(first, operands[1], 1)
            case Op.SQUARE:
                return {g: 2 * p for g, p in first.items()}
            case Op.SQRT:
                return {g: p / 2 for g, p in first.items()}
            case op if op in REDUCE:
                self._reduce(first.keys(), node.arg)
                return first
            case Op.SCALE | Op.RELU | Op.ACCUM:
                return first
        for degrees in operands:
            self.blamed |= degrees.keys()
        return {}

    def _reduce(self, groups: Iterable[Group], axis: str) -> None:
        groups = set(groups)
        if len(groups) > 1:
            self.blamed |= groups
        for group in groups:
            self.reduced[group].add(axis)


def _sum(a: Degrees, b: Degrees, sign: int) -> Degrees:
    total = {g: a.get(g, Fraction(0)) + sign * b.get(g, Fraction(0)) for g in {*a, *b}}
    return {g: p for g, p in total.items() if p}
