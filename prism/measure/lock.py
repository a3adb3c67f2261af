"""One lock a device: whoever times holds it, so that two runs never time at once."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from prism.errors import PrismError


def lock_path(device: str) -> Path:
    """The lock file: in $XDG_RUNTIME_DIR, else in a folder of this user's among temporary files."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) if runtime and os.access(runtime, os.W_OK) else Path(tempfile.gettempdir())
    return base / f"prism-{os.getuid()}" / f"device-{device}.lock"


@contextlib.contextmanager
def device_lock(device: str) -> Iterator[None]:
    """Holds the device's lock; waits for another holder, saying so. The lock dies with us."""
    path = lock_path(device)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = open(path, "a")  # noqa: SIM115 - closed below, with the lock
    except OSError as error:
        raise PrismError(f"cannot open the device lock {path}: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another run to release {path}", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
