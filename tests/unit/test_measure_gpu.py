"""What is asked of a GPU's driver and told to children, with a stand-in for nvidia-smi."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from devices import A100, INTERPRETER

from prism.errors import PrismError
from prism.measure import bench, eager_case, gpu
from prism.measure.bench import BaselineSpec, BenchSettings
from prism.measure.environment import environment
from prism.measure.inputs import copies_for, write_case
from prism.model.device import CPU
from prism.program import Builder

SMI = """#!{python}
import os, sys
known = {{"index": "0", "name": "NVIDIA A100", "driver_version": "550.1",
    "memory.total": "40960 MiB", "persistence_mode": "Enabled", "power.limit": "400.00 W",
    "clocks.max.sm": "1410 MHz", "clocks.max.memory": "1215 MHz",
    "mig.mode.current": os.environ.get("MIG", "Disabled"),
    "clocks.sm": "1095 MHz", "clocks.mem": "1215 MHz", "power.draw": "61.00 W",
    "temperature.gpu": "33", "pstate": "P0", "compute_mode": os.environ.get("MODE", "Default"),
    "clocks_throttle_reasons.active": "0x0000000000000001"}}
values = dict(a.lstrip("-").split("=", 1) for a in sys.argv[1:])
known["uuid"] = {{"0": "GPU-aa", "1": "GPU-bb"}}.get(values["id"], values["id"])
fields = values["query-gpu"].split(",")
if any(f not in known for f in fields):
    sys.exit('Field "clocks_event_reasons.active" is not a valid field to query.')
print(", ".join(known[f] for f in fields))
"""


def forgetting():
    """What is known of GPUs is that of the stand-in alone."""
    for step in range(2):
        gpu.memory_bytes.cache_clear()
        gpu._known.clear()
        if step == 0:
            yield


@pytest.fixture
def smi(tmp_path, monkeypatch):
    path = tmp_path / "bin" / "nvidia-smi"
    path.parent.mkdir()
    path.write_text(SMI.format(python=sys.executable))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield from forgetting()


@pytest.fixture
def no_smi(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    yield from forgetting()


def test_facts_and_clocks_are_those_of_the_gpu_that_is_visible(smi, monkeypatch):
    assert gpu.facts()["name"] == "NVIDIA A100" and gpu.facts()["persistence_mode"] == "Enabled"
    now = gpu.clocks()  # an old driver, which names the reasons in its own way
    assert (now["clocks.sm"], now["power.draw"]) == ("1095 MHz", "61.00 W")
    assert now["temperature.gpu"] == "33"
    assert now["clocks_throttle_reasons.active"] == "0x0000000000000001"
    assert gpu.memory_bytes() == 40 << 30
    assert environment(1)["gpu"] == gpu.facts()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert gpu.facts()["uuid"] == "GPU-bb"


def test_without_a_driver_nothing_is_guessed(no_smi):
    assert gpu.facts() == gpu.clocks() == environment(1)["gpu"] == {}
    assert gpu.memory_bytes() is None


@pytest.mark.parametrize(
    ("visible", "name"),
    [("0", "gpu-GPU-aa"), ("1,0", "gpu-GPU-bb"), ("GPU-bb", "gpu-GPU-bb"), ("", "gpu-none")],
)
def test_one_lock_a_gpu_however_it_is_named(smi, monkeypatch, visible, name):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu.lock_name(A100) == name


@pytest.mark.parametrize("hidden", ["", "-1", "-1,0"])
def test_a_hidden_gpu_is_none(smi, monkeypatch, hidden):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert gpu.visible() is None
    assert gpu.facts() == gpu.clocks() == {} and gpu.memory_bytes() is None


def test_facts_are_asked_for_once_a_gpu_and_again_after_no_answer(smi, monkeypatch):
    asked, real = [], gpu.smi
    monkeypatch.setattr(gpu, "smi", lambda *given: asked.append(given) or [])
    assert gpu.facts() == {} == gpu.facts() and len(asked) == 2
    monkeypatch.setattr(gpu, "smi", lambda *given: asked.append(given) or real(*given))
    assert gpu.facts()["uuid"] == gpu.facts()["uuid"] == "GPU-aa" and len(asked) == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpu.facts()["uuid"] == "GPU-bb" and len(asked) == 4


def test_a_gpu_for_one_process_alone_is_one_line(smi, monkeypatch):
    gpu.check_shared()
    gpu._known.clear()
    monkeypatch.setenv("MODE", "Exclusive_Process")
    with pytest.raises(PrismError, match="compute mode Exclusive_Process: all systems .* at once"):
        gpu.check_shared()


def test_a_gpu_that_is_split_is_one_line(smi, monkeypatch):
    monkeypatch.setenv("MIG", "Enabled")
    gpu._known.clear()
    with pytest.raises(PrismError, match="split into MIG instances, and devices describe whole"):
        gpu.check_shared()


def test_locks_without_a_driver_and_without_a_gpu(no_smi, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-GPU-aa/1/0")
    assert gpu.lock_name(A100) == "gpu-MIG-GPU-aa-1-0"
    assert gpu.lock_name(CPU) == "cpu" and gpu.lock_name(INTERPRETER) == "interpreter"


def test_children_of_one_work_folder_share_a_cache(tmp_path):
    one, other = (gpu.child_environment(device, tmp_path) for device in (A100, INTERPRETER))
    assert one["TRITON_CACHE_DIR"] == other["TRITON_CACHE_DIR"] == str(tmp_path / "triton")
    assert (one["TRITON_INTERPRET"], other["TRITON_INTERPRET"]) == ("0", "1")
    assert gpu.child_environment(CPU, tmp_path) == {}
    token = gpu.CACHE.set(tmp_path / "all")
    more = gpu.child_environment(A100, tmp_path)
    gpu.CACHE.reset(token)
    assert more == one | {"TRITON_CACHE_DIR": str(tmp_path / "all")}


def test_a_baseline_compiles_into_a_cache_of_its_own(tmp_path):
    case = SimpleNamespace(folder=tmp_path, data={"copies": 1})
    row = {"workload": "w", "config": "", "shape": {}, "dtype": "fp16"}
    given = BaselineSpec("compiled", "adapter.py"), BenchSettings(device=A100), tmp_path / "bench"
    token = gpu.CACHE.set(tmp_path / "all")
    env = bench._baseline(case, *given, row).env
    gpu.CACHE.reset(token)
    assert Path(env["TRITON_CACHE_DIR"]).is_relative_to(tmp_path / "bench")


def test_copies_rotate_through_the_l2_and_stay_within_the_gpu_s_memory(smi, tmp_path):
    limits = eager_case._limits(A100)
    l2 = 40 << 20
    assert limits == {"cache_bytes": l2, "memory_bytes": (40 << 30) // 16, "most": 256}
    assert copies_for(32 << 20, l2, 256) == 5 and copies_for(100, l2, 256) == 256
    b = Builder("sum", {"n": 256, "d": 256}, "fp32")
    program = b.build(O=b.sum(b.input("X", "n d"), "d"))
    size = 4 * 256 * 256 + 4 * 256  # of a copy with its outputs
    for memory, copies in ((None, 640), (4 * size - 1, 3), (1, 1)):
        case = write_case(program, tmp_path / str(copies), 0, l2, None, memory)
        assert case.data["copies"] == copies
    assert eager_case._limits(INTERPRETER)["most"] == 4 and set(eager_case._limits(CPU)) == {
        "cache_bytes"
    }


def test_a_case_is_prepared_once_for_the_same_program_seed_and_device(tmp_path, monkeypatch):
    runs = []

    def run(argv, *rest):
        runs.append(argv)
        return type("Ended", (), {"reason": "no PyTorch here"})

    monkeypatch.setattr(eager_case.children, "run", run)
    b = Builder("double", {"n": 8}, "fp32")
    program = b.build(O=b.scale(b.input("X", "n"), 2))
    folder = tmp_path / "case"

    def prepare(seed=0, device=CPU):
        return eager_case.prepare_case(program, folder, seed, 1, device)

    first = prepare()
    assert len(runs) == 1 and prepare().inputs()["X"].tobytes() == first.inputs()["X"].tobytes()
    assert len(runs) == 1 and prepare().eager_record == {"reason": "no PyTorch here"}
    prepare(seed=1)
    prepare(seed=1, device=INTERPRETER)
    assert len(runs) == 3
    (folder / "prepared.json").write_text("{")  # a call that was killed
    prepare(seed=1, device=INTERPRETER)
    assert len(runs) == 4
