"""Text form and picture of graphs: content, stability, and that nothing overlaps."""

import re
import subprocess
import sys
from itertools import combinations
from xml.etree import ElementTree

import pytest
from codegen_graphs import flash_decoding, rmsnorm_library, two_outputs

from prism.program import Builder, Node, Op
from prism.sgraph import BlockGraph, Kernel, MapVar, SGraph, make_mapping
from prism.sgraph.layers import place
from prism.sgraph.picture import svg
from prism.sgraph.text import shapes, text


def rmsnorm() -> SGraph:
    x, w = Node(Op.LOAD, (), "X", ("n", "d")), Node(Op.LOAD, (), "W", ("d", "f"))
    squares = Node(Op.ACCUM, (Node(Op.SUM, (Node(Op.SQUARE, (x,)),), "d"),), "sum")
    product = Node(Op.ACCUM, (Node(Op.MATMUL, (x, w), "d"),), "sum")
    root = Node(Op.SQRT, (Node(Op.SHIFT, (Node(Op.SCALE, (squares,), "1 / d"),), "eps"),))
    out = Node(Op.SAVE, (Node(Op.DIV, (product, root)),), "O")
    ones = [("W", "f", "x"), ("O", "f", "x"), ("X", "d", "i"), ("W", "d", "i")]
    mapping = make_mapping(MapVar(*v) for v in ones)
    return SGraph((Kernel(BlockGraph(("x",), "i", (out,)), mapping),))


def attention(mapped: bool = True) -> SGraph:
    q = Node(Op.LOAD, (), "Q", ("b", "g", "s", "d"))
    k = Node(Op.LOAD, (), "K", ("b", "g", "h", "d"))
    v = Node(Op.LOAD, (), "V", ("b", "g", "h", "e"))
    e = Node(Op.EXP, (Node(Op.MATMUL, (q, k), "d"),))
    total = Node(Op.ACCUM, (Node(Op.SUM, (e,), "h"),), "sum")
    product = Node(Op.ACCUM, (Node(Op.MATMUL, (e, v), "h"),), "sum")
    out = Node(Op.SAVE, (Node(Op.DIV, (product, total)),), "O")
    ones = [MapVar(t, "b", "x") for t in "QKVO"] + [MapVar(t, "g", "y") for t in "QKVO"]
    ones += [MapVar(t, "h", "i") for t in "KV"] + [MapVar(t, "e", "z") for t in "VO"]
    block = BlockGraph(("x", "y", "z"), "i", (out,))
    return SGraph((Kernel(block, make_mapping(ones) if mapped else None),))


def row_sums(accumulate: str) -> SGraph:
    """A loop over rows whose slices are concatenated, and a loader that the loop leaves alone."""
    x, y = Node(Op.LOAD, (), "X", ("r", "c")), Node(Op.LOAD, (), "Y", ("c",))
    slices = Node(Op.ACCUM, (Node(Op.MUL, (x, y)),), accumulate)
    mapping = make_mapping([MapVar("X", "r", "i")])
    return SGraph((Kernel(BlockGraph((), "i", (Node(Op.SAVE, (slices,), "O"),)), mapping),))


def no_loop() -> SGraph:
    x = Node(Op.LOAD, (), "X", ("r", "c"))
    save = Node(Op.SAVE, (Node(Op.EXP, (x,)),), "O")
    return SGraph((Kernel(BlockGraph(("x",), None, (save,)), make_mapping([])),))


GRAPHS = {
    "rmsnorm": rmsnorm(),
    "attention": attention(),
    "unmapped": attention(mapped=False),
    "concat": row_sums("concat:r"),
    "no_loop": no_loop(),
    "two_kernels": SGraph(rmsnorm().kernels + attention().kernels),
    "split": flash_decoding(2, 8, 1, 1024, 128, 128)[1],
    "library": rmsnorm_library(16, 1024, 4096)[1],
    "two_outputs": two_outputs(4, 64)[1],
}


def test_text_of_rmsnorm_is_this():
    assert text(rmsnorm()) == (
        "kernel 0: grid {x=d_x} loop {i=d_i}\n"
        "  reads X[n, d] W[d, f]\n"
        "  writes O[n, f]\n"
        "  in the loop\n"
        "    %0 = load X               [n, d/d_i]      imap {-} fmap {i:d}\n"
        "    %1 = load W               [d/d_i, f/d_x]  imap {x:f} fmap {i:d}\n"
        "    %2 = matmul %0 %1 over d  [n, f/d_x]\n"
        "    %3 = square %0            [n, d/d_i]\n"
        "    %4 = sum %3 over d        [n]\n"
        "  after the loop\n"
        "    %5 = accum %2 sum         [n, f/d_x]\n"
        "    %6 = accum %4 sum         [n]\n"
        "    %7 = scale %6 by 1 / d    [n]\n"
        "    %8 = shift %7 by eps      [n]\n"
        "    %9 = sqrt %8              [n]\n"
        "    %10 = div %5 %9           [n, f/d_x]\n"
        "    %11 = save %10 as O       [n, f/d_x]      omap {x:f}\n"
    )


def test_text_of_flash_decoding_is_this():
    assert text(flash_decoding(2, 8, 1, 1024, 128, 128)[1]) == (
        "kernel graph\n"
        "  kernel 0: grid {x=d_x, y=d_y, z=d_z} loop {i=d_i}  Q K V -> t1 t2\n"
        "  kernel 1: grid {x=d_x, y=d_y}                      t2 t1 -> O\n"
        "  between: t1[b, g, s, split] t2[b, g, s, e, split], split = d_z of kernel 0\n"
        "kernel 0: grid {x=d_x, y=d_y, z=d_z} loop {i=d_i}\n"
        "  reads Q[b, g, s, d] K[b, g, h, d] V[b, g, h, e]\n"
        "  writes t1[b, g, s, split=d_z] t2[b, g, s, e, split=d_z]\n"
        "  before the loop\n"
        "    %0 = load Q               [b/d_x, g/d_y, s, d]            "
        " imap {x:b, y:g} fmap {-}\n"
        "  in the loop\n"
        "    %1 = load K               [b/d_x, g/d_y, h/(d_z*d_i), d]  "
        " imap {x:b, y:g, z:h} fmap {i:h}\n"
        "    %2 = matmul %0 %1 over d  [b/d_x, g/d_y, s, h/(d_z*d_i)]\n"
        "    %3 = exp %2               [b/d_x, g/d_y, s, h/(d_z*d_i)]\n"
        "    %4 = sum %3 over h        [b/d_x, g/d_y, s]\n"
        "    %5 = load V               [b/d_x, g/d_y, h/(d_z*d_i), e]  "
        " imap {x:b, y:g, z:h} fmap {i:h}\n"
        "    %6 = matmul %3 %5 over h  [b/d_x, g/d_y, s, e]\n"
        "  after the loop\n"
        "    %7 = accum %4 sum         [b/d_x, g/d_y, s]\n"
        "    %8 = save %7 as t1        [b/d_x, g/d_y, s, split/d_z]    "
        " omap {x:b, y:g, z:split}\n"
        "    %9 = accum %6 sum         [b/d_x, g/d_y, s, e]\n"
        "    %10 = save %9 as t2       [b/d_x, g/d_y, s, e, split/d_z] "
        " omap {x:b, y:g, z:split}\n"
        "kernel 1: grid {x=d_x, y=d_y}\n"
        "  reads t2[b, g, s, e, split] t1[b, g, s, split]\n"
        "  writes O[b, g, s, e]\n"
        "  block\n"
        "    %0 = load t2            [b/d_x, g/d_y, s, e, split]  imap {x:b, y:g}\n"
        "    %1 = sum %0 over split  [b/d_x, g/d_y, s, e]\n"
        "    %2 = load t1            [b/d_x, g/d_y, s, split]     imap {x:b, y:g}\n"
        "    %3 = sum %2 over split  [b/d_x, g/d_y, s]\n"
        "    %4 = div %1 %3          [b/d_x, g/d_y, s, e]\n"
        "    %5 = save %4 as O       [b/d_x, g/d_y, s, e]         omap {x:b, y:g}\n"
    )


def test_a_library_operator_is_one_line_and_one_box():
    graph = rmsnorm_library(16, 1024, 4096)[1]
    assert text(graph).startswith(
        "kernel graph\n"
        "  kernel 0: library matmul over d  X W -> t1\n"
        "  kernel 1: grid {x=d_x, y=d_y}    t1 X -> O\n"
        "  between: t1[n, f]\n"
        "  (library: the backend's own kernel of that one operator; no vendor library is linked)\n"
        "kernel 1: grid {x=d_x, y=d_y}\n"
    )
    words = texts_of(svg(graph))
    assert words.count("kernel 0: library") == words.count("Matmul over d") == 1
    assert "%2 Matmul" not in words and "no vendor library is linked" in " ".join(words)
    alone = SGraph(graph.kernels[:1])
    assert text(alone).splitlines()[1] == "  kernel 0: library matmul over d  X W -> t1"
    assert texts_of(svg(alone)).count("kernel 0: library") == 1


def test_the_kernel_graph_shows_the_fresh_axis_and_what_lies_between():
    words = texts_of(svg(GRAPHS["two_outputs"]))
    assert "split = d_y, fresh" in words and "omap: {n↔x, split↔y}" in words
    assert words.count("[n, split=d_y of kernel 0]") == 6  # two tensors, seen three times
    grey = re.findall(r'fill="#eeeeee"', svg(GRAPHS["two_outputs"]))
    assert len(grey) == 9
    assert "Kernel graph" not in texts_of(svg(GRAPHS["rmsnorm"]))


def texts_of(drawn: str) -> list[str]:
    return [t.text for t in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]


def test_text_names_variables_while_there_is_no_mapping():
    shown = text(attention(mapped=False))
    assert "imap {m[Q,b,x], m[Q,g,x]" in shown and "fmap {m[K,b,i]" in shown
    assert "[b/sigma(Q,b), g/sigma(Q,g), s/sigma(Q,s), h/sigma(K,h)]" in shown
    assert "[b/sigma(O,b), g/sigma(O,g), s/sigma(O,s), e/sigma(O,e)]" in shown
    assert "before the loop" not in shown  # which nodes are hoisted depends on the mapping


def test_text_separates_what_the_loop_leaves_alone():
    lines = text(attention()).splitlines()
    at = {line.strip(): i for i, line in enumerate(lines)}
    load_q = next(i for i, line in enumerate(lines) if "load Q" in line)
    assert at["before the loop"] < load_q < at["in the loop"] < at["after the loop"]


def test_drawing_loads_neither_sympy_nor_networkx():
    code = (
        "import sys; import prism.sgraph.picture; "
        "sys.exit(bool({'networkx', 'sympy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_sizes_of_a_program_are_shown():
    b = Builder("scores", sizes={"r": 6, "c": "cols"}, dtype="fp32")
    program = b.build(O=b.exp(b.input("X", "r c")))
    assert text(no_loop(), program).startswith("program scores fp32: r=6 c=cols\n")
    assert "[r=6, c]" in svg(no_loop(), program)


def test_concat_restores_the_axis_and_both_dims_divide():
    kernel = row_sums("concat:r").kernels[0]
    accum = next(n for n in kernel.block.nodes if n.op is Op.ACCUM)
    assert shapes(kernel)[accum.src[0]] == ("r/d_i", "c")
    assert shapes(kernel)[accum] == ("r", "c")
    unmapped = shapes(Kernel(kernel.block))
    assert unmapped[accum.src[0]] == ("r/sigma(X,r)", "c/sigma(X,c)")
    assert unmapped[accum] == ("r/sigma_grid(X,r)", "c/sigma(X,c)")
    x = Node(Op.LOAD, (), "X", ("r",))
    save = Node(Op.SAVE, (Node(Op.ACCUM, (x,), "sum"),), "O")
    mapping = make_mapping([MapVar("X", "r", "i"), MapVar("X", "r", "x")])
    both = Kernel(BlockGraph(("x",), "i", (save,)), mapping)
    assert shapes(both)[x] == ("r/(d_x*d_i)",)


@pytest.mark.parametrize("name", GRAPHS)
def test_picture_holds_every_part_and_is_stable(name):
    graph = GRAPHS[name]
    drawn = svg(graph)
    assert drawn == svg(SGraph.from_json(graph.to_json()))
    words = texts_of(drawn)
    generated = [kernel for kernel in graph.kernels if not kernel.library]
    for kernel in generated:
        for node in kernel.block.nodes:
            title = {Op.LOAD: "Input Loader", Op.SAVE: "Output Saver", Op.ACCUM: "Accum"}
            assert any(title.get(node.op, node.op.value.capitalize()) in w for w in words)
    assert words.count("ThreadBlock graph") == len(generated)
    assert not re.search(r"(href|src|url)\s*[=(]", drawn)


def boxes_and_texts(drawn: str):
    """Absolute (left, top, right, bottom) of boxes that hold text, and of all text lines."""
    boxes, texts = [], []

    def walk(element, x, y):
        move = re.match(r"translate\(([-\d.]+) ([-\d.]+)\)", element.get("transform", ""))
        if move:
            x, y = x + float(move[1]), y + float(move[2])
        tag = element.tag.rpartition("}")[2]
        number = lambda name: float(element.get(name))  # noqa: E731
        if tag == "rect" and element.get("fill") not in ("#f3f6fa",) and number("width") < 400:
            left, top = x + number("x"), y + number("y")
            boxes.append((left, top, left + number("width"), top + number("height")))
        if tag == "text":
            width = len(element.text) * 7.23
            left = x + number("x") - (width / 2 if element.get("text-anchor") == "middle" else 0)
            base = y + number("y")
            texts.append((left, base - 10, left + width, base + 3))
        for child in element:
            walk(child, x, y)

    walk(ElementTree.fromstring(drawn), 0.0, 0.0)
    return boxes, texts


def overlap(a, b) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def inside(a, b) -> bool:
    return b[0] <= a[0] and a[2] <= b[2] and b[1] <= a[1] and a[3] <= b[3]


@pytest.mark.parametrize("name", GRAPHS)
def test_nothing_in_a_picture_overlaps(name):
    boxes, texts = boxes_and_texts(svg(GRAPHS[name]))
    assert len(boxes) > 3 and len(texts) > 8
    assert not [pair for pair in combinations(texts, 2) if overlap(*pair)]
    assert not [pair for pair in combinations(boxes, 2) if overlap(*pair)]
    for line in texts:
        assert all(inside(line, box) or not overlap(line, box) for box in boxes)


def test_picture_escapes_names():
    x = Node(Op.LOAD, (), "<script>", ("a&b",))
    graph = SGraph((Kernel(BlockGraph((), None, (Node(Op.SAVE, (x,), "O"),)), make_mapping([])),))
    drawn = svg(graph)
    assert "<script>" not in drawn and "&lt;script&gt;" in drawn and "a&amp;b" in drawn


def test_layout_keeps_lanes_for_long_edges_apart_from_nodes():
    layer = {"a": 0, "b": 1, "c": 2}
    layout = place(layer, dict.fromkeys(layer, 60.0), [("a", "b"), ("b", "c"), ("a", "c")])
    (lane,) = layout.lanes["a", "c"]
    assert abs(lane - layout.x["b"]) >= 30 + 7
    assert min(layout.x.values()) >= 30
    with pytest.raises(ValueError, match="later layer"):
        place(layer, dict.fromkeys(layer, 60.0), [("c", "a")])
