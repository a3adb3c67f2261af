"""Which exponentials may be shifted: the degree of every value in every exponential.

If e^x becomes e^(x - m), with an m that is the same for all elements of a row, a value that is
homogeneous of degree p in the exponential is multiplied by e^(-p m). So where an exponential has a
degree in every value, and degree 0 in what a program returns, the shift cancels and any m will do:
this is how softmax is made stable. A row is what m is constant along: all elements of x that are
reduced with one another while the exponential still has a degree.

An exponential may be shifted when moreover every divisor that it has a degree in is at least as
large as its power at the row's maximum, which becomes 1: sums and maxima of powers over whole rows.
(A row that is small beside its neighbours, or a maximum that a weight of 0 hides, would be divided
by zero.) And when it is not reduced together with another one: their maxima may be far apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from prism.program.node import REDUCE, Node, Op, topological

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

    `outputs` are the names of those that are a program's; a program is one kernel without a SAVE,
    and its roots are its outputs.
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


def reached(kernels: Sequence[Iterable[Node]], groups: Iterable[Group]) -> list[Node]:
    """The roots of kernels that are computed from exponentials, through memory as well."""
    groups, tensors, found = set(groups), set(), []
    for number, roots in enumerate(kernels):
        roots, inside = list(roots), set()
        for node in topological(roots):
            loaded = node.op is Op.LOAD and node.arg in tensors
            if loaded or (number, node) in groups or any(s in inside for s in node.src):
                inside.add(node)
        found += [root for root in roots if root in inside]
        tensors |= {root.arg for root in roots if root in inside and root.op is Op.SAVE}
    return found


class _Calculus:
    """Degrees of all nodes, and what is known not to be homogeneous (`blamed`)."""

    def __init__(self, kernels: Sequence[Sequence[Node]], raw: set[Group]):
        self.raw, self.blamed = raw, set()
        self.tensors: dict[str, Degrees] = {}
        self.degrees: list[dict[Node, Degrees]] = []
        self.reduced: dict[Group, set[str]] = {}
        self.divisors: list[tuple[Group, tuple[str, ...]]] = []
        self.solid: set[tuple[int, Node] | str] = set()  # sums and maxima of powers; also tensors
        for number, nodes in enumerate(kernels):
            self.degrees.append({})
            for node in nodes:
                self.degrees[number][node] = self._of(number, node)
                if self._is_solid(number, node):
                    self.solid |= {(number, node), *([node.arg] if node.op is Op.SAVE else [])}

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
                if (number, node.src[1]) not in self.solid:
                    self.blamed |= operands[1].keys()
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

    def _is_solid(self, number: int, node: Node) -> bool:
        """Whether a value with a degree is made of powers of exponentials, with no other factor."""
        if not self.degrees[number][node]:
            return False
        if node.op is Op.LOAD:
            return node.arg in self.solid
        if node.op is Op.EXP:
            return True
        if node.op is Op.SCALE and "-" in node.arg:  # which may be negative
            return False
        return node.op is not Op.SUB and all((number, s) in self.solid for s in node.src)

    def _reduce(self, groups: Iterable[Group], axis: str) -> None:
        groups = set(groups)
        if len(groups) > 1:
            self.blamed |= groups
        for group in groups:
            self.reduced[group].add(axis)


def _sum(a: Degrees, b: Degrees, sign: int) -> Degrees:
    total = {g: a.get(g, Fraction(0)) + sign * b.get(g, Fraction(0)) for g in {*a, *b}}
    return {g: p for g, p in total.items() if p}
