"""Devices for tests: those of conf/device, and Triton's interpreter on the CPU in a GPU's place."""

from pathlib import Path

import yaml

from prism.model.device import Device

CONF = Path(__file__).parents[1] / "conf" / "device"


def described(name: str) -> Device:
    data = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    return Device.from_json({key: data[key] for key in ("name", "backend", "gpu")})


A100 = described("a100")
INTERPRETER = Device("interpreter", "triton", A100.gpu)
