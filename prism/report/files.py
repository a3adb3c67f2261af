"""Writing without half-written files: a temporary name in the same folder, then a rename."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from prism.errors import PrismError


def write(path: Path, fill: Callable[[Path], None]) -> Path:
    """Lets `fill` write a temporary file, then puts it at `path` in one step.

    Raises PrismError naming the file when the disk does not take it; an older file then stays.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix
        )
        os.close(handle)
        temporary = Path(name)
        fill(temporary)
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise PrismError(f"report: cannot write {path}: {error.strerror or error}") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return path


def write_text(path: Path, text: str) -> Path:
    """`write` for text in UTF-8."""
    return write(path, lambda p: p.write_text(text, encoding="utf-8"))
