"""Concrete graphs, the parameter space, sampling."""

from collections import Counter

import pytest
from codegen_graphs import attention, graph, load, op, rmsnorm
from hypothesis import given
from hypothesis import strategies as st

from prism.codegen.lower import lower
from prism.errors import PrismError
from prism.instantiate import Concrete, sample, sizes
from prism.instantiate.materialize import scratch_bytes
from prism.instantiate.space import problem
from prism.instantiate.spans import ceil_div, divides, kernel_spans
from prism.program import Builder, Op


@given(st.integers(1, 5000))
def test_proposed_sizes_leave_no_chunk_empty(extent):
    b = Builder("p", {"n": extent}, "fp32")
    program = b.build(O=b.exp(b.input("X", "n")))
    mapped = graph(op(Op.SAVE, op(Op.EXP, load("X", "n")), arg="O"), grid="x", ones="X.n.x O.n.x")
    values = sizes(program, mapped.kernels[0])["x"]
    assert values[0] == 1 and values == tuple(sorted(set(values)))
    assert all((d - 1) * ceil_div(extent, d) < extent for d in values)
    assert extent > 64 or extent in values  # short axes may be cut into single elements


def test_divides_is_the_definition():
    for extent in range(1, 40):
        for count in range(1, 45):
            chunk = ceil_div(extent, count)
            starts = [i * chunk for i in range(count)]
            assert divides(extent, count) == all(s < extent for s in starts)


def test_json_round_trip_and_digest():
    program, mapped = rmsnorm(8, 64, 48, "bf16")
    one = Concrete(program, mapped, ({"x": 4, "i": 2},), {"schedule": "static"})
    again = Concrete.from_json(one.to_json())
    assert again == one and again.digest() == one.digest() and len(one.digest()) == 12
    other = Concrete(program, mapped, ({"x": 4, "i": 4},), {"schedule": "static"})
    assert other.digest() != one.digest()


@pytest.mark.parametrize("bad", [{"x": 4}, {"x": 4, "i": 0}, {"x": 4, "i": True}, {"i": 1, "y": 1}])
def test_bad_sizes_are_refused(bad):
    program, mapped = rmsnorm(8, 64, 48)
    with pytest.raises(PrismError, match="concrete graph: "):
        Concrete(program, mapped, (bad,))


def test_unreadable_json_is_refused():
    with pytest.raises(PrismError, match="concrete graph: not readable"):
        Concrete.from_json({"program": {}})


def test_sample_is_deterministic_without_repeats_and_complete():
    program, mapped = rmsnorm(4, 48, 20)
    options = {"schedule": ("static", "dynamic")}
    few = sample([("a", mapped)], program, 10, 7, options)
    assert few == sample([("a", mapped)], program, 10, 7, options)
    assert few != sample([("a", mapped)], program, 10, 8, options)
    everything = sample([("a", mapped)], program, 10**6, 7, options)
    values = sizes(program, mapped.kernels[0])
    assert len(everything) == len(values["x"]) * len(values["i"]) * 2
    assert len({c.digest() for _, c in everything}) == len(everything)
    assert everything[:10] == few


def test_one_kernel_is_sampled_once_and_uniformly():
    """A grid dimension of size 1 is as good as none, and its name means nothing."""
    program, mapped = rmsnorm(4, 48, 20)
    kernel = mapped.kernels[0]
    narrow = graph(*kernel.block.savers, loop="i", ones="X.d.i W.d.i")
    renamed = graph(*kernel.block.savers, grid="y", loop="i", ones="W.f.y O.f.y X.d.i W.d.i")
    wide = graph(
        *kernel.block.savers, grid="xy", loop="i", ones="W.f.x O.f.x X.n.y O.n.y X.d.i W.d.i"
    )
    graphs = [("wide", wide), ("f", mapped), ("renamed", renamed), ("narrow", narrow)]
    found = sample(graphs, program, 10**6, 0, {})
    values = sizes(program, wide.kernels[0])
    x, y, i = (len(values[par]) for par in "xyi")
    assert len(found) == x * y * i
    # With a loop of one iteration no graph of the list is the owner; the first one drawn stays.
    count = Counter(name for name, c in found if c.sizes[0]["i"] > 1)
    # Rows alone are no graph of the list, so that `wide` keeps its points with x=1.
    assert count == {"wide": (y - 1) * x * (i - 1), "f": (x - 1) * (i - 1), "narrow": i - 1}
    count = Counter(name for name, _ in found)
    small = Counter(name for s in range(300) for name, _ in sample(graphs, program, 1, s, {}))
    assert abs(small["wide"] / 300 - count["wide"] / len(found)) < 0.1


def test_grid_and_loop_on_one_axis_are_limited_together():
    b = Builder("p", {"n": 2, "f": 50}, "fp32")
    program = b.build(O=b.exp(b.input("X", "n f")))
    value = op(Op.ACCUM, op(Op.EXP, load("X", "n f")), arg="concat:f")
    mapped = graph(op(Op.SAVE, value, arg="O"), grid="x", loop="i", ones="X.f.x X.f.i O.f.x")
    points = [c.sizes[0] for _, c in sample([("a", mapped)], program, 10**6, 0, {})]
    assert {"x": 50, "i": 1} in points and {"x": 1, "i": 50} in points
    assert all(divides(ceil_div(50, p["x"]), p["i"]) for p in points)
    assert "axis 'f'" in problem(program, mapped.kernels[0], {"x": 25, "i": 5})


def test_scratch_bound_is_what_lowering_allocates():
    program, mapped = attention(2, 4, 3, 640, 16, 24)
    for _, concrete in sample([("a", mapped)], program, 20, 0, {}):
        kernel = concrete.kernels[0]
        spans = kernel_spans(program, kernel, concrete.sizes[0])
        buffers = lower(concrete).kernels[0].buffers.values()
        assert scratch_bytes(kernel, spans) == sum(4 * b.size for b in buffers)
    small = sample([("a", mapped)], program, 10**6, 0, {}, scratch_limit=4096)
    large = sample([("a", mapped)], program, 10**6, 0, {})
    assert 0 < len(small) < len(large)


def test_symbolic_sizes_are_refused():
    b = Builder("p", {"n": "N"}, "fp32")
    program = b.build(O=b.exp(b.input("X", "n")))
    mapped = graph(op(Op.SAVE, op(Op.EXP, load("X", "n")), arg="O"), grid="x", ones="X.n.x O.n.x")
    with pytest.raises(PrismError, match="symbolic"):
        sample([("a", mapped)], program, 1, 0, {})
