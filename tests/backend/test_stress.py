"""Random programs and shapes: float64 reference, tile interpreter and CPU kernels agree.

The programs are drawn by hypothesis with fixed seeds. Each is searched; of its proved graphs some
are drawn, of one kernel, of two and with library operators, with random sizes of their parallel
dimensions, and many are compiled as one source. What an assertion names can be run again alone.
"""

import random
from dataclasses import dataclass, replace
from itertools import zip_longest

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from one_source import compiled
from plans import can_be_lowered, point

from prism.codegen.interpreter import run
from prism.codegen.lower import lower
from prism.files import write_json
from prism.instantiate import Concrete
from prism.instantiate.stable import refused
from prism.measure.gate import EAGER_FACTOR, Error, Gate, measure_error
from prism.measure.inputs import Rotation, make_inputs, round_to, widen, write_case
from prism.measure.library import gate_library
from prism.measure.torch_program import from_torch, to_torch, torch_callable, torch_source
from prism.program import Builder, Op, Program
from prism.search import Bounds, search

pytestmark = pytest.mark.backend

AXES = "abck"
SIZES = [1, 2, 3, 5, 7, 8, 13, 16, 17, 19, 24, 31, 32, 33, 40]
BOUNDS = Bounds(grid=2, kernels=3, extra_operators=0, seconds=20.0)


@dataclass(frozen=True)
class Drawn:
    """A program with sizes, the seed of inputs and choices, and the inputs' magnitude."""

    program: Program
    seed: int
    magnitude: float


@st.composite
def drawn(draw) -> Drawn:
    """A program of two or three inputs over up to four axes, and one or two outputs."""
    sizes = {axis: draw(st.sampled_from(SIZES)) for axis in AXES}
    dtype = draw(st.sampled_from(["bf16", "fp16", "fp32"]))
    b = Builder("stress", sizes, dtype, {"eps": draw(st.sampled_from([1e-5, 0.5]))})
    some = st.lists(st.sampled_from(AXES), min_size=1, max_size=3, unique=True)
    values = [b.input(name, draw(some)) for name in "XYZ"[: draw(st.integers(2, 3))]]
    unused = list(values)
    for _ in range(draw(st.integers(2, 6))):
        x = unused.pop(draw(st.integers(0, len(unused) - 1))) if unused else values[-1]
        y = draw(st.sampled_from(values))
        made, uses = draw(_operator(b, x, y))
        unused = [value for value in unused if value not in uses] + [made]
        values.append(made)
    result = unused[0]
    for other in unused[1:]:
        result = b.add(result, other)
    outputs = {"O": result}
    extra = values[-1]
    if extra is not result and extra.op is not Op.INPUT and draw(st.booleans()):
        outputs["P"] = extra
    magnitude = draw(st.sampled_from([1.0, 1.0, 0.01, 10.0]))
    return Drawn(b.build(**outputs), draw(st.integers(0, 2**16)), magnitude)


@st.composite
def _operator(draw, b: Builder, x, y):
    """A value made of x, or of x and y, and which of them it uses."""
    shared = [axis for axis in x.axes if axis in y.axes]
    kinds = ["unary", "binary", "constant"]
    kinds += ["matmul", "matmul"] if shared else []
    kinds += ["reduce", "softmax", "rms_norm"] if x.axes else []
    kind = draw(st.sampled_from(kinds))
    if kind == "matmul":
        axis = draw(st.sampled_from(shared))
        return b.scale(b.matmul(x, y, axis), f"1 / sqrt({axis})"), (x, y)
    if kind == "binary":
        operator = draw(st.sampled_from(["add", "sub", "mul", "ratio"]))
        if operator == "ratio":
            return b.div(x, b.sqrt(b.shift(b.square(y), 1))), (x, y)
        return getattr(b, operator)(x, y), (x, y)
    if kind == "constant":
        operator = draw(st.sampled_from(["scale", "shift"]))
        return getattr(b, operator)(x, draw(st.sampled_from([0.5, -1, 3, "eps"]))), (x,)
    if kind == "reduce":
        axis = draw(st.sampled_from(x.axes))
        if draw(st.booleans()):
            return b.max(x, axis), (x,)
        return b.scale(b.sum(x, axis), f"1 / sqrt({axis})"), (x,)
    if kind in ("softmax", "rms_norm"):
        return getattr(b, kind)(x, draw(st.sampled_from(x.axes))), (x,)
    operator = draw(st.sampled_from(["relu", "silu", "gelu", "square", "exp", "attend"]))
    if operator == "exp":  # of a bounded operand: else overflow is all that there is to see
        return b.exp(b.rms_norm(x, x.axes[0]) if x.axes else b.scale(x, "1 / 64")), (x,)
    if operator == "attend":
        if len(x.axes) < 2:
            return b.relu(x), (x,)
        query, key = draw(st.permutations(x.axes))[:2]
        align = draw(st.sampled_from(["last", "first"]))
        return b.softmax(b.add(x, b.causal(query, key, align)), key), (x,)
    return getattr(b, operator)(x), (x,)


def examples(count: int, seed: int) -> list[Drawn]:
    """What hypothesis draws from `drawn` with this seed."""
    found: list[Drawn] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn())
    def collect(example):
        found.append(example)

    collect()
    return found


def graphs(example: Drawn, plans: int) -> list[Concrete]:
    """Proved graphs of the program, at random sizes: of one kernel and of several by turns."""
    program, rng = example.program, random.Random(example.seed)
    symbolic = replace(program, sizes={axis: axis for axis in program.sizes})
    space = search(symbolic, BOUNDS).space
    assert space.count
    names = [space.draw(12, example.seed, single) for single in (True, False)]
    found: list[Concrete] = []
    for name in (n for pair in zip_longest(*map(shuffled(rng), names)) for n in pair if n):
        mapped = space.graph(name)
        concrete = None if refused(program, [mapped]) else point(program, mapped, rng)
        if concrete is not None and can_be_lowered(concrete):
            found.append(concrete)
        if len(found) == plans:
            break
    return found


def shuffled(rng: random.Random):
    return lambda names: rng.sample(names, len(names))


def gate_of(example: Drawn, folder) -> Gate:
    """The gate with eager's outputs. Eager's share is not capped here: a random program may well be
    ill conditioned, and then all that can be asked is to be as near as eager."""
    program = example.program
    inputs = {
        name: round_to(widen(array, program.dtype) * example.magnitude, program.dtype)
        for name, array in make_inputs(program, example.seed).items()
    }
    case = write_case(program, folder, example.seed, 1 << 10, inputs)
    tensors = [to_torch(array.copy(), program.dtype) for array in case.inputs().values()]
    for name, output in zip(case.shapes(), torch_callable(program)(*tensors), strict=True):
        from_torch(output).tofile(folder / f"eager.{name}.raw")
    write_json(folder / "eager.json", {"seconds": 0.0})
    gate = Gate(case)
    for name in gate.without_eager:
        eager = measure_error(widen(gate.eager[name], gate.dtype), gate.references[name])
        both = zip(vars(eager).items(), vars(gate.bounds[name]).values(), strict=True)
        gate.bounds[name] = Error(**{norm: max(EAGER_FACTOR * e, b) for (norm, e), b in both})
    return gate


def interpreted(concrete: Concrete, gate: Gate) -> str:
    """What the interpreter has wrong: in float64 beyond 1e-9, in float32 beyond the gate."""
    tile, case = lower(concrete), gate.case
    wide = {n: widen(a, case.dtype) for n, a in case.inputs().items()}
    exact = run(tile, wide, np.float64)
    for name, reference in gate.references.items():
        scale = np.max(np.abs(reference), where=np.isfinite(reference), initial=0.0)
        if not np.allclose(exact[name], reference, rtol=1e-9, atol=1e-9 * scale, equal_nan=True):
            return f"interpreter in float64: output {name}"
    single = {n: round_to(a, case.dtype) for n, a in run(tile, wide, np.float32).items()}
    verdict = gate.check(single)
    return "" if verdict.passed else f"interpreter in float32: {verdict.reason}"


def disagreements(drawn: list[Drawn], plans: int, folder) -> list[str]:
    """Of all graphs what is wrong, and how to make it again."""
    found, kernels = [], []
    for number, example in enumerate(drawn):
        gate = gate_of(example, folder / str(number))
        for concrete in graphs(example, plans):
            if reason := interpreted(concrete, gate):
                found.append(told(example, concrete, reason))
            kernels.append((example, concrete, gate))
    assert len(kernels) > len(drawn)
    libraries = compiled([lower(concrete) for _, concrete, _ in kernels], folder, flags=("-O1",))
    for (example, concrete, gate), library in zip(kernels, libraries, strict=True):
        verdict = gate_library(library, gate, Rotation(gate.case.inputs(), 1))
        if not verdict.passed:
            found.append(told(example, concrete, f"CPU: {verdict.reason}"))
    return found


def told(example: Drawn, concrete: Concrete, reason: str) -> str:
    """A disagreement, with all that it takes to repeat it."""
    return (
        f"{reason}\n{torch_source(example.program)}sizes {example.program.sizes}, "
        f"{example.program.dtype}, seed {example.seed}, magnitude {example.magnitude}\n"
        f"{concrete.to_json()}"
    )


# Seeds of hypothesis; each gives PROGRAMS programs.
PROGRAMS = 25


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=[pytest.mark.slow] * (n > 1)) for n in range(20)]
)
def test_500_random_programs_agree(seed, tmp_path):
    found = disagreements(examples(PROGRAMS, seed), 2, tmp_path)
    assert not found, "\n\n".join(found)
