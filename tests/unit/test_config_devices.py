"""Devices: what a machine has, which file describes it, and what a GPU makes the default."""

import json
import subprocess
import sys
import time

import pytest
import yaml

from prism import cli, config, devices
from prism.config import compose
from prism.errors import PrismError
from prism.measure import gpu as measured
from prism.model.device import Device
from prism.workflow import plan


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Puts an `nvidia-smi` first on the path that knows these GPUs."""

    def install(*names, code=0):
        lines = "\n".join(f'  {n}|""|GPU-{n}) echo "{name}";;' for n, name in enumerate(names))
        script = tmp_path / "bin/nvidia-smi"
        script.parent.mkdir(exist_ok=True)
        script.write_text(
            '#!/bin/sh\nid=""\nfor each in "$@"; do\n'
            '  case "$each" in --id=*) id="${each#--id=}";; esac\ndone\n'
            f'case "$id" in\n{lines}\n  *) exit 6;;\nesac\nexit {code}\n'
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", str(script.parent), prepend=":")
        devices.gpu.cache_clear()

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    devices.gpu.cache_clear()
    yield install
    devices.gpu.cache_clear()


def said(capsys, cfg):
    config.say_device(cfg)
    return capsys.readouterr().err


def test_without_a_driver_auto_is_the_cpu(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    devices.gpu.cache_clear()
    cfg = compose()
    assert (cfg.device.name, cfg.dtype, cfg.tune.name) == ("cpu", "bf16", "local")
    assert said(capsys, cfg) == "prism: device auto: cpu (no NVIDIA GPU found)\n"
    assert said(capsys, compose(["device=cpu"])) == "", "what was asked for needs no saying"
    devices.gpu.cache_clear()


def test_auto_is_the_gpu_that_a_file_describes(driver, capsys):
    driver("NVIDIA H200", "NVIDIA A100-SXM4-40GB")
    cfg = compose(["device=auto"])
    assert (cfg.device.name, cfg.dtype, cfg.tune.name) == ("h200", "fp16", "ranked")
    assert list(cfg.baseline) == ["eager", "compiled", "sdpa"]
    assert said(capsys, cfg) == "prism: device auto: h200 (found NVIDIA H200)\n"
    found = plan(["device=auto"])
    assert found["run"] == "results/paper-h200" and found["gpu"] and found["device"] == "h200"


def test_an_unknown_gpu_is_named_and_the_cpu_taken(driver, capsys):
    driver("NVIDIA GeForce GTX 1080")
    cfg = compose()
    assert cfg.device.name == "cpu"
    (line,) = said(capsys, cfg).splitlines()
    assert "cpu (GPU NVIDIA GeForce GTX 1080 has no description in conf/device; add one" in line


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        ("1", "NVIDIA A100-SXM4-40GB"),
        ("GPU-1,0", "NVIDIA A100-SXM4-40GB"),
        ("0", "NVIDIA H200"),
        ("", None),
        ("-1", None),
        ("7", None),
    ],
)
def test_hidden_gpus_are_not_found(driver, monkeypatch, visible, found):
    driver("NVIDIA H200", "NVIDIA A100-SXM4-40GB")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    devices.gpu.cache_clear()
    assert devices.gpu() == found


def test_a_driver_that_fails_finds_none(driver):
    driver("NVIDIA H200", code=9)
    assert devices.gpu() is None


@pytest.mark.parametrize(
    "body",
    [
        "head -c 3000 /dev/urandom",
        "printf 'NVIDIA \\377\\376\\n'",
        "echo 'No devices were found'",
        "echo 'Failed to initialize NVML: Driver/library version mismatch'",
        "echo",
        "sleep 60 & sleep 60",
    ],
)
def test_an_answer_that_is_no_name_is_no_gpu(driver, tmp_path, monkeypatch, body):
    driver("NVIDIA H200")
    (tmp_path / "bin/nvidia-smi").write_text(f"#!/bin/sh\n{body}\n")
    monkeypatch.setattr(measured, "SMI_SECONDS", 0.5)
    start = time.monotonic()
    assert devices.gpu() is None and measured.clocks() == {}
    assert time.monotonic() - start < 20
    assert devices.pick({"h200": ["NVIDIA H200"]}) == ("cpu", "no NVIDIA GPU found")


def test_a_gpu_that_is_split_is_not_the_one_described(driver, monkeypatch):
    driver("NVIDIA H200")
    assert devices.pick({"h200": ["NVIDIA H200"]})[0] == "h200"
    monkeypatch.setattr(measured, "facts", lambda: {"mig.mode.current": "Enabled"})
    device, why = devices.pick({"h200": ["NVIDIA H200"]})
    assert device == "cpu" and why.startswith("GPU NVIDIA H200 is split into MIG instances")
    with pytest.raises(PrismError, match="split into MIG instances"):
        devices.require("h200", ["NVIDIA H200"])


def test_composing_asks_for_no_torch():
    code = "import sys; from prism.workflow import plan; plan(['device=h200'])\n"
    code += "assert not {'torch', 'triton'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=config.ROOT)


@pytest.mark.parametrize("name", ["a100", "h100", "h200"])
def test_every_described_gpu_is_a_device(name):
    cfg = compose([f"device={name}"])
    device = Device.from_json(config.device_of(cfg))
    assert (device.name, device.backend, cfg.dtype) == (name, "triton", "fp16")
    names = [gpus for gpus in devices.described(config.ROOT / "conf/device").values()]
    assert len({gpu for gpus in names for gpu in gpus}) == sum(map(len, names)), "named once"


def test_what_a_gpu_makes_the_default_can_be_overridden():
    cfg = compose(["device=a100", "tune=random", "baseline=[eager]", "dtype=bf16"])
    assert (cfg.tune.name, list(cfg.baseline), cfg.dtype) == ("random", ["eager"], "bf16")


def test_a_reference_for_attention_runs_on_attention_alone():
    found = plan(["device=h200", "suite=smoke"])
    names = {case: list(json.loads(text)["baseline"]) for case, text in found["bench"].items()}
    assert names == {
        "rmsnorm@d=256,n=4": ["eager", "compiled"],
        "attention@b=1,d=64,g=2,h=128": ["eager", "compiled", "sdpa"],
    }


def test_a_damaged_description_is_one_line(tmp_path, monkeypatch):
    import shutil

    shutil.copytree(config.ROOT / "conf", tmp_path / "conf")
    monkeypatch.setattr(config, "ROOT", tmp_path)
    path = tmp_path / "conf/device/h200.yaml"
    path.write_text(path.read_text().replace("sms: 132", "sms: many"))
    with pytest.raises(PrismError, match=r"gpu\.sms must be a positive integer") as caught:
        compose(["device=h200"])
    assert "\n" not in str(caught.value)
    path.write_text("gpus: [")
    with pytest.raises(PrismError, match=r"h200\.yaml: not the description of a device"):
        devices.described(path.parent)


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("device.backend=hip", "device h200: backend 'hip' is not known"),
        ("device.backend=cpu", "device h200: backend cpu is for no GPU"),
        ("device.gpu=null", "device h200: gpu is null"),
        ("~device.gpu", "device h200: backend triton is for a GPU, and `gpu` is missing"),
        ("device.gpu.arch=75", "device h200: gpu.arch must be from 80"),
        ("device.gpus=NVIDIA", "device h200: gpus must be a list of names"),
        ("device.gpus=null", "device h200: gpus must be a list of names"),
        ("~device.gpus", "device h200: gpus must be a list of names"),
        ("device.dtypes=[fp16,int4]", "device h200: dtypes must be a list of some of bf16"),
        ("device.dtypes=[]", "device h200: dtypes must be"),
        ("~device.dtypes", "device h200: dtypes must be"),
        ("device.name='a/../b'", "device: name='a/../b': must be letters"),
    ],
)
def test_bad_settings_of_a_device_are_one_line(override, part):
    with pytest.raises(PrismError) as caught:
        compose(["device=h200", override])
    assert part in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("stage", ["tune", "bench"])
def test_timing_on_a_gpu_that_is_not_there_is_one_line(driver, tmp_path, capsys, stage):
    args = (stage, "device=h200", f"out={tmp_path / 'out'}", "graphs=none.json")
    for names, part in (
        ((), "this machine has no NVIDIA GPU"),
        (("NVIDIA A100-SXM4-40GB",), "describes NVIDIA H200, and this machine has NVIDIA A100"),
    ):
        driver(*names)
        assert cli.main(list(args)) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert part in line and "`prism pack`" in line and "`python -m prism.measure`" in line


def test_a_run_on_the_cpu_packs_for_a_gpu_with_the_settings_it_would_have():
    here, there = plan(["suite=smoke"]), plan(["suite=smoke", "device=h200"])
    packed = json.loads(here["pack"])
    assert packed["device"] == json.loads(there["pack"])["device"] == "h200"
    assert set(packed["devices"]) == {"a100", "cpu", "h100", "h200"}
    for name, found in (("cpu", here), ("h200", there)):
        entry = packed["devices"][name]
        for case, text in found["bench"].items():
            bench = json.loads(text)
            assert entry["hashes"][case] == bench["config_hash"]
            assert entry["settings"]["dtype"] == bench["dtype"]
            assert packed["cases"][case] == bench["workload"]
    resolved = yaml.safe_load(there["resolved"])
    assert resolved["cases"] == packed["devices"]["h200"]["hashes"]


@pytest.mark.parametrize(
    "override", ["growth.seconds=7", "ablation.limit_s=7", "profile.seconds=9"]
)
def test_packing_is_not_redone_for_what_it_does_not_read(override):
    assert plan(["suite=smoke"])["pack"] == plan(["suite=smoke", override])["pack"]


def test_bad_budgets_of_packing():
    for override in ("pack.graphs=0", "profile.seconds=-1", "pack.points=some"):
        with pytest.raises(PrismError, match=override.split("=")[0]):
            compose([override])
    with pytest.raises(PrismError, match="device 'h300' is not in conf/device"):
        plan(["pack.device=h300"])
    with pytest.raises(PrismError, match="must name a device"):
        plan(["pack.device=auto"])


def test_every_tuning_is_there_on_a_cpu():
    for name in ("local", "random", "ranked"):
        assert compose(["device=cpu", f"tune={name}"]).tune.name == name
