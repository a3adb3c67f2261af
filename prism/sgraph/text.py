"""A graph as text: one operator a line, in an order that makes two graphs easy to compare.

kernel 0: grid {x=d_x} loop {i=d_i}
  reads X[n, d] W[d, f]
  writes O[n, f]
  in the loop
    %0 = load X        [n, d/d_i]      imap {-} fmap {i:d}

Of several kernels, the kernel graph comes first:

kernel graph
  kernel 0: grid {x=d_x, y=d_y}     X W -> t1
  kernel 1: library sum over split  t1 -> O
  between: t1[n, f, split], split = d_y of kernel 0
"""

from __future__ import annotations

from collections.abc import Iterable

from prism.program.node import WITH_CONSTANT, Node, Op, accum_kind
from prism.program.program import Program
from prism.sgraph.constraints import Dim
from prism.sgraph.constraints import dims as origins
from prism.sgraph.graph import Kernel, SGraph

LIBRARY = "library: the backend's own kernel of that one operator; no vendor library is linked"
_NOTE = "sigma(T,a) = product over p of (m[T,a,p] * d_p + 1 - m[T,a,p])"


def text(graph: SGraph, program: Program | None = None) -> str:
    """The readable form of a graph.

    Shapes are per block and, in the loop, per iteration (paper equation 3): `d/d_i` is the extent
    of axis d over the size of loop dimension i. A kernel without a mapping shows its variables and
    `d/sigma(T,d)`. `program` adds the sizes of the axes. A library operator is one line of the
    kernel graph.
    """
    lines = []
    if program is not None:
        sizes = " ".join(f"{axis}={size}" for axis, size in program.sizes.items())
        lines.append(f"program {program.name} {program.dtype}: {sizes}".rstrip())
    if len(graph.kernels) > 1 or any(k.library for k in graph.kernels):
        lines += _overview(graph)
    for number, kernel in enumerate(graph.kernels):
        if not kernel.library:
            lines += _kernel(number, kernel)
    return "\n".join(lines) + "\n"


def shapes(kernel: Kernel) -> dict[Node, tuple[str, ...]]:
    """Per-block, per-iteration extent of every axis of every node, as text (equation 3)."""
    block, mapping = kernel.block, kernel.mapping

    def extent(node: Node, dim: Dim) -> str:
        if mapping is not None:
            over = [f"d_{p}" for p in dim.pars if dim.var(p) in mapping.ones]
        else:  # what an accumulator concatenated is no longer partitioned by the loop
            whole = dim.pars == block.pars or node.op is Op.SAVE
            over = [f"{'sigma' if whole else 'sigma_grid'}({dim.tensor},{dim.axis})"]
        if not over:
            return dim.axis
        return f"{dim.axis}/{over[0]}" if len(over) == 1 else f"{dim.axis}/({'*'.join(over)})"

    found = {n: tuple(extent(n, d[a]) for a in n.axes) for n, d in origins(block).items()}
    for saver in block.savers:  # d_p elements along a fresh axis, one of each block
        for axis in kernel.tensor_axes(saver)[len(saver.axes) :]:
            found[saver] += (f"{axis}/d_{kernel.fresh[axis]}",)
    return found


def tensor_axes(graph: SGraph) -> dict[str, tuple[str, ...]]:
    """Axes of the kernel-level tensors, in the order of their first use, fresh ones with extents.

    A fresh axis reads `split=d_y of kernel 0`; `split=d_y` where the graph has one kernel.
    """
    found: dict[str, tuple[str, ...]] = {}
    for number, kernel in enumerate(graph.kernels):
        of = f" of kernel {number}" if len(graph.kernels) > 1 else ""
        for loader in kernel.block.loaders:
            found.setdefault(loader.arg, loader.axes)
        for saver in kernel.block.savers:
            fresh = kernel.tensor_axes(saver)[len(saver.axes) :]
            found[saver.arg] = saver.axes + tuple(f"{a}=d_{kernel.fresh[a]}{of}" for a in fresh)
    return found


def stages(kernel: Kernel) -> dict[str, tuple[Node, ...]]:
    """Nodes by when they run: `before the loop`, `in the loop`, `after the loop`, or `block`."""
    block = kernel.block
    if block.loop is None:
        return {"block": block.nodes}
    after = block.after_loop | {s for s in block.savers}
    inside = [n for n in block.nodes if n not in after]
    if kernel.mapping is None:
        stage = {"in the loop": inside}
    else:
        varying = block.varying(kernel.mapping)
        stage = {
            "before the loop": [n for n in inside if n not in varying],
            "in the loop": [n for n in inside if n in varying],
        }
    stage["after the loop"] = [n for n in block.nodes if n in after]
    return {name: tuple(nodes) for name, nodes in stage.items() if nodes}


def numbered(kernel: Kernel) -> dict[Node, int]:
    """The number of each node (`%3`) in the text form and in the picture."""
    order = (n for nodes in stages(kernel).values() for n in nodes)
    return {node: i for i, node in enumerate(order)}


def dims(pars: Iterable[str]) -> str:
    """Parallel dimensions with the symbols of their sizes: `{x=d_x, y=d_y}`."""
    return "{" + ", ".join(f"{p}=d_{p}" for p in pars) + "}"


def maps(kernel: Kernel, node: Node) -> list[tuple[str, list[str]]]:
    """imap and fmap of a loader, or omap of a saver: (name, entries such as `x:f` or m[W,f,x]).

    An empty list of entries means replicated (or, for an omap, not partitioned).
    """
    wanted = [("omap", kernel.block.grid)]
    if node.op is Op.LOAD:
        loop = (kernel.block.loop,) if kernel.block.loop else ()
        wanted = [("imap", kernel.block.grid), ("fmap", loop)]
    result = []
    for name, pars in wanted:
        if kernel.mapping is None:
            entries = [f"m[{node.arg},{axis},{p}]" for p in pars for axis in node.axes]
        else:
            axes = [(p, kernel.mapping.axis(node.arg, p)) for p in pars]
            entries = [f"{p}:{axis}" for p, axis in axes if axis]
        if pars:
            result.append((name, entries))
    return result


def detail(node: Node) -> str:
    """What an operator's argument says: `over d`, `by 1 / d`, `sum`; empty where there is none."""
    if node.op is Op.ACCUM:
        kind = accum_kind(node)
        return f"{kind.kind} along {kind.axis}" if kind.axis else kind.kind
    if node.arg is None:
        return ""
    words = {Op.SAVE: "as", Op.LOAD: ""} | dict.fromkeys(WITH_CONSTANT, "by")
    return f"{words.get(node.op, 'over')} {node.arg}".strip()


def _overview(graph: SGraph) -> list[str]:
    """The kernels with the names of their tensors, then the tensors between them with axes."""
    heads = [_head(number, kernel) for number, kernel in enumerate(graph.kernels)]
    width = max(map(len, heads))
    read = {name for kernel in graph.kernels for name in kernel.reads}
    lines, between = ["kernel graph"], []
    for number, (head, kernel) in enumerate(zip(heads, graph.kernels, strict=True)):
        lines.append(f"  {head:<{width}}  {' '.join(kernel.reads)} -> {' '.join(kernel.writes)}")
        kept = [s for s in kernel.block.savers if s.arg in read]
        shown = [f"{s.arg}[{', '.join(kernel.tensor_axes(s))}]" for s in kept]
        notes = [f", {axis} = d_{par} of kernel {number}" for axis, par in kernel.fresh.items()]
        between += [f"  between: {' '.join(shown)}{''.join(notes)}"] if shown else []
    if any(kernel.library for kernel in graph.kernels):
        between.append(f"  ({LIBRARY})")
    return lines + between


def _head(number: int, kernel: Kernel) -> str:
    if kernel.library:
        operator = kernel.operator
        return f"kernel {number}: library {operator.op.value} {detail(operator)}".rstrip()
    head = f"kernel {number}: grid {dims(kernel.block.grid)}"
    return f"{head} loop {dims((kernel.block.loop,))}" if kernel.block.loop else head


def _kernel(number: int, kernel: Kernel) -> list[str]:
    block = kernel.block
    loads = " ".join(f"{n.arg}[{', '.join(n.axes)}]" for n in block.loaders)
    saved = tensor_axes(SGraph((kernel,)))
    saves = " ".join(f"{name}[{', '.join(saved[name])}]" for name in kernel.writes)
    lines = [_head(number, kernel), f"  reads {loads}", f"  writes {saves}"]
    shape, number_of = shapes(kernel), numbered(kernel)
    rows: list[tuple[str, ...]] = []
    for stage, nodes in stages(kernel).items():
        rows.append((stage,))
        for node in nodes:
            sources = [f"%{number_of[s]}" for s in node.src]
            words = " ".join(w for w in (node.op.value, *sources, detail(node)) if w)
            moved = maps(kernel, node) if node.op in (Op.LOAD, Op.SAVE) else []
            mapping = " ".join(f"{name} {{{', '.join(some) or '-'}}}" for name, some in moved)
            rows.append((f"%{number_of[node]} = {words}", f"[{', '.join(shape[node])}]", mapping))
    left, middle = (max(len(r[i]) for r in rows if len(r) > 1) for i in (0, 1))
    for row in rows:
        line = f"  {row[0]:<{left}}  {row[1]:<{middle}}  {row[2]}" if len(row) > 1 else row[0]
        lines.append(f"  {line}".rstrip())
    if kernel.mapping is None:
        lines.append(f"  where {_NOTE}")
    return lines
