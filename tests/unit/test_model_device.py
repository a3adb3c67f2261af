"""Devices: the files of conf/device, JSON, and what is wrong with one."""

import json

import pytest
import yaml

from prism.config import root
from prism.errors import PrismError
from prism.model import CPU, Device

GPUS = {"a100": 80, "h100": 90, "h200": 90}


def read(name: str) -> dict:
    data = yaml.safe_load((root() / f"conf/device/{name}.yaml").read_text())
    return {key: data[key] for key in ("name", "backend", "gpu")}


@pytest.mark.parametrize(("name", "arch"), GPUS.items())
def test_files_are_devices(name, arch):
    device = Device.from_json(read(name))
    assert (device.name, device.backend, device.torch) == (name, "triton", "cuda")
    assert device.gpu.arch == arch
    assert Device.from_json(json.loads(json.dumps(device.to_json()))) == device
    assert hash(device) == hash(Device.from_json(read(name)))


@pytest.mark.parametrize(("name", "per_clock"), [("a100", 1024), ("h100", 2048), ("h200", 2048)])
def test_rates_follow_from_multiprocessors_and_clock(name, per_clock):
    """64 and 128 fp32, 1024 and 2048 half-precision fused multiply-adds a clock and SM."""
    gpu = Device.from_json(read(name)).gpu
    clocks = 2 * gpu.sms * gpu.clock_mhz / 1e6  # 1e12 a second, of one unit that does FMA
    assert gpu.dot_tflops["fp16"] == pytest.approx(per_clock * clocks, rel=0.01)
    assert gpu.fp32_tflops == pytest.approx(per_clock / 16 * clocks, rel=0.01)
    assert gpu.dot_tflops["fp32"] == gpu.fp32_tflops  # IEEE products use no matrix unit


def test_without_a_gpu():
    assert CPU.torch == "cpu"
    assert Device.from_json(CPU.to_json()) == CPU
    assert Device("interpreter", "triton", Device.from_json(read("a100")).gpu).torch == "cpu"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sms": 0}, "gpu.sms must be a positive integer, got 0"),
        ({"sms": 1.5}, "gpu.sms must be a positive integer, got 1.5"),
        ({"bandwidth_gbs": "fast"}, "gpu.bandwidth_gbs must be a positive number, got 'fast'"),
        ({"clock_mhz": True}, "gpu.clock_mhz must be a positive number, got True"),
        ({"dot_tflops": {"fp16": 1}}, "gpu.dot_tflops must give a rate for bf16, fp16, fp32"),
        ({"arch": 75}, "device a100: gpu.arch must be from 80 to 130, got 75"),
        ({"registers": 1}, "gpu.registers must be from 8192 to 1048576, got 1"),
        ({"threads_sm": 1}, "gpu.threads_sm must be from 256 to 16384, got 1"),
        ({"sms": 10**20}, "gpu.sms must be from 1 to 2048, got 1000"),
        ({"bandwidth_gbs": 1e300}, "gpu.bandwidth_gbs must be from 10 to 1000000, got 1e+300"),
        (
            {"dot_tflops": {"fp16": 1e9, "bf16": 1, "fp32": 1}},
            "gpu.dot_tflops.fp16 must be from 0.1 to 100000, got 1000000000.0",
        ),
        ({"cores": 3}, "device a100: gpu: 'cores' is not known; there are arch, sms"),
    ],
)
def test_what_is_wrong_with_a_gpu(change, message):
    data = read("a100")
    with pytest.raises(PrismError) as error:
        Device.from_json(data | {"gpu": data["gpu"] | change})
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"name": "x"}, "device: 'backend' is missing"),
        ({"name": "", "backend": "cpu"}, "device: name must be a name, got ''"),
        ({"name": "x", "backend": "cpu", "dtype": "fp16"}, "device: 'dtype' is not known"),
        (
            {"name": "x", "backend": "triton", "gpu": {"arch": 80}},
            "device x: gpu: 'sms' is missing",
        ),
        ({"name": "x", "backend": "triton", "gpu": 3}, "device x: gpu: must be keys with values"),
        (
            {"name": "x", "backend": "hip"},
            "device x: backend 'hip' is not known; there are cpu, tri",
        ),
        (
            {"name": "x", "backend": "triton"},
            "device x: backend triton is for a GPU, and `gpu` is mis",
        ),
        (
            read("a100") | {"backend": "cpu"},
            "device a100: backend cpu is for no GPU, and `gpu` is given",
        ),
        ([], "device: must be keys with values, got []"),
    ],
)
def test_what_is_wrong_with_a_device(data, message):
    with pytest.raises(PrismError) as error:
        Device.from_json(data)
    assert message in str(error.value)
