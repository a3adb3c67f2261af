"""Causal and additive masks in programs: what they mean, and that they are in no memory."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from codegen_graphs import graph, load, op
from masked import FORMULA, INPUTS, graphs, masked, points
from workloads import PROGRAMS

from prism.codegen import BACKENDS, LoweringError
from prism.codegen.interpreter import run
from prism.codegen.lower import lower
from prism.config import compose, device_of, program_of, symbolic, workload_of
from prism.errors import PrismError
from prism.given import difference
from prism.instantiate.concrete import Concrete
from prism.measure.inputs import make_inputs, write_case
from prism.measure.torch_program import torch_callable, torch_source
from prism.measure.tune import read_source
from prism.model.device import Device
from prism.model.roofline import compulsory_bytes
from prism.model.traffic import traffic
from prism.program import (
    Builder,
    Op,
    evaluate,
    parse,
    program_from_json,
    program_to_json,
)
from prism.program.canonical import canonical
from prism.program.mask import Causal
from prism.program.text import formula
from prism.search.pieces import pieces

SIZES = dict(b=2, g=3, d=8, e=4)
LENGTHS = [(7, 7), (5, 13), (5, 2), (1, 9), (4, 1)]


def arrays(program, seed=0):
    numbers = np.random.default_rng(seed)
    shapes = {name: program.shape(node) for name, node in program.arguments.items()}
    return {name: numbers.normal(size=shape) for name, shape in shapes.items()}


def visible(queries, keys, align="last"):
    """Whether a query sees a key, said one by one."""
    behind = keys - queries if align == "last" else 0
    return torch.tensor([[k <= q + behind for k in range(keys)] for q in range(queries)])


def fails(formula, inputs=INPUTS):
    sizes = {axis: axis for names in inputs.values() for axis in names}
    with pytest.raises(PrismError) as error:
        parse("p", formula, inputs, sizes, {})
    assert "\n" not in str(error.value)
    return str(error.value)


# The language -----------------------------------------------------------------------------


def test_a_mask_is_an_input_that_nobody_gives():
    program = masked(**SIZES, s=5, h=2)
    assert list(program.inputs) == ["Q", "K", "V", "causal_s_h"]
    assert list(program.arguments) == ["Q", "K", "V"]
    assert program.generated == {"causal_s_h": Causal("s", "h", "last")}
    assert program.inputs["causal_s_h"].axes == ("s", "h")


def test_one_mask_however_often_it_is_written():
    axes = {"X": ["s", "h"], "Y": ["h", "s"]}
    formula = "A = X + causal(s, h)\nO = A + Y + causal(s, h) + causal(s, h, first) + causal(h, s)"
    sizes = {"s": 2, "h": 3}
    program = parse("p", formula, axes, sizes, {}, "fp32")
    assert list(program.generated) == ["causal_s_h", "causal_s_h_first", "causal_h_s"]
    last, first, back = program.generated.values()
    assert (last.align, first.align, back.axes) == ("last", "first", ("h", "s"))
    found = evaluate(program, {"X": np.zeros((2, 3)), "Y": np.zeros((3, 2))})["O"]
    sees = visible(2, 3) & visible(2, 3, "first") & visible(3, 2).T
    np.testing.assert_array_equal(found, np.where(sees, 0.0, -np.inf))


def test_names_of_masks_are_apart():
    b = Builder("p", {"a": 2, "b_c": 2, "a_b": 2, "c": 2}, "fp32")
    one, other = b.causal("a", "b_c"), b.causal("a_b", "c")
    logits = [b.input("X", "a b_c"), b.input("Y", "a_b c")]
    program = b.build(O=b.add(logits[0], one), P=b.add(logits[1], other))
    assert one is not other and len(program.generated) == 2


@pytest.mark.parametrize(
    ("formula", "how"),
    [
        ("O = X * causal(s, h)", "here it is mul"),
        ("O = X - causal(s, h)", "here it is sub"),
        ("O = X + causal(s, d)", r"added to axes \['s', 'h'\]"),
        ("O = matmul(X, causal(s, h), h)", "here it is matmul"),
        ("O = X + relu(causal(s, h))", "here it is relu"),
    ],
)
def test_a_mask_is_added_and_nothing_else(formula, how):
    sizes = {"s": 2, "h": 3, "d": 4}
    with pytest.raises(PrismError, match=how):
        parse("p", f"{formula} + Y", {"X": ["s", "h"], "Y": ["d"]}, sizes, {})


@pytest.mark.parametrize("align", ["last", "first"])
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
def test_alignment(queries, keys, align):
    b = Builder("p", {"s": queries, "h": keys}, "fp32")
    program = b.build(O=b.add(b.input("X", "s h"), b.causal("s", "h", align)))
    mask = evaluate(program, {"X": np.zeros((queries, keys))})["O"]
    np.testing.assert_array_equal(mask == 0, visible(queries, keys, align))
    assert np.isneginf(mask[mask != 0]).all()


def test_five_queries_and_two_keys():
    """The last query sees the last key, so the first three see none (flash-attention#1778)."""
    b = Builder("p", {"s": 5, "h": 2}, "fp32")
    program = b.build(O=b.add(b.input("X", "s h"), b.causal("s", "h")))
    mask = evaluate(program, {"X": np.zeros((5, 2))})["O"]
    no = -np.inf
    np.testing.assert_array_equal(mask, [[no, no], [no, no], [no, no], [0, no], [0, 0]])


def test_errors_are_one_line():
    start = "program p: formula line 1: "
    assert fails("O = matmul(Q, K, d) + causal(s, z)") == (
        start + "causal: axis 'z' has no size; sizes are ['b', 'd', 'e', 'g', 'h', 's']"
    )
    assert fails("O = Q + causal(s, s)") == start + "causal: both axes are 's'"
    assert fails("O = Q + causal(s, h, middle)") == (
        start + "causal: alignment 'middle' is not one of last, first"
    )
    assert fails("O = Q + causal(Q + K, h)") == start + "causal: 'Q + K' is not an axis name"
    assert fails("O = Q + causal(s)") == start + "causal takes 2 or 3 argument(s), got 1"
    taken = {"causal_s_h": ["s", "h"]}
    assert fails("O = causal_s_h + causal(s, h)", taken) == (
        start + "input 'causal_s_h' is declared twice"
    )


@pytest.mark.parametrize(
    "call",
    ["sliding_window(s, h, 4)", "rope(Q, d)", "topk(Q, 2, d)", "where(Q, Q, Q)", "alibi(s, h)"],
)
def test_what_the_language_does_not_have_is_named(call):
    """With what it has."""
    text, name = fails(f"A = Q\nO = Q + {call}"), call.partition("(")[0]
    start = f"program p: formula line 2: unknown operator {name!r}"
    assert text.startswith(start) and "; known are add, causal, div" in text
    assert ("added masks logits" in text) == (name in ("sliding_window", "where"))


def test_as_text():
    for align, mask in (("last", "causal(s, h)"), ("first", "causal(s, h, first)")):
        assert f" + {mask})" in "\n".join(formula(masked(align)))


# What is kept -----------------------------------------------------------------------------


@pytest.mark.parametrize("align", ["last", "first"])
def test_round_trip(align):
    program = masked(align, **SIZES, s=5, h=2)
    data = json.loads(json.dumps(program_to_json(program)))
    assert program_from_json(data) == program
    assert difference(program_from_json(data), program) == ""
    assert "generated" not in program_to_json(PROGRAMS["attention"])


def test_spoiled_rules_are_refused():
    data = program_to_json(masked(**SIZES, s=5, h=2))
    for change in ({"rule": "rope"}, {"align": "middle"}, {"query": "h", "key": "s"}):
        rule = data["generated"]["causal_s_h"] | change
        with pytest.raises(PrismError, match=r"^(program: not readable|causal: alignment)"):
            program_from_json(data | {"generated": {"causal_s_h": rule}})


def test_the_rule_is_part_of_what_a_search_is_remembered_by():
    programs = [masked(align) for align in ("last", "first")]
    same = parse("other", FORMULA.replace("MASK", "causal(s, h)"), INPUTS, masked().sizes, {})
    last, first, other = (canonical(p)[0] for p in (*programs, same))
    (name,) = last.generated
    assert last.inputs[name].axes == last.generated[name].axes
    assert replace(last, name="") == replace(other, name="", dtype="fp32")
    assert program_to_json(last) != program_to_json(first)
    assert difference(*programs)


def test_pieces_keep_their_masks():
    parts = pieces(masked(), 3)
    assert [list(part.generated) for part in parts if part.generated] == [["causal_s_h"]]
    for part in parts:
        assert part.generated.keys() <= part.inputs.keys()


# Values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("align", ["last", "first"])
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
def test_the_reference_is_torch(queries, keys, align):
    program = masked(align, **SIZES, s=queries, h=keys)
    given = arrays(program)
    q, k, v = (torch.from_numpy(given[name]) for name in "QKV")
    mask = visible(queries, keys, align)
    found = evaluate(program, given)["O"]
    logits = (q @ k.mT / 8**0.5).masked_fill(~mask, -torch.inf)
    np.testing.assert_allclose(found, (logits.softmax(-1) @ v).numpy(), 1e-12, 1e-12)
    np.testing.assert_array_equal(np.isnan(found[0, 0, :, 0]), ~mask.any(1))  # sees no key
    if mask.any(1).all():
        call = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        np.testing.assert_allclose(found, call.numpy(), 1e-12, 1e-12)
    if queries == keys or align == "first":
        call = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        np.testing.assert_allclose(found, call.numpy(), 1e-12, 1e-12)


def test_additive_mask_of_the_smallest_numbers_averages():
    """A row entirely at -3.4028e38 is the plain average of V, no NaN (pytorch#109517); one entirely
    at -inf is NaN, as in PyTorch."""
    program = masked("additive", **SIZES, s=3, h=5)
    given = arrays(program)
    given["M"][:] = 0
    given["M"][0], given["M"][1] = np.finfo(np.float32).min, -np.inf
    found = evaluate(program, given)["O"]
    np.testing.assert_allclose(found[:, :, 0], given["V"].mean(2), 1e-6, 1e-6)
    assert np.isnan(found[:, :, 1]).all() and np.isfinite(found[:, :, 2]).all()


# Kernels ----------------------------------------------------------------------------------


@pytest.mark.parametrize("numerics", ["stable", "paper"])
@pytest.mark.parametrize("mask", ["last", "first", "additive"])
def test_proved_graphs_compute_their_program_at_ragged_sizes(mask, numerics):
    rng = random.Random(f"{mask} {numerics}")
    symbols, found = graphs(mask, 25, numerics)
    ran = 0
    for mapped in found:
        queries, keys = rng.choice([(7, 7), (5, 13), (5, 2), (1, 11)])
        sizes = dict(b=rng.randint(1, 2), g=2, s=queries, h=keys, d=5, e=3)
        program = replace(symbols.bind(**sizes), numerics=numerics)
        given = arrays(program, rng.randrange(1000))
        want = evaluate(program, given)["O"]
        for concrete in points(program, mapped, rng, 2):
            try:
                tile = lower(concrete)
            except LoweringError as error:  # refused with a reason, never wrong
                assert any(x in str(error) for x in ("ragged", "different", "is a mask")), error
                continue
            ran += 1
            np.testing.assert_allclose(run(tile, given, np.float64)["O"], want, 1e-9, 1e-9)
    assert ran >= len(found) >= 20


def tiles(count=8, **sizes):
    """Lowered graphs of causal attention."""
    rng = random.Random(0)
    symbols, found = graphs("last", count)
    program = symbols.bind(**(SIZES | sizes))
    options = {"num_warps": 4, "num_stages": 2}
    for mapped in found:
        yield from (lower(c) for c in points(program, mapped, rng, 1, 1, options))


def test_a_mask_is_no_argument_and_no_memory():
    found = list(tiles(s=6, h=10))
    assert len(found) >= 8
    for tile in found:
        assert tile.inputs == ("Q", "K", "V")
        assert tile.tensors["causal_s_h"].role == "mask"
        for backend in ("cpu", "triton"):
            options = {} if backend == "cpu" else tile.options
            text = BACKENDS[backend].source(replace(tile, options=options))
            assert "g_causal" not in text and "g_Q" in text
            assert "causal_s_h" in text


def test_a_mask_costs_no_traffic():
    gpu = Device.from_json(device_of(compose(["device=h200", "dtype=fp16"]))).gpu
    symbols, found = graphs("last", 8)
    plain = masked("additive", **SIZES, s=64, h=64)
    program = symbols.bind(**SIZES, s=64, h=64)
    assert compulsory_bytes(plain) - compulsory_bytes(program) == 4 * 64 * 64
    rng, checked = random.Random(1), 0
    for mapped in found:
        for concrete in points(program, mapped, rng, 1, 1):
            tile = lower(concrete)
            made = dict(tile.tensors)
            made["causal_s_h"] = replace(made["causal_s_h"], role="input")
            for kernel in tile.kernels:
                reads = "v_causal_s_h" in kernel.views
                less = traffic(kernel, tile.tensors, gpu).cache < traffic(kernel, made, gpu).cache
                assert less == reads
                checked += reads
    assert checked >= 8


def test_a_mask_is_no_factor_of_a_product():
    b = Builder("p", {"s": 3, "h": 4, "e": 5}, "fp32")
    logits = b.add(b.input("X", "s h"), b.causal("s", "h"))
    program = b.build(O=b.matmul(logits, b.input("V", "h e"), "h"))
    product = op(Op.MATMUL, load("causal_s_h", "s h"), load("V", "h e"), arg="h")
    mapped = graph(op(Op.SAVE, product, arg="O"))
    with pytest.raises(LoweringError, match="^matmul: causal_s_h is a mask, which is in no memory"):
        lower(Concrete(program, mapped, [{}]))


# What is measured -------------------------------------------------------------------------


def test_no_array_is_made_of_a_mask(tmp_path):
    program = masked(**SIZES, s=5, h=9)
    case = write_case(program, tmp_path, 0, 1 << 20)
    assert set(make_inputs(program, 0)) == set(case.inputs()) == {"Q", "K", "V"}
    assert not list(tmp_path.glob("*causal*"))
    assert case.data["input_bytes"] == sum(a.nbytes for a in case.inputs().values())
    assert case.program == program
    assert read_source(case, BACKENDS["cpu"]).count("k < 3") == 1


@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize("mask", ["last", "first", "additive"])
def test_as_a_pytorch_user_writes_it(mask, attention):
    for queries, keys in ((7, 7), (5, 13)):
        program = masked(mask, **SIZES, s=queries, h=keys)
        text, given = torch_source(program, attention), arrays(program)
        tensors = [torch.from_numpy(array).float() for array in given.values()]
        (found,) = torch_callable(program, attention)(*tensors)
        np.testing.assert_allclose(found.numpy(), evaluate(program, given)["O"], 1e-4, 1e-5)
        assert ("scaled_dot" in text) == attention
        inside = text[text.index("def program") :]
        assert "torch.full" not in inside  # made once, outside of what is timed
        alike = mask == "first" or (mask == "last" and queries == keys)
        assert ("is_causal=True" in text) == (attention and alike)
        assert ("attn_mask=" in text) == (attention and not alike)


def test_a_mask_of_keys_and_queries_is_not_that_of_a_call():
    """`causal(h, s)`: key i of the mask sees query j, which `is_causal` would turn around."""
    inputs = {"Q": ["s", "d"], "K": ["h", "d"], "V": ["h", "e"]}
    formula = "O = matmul(softmax(matmul(Q, K, d) + causal(h, s), h), V, h)"
    program = parse("turned", formula, inputs, dict(s=6, h=6, d=8, e=4), {}, "fp32")
    text, given = torch_source(program, attention=True), arrays(program)
    assert "is_causal" not in text and "attn_mask=" in text
    (found,) = torch_callable(program, True)(*(torch.from_numpy(a).float() for a in given.values()))
    np.testing.assert_allclose(found.numpy(), evaluate(program, given)["O"], 1e-4, 1e-5)


def test_a_mask_with_an_axis_that_logits_lack_is_no_part_of_a_call():
    b = Builder("wider", dict(b=2, s=3, h=4, d=5, e=6), "fp32")
    q, k, v = b.input("Q", "s d"), b.input("K", "h d"), b.input("V", "h e")
    logits = b.add(b.matmul(q, k, "d"), b.input("M", "b s h"))
    program = b.build(O=b.matmul(b.softmax(logits, "h"), v, "h"))
    text, given = torch_source(program, attention=True), arrays(program)
    assert "scaled_dot" not in text
    (found,) = torch_callable(program, True)(*(torch.from_numpy(a).float() for a in given.values()))
    np.testing.assert_allclose(found.numpy(), evaluate(program, given)["O"], 1e-4, 1e-5)


def test_a_mask_of_grouped_queries_is_folded_outside_of_the_call():
    inputs = INPUTS | {"Q": ["b", "g", "r", "s", "d"]}
    formula, sizes = FORMULA.replace("MASK", "causal(s, h)"), dict(SIZES, r=2, s=5, h=9)
    program = parse("grouped", formula, inputs, sizes, {}, "fp32")
    text, given = torch_source(program, attention=True), arrays(program)
    inside = text[text.index("def program") :]
    assert "expand" in text and "expand" not in inside and "attn_mask=mask_1" in inside
    (found,) = torch_callable(program, True)(*(torch.from_numpy(a).float() for a in given.values()))
    np.testing.assert_allclose(found.numpy(), evaluate(program, given)["O"], 1e-4, 1e-5)


@pytest.mark.parametrize("name", ["causal_attention", "masked_attention"])
def test_workload_files(name):
    workload = workload_of(compose([f"workload={name}"]))
    program = program_of(workload)
    assert symbolic(workload).sizes.keys() == program.sizes.keys()
    assert ("causal_s_h" in program.generated) == (name == "causal_attention")
    assert "causal_s_h" not in workload["inputs"]
