"""Kernel graphs before their kernels are mapped: cuts of members, splits of reductions, names."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from itertools import chain, count

from prism.program.node import Node, Op, topological
from prism.search.cuts import Cut, Function, Part, function
from prism.search.kernels import Merges


@dataclass(frozen=True)
class Plan:
    """One kernel graph of a member: its parts in order, and the function of each.

    With `merges`, part `first` leaves these of its results in parts for the next generated one.
    """

    member: tuple[Node, ...]
    parts: Cut
    functions: tuple[Function, ...]
    merges: Merges = ()
    first: int = -1


def plan_of(member: tuple[Node, ...], cut: Cut) -> Plan:
    """The plan of a cut whose parts leave whole results."""
    return Plan(member, cut, tuple(map(function, cut)))


def in_one_kernel(member: tuple[Node, ...]) -> Plan:
    """A member as one generated kernel."""
    nodes = topological(member)
    inside = frozenset(n for n in nodes if n.op is not Op.INPUT)
    return plan_of(member, (Part(inside, tuple(n for n in nodes if n in member), False),))


def split(plan: Plan, merges: Merges, fresh: str, kernels: int) -> Plan | None:
    """The plan with its first generated part leaving partial results along the axis `fresh`.

    The second generated part reduces them; where there is none, one is added that does nothing
    else. None where a third part reads one of them, or where more than `kernels` would be needed.
    """
    generated = [i for i, part in enumerate(plan.parts) if not part.library]
    first, second = generated[0], generated[1] if len(generated) > 1 else None
    saved = plan.parts[first].saved
    partial = {saved[i]: (kind, fresh) for i, kind in merges}
    for i, part in enumerate(plan.parts):
        if i not in (first, second) and any(s in partial for n in part.nodes for s in n.src):
            return None
    ends = tuple(node for node in partial if node in plan.member)
    parts, functions = list(plan.parts), list(plan.functions)
    if second is None:
        if len(ends) < len(partial) or len(parts) == kernels:
            return None
        parts.append(Part(frozenset(), ends, False))
        functions.append(function(parts[-1], partial))
    else:
        part = parts[second]
        parts[second] = replace(part, saved=part.saved + ends)
        functions[second] = function(parts[second], partial)
    return Plan(plan.member, tuple(parts), tuple(functions), merges, first)


def names(
    plan: Plan, outputs: tuple[str, ...], taken: Container[str], suffix: str
) -> list[tuple[tuple[str, str], ...]]:
    """Tensor names of each part's leaves and results.

    Outputs of the member, in its order, are called `outputs`; what lies between is t1, t2, ... with
    `suffix`, but for names in `taken`. Raises AssertionError if an output is nowhere made whole.
    """
    temporary = (t for t in (f"t{i}{suffix}" for i in count(1)) if t not in taken)
    output = dict(zip(plan.member, outputs, strict=True))
    whole: dict[Node, str] = {}
    partial: dict[Node, str] = {}
    found = []
    for i, (part, made) in enumerate(zip(plan.parts, plan.functions, strict=True)):
        pairs = [(f"in:{k}", partial.get(v) or whole[v]) for k, v in enumerate(made.reads)]
        left: Mapping[int, str] = dict(plan.merges) if i == plan.first else {}
        for k, value in enumerate(part.saved):
            known = partial if k in left else whole
            named = value in output and k not in left
            known[value] = output[value] if named else next(temporary)
            pairs.append((f"out:{k}", known[value]))
        found.append(tuple(pairs))
    missing = [name for node, name in output.items() if whole.get(node) != name]
    if missing:
        raise AssertionError(f"kernel graph: {missing} is not written")
    return found


def unique(name: str, taken: Container[str]) -> str:
    """`name`, with a number behind it if it is taken."""
    return next(n for n in chain([name], (f"{name}{i}" for i in count(2))) if n not in taken)
