"""Files appear whole or not at all, and what the disk refuses is one line."""

import json
import resource
import signal
import stat

import pytest

from prism.errors import PrismError
from prism.files import write, write_bytes, write_json, write_text


def test_each_kind_of_content_is_written_with_the_folders_on_the_way(tmp_path):
    folder = tmp_path / "a" / "b"
    assert write_text(folder / "t.txt", "naïve\n") == folder / "t.txt"
    write_bytes(folder / "b.bin", b"\x00\xff")
    write_json(folder / "j.json", {"x": [1, None]})
    assert (folder / "t.txt").read_text(encoding="utf-8") == "naïve\n"
    assert (folder / "b.bin").read_bytes() == b"\x00\xff"
    assert json.loads((folder / "j.json").read_text()) == {"x": [1, None]}
    assert sorted(p.name for p in folder.iterdir()) == ["b.bin", "j.json", "t.txt"]
    assert stat.S_IMODE((folder / "t.txt").stat().st_mode) == 0o644


def test_what_fills_the_file_sees_its_suffix_in_its_folder_and_not_the_final_name(tmp_path):
    seen = []

    def fill(temporary):
        seen.append(temporary)
        assert not (tmp_path / "plot.svg").exists()
        temporary.write_text("<svg/>")

    write(tmp_path / "plot.svg", fill)
    assert seen[0].suffix == ".svg" and seen[0].parent == tmp_path
    assert (tmp_path / "plot.svg").read_text() == "<svg/>" and not seen[0].exists()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_older_file_and_nothing_else(tmp_path, error):
    path = write_text(tmp_path / "rows.jsonl", "old")

    def fill(temporary):
        temporary.write_text("ne")
        raise error

    expected = PrismError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as raised:
        write(path, fill)
    if expected is PrismError:
        assert str(raised.value) == f"cannot write {path}: No space left on device"
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_file_too_large_for_the_disk_is_one_line(tmp_path):
    limit, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        with pytest.raises(PrismError, match="cannot write .*big.json: File too large"):
            write_json(tmp_path / "big.json", list(range(2000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PrismError, match="cannot write .*file/x.json: "):
        write_json(tmp_path / "file" / "x.json", {})
    with pytest.raises(PrismError, match="cannot write .*: Is a directory"):
        write_text(tmp_path, "x")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
