"""Searches that were done before: the same program under any names is searched once.

Names of tensors, axes, outputs and parameters play no part: what is searched, with or without the
cache, is the canonical program, and its result is renamed. A result that a limit or the user ended
is never stored.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache as once
from importlib import metadata
from pathlib import Path
from typing import Any

from prism.program.canonical import apart, canonical, words
from prism.program.program import Program
from prism.program.serial import program_to_json

SIZE = 1 << 30  # bytes; the least recently used results are dropped beyond
_SOURCES = ("program", "sgraph", "verify", "search")  # packages that decide what a search finds
_SPOILED = (ValueError, TypeError, KeyError, IndexError, zlib.error, sqlite3.DatabaseError)


def search(
    program: Program,
    bounds: Any,
    progress: Callable[[str, int], None] = lambda _stage, _count: None,
    remember: bool = True,
    warn: Callable[[str], None] = lambda _text: None,
    workers: int = 1,
) -> dict:
    """The result of a search as JSON data; from the cache it has `cached: true`.

    Its seconds are then those measured when it was searched. Whatever is wrong with the cache, the
    search runs, and `warn` is told in one line. Raises PrismError as the search does.
    """
    renamed, names = canonical(program)
    store = _Store(warn) if remember else None
    key = _key(renamed, bounds)
    data = store.get(key) if store else None
    if data is not None:
        return _restored(data, program, names) | {"cached": True}
    from prism.search import search as run

    data = run(renamed, bounds, progress, workers).to_json()
    if store and _unlimited(data):
        store.put(key, data)
    return _restored(data, program, names)


def folder() -> Path:
    """Where results are kept: $PRISM_CACHE, else the user's cache folder."""
    from platformdirs import user_cache_path

    return Path(os.environ.get("PRISM_CACHE") or user_cache_path("prism")) / "searches"


def _restored(data: dict, program: Program, names: Mapping[str, str]) -> dict:
    """The result under the program's own names, and names that the search made apart from them."""
    tensors, axes = set(), set()
    for piece in data["space"]:
        for _, named in (step for graph in piece["graphs"] for step in graph):
            tensors.update(named.values())
        for kernel in piece["kernels"]:
            axes.update(_axes(kernel))
    made = apart(tensors - set(names), {*program.inputs, *(name for name, _ in program.outputs)})
    made |= apart(axes - set(names), program.sizes)
    rest = {key: value for key, value in data.items() if key != "space"}
    return words(rest, names) | {
        "workload": program.name,
        "program": program_to_json(program),
        "space": words(data["space"], {**names, **made}),
    }


def _axes(family: Mapping) -> Iterator[str]:
    """The axes of a kernel family's data: of its tensors, and those that choices make."""
    for kernel in family.get("listed", [family]):
        yield from (axis for node in kernel["nodes"] for axis in node.get("axes", ()))
        yield from (axis for _, axis, _ in kernel.get("mapping") or ())
        choices = (choice for grid in family.get("grids", ()) for choice in grid)
        yield from (axis for choice in choices for _, axis in choice)


def _key(renamed: Program, bounds: Any) -> str:
    """Of all that decides what a search finds; a proof is of real numbers, so no dtype."""
    data = program_to_json(renamed) | {"name": "", "dtype": ""}
    text = json.dumps([data, vars(bounds), _versions()], sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()


@once
def _versions() -> tuple[str, str]:
    digest, here = hashlib.sha256(), Path(__file__).parent
    for path in sorted(p for name in _SOURCES for p in here.joinpath(name).rglob("*.py")):
        digest.update(f"{path.relative_to(here)}\0".encode() + path.read_bytes())
    return digest.hexdigest(), metadata.version("egglog")


class _Store:
    """The database of results; every fault of it is a warning and an empty answer."""

    def __init__(self, warn: Callable[[str], None]):
        self.warn = warn

    def get(self, key: str) -> dict | None:
        """The result with this key. A damaged one is discarded."""
        try:
            with self._open() as database:
                try:
                    data = database.get(key)
                    return None if data is None else _checked(data)["result"]
                except _SPOILED as error:
                    if isinstance(error, sqlite3.DatabaseError):
                        raise
                    del database[key]
                    self.warn(f"cache: a damaged result was discarded: {_line(error)}")
        except Exception as error:
            self._fault(error)
        return None

    def put(self, key: str, data: dict) -> None:
        """Stores a result."""
        try:
            with self._open() as database:
                database[key] = {"result": data, "sha256": _digest(data)}
        except Exception as error:
            self._fault(error)

    def _open(self):
        from diskcache import Cache, JSONDisk

        class Disk(JSONDisk):
            """JSON alone: what claims to be a pickle is damaged."""

            def fetch(self, mode, filename, value, read):
                """A value of the table. Raises ValueError for a pickle."""
                if mode not in (1, 2):  # raw bytes in the table, or in a file
                    raise ValueError(f"entry of kind {mode}")
                return super().fetch(mode, filename, value, read)

        path = str(folder())
        return Cache(path, disk=Disk, size_limit=SIZE, eviction_policy="least-recently-used")

    def _fault(self, error: Exception) -> None:
        """A database that is none is removed; a locked or unreachable one is left as it is."""
        from diskcache import Timeout

        path = folder()
        if isinstance(error, sqlite3.OperationalError | Timeout | OSError):
            self.warn(f"cache: {path} cannot be used: {_line(error)}")
            return
        self.warn(f"cache: {path} was damaged and is discarded: {_line(error)}")
        shutil.rmtree(path, ignore_errors=True)  # it holds nothing but these results


def _checked(entry: Any) -> dict:
    """The entry if it is as it was stored. Raises ValueError and such where it is not."""
    if entry["sha256"] != _digest(entry["result"]):
        raise ValueError("its digest is another")
    return entry


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _unlimited(data: Mapping) -> bool:
    """Whether neither the search nor a proof hit a limit: with more time it finds no more."""
    return data["ended"] == "exhausted" and not any("limit" in g["reason"] for g in data["gaps"])


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
