"""What the command line shows and writes: tables, progress bars, whole files."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from prism.errors import PrismError


def summary(result: Mapping) -> None:
    """The search at a glance: stages with seconds and counts, verdicts, causes of rejection."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"search {result['workload']}")
    for column, side in (
        ("stage", "left"),
        ("seconds", "right"),
        ("in", "right"),
        ("out", "right"),
    ):
        table.add_column(column, justify=side)
    for stage, counts in result["candidates"].items():
        seconds = f"{result['seconds'][stage]:.2f}"
        table.add_row(stage, seconds, str(counts["in"]), str(counts["out"]))
    table.add_row("total", f"{result['seconds']['total']:.2f}", "", "")
    console = Console()
    console.print(table)
    verdicts = Counter(item["verdict"] for item in result["graphs"])
    counts = ", ".join(f"{n} {verdict}" for verdict, n in sorted(verdicts.items())) or "none"
    console.print(f"graphs: {counts}; ended: {result['ended']}", highlight=False)
    for cause, count in sorted(result["rejected"].items()):
        console.print(f"  {count} {cause}", highlight=False, markup=False)


@contextlib.contextmanager
def progress(title: str) -> Iterator[Callable[[str, int, int | None], None]]:
    """A progress bar on stderr, or nothing where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task(title, total=None)

        def update(stage: str, done: int, total: int | None = None) -> None:
            bars.update(task, description=f"{title}: {stage}", completed=done, total=total)

        yield update


def writable(path: Path) -> None:
    """Fails before the work rather than after it when `path` cannot be written."""
    if path.is_dir():
        raise PrismError(f"out={path}: is a folder, not a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PrismError(f"out={path}: {error.strerror}") from None
    if not os.access(path.parent, os.W_OK):
        raise PrismError(f"out={path}: folder {path.parent} cannot be written")


def write_json(path: Path, data: object) -> None:
    """Writes beside `path` and renames, so that a reader never sees half a file."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(data, file, indent=1)
            file.write("\n")
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # a write error does not say which file
        raise
