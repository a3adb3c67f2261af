"""The source of one graph, printed for devices that are not here."""

import ast

import pytest

from prism import cli, terminal


def search(*items) -> int:
    return cli.main(["search", "workload=rmsnorm", "workload.d=64", "workload.n=4", *items])


@pytest.mark.parametrize(("device", "name"), [("cpu", "kernel.cpp"), ("h200", "kernel.py")])
def test_a_graph_is_printed_for_a_device(tmp_path, capsys, device, name):
    path = tmp_path / "new" / name
    assert search("show=0.3", f"device={device}", f"source={path}") == 0
    out = capsys.readouterr().out
    assert out.startswith("graph 0.3, PROVED as a whole\n")
    said = out.splitlines()[-1]
    assert said.startswith(f"{path}: for rmsnorm@d=64,n=4 on {device}, sizes x=")
    text = path.read_text()
    if device == "cpu":
        assert 'extern "C" int prism_run(' in text and "schedule=" in said
    else:
        assert "prism_run" in {getattr(item, "name", "") for item in ast.parse(text).body}
        assert "num_warps=" in said and "fp16" in text, "a GPU's dtype"
    assert search("show=0.3", f"device={device}", f"source={path}") == 0
    assert path.read_text() == text, "the same seed, the same sizes"


def test_what_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path, capsys, monkeypatch):
    def refused(part: str, *items) -> None:
        assert search(*items) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and part in err
        assert not list(tmp_path.glob("*.cpp"))

    path = tmp_path / "kernel.cpp"
    refused("is of the graph that show=ID names", f"source={path}")
    refused("is a folder, not a file", "show=0.3", f"source={tmp_path}")
    refused("show=0.99999: graph", "show=0.99999", f"source={path}")
    monkeypatch.setattr(terminal, "graph", lambda result, wanted: None)
    refused("graph 0.3 is not proved as a whole", "show=0.3", f"source={path}")
