"""sGraphs: Figure 1 of the paper, constraints (1), (2) and (4), JSON."""

import json

import pytest
import sympy
from workloads import figure_1

from prism.errors import PrismError
from prism.program.node import Node, Op
from prism.sgraph import BlockGraph, Kernel, MapVar, SGraph, make_mapping
from prism.sgraph.constraints import constraints, dims, size

EXTENTS = {"X": {"r": 4096, "c": 4096}, "W": {"c": 4096, "w": 128}, "O": {"r": 4096, "w": 128}}


@pytest.fixture
def figure1():
    """Softmax, then matmul. Axis c of W is the paper's W,r; axis w is the paper's W,c."""
    return figure_1()


FIGURE_1B = frozenset(
    {
        MapVar("X", "r", "x"),
        MapVar("X", "c", "i"),
        MapVar("W", "c", "i"),
        MapVar("O", "r", "x"),
    }
)


def shapes(block):
    """Symbolic shape of every node, by its printed form."""
    found = {}
    for node, axes in dims(block).items():
        found[node] = [
            size(axes[a], sympy.Integer(EXTENTS[axes[a].tensor][axes[a].axis])) for a in node.axes
        ]
    return found


def m(tensor, axis, par):
    return sympy.Symbol(f"m[{tensor},{axis},{par}]", integer=True, nonnegative=True)


def sigma(tensor, axis, pars="xi"):
    product = sympy.Integer(1)
    for p in pars:
        d = sympy.Symbol(f"d_{p}", integer=True, positive=True)
        product *= m(tensor, axis, p) * d + 1 - m(tensor, axis, p)
    return product


def test_figure_1c_shapes(figure1):
    found = shapes(figure1)
    by_op = {node.op: node for node in figure1.nodes}
    x, w = figure1.loaders
    assert found[x] == [4096 / sigma("X", "r"), 4096 / sigma("X", "c")]
    assert found[w] == [4096 / sigma("W", "c"), 128 / sigma("W", "w")]
    assert found[by_op[Op.EXP]] == found[x]
    assert found[by_op[Op.MATMUL]] == [4096 / sigma("X", "r"), 128 / sigma("W", "w")]
    accumulated = {n.src[0].op: found[n] for n in figure1.nodes if n.op is Op.ACCUM}
    assert accumulated[Op.SUM] == [4096 / sigma("X", "r")]
    assert accumulated[Op.MATMUL] == [4096 / sigma("X", "r"), 128 / sigma("W", "w")]
    assert found[by_op[Op.DIV]] == accumulated[Op.MATMUL]
    assert found[by_op[Op.SAVE]] == [4096 / sigma("O", "r", "x"), 128 / sigma("O", "w", "x")]


def test_figure_1c_constraints(figure1):
    found = constraints(figure1)
    assert set(found.variables) == {
        *(MapVar(t, a, p) for t, axes in EXTENTS.items() for a in axes for p in "xi" if t != "O"),
        MapVar("O", "r", "x"),
        MapVar("O", "w", "x"),
    }
    equal = {frozenset(pair) for pair in found.equal}
    for p in "xi":  # equation (4): sigma(X, c) = sigma(W, r)
        assert frozenset({MapVar("X", "c", p), MapVar("W", "c", p)}) in equal
    assert frozenset({MapVar("X", "r", "x"), MapVar("O", "r", "x")}) in equal
    assert frozenset({MapVar("W", "w", "x"), MapVar("O", "w", "x")}) in equal
    for p in "xi":  # equation (1)
        assert frozenset({MapVar("X", "r", p), MapVar("X", "c", p)}) in found.at_most_one
    # What is saved must be whole with respect to the loop.
    assert {MapVar("X", "r", "i"), MapVar("W", "w", "i")} <= found.zero


def test_equation_2_at_most_one_grid_dimension_per_axis(figure1):
    wide = BlockGraph(("x", "y"), "i", figure1.savers)
    assert (
        frozenset({MapVar("X", "r", "x"), MapVar("X", "r", "y")}) in constraints(wide).at_most_one
    )


def test_figure_1b_is_an_instance(figure1):
    assert constraints(figure1).satisfied(FIGURE_1B)
    values = {
        m(t, a, p): int(MapVar(t, a, p) in FIGURE_1B)
        for t, axes in EXTENTS.items()
        for a in axes
        for p in "xi"
    }
    values |= {sympy.Symbol("d_x", integer=True, positive=True): 64}
    values |= {sympy.Symbol("d_i", integer=True, positive=True): 64}
    printed = {
        node: [int(s.subs(values)) for s in shape] for node, shape in shapes(figure1).items()
    }
    x, w = figure1.loaders
    by_op = {node.op: printed[node] for node in figure1.nodes if node.op is not Op.ACCUM}
    assert printed[x] == [64, 64] and printed[w] == [64, 128]
    assert by_op[Op.EXP] == [64, 64] and by_op[Op.MATMUL] == [64, 128]
    assert sorted(printed[n] for n in figure1.nodes if n.op is Op.ACCUM) == [[64], [64, 128]]
    assert by_op[Op.DIV] == [64, 128] and by_op[Op.SAVE] == [64, 128]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({MapVar("X", "c", "x")}, "one axis of X per grid dimension, and W must agree"),
        ({MapVar("W", "w", "i")}, "two axes of W on the loop"),
        ({MapVar("W", "w", "x")}, "the output would be split twice"),
    ],
)
def test_violations_are_seen(figure1, change, why):
    assert not constraints(figure1).satisfied(FIGURE_1B | change), why


def test_accumulator_over_an_invariant_violates(figure1):
    assert not constraints(figure1).satisfied(
        frozenset({MapVar("X", "r", "x"), MapVar("O", "r", "x")})
    )


def test_concat_forces_its_axis():
    w = Node(Op.LOAD, arg="W", axes=("c", "w"))
    whole = Node(Op.ACCUM, (Node(Op.EXP, (w,)),), "concat:w")
    found = constraints(BlockGraph((), "i", (Node(Op.SAVE, (whole,), "O"),)))
    assert MapVar("W", "w", "i") in found.one
    assert found.satisfied(frozenset({MapVar("W", "w", "i")}))
    assert not found.satisfied(frozenset({MapVar("W", "c", "i")}))


def test_json_round_trip(figure1):
    graph = SGraph((Kernel(figure1, make_mapping(FIGURE_1B)),))
    assert SGraph.from_json(json.loads(json.dumps(graph.to_json()))) == graph
    unmapped = SGraph((Kernel(figure1),))
    assert SGraph.from_json(unmapped.to_json()) == unmapped


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.pop("kernels"),
        lambda d: d["kernels"][0]["nodes"][2].update(src=[7]),
        lambda d: d["kernels"][0]["nodes"][2].update(op="conv"),
        lambda d: d["kernels"][0].update(savers=[99]),
    ],
)
def test_damaged_json_is_one_clear_error(figure1, damage):
    data = SGraph((Kernel(figure1),)).to_json()
    damage(data)
    with pytest.raises(PrismError, match="sGraph"):
        SGraph.from_json(data)


def test_a_dimension_partitions_one_axis_of_a_tensor():
    with pytest.raises(PrismError, match="x partitions two axes of tensor 'X'"):
        make_mapping([MapVar("X", "r", "x"), MapVar("X", "c", "x")])


def split_k():
    """Kernel 1 of a split-K matmul: y cuts axis d, one result a block along `split`."""
    a, w = Node(Op.LOAD, arg="A", axes=("n", "d")), Node(Op.LOAD, arg="W", axes=("d", "f"))
    part = Node(Op.SAVE, (Node(Op.MATMUL, (a, w), "d"),), "t1")
    ones = [MapVar("W", "f", "x"), MapVar("t1", "f", "x")]
    ones += [MapVar("A", "d", "y"), MapVar("W", "d", "y"), MapVar("t1", "split", "y")]
    return Kernel(BlockGraph(("x", "y"), None, (part,)), make_mapping(ones))


def test_a_fresh_axis_is_one_that_the_saved_value_lacks():
    kernel = split_k()
    assert kernel.fresh == {"split": "y"}
    (saver,) = kernel.block.savers
    assert kernel.tensor_axes(saver) == ("n", "f", "split")
    assert Kernel(kernel.block).fresh == {}
    assert Kernel(kernel.block).tensor_axes(saver) == ("n", "f")
    graph = SGraph((kernel,))
    assert SGraph.from_json(graph.to_json()) == graph


def test_fresh_axes_are_one_a_kernel_and_over_the_grid():
    kernel = split_k()
    other = Node(Op.SAVE, (Node(Op.EXP, (kernel.block.loaders[1],)),), "t2")
    block = BlockGraph(("x", "y"), "i", (*kernel.block.savers, other))
    same = make_mapping(kernel.mapping.ones | {MapVar("t2", "split", "y")})
    assert Kernel(block, same).fresh == {"split": "y"}
    assert Kernel(block, same).tensor_axes(other) == ("d", "f", "split")
    for ones, why in (
        ({MapVar("t2", "again", "x")}, "more than one fresh axis"),
        ({MapVar("t1", "again", "i")}, "tensor 't1' has more than one fresh axis"),
    ):
        with pytest.raises(PrismError, match=why):
            Kernel(block, make_mapping(kernel.mapping.ones | ones))
    with pytest.raises(PrismError, match="fresh axis 'split' over i, no grid dimension"):
        Kernel(block, make_mapping({MapVar("t1", "split", "i")}))


def test_library_kernels_hold_one_operator():
    block = BlockGraph((), None, split_k().block.savers)
    kernel = Kernel(block, make_mapping(()), library=True)
    assert kernel.operator.op is Op.MATMUL
    graph = SGraph((kernel,))
    data = json.loads(json.dumps(graph.to_json()))
    assert data["kernels"][0]["library"] is True
    assert SGraph.from_json(data) == graph != SGraph((Kernel(block, make_mapping(())),))
    data["kernels"][0]["library"] = "yes"
    with pytest.raises(PrismError, match="sGraph"):
        SGraph.from_json(data)


def test_library_kernels_of_another_form_are_refused(figure1):
    (saver,) = split_k().block.savers
    block = BlockGraph((), None, (saver,))
    two = Node(Op.SAVE, (Node(Op.EXP, saver.src),), "t1")
    copy = Node(Op.SAVE, (Node(Op.LOAD, arg="A", axes=("n", "d")),), "t1")
    for wrong, mapping in (
        (block, None),
        (block, make_mapping({MapVar("A", "n", "x")})),
        (BlockGraph(("x",), None, (saver,)), make_mapping(())),
        (figure1, make_mapping(())),
        (BlockGraph((), None, (two,)), make_mapping(())),
        (BlockGraph((), None, (copy,)), make_mapping(())),
        (BlockGraph((), None, (saver, two)), make_mapping(())),
    ):
        with pytest.raises(PrismError, match="library kernel: it"):
            Kernel(wrong, mapping, library=True)


def test_illegal_blocks_are_refused():
    a = Node(Op.INPUT, arg="A", axes=("n",))
    with pytest.raises(PrismError, match="not legal"):
        BlockGraph((), None, (Node(Op.SAVE, (a,), "O"),))
    load = Node(Op.LOAD, arg="A", axes=("n",))
    with pytest.raises(PrismError, match="for-loop"):
        BlockGraph((), None, (Node(Op.SAVE, (Node(Op.ACCUM, (load,), "sum"),), "O"),))
    with pytest.raises(PrismError, match="grid"):
        BlockGraph(("w",), None, (Node(Op.SAVE, (load,), "O"),))
