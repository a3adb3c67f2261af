"""Mapped graphs for the tests of instantiation and code generation: two by hand, and random ones
that are correct by construction."""

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


def _kind(node: Node) -> str:
    return "max" if node.op is Op.MAX else "sum"


def with_dtype(program: Program, dtype: str) -> Program:
    return replace(program, dtype=dtype)
