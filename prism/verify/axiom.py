"""What an axiom is: a record that a proof, a test and a reader share.

Each axiom is a record: a name, its law in ordinary notation, the two sides as patterns, and guards.
Patterns are s-expressions over

    (Un o t)        any elementwise unary operator o, constants included in its name
    (Scale c t)     multiplication by the constant c (linear, therefore apart from Un)
    (Bin o s t)     elementwise binary operator, broadcast by axis names
    (Mat s t k)     matmul contracting axis k
    (Fold o t k)    reduction o ("sum" or "max") over axis k
    (Part t d p) (Comb t d p) (Merge o t p) (Repl t p)   part, comb, red and repl of section 4;
                    comb along an axis that t lacks makes p a new axis, one element a block

A lower-case symbol is a variable: s t u v w for tensors, k d e for axes, p q r for parallel
dimensions, o for an operator name, b c for constants.

An axiom is applied from left to right, which is the direction that introduces no variable; where
both sides hold the same variables, `both` applies it in both. Of the paper's two-way laws, those
that move a parallel operator are applied so that it moves outward (section 6).

Tensors have named axes, so matmul is symmetric in its operands. Commutativity is left to a later
phase of a proof, as operand order is never worth a graph of its own; a law that singles out one
operand of matmul or mul has mirror images instead, which are made from `mirror`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple


@dataclass(frozen=True)
class Guard:
    """A condition: `lacks t k`, `has t k`, `within v t` (v's axes are among t's), `differ a b`.

    `monotone o`: the unary operator never decreases, whatever its constant.
    """

    kind: str
    left: str
    right: str


def lacks(tensor: str, axis: str) -> Guard:
    """`tensor` does not have `axis`."""
    return Guard("lacks", tensor, axis)


def has(tensor: str, axis: str) -> Guard:
    """`tensor` has `axis`."""
    return Guard("has", tensor, axis)


def within(inner: str, outer: str) -> Guard:
    """Every axis of `inner` is an axis of `outer`: the broadcast does not grow `outer`."""
    return Guard("within", inner, outer)


def monotone(operator: str) -> Guard:
    """A unary operator that never decreases."""
    return Guard("monotone", operator, operator)


def differ(a: str, b: str) -> Guard:
    """Two axes, or two parallel dimensions, are not the same."""
    return Guard("differ", a, b)


@dataclass(frozen=True)
class Axiom:
    """left -> right under the guards; `both` adds right -> left.

    `mirror` lists constructors such as `Mat` or `Bin "mul"`: for each there is also the law with
    their operands exchanged on both sides.
    """

    name: str
    law: str
    left: str
    right: str
    guards: tuple[Guard, ...] = ()
    both: bool = False
    mirror: tuple[str, ...] = ()


Pattern = str | list


def read(text: str) -> Pattern:
    """A pattern as nested lists of tokens."""
    stack: list[list] = [[]]
    for token in re.findall(r'\(|\)|"[^"]*"|[^\s()]+', text):
        if token == "(":
            stack.append([])
        elif token == ")":
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    return stack[0][0]


def _exchanged(pattern: Pattern, head: str) -> str:
    """The pattern as text, with the two operands of every `head` exchanged."""
    if isinstance(pattern, str):
        return pattern
    items = [_exchanged(p, head) for p in pattern]
    at = len(head.split())
    if items[:at] == head.split():
        items[at], items[at + 1] = items[at + 1], items[at]
    return f"({' '.join(items)})"


def with_mirrors(axioms: Iterable[Axiom]) -> Iterator[Axiom]:
    """The axioms and all their mirror images."""
    for axiom in axioms:
        images = [axiom]
        for head in axiom.mirror:
            images += [
                replace(
                    image,
                    name=f"{image.name}, {head} exchanged",
                    left=_exchanged(read(image.left), head),
                    right=_exchanged(read(image.right), head),
                )
                for image in images
            ]
        yield from images


class Rule(NamedTuple):
    """An axiom in one direction: left becomes right."""

    name: str
    left: str
    right: str
    guards: tuple[Guard, ...]


class Use(NamedTuple):
    """An operator class that a pattern uses; `operator` is a name, a variable or None."""

    head: str
    operator: str | None


_WITH_OPERATOR = frozenset({"Un", "Bin", "Fold", "Merge"})


def use_of(head: str, operator: str) -> Use:
    """What a term of constructor `head` with this text in front uses."""
    return Use(head, f'"{operator}"' if head in _WITH_OPERATOR else None)


@cache
def rules(axiom: Axiom) -> tuple[Rule, ...]:
    """The directions in which an axiom is applied."""
    found = (Rule(axiom.name, axiom.left, axiom.right, axiom.guards),)
    if axiom.both:
        found += (Rule(f"{axiom.name}, reversed", axiom.right, axiom.left, axiom.guards),)
    return found


@cache
def _uses(pattern: str) -> frozenset[Use]:
    found: set[Use] = set()
    stack: list[Pattern] = [read(pattern)]
    while stack:
        item = stack.pop()
        if isinstance(item, list):
            found.add(Use(item[0], item[1] if item[0] in _WITH_OPERATOR else None))
            stack.extend(item[1:])
    return frozenset(found)


def applicable(axioms: Iterable[Axiom], present: Iterable[Use]) -> list[Rule]:
    """The rules that can ever match where only the operators `present`, and what rules make, occur.

    Loading a rule takes longer than running one that matches nothing.
    """
    known = set(present)
    waiting = [rule for axiom in axioms for rule in rules(axiom)]
    loaded: list[Rule] = []
    while True:
        heads = {use.head for use in known}
        ready, later = [], []
        for rule in waiting:
            fits = all(_known(use, known, heads) for use in _uses(rule.left))
            (ready if fits else later).append(rule)
        if not ready:
            return loaded
        loaded, waiting = loaded + ready, later
        for rule in ready:
            known |= _made(rule, known)


def _known(use: Use, known: set[Use], heads: set[str]) -> bool:
    literal = use.operator is not None and use.operator.startswith('"')
    return use in known if literal else use.head in heads


def _made(rule: Rule, known: set[Use]) -> set[Use]:
    """What the right side may hold: a variable stands for any operator the left side may have."""
    left = {use.head for use in _uses(rule.left) if use.operator == "o"}
    bound = {use.operator for use in known if use.head in left}
    made: set[Use] = set()
    for use in _uses(rule.right):
        names = bound if use.operator == "o" else {use.operator}
        made |= {Use(use.head, name) for name in names}
    return made
