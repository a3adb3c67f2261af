"""Nodes and programs as plain JSON data, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from prism.errors import PrismError
from prism.program.mask import Causal
from prism.program.node import LEGAL, Node, Op
from prism.program.program import Program


def nodes_to_json(nodes: Sequence[Node]) -> list[dict]:
    """A list of nodes, sources first, each naming its sources by position."""
    index = {node: i for i, node in enumerate(nodes)}
    items = []
    for node in nodes:
        item: dict = {"op": node.op.value, "src": [index[s] for s in node.src]}
        if node.arg is not None:
            item["arg"] = node.arg
        if not node.src:
            item["axes"] = list(node.axes)
        items.append(item)
    return items


def nodes_from_json(items: Iterable[dict]) -> list[Node]:
    """The nodes of `nodes_to_json`. Raises ValueError, KeyError or TypeError for other data."""
    nodes: list[Node] = []
    for item in items:
        if any(not 0 <= s < len(nodes) for s in item["src"]):
            raise ValueError("a node's sources must come before it")
        src = [nodes[s] for s in item["src"]]
        nodes.append(Node(Op(item["op"]), src, item.get("arg"), item.get("axes")))
    return nodes


def program_to_json(program: Program) -> dict:
    """Plain data; `program_from_json` gives an equal program back."""
    index = {node: i for i, node in enumerate(program.nodes)}
    data = {
        "name": program.name,
        "nodes": nodes_to_json(program.nodes),
        "outputs": {name: index[node] for name, node in program.outputs},
        "inputs": list(program.inputs),
        "sizes": dict(program.sizes),
        "dtype": program.dtype,
        "params": dict(program.params),
        "numerics": program.numerics,
    }
    if program.generated:
        data["generated"] = {
            name: {"rule": "causal", **asdict(rule)} for name, rule in program.generated.items()
        }
    return data


def program_from_json(data: dict) -> Program:
    """Raises PrismError for data that is not a program."""
    try:
        nodes = nodes_from_json(data["nodes"])
        if illegal := {n.op.value for n in nodes if n.op not in LEGAL["program"]}:
            raise ValueError(f"{sorted(illegal)} are no operators of a program")
        outputs = tuple((name, nodes[i]) for name, i in data["outputs"].items())
        inputs = tuple(data["inputs"])
        rest = (data["sizes"], data["dtype"], data["params"])
        numerics = data.get("numerics", "paper")  # results of old were of that one
        generated = {name: _rule(rule) for name, rule in data.get("generated", {}).items()}
        program = Program(data["name"], outputs, *rest, inputs, numerics, generated)
        for name, rule in generated.items():
            if program.inputs[name].axes != rule.axes:
                raise ValueError(f"{name} has other axes than its rule")
        return program
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise PrismError(f"program: not readable from JSON: {error!r}") from None


def _rule(data: dict) -> Causal:
    if data["rule"] != "causal":
        raise ValueError(f"unknown rule {data['rule']!r}")
    return Causal(data["query"], data["key"], data["align"])
