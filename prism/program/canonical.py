"""Programs under names of their own, so that equal ones are equal whatever a user calls things."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from prism.program import constant
from prism.program.node import WITH_CONSTANT, Node, Op, topological
from prism.program.program import Program


def canonical(program: Program) -> tuple[Program, dict[str, str]]:
    """The program with its axes, inputs, outputs and parameters renamed, and the names given.

    Names follow the order in which the nodes are computed: `axis0`, `input0`, `output0`, `param0`.
    The result maps each to the program's own. Sizes keep their values, symbols become the axis.
    """
    axes: dict[str, str] = {}
    inputs: dict[str, str] = {}
    params: dict[str, str] = {}
    for node in program.nodes:
        if node.op is Op.INPUT:
            inputs.setdefault(node.arg, f"input{len(inputs)}")
            for axis in node.axes:
                axes.setdefault(axis, f"axis{len(axes)}")
    for node in program.nodes:
        read = constant.names(node.arg) if node.op in WITH_CONSTANT else set()
        for name in re.findall(r"\w+", node.arg) if read else ():
            if name in read and name in program.params:
                params.setdefault(name, f"param{len(params)}")
    outputs = {name: f"output{i}" for i, (name, _) in enumerate(program.outputs)}
    renamed = _renamed(program, axes, inputs, axes | params)
    sizes = {new: program.sizes[axis] for axis, new in axes.items()}
    found = replace(
        program,
        outputs=tuple((outputs[name], renamed[node]) for name, node in program.outputs),
        sizes={axis: axis if isinstance(size, str) else size for axis, size in sizes.items()},
        params={new: program.params[name] for name, new in params.items()},
        input_order=tuple(inputs.values()),
        generated={
            inputs[name]: replace(rule, query=axes[rule.query], key=axes[rule.key])
            for name, rule in program.generated.items()
        },
    )
    given = axes.items(), inputs.items(), outputs.items(), params.items()
    return found, {new: name for items in given for name, new in items}


def _renamed(
    program: Program,
    axes: Mapping[str, str],
    inputs: Mapping[str, str],
    constants: Mapping[str, str],
) -> dict[Node, Node]:
    done: dict[Node, Node] = {}
    for node in topological(node for _, node in program.outputs):
        if node.op is Op.INPUT:
            done[node] = Node(Op.INPUT, (), inputs[node.arg], [axes[a] for a in node.axes])
            continue
        arg = node.arg
        if node.op in WITH_CONSTANT:
            arg = constant.canonical(words(arg, constants))
        elif arg is not None:
            arg = axes[arg]
        done[node] = Node(node.op, [done[s] for s in node.src], arg)
    return done


def words(data: Any, names: Mapping[str, str]) -> Any:
    """Plain data with every word of its texts and keys that is in `names` replaced, all at once."""
    if not names:
        return data
    known = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    pattern = re.compile(rf"\b(?:{known})\b")

    def walk(item: Any) -> Any:
        if isinstance(item, str):
            return pattern.sub(lambda found: names[found[0]], item)
        if isinstance(item, dict):
            return {walk(key): walk(value) for key, value in item.items()}
        return [walk(value) for value in item] if isinstance(item, list | tuple) else item

    return walk(data)


def apart(made: Iterable[str], taken: Collection[str]) -> dict[str, str]:
    """New names for those of `made` that are also in `taken`, unlike any of both."""
    known = {*made, *taken}
    found: dict[str, str] = {}
    for name in sorted(set(made) & set(taken)):
        stem = name.rstrip("0123456789")
        found[name] = next(n for n in (f"{stem}{i}" for i in range(2, 10**6)) if n not in known)
        known.add(found[name])
    return found
