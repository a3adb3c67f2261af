"""Cuts into kernels, and pieces of large programs."""

import json
import math
from itertools import product

from searching import whole_proof
from workloads import PROGRAMS, symbolic

from prism.program.node import Node, Op, topological
from prism.search import Bounds, search
from prism.search.cuts import cuts, function
from prism.search.members import operators
from prism.search.pieces import pieces
from prism.sgraph.family import Space

# Cuts and pieces ----------------------------------------------------------------------------------


def test_cuts_are_all_convex_partitions():
    """Against brute force: every assignment of operators to two kernels and calls that can run."""
    program = PROGRAMS["attention"]
    roots = tuple(node for _, node in program.outputs)
    nodes = [n for n in topological(roots) if n.op is not Op.INPUT]
    found = {
        frozenset((part.nodes, part.library) for part in cut)
        for cut in cuts(roots, frozenset({Op.MATMUL}), 5)
    }
    expected = set()
    for places in product(("first", "second", "call"), repeat=len(nodes)):
        if any(p == "call" and n.op is not Op.MATMUL for n, p in zip(nodes, places, strict=True)):
            continue
        groups = {}
        for node, place in zip(nodes, places, strict=True):
            groups.setdefault((place, node if place == "call" else None), set()).add(node)
        parts = [frozenset(g) for g in groups.values()]
        together = len(parts) == 1 or all(map(hangs_together, parts))
        if len(parts) <= 5 and runs(parts) and together:
            expected.add(frozenset((frozenset(g), key[0] == "call") for key, g in groups.items()))
    assert found == expected and len(found) > 10


def hangs_together(part):
    """Whether one can walk from any operator to any other over values that are made or read."""
    start, *rest = part
    seen, reached = {start}, {start, *start.src}
    for _ in rest:
        for node in part:
            if reached & {node, *node.src}:
                seen.add(node)
                reached |= {node, *node.src}
    return len(seen) == len(part)


def runs(parts):
    """Whether the parts can run one after another, each whole."""
    left, done = list(parts), set()
    while left:
        ready = [
            p
            for p in left
            if all(s in p or s in done or s.op is Op.INPUT for n in p for s in n.src)
        ]
        if not ready:
            return False
        done |= ready[0]
        left.remove(ready[0])
    return True


def test_equal_kernels_of_different_graphs_are_one_function():
    x = Node(Op.INPUT, arg="X", axes=("n",))
    a, b = Node(Op.EXP, (Node(Op.SQUARE, (x,)),)), Node(Op.EXP, (Node(Op.SILU, (x,)),))
    last = [
        function(cut[-1])
        for root in (a, b)
        for cut in cuts((root,), frozenset(), 2)
        if len(cut) == 2
    ]
    assert len(last) == 2 and last[0].roots == last[1].roots


def test_a_large_program_is_cut_into_pieces():
    names = [f"W{i}" for i in range(9)]
    lines = ["T0 = X"] + [f"T{i + 1} = silu(matmul(T{i}, W{i}, {'ab'[i % 2]}))" for i in range(9)]
    inputs = {"X": "n a"} | {w: "a b" if i % 2 == 0 else "b a" for i, w in enumerate(names)}
    text = "\n".join(lines[1:]).replace("T0", "X")
    program = symbolic("chain", text, inputs)
    cut = pieces(program, 5)
    assert [operators(tuple(n for _, n in p.outputs)) for p in cut] == [4, 4, 5, 5]
    assert all(len(p.outputs) == 1 for p in cut)  # one value crosses
    result = search(program, Bounds(piece=5, grid=1, loop=False))
    assert result.space.count == math.prod(p.count for p in result.space.pieces) > 1000
    graph = result.space.graph(result.space.draw(1, 0)[0])
    assert len(graph.kernels) >= 4
    assert whole_proof(program, [graph])[0].proved
    assert Space.from_json(json.loads(json.dumps(result.space.to_json()))) == result.space


def test_pieces_are_searched_by_several_processes():
    formula = "T = silu(matmul(X, A, a))\nO = silu(matmul(T, B, b))"
    program = symbolic("chain", formula, {"X": "n a", "A": "a b", "B": "b c"})
    one, two = (search(program, Bounds(piece=2), workers=n) for n in (1, 2))
    assert len(one.space.pieces) == 2
    assert one.space == two.space and one.candidates == two.candidates
