"""What `python -m prism.measure` asks of a machine with a GPU before it starts."""

import os
import sysconfig

import pytest

from prism.errors import PrismError
from prism.measure import __main__ as module


def test_a_c_compiler_is_looked_for_as_triton_does(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_paths", lambda **_: {"include": str(tmp_path)})
    (tmp_path / "Python.h").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(PrismError, match="needs a C compiler .* neither gcc nor clang is there"):
        module._launchable()
    compiler = tmp_path / "clang"
    compiler.touch(0o755)
    module._launchable()
    monkeypatch.setenv("CC", "no-such-cc")
    with pytest.raises(PrismError, match="CC=no-such-cc is not there"):
        module._launchable()
    monkeypatch.setenv("CC", str(compiler))
    module._launchable()


def test_python_s_headers_are_needed(tmp_path, monkeypatch):
    (tmp_path / "gcc").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(sysconfig, "get_paths", lambda **_: {"include": str(tmp_path / "none")})
    with pytest.raises(PrismError, match="Python's headers .* there is no .*none/Python.h"):
        module._launchable()


@pytest.mark.parametrize(
    ("found", "named"),
    [
        ({"torch": "2.11.0+cu128", "triton": "3.6.0"}, []),
        ({"torch": "2.13.0", "triton": "3.10.0"}, []),
        ({"torch": None, "triton": "a build of today"}, []),
        ({"torch": "2.9.1", "triton": "3.6.0"}, ["torch 2.9.1 (tested from 2.11 on)"]),
        ({"torch": "2.5.0", "triton": "3.1.0"}, ["torch 2.5.0", "triton 3.1.0 (tested from 3.6"]),
    ],
)
def test_older_versions_are_one_warning(capsys, found, named):
    module._tested(found)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == bool(named)
    assert all(part in lines[0] for part in named)


def test_gpus_are_numbered_before_torch_sees_them(monkeypatch):
    import torch

    seen = []
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    order = lambda: seen.append(os.environ["CUDA_DEVICE_ORDER"]) or True  # noqa: E731
    monkeypatch.setattr(torch.cuda, "is_available", order)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    assert module._device("auto", {"h200": ["NVIDIA H200"]}, "h200") == "h200"
    assert seen == ["PCI_BUS_ID"]
