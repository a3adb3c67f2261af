"""A program as the text of its formula."""

from __future__ import annotations

from collections import Counter
from itertools import count

from prism.program.node import Node, Op
from prism.program.program import Program

_SIGNS = {Op.ADD: "+", Op.SUB: "-", Op.MUL: "*", Op.DIV: "/"}


def formula(program: Program) -> list[str]:
    """One assignment a line, as `prism.program.parse` reads them; the last ones are the outputs.

    What is read more than once has a name of its own, `t1`, `t2`, ...
    """
    nodes, outputs = program.nodes, {node: name for name, node in program.outputs}
    uses = Counter(source for node in nodes for source in node.src)
    taken = {*program.inputs, *program.sizes, *program.params, *outputs.values()}
    fresh = (name for n in count(1) if (name := f"t{n}") not in taken)
    texts: dict[Node, str] = {}
    lines = []
    for node in nodes:
        rule = program.generated.get(node.arg) if node.op is Op.INPUT else None
        text = rule.text if rule else _text(node, texts)
        if node in outputs or (uses[node] > 1 and node.op is not Op.INPUT):
            name = outputs[node] if node in outputs else next(fresh)
            lines.append(f"{name} = {_bare(node, text)}")
            text = name
        texts[node] = text
    return lines


def _text(node: Node, texts: dict[Node, str]) -> str:
    if node.op is Op.INPUT:
        return str(node.arg)
    if node.op in _SIGNS:
        return f"({f' {_SIGNS[node.op]} '.join(texts[source] for source in node.src)})"
    args = [_bare(source, texts[source]) for source in node.src]
    args += [] if node.arg is None else [node.arg] if isinstance(node.arg, str) else node.arg
    return f"{node.op.value}({', '.join(args)})"


def _bare(node: Node, text: str) -> str:
    """Without the parentheses that an operand needs."""
    return text[1:-1] if node.op in _SIGNS and text.startswith("(") else text
