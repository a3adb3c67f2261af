"""Mapped graphs for the tests of instantiation and code generation: some by hand, of one kernel and
of several, and random ones that are correct by construction."""

import random
from dataclasses import replace

import numpy as np

from prism.program import Builder, Node, Op, Program
from prism.program.node import REDUCE, topological
from prism.sgraph import BlockGraph, Kernel, MapVar, SGraph, make_mapping


def load(name, axes):
    return Node(Op.LOAD, (), name, axes.split())


def op(kind, *src, arg=None):
    return Node(kind, src, arg)


def graph(*savers, grid=(), loop=None, ones=""):
    """An sGraph of one kernel; `ones` as "X.n.x W.f.y": tensor, axis, parallel dimension."""
    mapping = make_mapping(MapVar(*one.split(".")) for one in ones.split())
    return SGraph((Kernel(BlockGraph(tuple(grid), loop, tuple(savers)), mapping),))


def rmsnorm(n, d, f, dtype="fp32", eps=1e-5) -> tuple[Program, SGraph]:
    b = Builder("rmsnorm", {"n": n, "d": d, "f": f}, dtype, {"eps": eps})
    program = b.build(O=b.matmul(b.rms_norm(b.input("X", "n d"), "d"), b.input("W", "d f"), "d"))
    x, w = load("X", "n d"), load("W", "d f")
    squares = op(Op.ACCUM, op(Op.SUM, op(Op.SQUARE, x), arg="d"), arg="sum")
    product = op(Op.ACCUM, op(Op.MATMUL, x, w, arg="d"), arg="sum")
    root = op(Op.SQRT, op(Op.SHIFT, op(Op.SCALE, squares, arg="1 / d"), arg="eps"))
    o = op(Op.SAVE, op(Op.DIV, product, root), arg="O")
    return program, graph(o, grid="x", loop="i", ones="W.f.x O.f.x X.d.i W.d.i")


def attention(b, g, s, h, d, e, dtype="fp32") -> tuple[Program, SGraph]:
    sizes = {"b": b, "g": g, "s": s, "h": h, "d": d, "e": e}
    build = Builder("attention", sizes, dtype)
    scores = build.matmul(build.input("Q", "b g s d"), build.input("K", "b g h d"), "d")
    program = build.build(
        O=build.matmul(build.softmax(scores, "h"), build.input("V", "b g h e"), "h")
    )
    q, k, v = load("Q", "b g s d"), load("K", "b g h d"), load("V", "b g h e")
    weight = op(Op.EXP, op(Op.MATMUL, q, k, arg="d"))
    total = op(Op.ACCUM, op(Op.SUM, weight, arg="h"), arg="sum")
    mixed = op(Op.ACCUM, op(Op.MATMUL, weight, v, arg="h"), arg="sum")
    o = op(Op.SAVE, op(Op.DIV, mixed, total), arg="O")
    ones = " ".join(f"{t}.b.x {t}.g.y" for t in "QKVO") + " K.h.i V.h.i"
    return program, graph(o, grid="xy", loop="i", ones=ones)


def joined(*graphs) -> SGraph:
    """The kernels of several graphs, one after another."""
    return SGraph(tuple(kernel for one in graphs for kernel in one.kernels))


def library(operator, name) -> SGraph:
    """One library operator that makes the tensor `name`."""
    block = BlockGraph((), None, (op(Op.SAVE, operator, arg=name),))
    return SGraph((Kernel(block, make_mapping(()), library=True),))


def split_k(n, d, f, dtype="fp32", loop=None) -> tuple[Program, SGraph]:
    """A matmul whose contraction is split over y: partial products, then their sum."""
    b = Builder("split_k", {"n": n, "d": d, "f": f}, dtype)
    program = b.build(O=b.matmul(b.input("X", "n d"), b.input("W", "d f"), "d"))
    product = op(Op.MATMUL, load("X", "n d"), load("W", "d f"), arg="d")
    ones = "W.f.x t1.f.x X.d.y W.d.y t1.split.y"
    if loop:
        product, ones = op(Op.ACCUM, product, arg="sum"), f"{ones} X.d.i W.d.i"
    first = graph(op(Op.SAVE, product, arg="t1"), grid="xy", loop=loop, ones=ones)
    total = op(Op.SUM, load("t1", "n f split"), arg="split")
    second = graph(op(Op.SAVE, total, arg="O"), grid="x", ones="t1.f.x O.f.x")
    return program, joined(first, second)


def flash_decoding(b, g, s, h, d, e, dtype="fp32") -> tuple[Program, SGraph]:
    """Attention, the keys split over z: sums of exp(QK) and of exp(QK) V, then their quotient."""
    program, _ = attention(b, g, s, h, d, e, dtype)
    q, k, v = load("Q", "b g s d"), load("K", "b g h d"), load("V", "b g h e")
    weight = op(Op.EXP, op(Op.MATMUL, q, k, arg="d"))
    total = op(Op.ACCUM, op(Op.SUM, weight, arg="h"), arg="sum")
    mixed = op(Op.ACCUM, op(Op.MATMUL, weight, v, arg="h"), arg="sum")
    savers = op(Op.SAVE, total, arg="t1"), op(Op.SAVE, mixed, arg="t2")
    ones = " ".join(f"{t}.b.x {t}.g.y" for t in ("Q", "K", "V", "t1", "t2"))
    ones += " K.h.z V.h.z K.h.i V.h.i t1.split.z t2.split.z"
    first = graph(*savers, grid="xyz", loop="i", ones=ones)
    parts = load("t1", "b g s split"), load("t2", "b g s e split")
    total, mixed = (op(Op.SUM, x, arg="split") for x in parts)
    ones = " ".join(f"{t}.b.x {t}.g.y" for t in ("t1", "t2", "O"))
    second = graph(op(Op.SAVE, op(Op.DIV, mixed, total), arg="O"), grid="xy", ones=ones)
    return program, joined(first, second)


def rmsnorm_library(n, d, f, dtype="fp32") -> tuple[Program, SGraph]:
    """RMSNorm and matmul: a library matmul beside a generated kernel that scales its rows."""
    program, _ = rmsnorm(n, d, f, dtype)
    x, w = load("X", "n d"), load("W", "d f")
    squares = op(Op.SUM, op(Op.SQUARE, x), arg="d")
    root = op(Op.SQRT, op(Op.SHIFT, op(Op.SCALE, squares, arg="1 / d"), arg="eps"))
    o = op(Op.SAVE, op(Op.DIV, load("t1", "n f"), root), arg="O")
    ones = "X.n.x t1.n.x O.n.x t1.f.y O.f.y"
    return program, joined(
        library(op(Op.MATMUL, x, w, arg="d"), "t1"), graph(o, grid="xy", ones=ones)
    )


def rmsnorm_split(n, d, f, dtype="fp32", norm=True) -> tuple[Program, SGraph]:
    """RMSNorm and matmul with d split over x: partial sums of squares and partial products, then
    both sums and the division. Wrong without `norm`: it divides by the mean square."""
    program, _ = rmsnorm(n, d, f, dtype)
    x, w = load("X", "n d"), load("W", "d f")
    squares = op(Op.SUM, op(Op.SQUARE, x), arg="d")
    product = op(Op.MATMUL, x, w, arg="d")
    savers = op(Op.SAVE, squares, arg="t1"), op(Op.SAVE, product, arg="t2")
    first = graph(*savers, grid="x", ones="X.d.x W.d.x t1.split.x t2.split.x")
    squares = op(Op.SUM, load("t1", "n split"), arg="split")
    product = op(Op.SUM, load("t2", "n f split"), arg="split")
    mean = op(Op.SHIFT, op(Op.SCALE, squares, arg="1 / d"), arg="eps")
    o = op(Op.DIV, product, op(Op.SQRT, mean) if norm else mean)
    second = graph(op(Op.SAVE, o, arg="O"), grid="x", ones="t2.f.x O.f.x")
    return program, joined(first, second)


def two_outputs(n, k, dtype="fp32") -> tuple[Program, SGraph]:
    """Rows over their sum, and less their maximum: both reductions come from one split kernel, with
    a third tensor that has the split axis itself and so no fresh one. It has no stable form."""
    b = Builder("two_outputs", {"n": n, "k": k}, dtype)
    x = b.input("X", "n k")
    e = b.exp(x)
    program = b.build(O=b.div(e, b.sum(e, "k")), P=b.sub(x, b.max(x, "k")))
    program = replace(program, numerics="paper")
    x = load("X", "n k")
    e = op(Op.EXP, x)
    values = {"t1": op(Op.SUM, e, arg="k"), "t2": op(Op.MAX, x, arg="k"), "t3": e}
    savers = [op(Op.SAVE, value, arg=name) for name, value in values.items()]
    ones = "X.n.x t1.n.x t2.n.x t3.n.x X.k.y t1.split.y t2.split.y t3.k.y"
    first = graph(*savers, grid="xy", ones=ones)
    total = op(Op.SUM, load("t1", "split n"), arg="split")
    most = op(Op.MAX, load("t2", "n split"), arg="split")
    savers = op(Op.DIV, load("t3", "n k"), total), op(Op.SUB, x, most)
    savers = [op(Op.SAVE, value, arg=name) for name, value in zip("OP", savers, strict=True)]
    ones = "t3.k.x X.k.x O.k.x P.k.x"
    return program, joined(first, graph(*savers, grid="x", ones=ones))


def random_inputs(program: Program, seed: int) -> dict[str, np.ndarray]:
    """Values of magnitude about one, exact in the program's dtype."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, node in program.inputs.items():
        values = rng.uniform(-1.5, 1.5, program.shape(node)).astype(np.float32)
        if program.dtype == "bf16":
            values = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
        if program.dtype == "fp16":
            values = values.astype(np.float16).astype(np.float32)
        found[name] = values
    return found


AXES = "abck"


def random_program(seed: int, dtype: str = "fp32") -> Program:
    """Elementwise operators, matmuls and reductions over up to four axes, one or two outputs."""
    rng = random.Random(seed)
    sizes = {axis: rng.choice([1, 2, 3, 5, 8, 13, 19]) for axis in AXES}
    b = Builder("random", sizes, dtype, {"eps": 0.5})
    values = []
    for name in "XYZ"[: rng.randint(2, 3)]:
        axes = rng.sample(AXES, rng.randint(1, 3))
        values.append(b.input(name, axes))
    unused = list(values)

    def pick():
        value = unused.pop(rng.randrange(len(unused))) if unused else rng.choice(values)
        return value

    for _ in range(rng.randint(3, 8)):
        x = pick()
        kind = rng.choice(["unary", "unary", "binary", "matmul", "reduce", "reduce"])
        y = rng.choice(values)
        shared = [axis for axis in x.axes if axis in y.axes]
        if kind == "matmul" and shared:
            out = b.scale(b.matmul(x, y, rng.choice(shared)), "1/8")
            unused[:] = [u for u in unused if u is not y]
        elif kind == "binary":
            out = getattr(b, rng.choice(["add", "sub", "mul"]))(x, y)
            unused[:] = [u for u in unused if u is not y]
            if rng.random() < 0.3:
                out = b.div(out, b.shift(b.square(y), "eps"))
        elif kind == "reduce" and x.axes:
            out = getattr(b, rng.choice(["sum", "sum", "max"]))(x, rng.choice(x.axes))
            out = b.scale(out, "1/4")
        else:
            out = getattr(b, rng.choice(["relu", "silu", "gelu", "square"]))(x)
            out = b.exp(b.scale(x, "0.1")) if rng.random() < 0.3 else b.scale(out, 0.5)
        values.append(out)
        unused.append(out)
    result = unused[0]
    for other in unused[1:]:
        result = b.add(result, other)
    outputs = {"O": result}
    extra = values[-1]
    if rng.random() < 0.3 and extra is not result and extra.op is not Op.INPUT:
        outputs["P"] = extra
    return b.build(**outputs)


def random_graph(program: Program, seed: int) -> SGraph:
    """A correct mapped graph of the program with random grid, loop and accumulators.

    A grid dimension cuts an axis that no operator reduces, everywhere. The loop cuts any axis:
    what reduces it is accumulated, what is needed whole after the loop is concatenated.
    """
    rng = random.Random(seed)
    nodes = program.nodes
    reduced = {n.arg for n in nodes if n.op in REDUCE or n.op is Op.MATMUL}
    free = [
        axis
        for axis in program.sizes
        if axis not in reduced and all(axis in out.axes for _, out in program.outputs)
    ]
    rng.shuffle(free)
    grid = dict(zip("xyz", free[: rng.randint(0, 3)], strict=False))
    axis = rng.choice([None, *program.sizes, *program.sizes])
    new: dict[Node, Node] = {}
    varying: set[Node] = set()
    after: set[Node] = set()

    def whole(node):
        """The node's value over all iterations."""
        if node not in varying:
            return node
        found = op(Op.ACCUM, node, arg=f"concat:{axis}")
        after.add(found)
        return found

    for node in nodes:
        if node.op is Op.INPUT:
            made = Node(Op.LOAD, (), node.arg, node.axes)
            if axis in node.axes:
                varying.add(made)
            new[node] = made
            continue
        src = [new[s] for s in node.src]
        if any(s in after for s in src):
            src = [whole(s) for s in src]
        reduces = node.op in REDUCE or node.op is Op.MATMUL
        closes = reduces and node.arg == axis and any(s in varying for s in src)
        if closes and node.op in REDUCE and rng.random() < 0.3:
            made = op(node.op, op(Op.ACCUM, *src, arg=node.op.value), arg=node.arg)
            after.update({made, made.src[0]})
        elif closes:
            made = op(Op.ACCUM, Node(node.op, src, node.arg), arg=_kind(node))
            after.add(made)
        else:
            made = Node(node.op, src, node.arg)
            if any(s in after for s in src):
                after.add(made)
            elif any(s in varying for s in src):
                varying.add(made)
        new[node] = made
    savers = [op(Op.SAVE, whole(new[out]), arg=name) for name, out in program.outputs]
    loads = [n for n in topological(savers) if n.op in (Op.LOAD, Op.SAVE)]
    ones = [MapVar(n.arg, a, p) for p, a in grid.items() for n in loads if a in n.axes]
    ones += [MapVar(n.arg, axis, "i") for n in loads if n.op is Op.LOAD and axis in n.axes]
    loop = "i" if axis and any(v.par == "i" for v in ones) else None
    return SGraph((Kernel(BlockGraph(tuple(grid), loop, tuple(savers)), make_mapping(ones)),))


def split_graph(program: Program, seed: int) -> SGraph:
    """A correct graph of two kernels: x splits every sum and maximum over one axis.

    The first kernel saves the partial results along a fresh axis, and whatever else the second one
    needs; nothing of the first reads a result of a split reduction. Without a reduction that can
    be split, the graph is one kernel without grid.
    """
    rng = random.Random(seed)
    reduced = {n.arg for n in program.nodes if n.op in REDUCE or n.op is Op.MATMUL}
    axis = rng.choice(sorted(reduced) or [None])
    first: dict[Node, Node] = {}
    for node in program.nodes:  # what the first kernel can compute
        if node.op is Op.INPUT:
            first[node] = Node(Op.LOAD, (), node.arg, node.axes)
        elif all(s in first and not _closes(s, axis) for s in node.src):
            first[node] = Node(node.op, [first[s] for s in node.src], node.arg)
    partial = [n for n in first if _closes(n, axis)]
    second, savers, ones = {}, [], []
    for number, node in enumerate(partial, 1):
        name = f"t{number}"
        savers.append(op(Op.SAVE, first[node], arg=name))
        ones.append(MapVar(name, "split", "x"))
        second[node] = op(
            Op.MAX if node.op is Op.MAX else Op.SUM,
            load(name, " ".join((*node.axes, "split"))),
            arg="split",
        )
    for node in program.nodes:
        if node.op is Op.INPUT:
            second[node] = first[node]
        elif node not in second:
            second[node] = Node(node.op, [second[s] for s in node.src], node.arg)
    loads = [n for n in topological(savers) if n.op is Op.LOAD and axis in n.axes]
    ones += [MapVar(n.arg, axis, "x") for n in loads]
    last = graph(*(op(Op.SAVE, second[out], arg=name) for name, out in program.outputs))
    if not partial:
        return last
    split = Kernel(BlockGraph(("x",), None, tuple(savers)), make_mapping(ones))
    return SGraph((split, *last.kernels))


def _closes(node: Node, axis: str | None) -> bool:
    return (node.op in REDUCE or node.op is Op.MATMUL) and node.arg == axis


def _kind(node: Node) -> str:
    return "max" if node.op is Op.MAX else "sum"


def with_dtype(program: Program, dtype: str) -> Program:
    return replace(program, dtype=dtype)
