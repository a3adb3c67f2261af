"""What generated files say of themselves: formulas that read back, and nothing of the graph."""

from dataclasses import replace

import pytest
from codegen_graphs import rmsnorm

from prism.codegen import BACKENDS
from prism.codegen.about import about
from prism.codegen.lower import lower
from prism.config import ROOT, compose, program_of, workload_of
from prism.instantiate import Concrete
from prism.program import Builder, parse
from prism.program.text import formula

WORKLOADS = sorted(path.stem for path in (ROOT / "conf" / "workload").glob("*.yaml"))


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_formula_reads_back_as_the_same_program(name):
    program = program_of(workload_of(compose([f"workload={name}"])))
    inputs = {tensor: list(node.axes) for tensor, node in program.arguments.items()}
    given = (program.sizes, program.params, program.dtype, [n for n, _ in program.outputs])
    lines = formula(program)
    assert parse(program.name, "\n".join(lines), inputs, *given).outputs == program.outputs
    assert len({line.partition(" = ")[0] for line in lines}) == len(lines), "names are new"


def test_shared_values_and_outputs_have_names_that_are_free():
    builder = Builder("p", {"n": 4, "m": 8}, dtype="fp32")
    x = builder.input("t1", "n m")
    y = builder.exp(x)
    total = builder.sum(y, "m")
    program = builder.build(S=total, O=builder.sub(builder.div(y, total), builder.add(x, y)))
    assert formula(program) == [
        "t2 = exp(t1)",
        "S = sum(t2, m)",
        "O = (t2 / S) - (t1 + t2)",
    ]


@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_a_file_names_program_sizes_and_options_and_no_graph(backend):
    (program, graph), manifest = rmsnorm(8, 100, 70, "bf16"), BACKENDS[backend]
    options = {name: values[0] for name, values in manifest.options.items()}
    tile = lower(Concrete(program, graph, [{"x": 3, "i": 7}], options), manifest.library)
    text = manifest.source(tile)
    head = text[: text.index("import triton" if backend == "triton" else "#include")]
    for part in ("program rmsnorm in bf16: n=8 d=100 f=70", "O = matmul(X / sqrt(", "grid x=3"):
        assert part in head
    assert "loop i=7" in head and "prism_run(" in head
    assert all(f"{name}={value}" in head for name, value in options.items())
    odd = about(replace(tile, name='a"""\n\\ */'), {})
    assert '"' not in "".join(odd) and "\\" not in "".join(odd) and "\n" not in "".join(odd)
    renamed = about(replace(tile, options={}), {})
    assert renamed[-1].endswith("Options: none.")


@pytest.mark.parametrize("backend", ["cpu", "triton"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_file_says_where_values_are_rounded(backend, dtype):
    program, graph = rmsnorm(8, 100, 70, dtype)
    manifest = BACKENDS[backend]
    options = {name: values[0] for name, values in manifest.options.items()}
    tile = lower(Concrete(program, graph, [{"x": 3, "i": 7}], options), manifest.library)
    head = " ".join(manifest.source(tile)[:2000].replace("//", " ").split())
    rounded = "inputs and outputs are rounded to bf16, all between and all sums are fp32; "
    assert ("all is fp32" in head) == (dtype == "fp32") != (rounded in head)
    where = {"cpu": "has AVX512-BF16", "triton": "what library operators return"}[backend]
    assert (where in head) == (dtype == "bf16")
