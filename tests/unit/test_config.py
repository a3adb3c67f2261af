"""Composition, overrides, workloads and the workflow's plan."""

import json
import shutil

import pytest
import yaml

from prism import config
from prism.config import compose, plain, program_of, symbolic, workload_of
from prism.errors import PrismError
from prism.program import evaluate
from prism.workflow import overrides_of, plan

# Paper section 7.1, with shapes of inputs and output in the order of the program.
PAPER = {
    "rmsnorm": [((8, 4096), (4096, 4096)), ((16, 1024), (1024, 1024))],
    "rmsnorm_mlp": [
        ((16, 1024), (1024, 1024), (1024, 1024)),
        ((8, 1024), (1024, 1024), (1024, 1024)),
    ],
    "swiglu": [((8, 2048), (2048, 2048), (2048, 2048)), ((8, 4096), (4096, 4096), (4096, 4096))],
    "attention": [
        ((2, 8, 1, 128), (2, 8, 1024, 128), (2, 8, 1024, 128)),
        ((2, 8, 1, 128), (2, 8, 2048, 128), (2, 8, 2048, 128)),
    ],
}
PAPER["qk_attention"] = PAPER["attention"]


@pytest.mark.parametrize("name", PAPER)
def test_paper_workloads_have_the_paper_shapes(name):
    cfg = compose([f"workload={name}"])
    for sizes, shapes in zip(plain(cfg.workload)["configs"], PAPER[name], strict=True):
        program = program_of(workload_of(cfg, sizes))
        assert tuple(program.shape(node) for node in program.inputs.values()) == shapes


def test_paper_workloads_compute_the_paper_formulas():
    import numpy as np

    rng = np.random.default_rng(0)

    def norm(x):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)

    def softmax(x):
        e = np.exp(x)
        return e / e.sum(-1, keepdims=True)

    def silu(x):
        return x / (1 + np.exp(-x))

    def attend(q, k, v):
        return softmax(q @ np.swapaxes(k, -1, -2)) @ v

    expected = {
        "rmsnorm": lambda x, w: norm(x) @ w,
        "rmsnorm_mlp": lambda x, up, gate: (norm(x) @ up) * (norm(x) @ gate),
        "swiglu": lambda x, gate, up: silu(x @ gate) * (x @ up),
        "attention": attend,
        "qk_attention": lambda q, k, v: attend(norm(q), k, v),
    }
    small = {"n": 3, "d": 8, "h": 7, "b": 2, "g": 3, "group": 2}
    for name, formula in expected.items():
        cfg = compose([f"workload={name}"])
        sizes = {axis: size for axis, size in small.items() if axis in cfg.workload}
        program = program_of(workload_of(cfg, sizes))
        inputs = {k: rng.normal(size=program.shape(node)) for k, node in program.inputs.items()}
        (output,) = evaluate(program, inputs).values()
        np.testing.assert_allclose(output, formula(*inputs.values()), rtol=1e-12)


def test_own_sizes_and_interpolation():
    cfg = compose(["workload.d=640", "workload.n=3"])
    assert program_of(workload_of(cfg)).sizes == {"n": 3, "d": 640, "f": 640}
    assert program_of(workload_of(cfg, {"d": 96})).sizes == {"n": 3, "d": 96, "f": 96}


def test_group_is_a_parameter_of_attention():
    program = program_of(workload_of(compose(["workload=attention", "workload.group=7"])))
    assert program.sizes["s"] == 7


def test_search_slice_is_the_same_for_all_sizes():
    def slices(*overrides):
        return json.dumps(config.search_slice(compose(overrides)))

    assert slices("workload.d=4096") == slices("workload.d=96", "workload.n=3")
    assert slices("workload.d=4096") != slices("workload.eps=1e-6")
    program = symbolic(config.search_slice(compose())["workload"])
    assert program.sizes == {"n": "n", "d": "d", "f": "f"}
    assert program.params == {"eps": 1e-5}
    assert list(program.inputs) == ["X", "W"]


def test_plan_of_the_paper_suite():
    found = plan()
    assert found["run"] == "results/paper-cpu"
    assert found["workloads"] == list(PAPER)
    assert len(found["cases"]) == 10
    assert found["cases"][:2] == ["rmsnorm@d=4096,n=8", "rmsnorm@d=1024,n=16"]
    assert "qk_attention@b=2,d=128,g=8,h=2048" in found["cases"]
    bench = json.loads(found["bench"]["rmsnorm@d=1024,n=16"])
    assert bench["workload"]["d"] == bench["workload"]["f"] == 1024
    assert bench["dtype"] == "bf16"
    assert list(bench["baseline"]) == ["eager", "compiled"]
    resolved = yaml.safe_load(found["resolved"])
    assert resolved["cases"]["rmsnorm@d=1024,n=16"] == bench["config_hash"]


def test_a_slice_changes_only_with_what_its_job_reads():
    base, other = plan(["suite=smoke"]), plan(["suite=smoke", "bench.rounds=7"])
    assert base["search"] == other["search"]
    assert base["tune"] == other["tune"]
    assert all(base["bench"][case] != other["bench"][case] for case in base["cases"])


def test_every_key_of_a_search_is_a_bound_of_it():
    from prism.search import Bounds

    for name in ("guided", "exhaustive"):
        data = config.search_slice(compose([f"search={name}", "search.library=[matmul,sum]"]))
        bounds = config.bounds_of(data["search"])
        assert bounds == Bounds(generator=name, library=("matmul", "sum"))
        assert set(vars(bounds)) == {*data["search"]} - {"name"} | {"generator"}
    with_and_without = [
        config.search_slice(compose([f"search.cache={value}"])) for value in ("true", "false")
    ]
    assert with_and_without[0] == with_and_without[1]


def test_a_suite_has_an_ablation_and_a_growth():
    found = plan()
    ablate, growth = json.loads(found["ablate"]), json.loads(found["growth"])
    program = program_of(ablate["workload"], ablate["dtype"])
    assert program.name == "rmsnorm" and program.sizes == {"n": 8, "d": 4096, "f": 4096}
    assert ablate["ablation"] == {"limit_s": 180} and growth["growth"] == {"seconds": 60}
    smoke = json.loads(plan(["suite=smoke"])["ablate"])
    assert smoke["workload"]["d"] == 256 and smoke["ablation"]["limit_s"] < 5


@pytest.mark.parametrize(
    ("overrides", "ablate", "growth"),
    [
        (["bench.rounds=3"], True, True),
        (["workload=rmsnorm"], False, False),
        (["workload=rmsnorm", "workload.d=8192"], False, False),
        (["suite.workloads=[swiglu]"], False, False),
        (["suite.workloads=[swiglu]", "suite.growth=true"], False, True),
        (["workload=swiglu", "suite.ablation.sizes={d: 64}"], True, False),
        (["suite.ablation=null", "suite.growth=false"], False, False),
    ],
)
def test_a_run_that_chooses_its_workloads_has_no_extras(overrides, ablate, growth):
    found = plan(overrides)
    assert (found["ablate"] is not None, found["growth"] is not None) == (ablate, growth)
    suite = yaml.safe_load(found["resolved"])["suite"]
    assert (suite["ablation"] is not None, suite["growth"]) == (ablate, growth)


def test_sizes_from_the_command_line_replace_the_configurations():
    assert plan(["workload=rmsnorm", "workload.d=8192"])["cases"] == ["rmsnorm@d=8192,n=8"]
    assert plan(["workload=rmsnorm", "workload.d=7e3"])["cases"] == ["rmsnorm@d=7000,n=8"]
    text = "workload=rmsnorm workload.configs='[{d: 512, n: 2}, {d: 96, n: 1}]'"
    assert plan(overrides_of([f"overrides={text}"]))["cases"] == [
        "rmsnorm@d=512,n=2",
        "rmsnorm@d=96,n=1",
    ]


@pytest.mark.parametrize(
    ("overrides", "case"),
    [
        (["workload=rmsnorm"], "rmsnorm@d=4096,n=8"),
        (["workload=rmsnorm", "workload.d=512"], "rmsnorm@d=512,n=8"),
        (["workload=rmsnorm", "workload.f=64"], "rmsnorm@d=4096,f=64,n=8"),
        (["workload=rmsnorm", "workload.d=64", "workload.f=64"], "rmsnorm@d=64,n=8"),
        (["workload=rmsnorm", "workload.eps=1e-6"], "rmsnorm@d=4096,eps=1e-06,n=8"),
        (["workload=attention", "workload.group=7"], "attention@b=2,d=128,g=8,group=7,h=1024"),
        (["workload=attention", "workload.s=3"], "attention@b=2,d=128,g=8,h=1024,s=3"),
        (["suite.workloads=[swiglu]", "workload=swiglu", "dtype=fp32"], "swiglu@d=2048,n=8"),
    ],
)
def test_the_label_has_every_size_that_is_not_implied(overrides, case):
    assert config.case_slices(compose(overrides), overrides=overrides)[1]["case"] == case
    assert plan(overrides)["cases"][0] == case


def test_the_label_has_sizes_beside_a_list_of_configurations(own_root):
    listed = "workload.configs=[{d: 96}, {d: 33, n: 2}]"
    found = plan(["suite.workloads=[rmsnorm]", "workload=rmsnorm", "workload.f=64", listed])
    assert found["cases"] == ["rmsnorm@d=96,f=64", "rmsnorm@d=33,f=64,n=2"]
    (own_root / "conf/workload/mine.yaml").write_text(
        "name: mine\nn: ???\nf: 8\ninputs: {X: [n, f]}\nformula: O = exp(X)\nconfigs: [{n: 4}]\n"
    )
    assert plan(["workload=mine", "workload.n=3"])["cases"] == ["mine@f=8,n=3"]


def test_overrides_travel_unchanged():
    text = """a=7e3 b=2024-01-01 c='x: y' d='[{e: 1}, {f: "g h"}]' i=1_000 j=010 k=null"""
    assert overrides_of([f"overrides={text}"]) == [
        "a=7e3",
        "b=2024-01-01",
        "c=x: y",
        'd=[{e: 1}, {f: "g h"}]',
        "i=1_000",
        "j=010",
        "k=null",
    ]
    assert overrides_of(None) == overrides_of(["overrides="]) == []


@pytest.mark.parametrize("value", ["2024-01-01", "'7e3'", "'a b'", "v1.0"])
def test_strings_stay_strings_down_to_the_run(value):
    found = plan(["suite=smoke", f"+baseline.eager.options.tag={value}"])
    options = json.loads(found["bench"]["rmsnorm@d=256,n=4"])["baseline"]["eager"]["options"]
    assert options["tag"] == value.strip("'")


BAD = {
    "workload=nope": "known are attention,",
    "suite=nope": "known are fp32, paper, smoke",
    "device=cuda": "known are a100, auto, cpu, h100, h200",
    "baseline=[eager,tvm]": "baseline 'tvm'",
    "workload.d=0": "size d=0",
    "workload.d=-4": "size d=-4",
    "workload.d=1.5": "size d=1.5",
    "workload.d=big": "size d='big'",
    "workload.d=": "size d=''",
    "workload.d=true": "size d=True",
    "workload.width=4": "workload.width",
    "wrkload=rmsnorm": "wrkload",
    "workload.d=1,2": "workload.d=1,2",
    "workload": "workload",
    "dtype=fp8": "device cpu can do bf16, fp16, fp32",
    "workload.f=${.q}": "'q' not found",
    "workload.inputs=3": "`inputs`",
    "workload.configs=7": "`configs`",
    "workload.formula='O = X'": "rmsnorm",
    "workload.eps=small": "eps='small'",
    "tune.count=0": "tune.count=0",
    "tune.seconds=soon": "tune.seconds='soon'",
    "bench.rounds=2.5": "bench.rounds=2.5",
    "search.grid=-1": "search.grid=-1: must be an integer from 0",
    "search.seconds=nan": "search.seconds=nan",
    "search.seconds=true": "search.seconds=True",
    "search.loop=3": "must be true or false",
    "search.split=1": "must be true or false",
    "search.cache=yes_please": "must be true or false",
    "search.grid=4": "search.grid=4: must be 3 at most",
    "search.generated=3": "search.generated=3: must be 2 at most",
    "search.generated=0": "search.generated=0: must be a positive integer",
    "search.kernels=6": "search.kernels=6: must be 5 at most",
    "search.piece=0": "search.piece=0",
    "search.memory=1.5": "search.memory=1.5",
    "search.library=matmul": "must be a list of operators such as [matmul]",
    "search.library=[matmul,gemm]": "search.library: 'gemm' is not an operator; known are add,",
    "search.operators=[plus]": "search.operators: 'plus' is not an operator",
    "search.library=[load]": "'load' is not an operator",
    "search.batch=2048": "search.batch",
    "ablation.limit_s=-1": "ablation.limit_s=-1: must be a positive number",
    "growth.seconds=nan": "growth.seconds=nan",
    "tune.count=true": "tune.count=True",
    "+workload.outputs=3": "`outputs`",
    "workload.inputs.X=[n,outputs]": "an axis named 'outputs'",
    "seed=-1": "seed=-1",
}


@pytest.mark.parametrize("override", BAD)
def test_bad_input_is_one_clear_line(override):
    with pytest.raises(PrismError) as caught:
        compose([override])
    assert BAD[override] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (["suite.workloads=[rmsnorm,nope]"], "workload 'nope'"),
        (["workload.d=512"], "choose one beside it: workload=NAME"),
        (["workload=rmsnorm", "workload.configs=[{d: 0}]"], "size d=0"),
        (["workload=rmsnorm", "workload.configs=[{q: 1}]"], "'q' is not a size"),
        (["workload=rmsnorm", "workload.configs=[]"], "rmsnorm"),
        (["suite.workloads=[]"], "no workloads"),
        (["suite.name=../../x"], "suite.name='../../x'"),
        (["suite.workloads=[rmsnorm]", "+suite.configs.rmsnorm=3"], "must be a list of sizes"),
        (["workload=rmsnorm", "workload.configs=[{}]"], "must be a list of sizes"),
        (["workload=rmsnorm", "workload.name=a/b"], "`name`"),
        (["suite.ablation=yes_please"], "ablation must be {workload: NAME, sizes: {d: 1024}}"),
        (["suite.ablation.workload=nope"], "workload 'nope'"),
        (["+suite.ablation.sizes.q=1"], "'q' is not a size"),
        (["suite.growth=3"], "growth=3: must be true or false"),
    ],
)
def test_bad_suites(overrides, part):
    with pytest.raises(PrismError) as caught:
        plan(overrides)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_raw_arguments_that_are_not_overrides():
    with pytest.raises(PrismError, match="--config suite: unknown"):
        overrides_of(["suite=smoke"])
    with pytest.raises(PrismError, match="No closing quotation"):
        overrides_of(["overrides=a='b"])


@pytest.fixture
def own_root(tmp_path, monkeypatch):
    shutil.copytree(config.ROOT / "conf", tmp_path / "conf")
    monkeypatch.setattr(config, "ROOT", tmp_path)
    return tmp_path


def test_an_own_workload_is_one_file(own_root):
    (own_root / "conf/workload/mine.yaml").write_text(
        "name: mine\nn: 4\nd: 64\nf: ${.d}\neps: 1e-6\n"
        "inputs: {X: [n, d], R: [n, d], W: [d, f]}\n"
        "formula: |\n  H = X + R\n  O = matmul(rms_norm(H, d, eps), W, d)\n"
        "configs: [{n: 4}, {n: 2, d: 33}]\n"
    )
    found = plan(["suite.workloads=[mine]"])
    assert found["cases"] == ["mine@n=4", "mine@d=33,n=2"]
    workload = json.loads(found["tune"]["mine@d=33,n=2"])["workload"]
    assert (workload["n"], workload["d"], workload["f"]) == (2, 33, 33)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("name: mine\nn: [", "mine.yaml"),
        ("name: mine\n", "`inputs`"),
        ("name: mine\ninputs: {X: [n]}\nformula: O = exp(X)\nconfigs: [{n: 4}]\n", "no size"),
        ("inputs: {X: [n]}\nformula: O = exp(X)\nconfigs: [{n: 4}]\n", "`name`"),
        ("- a\n- b\n", "must hold keys"),
        (
            "name: deep\nn: 4\ninputs: {X: [n]}\nconfigs: [{n: 4}]\nformula: O = X"
            + " + 1" * 3000
            + "\n",
            "nested too deeply",
        ),
    ],
)
def test_a_damaged_workload_file_is_one_clear_line(own_root, text, part):
    (own_root / "conf/workload/mine.yaml").write_text(text)
    with pytest.raises(PrismError) as caught:
        compose(["workload=mine"])
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_binary_workload_file_is_one_clear_line(own_root):
    (own_root / "conf/workload/mine.yaml").write_bytes(b"\x00\xff\xfe")
    with pytest.raises(PrismError, match="utf-8"):
        compose(["workload=mine"])


def test_outside_of_a_clone(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "ROOT", tmp_path)
    with pytest.raises(PrismError, match=r"no conf/config\.yaml"):
        compose()


def test_numerics_are_stable_unless_a_run_or_a_workload_says_otherwise():
    cfg = compose(["workload=attention"])
    assert program_of(workload_of(cfg)).numerics == "stable"
    cfg = compose(["workload=attention", "numerics=paper"])
    assert program_of(workload_of(cfg)).numerics == "paper"
    tune, bench = config.case_slices(cfg)
    assert tune["workload"]["numerics"] == bench["workload"]["numerics"] == "paper"
    assert config.search_slice(cfg) == config.search_slice(compose(["workload=attention"]))
    own = compose(["workload=attention", "+workload.numerics=paper"])
    assert program_of(workload_of(own)).numerics == "paper"
    with pytest.raises(PrismError, match="numerics='fast': must be stable or paper"):
        workload_of(compose(["workload=attention", "numerics=fast"]))
