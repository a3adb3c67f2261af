"""Writing without half-written files: a temporary name in the same folder, then a rename."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from prism.errors import PrismError


def write(path: Path, fill: Callable[[Path], object]) -> Path:
    """Lets `fill` write a temporary file (of the same suffix), then puts it at `path` in one step.

    Folders on the way are made. Whatever goes wrong, no temporary file stays and an older file at
    `path` is as it was. Raises PrismError naming `path` when the disk refuses.
    """
    path, temporary = Path(path), None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(path.suffix, f".{path.name}.", path.parent)
        temporary = Path(name)
        os.close(handle)
        fill(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except OSError as error:
        why = error.strerror or " ".join(str(error).split())
        raise PrismError(f"cannot write {path}: {why}") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return path


def write_bytes(path: Path, data: bytes) -> Path:
    """`write` for bytes."""
    return write(path, lambda temporary: temporary.write_bytes(data))


def write_text(path: Path, text: str) -> Path:
    """`write` for text, in UTF-8."""
    return write_bytes(path, text.encode())


def write_json(path: Path, data: object, indent: int | None = None) -> Path:
    """`write` for JSON with a line end. Raises TypeError for data that JSON does not have."""
    return write_text(path, json.dumps(data, indent=indent) + "\n")
