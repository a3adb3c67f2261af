"""One lock a device, and folders for a run's temporary files.

The lock keeps two runs of one user from timing at once. It is a file of that user, so that runs
of others are not kept out (nor are other programs): a machine for measuring has one user at a time.
Lock and folders are tied to an open file, so that the system releases them however a run ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from prism.errors import PrismError

POLL_SECONDS = 0.1


class Locked(PrismError):
    """Another run held the device until the time was over."""


def lock_path(device: str) -> Path:
    """The lock file: in $XDG_RUNTIME_DIR, else in a folder of this user's among temporary files."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) if runtime and os.access(runtime, os.W_OK) else Path(tempfile.gettempdir())
    return base / f"prism-{os.getuid()}" / f"device-{device}.lock"


@contextlib.contextmanager
def device_lock(device: str, until: float = math.inf) -> Iterator[None]:
    """Holds the device's lock; waits for another holder, saying so. The lock dies with us.

    Raises Locked when the other still holds it at the time `until` (of `time.monotonic`).
    """
    path = lock_path(device)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = open(path, "a")  # noqa: SIM115 - closed below, with the lock
    except OSError as error:
        raise PrismError(f"cannot open the device lock {path}: {error.strerror}") from None
    with file:
        if not _locked(file):
            print(f"waiting for another run to release {path}", file=sys.stderr, flush=True)
            while not _locked(file):
                if time.monotonic() >= until:
                    raise Locked(f"another run held the lock {path} until the time was over")
                time.sleep(POLL_SECONDS)
        yield


def _locked(file: IO) -> bool:
    """Whether the lock is ours now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def work_folder(kind: str) -> Iterator[Path]:
    """A temporary folder, removed at the end; those that killed runs left go first.

    Raises PrismError when it cannot be made.
    """
    base = Path(tempfile.gettempdir()) / f"prism-{os.getuid()}"
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in base.glob("work-*.lock"):
            _remove_if_left(left)
        descriptor, name = tempfile.mkstemp(prefix=f"work-{kind}-", suffix=".lock", dir=base)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        folder = Path(name).with_suffix("")
        folder.mkdir()
    except OSError as error:
        raise PrismError(f"cannot make a temporary folder in {base}: {error.strerror}") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        Path(name).unlink(missing_ok=True)
        os.close(descriptor)


def _remove_if_left(lock: Path) -> None:
    """Removes the folder of a lock file that no process holds any more."""
    with contextlib.suppress(OSError), open(lock) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
        lock.unlink(missing_ok=True)


@contextlib.contextmanager
def folder_lock(out: Path) -> Iterator[None]:
    """Keeps other calls out of a folder, which is made, until this one ends, however it ends.

    Raises PrismError where another is at work and for a folder that cannot be written.
    """
    path = out / ".lock"
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = open(path, "a")  # noqa: SIM115 - open until the end
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PrismError(f"out={out}: another measurement is at work there") from None
    except OSError as error:
        raise PrismError(f"cannot write {path}: {error.strerror}") from None
    with file:
        yield
