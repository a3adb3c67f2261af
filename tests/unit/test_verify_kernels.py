"""Graphs of two kernels with a fresh axis, proved as a whole; wrong ones refuted, never proved."""

from contextlib import suppress
from dataclasses import replace
from itertools import product

import pytest
from workloads import symbolic

from prism.errors import PrismError
from prism.program.node import BINARY, REDUCE, UNARY, WITH_CONSTANT, Node, Op
from prism.sgraph import BlockGraph, Kernel, MapVar, SGraph, make_mapping
from prism.verify import Outcome, Refuter, encode, prove


def load(name, axes):
    return Node(Op.LOAD, arg=name, axes=axes.split())


def save(node, name):
    return Node(Op.SAVE, (node,), name)


def matmul(a, b, axis):
    return Node(Op.MATMUL, (a, b), axis)


def total(node, axis, op=Op.SUM):
    return Node(op, (node,), axis)


def accum(node, kind="sum"):
    return Node(Op.ACCUM, (node,), kind)


def kernel(grid, loop, savers, mapping):
    """`mapping` lists tensor, axis and parallel dimension, as in "X d x"."""
    ones = make_mapping(MapVar(*text.split()) for text in mapping)
    return Kernel(BlockGraph(tuple(grid), loop, tuple(savers)), ones)


# Split-K matmul: each block of x multiplies a chunk of d in steps of the loop.

MATMUL = symbolic("matmul", "O = matmul(X, W, d)", {"X": "n d", "W": "d f"})


def split_k(
    combine=Op.SUM,
    partial=("X d x", "W d x", "X d i", "W d i", "t1 split x"),
    loop="sum",
    merge=("t1 n x", "O n x"),
    axis="split",
    tail=lambda x: x,
):
    product = matmul(load("X", "n d"), load("W", "d f"), "d")
    if loop:
        product = accum(product, loop)
    partial = [v for v in partial if loop or not v.endswith(" i")]
    first = kernel("x", "i" if loop else None, [save(product, "t1")], partial)
    merged = tail(total(load("t1", "n f split"), axis, combine))
    return SGraph((first, kernel("x" if merge else "", None, [save(merged, "O")], merge)))


# Attention whose keys are split: numerators and denominators are summed, then divided.

ATTENTION = symbolic(
    "attention",
    "O = matmul(softmax(matmul(Q, K, d), h), V, h)",
    {"Q": "b s d", "K": "b h d", "V": "b h e"},
)
FLASH = ("Q b x", "K b x", "V b x", "K h y", "V h y", "K h i", "V h i")
SAVED = ("t1 b x", "t2 b x", "t1 split y", "t2 split y")


def flash(
    mapping=FLASH + SAVED,
    combine=(Op.SUM, Op.SUM),
    kinds=("sum", "sum"),
    divide=Op.DIV,
    merge=("t1 b x", "t2 b x", "O b x"),
):
    scores = Node(Op.EXP, (matmul(load("Q", "b s d"), load("K", "b h d"), "d"),))
    top = accum(matmul(scores, load("V", "b h e"), "h"), kinds[0])
    bottom = accum(total(scores, "h"), kinds[1])
    first = kernel("xy", "i", [save(top, "t1"), save(bottom, "t2")], mapping)
    sums = (
        total(load("t1", "b s e split"), "split", combine[0]),
        total(load("t2", "b s split"), "split", combine[1]),
    )
    second = kernel("x", None, [save(Node(divide, sums), "O")], merge)
    return SGraph((first, second))


def divided_before_the_merge():
    scores = Node(Op.EXP, (matmul(load("Q", "b s d"), load("K", "b h d"), "d"),))
    top = accum(matmul(scores, load("V", "b h e"), "h"))
    bottom = accum(total(scores, "h"))
    mapping = (*FLASH, "t1 b x", "t1 split y")
    first = kernel("xy", "i", [save(Node(Op.DIV, (top, bottom)), "t1")], mapping)
    merged = total(load("t1", "b s e split"), "split")
    return SGraph((first, kernel("x", None, [save(merged, "O")], ["t1 b x", "O b x"])))


# A row maximum by parts, and a norm whose second kernel reads the input again.

MAXIMUM = symbolic("maximum", "O = exp(max(X, d))", {"X": "n d"})


def row_max(inner=Op.MAX, outer=Op.MAX, early=True, split="X d x"):
    partial = total(load("X", "n d"), "d", inner)
    partial = Node(Op.EXP, (partial,)) if early else partial
    first = kernel("x", None, [save(partial, "t1")], [split, "t1 split x"])
    merged = total(load("t1", "n split"), "split", outer)
    merged = merged if early else Node(Op.EXP, (merged,))
    return SGraph((first, kernel("", None, [save(merged, "O")], [])))


NORM = symbolic("norm", "O = X / sqrt(sum(square(X), d))", {"X": "n d"})


def norm(outer=Op.SUM, loaded=("X d x", "X d i"), second=("X n x", "t1 n x", "O n x"), root=True):
    squares = accum(total(Node(Op.SQUARE, (load("X", "n d"),)), "d"))
    first = kernel("x", "i", [save(squares, "t1")], [*loaded, "t1 split x"])
    length = total(load("t1", "n split"), "split", outer)
    length = Node(Op.SQRT, (length,)) if root else length
    result = Node(Op.DIV, (load("X", "n d"), length))
    last = kernel("x" if second else "", None, [save(result, "O")], second)
    return SGraph((first, last))


def library(graph, op, saved):
    """The first kernel as a library operator on whole tensors."""
    block = BlockGraph((), None, (save(op, saved),))
    return SGraph((Kernel(block, make_mapping(()), library=True), *graph))


SWIGLU = symbolic("gate", "O = silu(matmul(X, W, d))", {"X": "n d", "W": "d f"})


def gate(op=Op.SILU, product=None, mapping=("t1 f x", "O f x")):
    product = product or matmul(load("X", "n d"), load("W", "d f"), "d")
    second = kernel("x", None, [save(Node(op, (load("t1", "n f"),)), "O")], mapping)
    return library([second], product, "t1")


# Both steps of a chain split: what one kernel combines, a binary operator reads with another term.

CHAIN = symbolic("chain", "O = sum(X, d) * Y + sum(X, d)", {"X": "n d", "Y": "n"})


def chain(saved=("t1 n x",), read=("t1 n x", "Y n x", "O n x"), op=Op.MUL):
    first = kernel("x", None, [save(total(load("X", "n d"), "d"), "t1")], ["X n x", *saved])
    t1 = load("t1", "n")
    result = Node(Op.ADD, (Node(op, (t1, load("Y", "n"))), t1))
    return SGraph((first, kernel("x" if read else "", None, [save(result, "O")], read)))


def scaled_partials():
    """The second kernel works on the partial results before it reduces them."""
    doubled = Node(Op.SCALE, (load("t1", "n f split"),), "2")
    graph = split_k()
    second = kernel("x", None, [save(total(doubled, "split"), "O")], ["t1 n x", "O n x"])
    return replace(graph, kernels=(graph.kernels[0], second))


DOUBLE = symbolic("double", "O = scale(matmul(X, W, d), 2)", {"X": "n d", "W": "d f"})

RIGHT = {
    "split-K with a loop": (MATMUL, split_k()),
    "split-K without a loop": (MATMUL, split_k(loop=None)),
    "split-K, second kernel over the columns": (MATMUL, split_k(merge=("t1 f x", "O f x"))),
    "split-K, second kernel in one block": (MATMUL, split_k(merge=())),
    "split-K, partial results scaled": (DOUBLE, scaled_partials()),
    "flash-decoding": (ATTENTION, flash()),
    "flash-decoding, merged by rows": (ATTENTION, flash(merge=("t1 s x", "t2 s x", "O s x"))),
    "a maximum by parts, exp first": (MAXIMUM, row_max()),
    "a maximum by parts, exp last": (MAXIMUM, row_max(early=False)),
    "a norm, its input read twice": (NORM, norm()),
    "a norm, second kernel whole": (NORM, norm(second=())),
    "a library matmul, then silu": (SWIGLU, gate()),
    "a chain through a whole tensor": (CHAIN, chain()),
    "a chain, second kernel whole": (CHAIN, chain(read=())),
}

WRONG = {
    "the second kernel takes the maximum": (MATMUL, split_k(Op.MAX)),
    "the loop takes the maximum": (MATMUL, split_k(loop="max")),
    "an axis that is not reduced is split": (
        MATMUL,
        split_k(partial=("X n x", "X d i", "W d i", "t1 split x")),
    ),
    "columns are split": (
        MATMUL,
        split_k(partial=("W f x", "X d i", "W d i", "t1 split x")),
    ),
    "nothing is split: whole products are summed": (
        MATMUL,
        split_k(partial=("X d i", "W d i", "t1 split x")),
    ),
    "one operand is split": (MATMUL, split_k(partial=("X d x", "X d i", "W d i", "t1 split x"))),
    "the second kernel sums rows": (MATMUL, split_k(axis="n", merge=())),
    "the second kernel partitions the fresh axis": (MATMUL, split_k(merge=("t1 split x", "O n x"))),
    "the second kernel combines what it has whole": (MATMUL, split_k(merge=("O n x",))),
    "the second kernel applies exp": (MATMUL, split_k(tail=lambda t: Node(Op.EXP, (t,)))),
    "the second kernel doubles": (MATMUL, split_k(tail=lambda t: Node(Op.SCALE, (t,), "2"))),
    "the numerators' maximum": (ATTENTION, flash(combine=(Op.MAX, Op.SUM))),
    "the denominators' maximum": (ATTENTION, flash(combine=(Op.SUM, Op.MAX))),
    "the loop takes the denominators' maximum": (ATTENTION, flash(kinds=("sum", "max"))),
    "multiplied by the denominator": (ATTENTION, flash(divide=Op.MUL)),
    "division before the merge": (ATTENTION, divided_before_the_merge()),
    "keys split, values not": (
        ATTENTION,
        flash(tuple(v for v in FLASH if v != "V h y") + SAVED),
    ),
    "queries split with the keys": (
        ATTENTION,
        flash(("Q s y", "K b x", "V b x", "K h i", "V h i", "Q b x", *SAVED)),
    ),
    "heads of the keys and of the values differ": (
        ATTENTION,
        flash(("Q b x", "K b x", "V b y", "K h y", "K h i", "V h i", *SAVED)),
    ),
    "a maximum by parts, summed": (MAXIMUM, row_max(outer=Op.SUM)),
    "sums by parts, their maximum": (MAXIMUM, row_max(inner=Op.SUM)),
    "exp of the maxima, summed": (MAXIMUM, row_max(outer=Op.SUM, early=False)),
    "the maximum of rows split": (MAXIMUM, row_max(split="X n x")),
    "norms' maximum": (NORM, norm(Op.MAX)),
    "a norm of copies": (NORM, norm(loaded=("X d i",))),
    "a norm of other rows": (NORM, norm(loaded=("X n x", "X d i"))),
    "a norm without its root": (NORM, norm(root=False)),
    "a norm by rows of one, parts of the other": (NORM, norm(second=("X d x", "t1 n x", "O d x"))),
    "another activation": (SWIGLU, gate(Op.GELU)),
    "a library product of a product": (
        SWIGLU,
        gate(product=matmul(load("X", "n d"), load("W", "d f"), "d"), mapping=("t1 f x", "O n x")),
    ),
    "a chain of another operator": (CHAIN, chain(op=Op.SUB)),
    "tiles of one kernel for those of the other": (CHAIN, chain(saved=(), read=("O n x",))),
    "a chain that loses its rows": (CHAIN, chain(read=("t1 n x", "O n x"))),
}


ILL_SHAPED = {
    "partial results combined along a data axis": (
        MATMUL,
        split_k(partial=("X d x", "W d x", "X d i", "W d i", "t1 n x")),
    ),
    "partial results never saved apart": (
        MATMUL,
        split_k(partial=("X d x", "W d x", "X d i", "W d i")),
    ),
    "only the numerators are partial": (
        ATTENTION,
        flash(tuple(v for v in FLASH + SAVED if v != "t2 split y")),
    ),
}


def verdict(program, graph):
    return prove(program, [encode(graph, program.inputs)]).verdicts[0]


@pytest.mark.parametrize("name", RIGHT)
def test_the_whole_graph_is_proved(name):
    program, graph = RIGHT[name]
    for seed in (0, 1, 2):
        assert Refuter(program, seed).refute(graph, encode(graph, program.inputs)) is None
    assert verdict(program, graph).proved


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_graph_is_refuted_and_never_proved(name):
    program, graph = WRONG[name]
    no = Refuter(program).refute(graph, encode(graph, program.inputs))
    assert no is not None and no.outcome is Outcome.REFUTED
    assert not verdict(program, graph).proved


@pytest.mark.parametrize("name", ILL_SHAPED)
def test_what_lacks_the_fresh_axis_has_no_expression(name):
    program, graph = ILL_SHAPED[name]
    with pytest.raises(PrismError, match="over 'split'"):
        encode(graph, program.inputs)


def test_an_axis_that_a_tensor_lacks_is_not_partitioned():
    graph = SGraph((kernel("x", None, [save(load("X", "n d"), "O")], ["X f x", "O f x"]),))
    with pytest.raises(PrismError, match="x partitions axis 'f', which tensor 'X' lacks"):
        encode(graph, MATMUL.inputs)


def mutants(graph):
    """Every mapping variable dropped, moved or added, every operator exchanged for a like one."""
    for number, changed in enumerate(graph.kernels):
        block, ones = changed.block, changed.mapping.ones
        axes = {n.arg: n.axes for n in block.loaders} | {s.arg: s.axes for s in block.savers}
        for gone in sorted(ones):
            yield number, replace(changed, mapping=make_mapping(ones - {gone}))
            moved = {MapVar(gone.tensor, axis, gone.par) for axis in axes[gone.tensor]}
            moved |= {MapVar(gone.tensor, gone.axis, par) for par in block.pars}
            for other in sorted(moved - ones):
                with suppress(PrismError):  # one dimension would partition two axes
                    yield number, replace(changed, mapping=make_mapping(ones - {gone} | {other}))
        for tensor, names in axes.items():
            for axis, par in product(names, block.pars):
                with suppress(PrismError):
                    more = ones | {MapVar(tensor, axis, par)}
                    yield number, replace(changed, mapping=make_mapping(more))
        for node in block.nodes:
            pool = next((p for p in POOLS if (node.op, node.arg) in p or node.op in p), ())
            for other in sorted(pool, key=str):
                op, arg = other if isinstance(other, tuple) else (other, node.arg)
                if (op, arg) != (node.op, node.arg):
                    yield number, replace(changed, block=exchanged(block, node, op, arg))


POOLS = (
    BINARY,
    UNARY - WITH_CONSTANT,
    REDUCE,
    {(Op.ACCUM, "sum"), (Op.ACCUM, "max")},
)


def exchanged(block, target, op, arg):
    new = {}
    for node in block.nodes:
        kind = (op, arg) if node is target else (node.op, node.arg)
        new[node] = Node(kind[0], [new[s] for s in node.src], kind[1], node.axes)
    return replace(block, savers=tuple(new[s] for s in block.savers))


def test_no_mutant_that_numbers_refute_is_proved():
    refuted = 0
    for name, (program, graph) in RIGHT.items():
        batch = []
        for number, kernel in mutants(graph):
            kernels = list(graph.kernels)
            kernels[number] = kernel
            wrong = SGraph(tuple(kernels))
            with suppress(PrismError):
                batch.append((wrong, encode(wrong, program.inputs)))
        refuters = [Refuter(program, seed) for seed in (0, 1)]
        bad = [c for g, c in batch if any(r.refute(g, c) for r in refuters)]
        refuted += len(bad)
        proved = [c for c, v in zip(bad, prove(program, bad).verdicts, strict=True) if v.proved]
        assert not proved, (name, proved[0])
    assert refuted >= 270


def test_kernels_have_parallel_dimensions_of_their_own():
    """d_x of one kernel is not d_x of the next: tiles do not pass from one grid to another."""
    candidate = encode(split_k(), MATMUL.inputs)["O"]
    text = repr(candidate)
    assert "'x'" in text and "'x2'" in text and "'i2'" not in text


def test_tiles_left_in_place_are_not_the_next_kernels_tiles():
    """A tensor saved without combining its tiles has no value to a later kernel."""
    first = kernel("x", None, [save(Node(Op.EXP, (load("X", "n d"),)), "t1")], ["X n x"])
    second = kernel("x", None, [save(Node(Op.EXP, (load("t1", "n d"),)), "O")], ["O n x"])
    program = symbolic("twice", "O = exp(exp(X))", {"X": "n d"})
    graph = SGraph((first, second))
    assert Refuter(program).refute(graph, encode(graph, program.inputs)) is not None
    assert not verdict(program, graph).proved
