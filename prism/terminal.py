"""What the command line shows: tables, graphs, progress bars."""

from __future__ import annotations

import contextlib
import os
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


def graph(result: Mapping, wanted: str | None = None) -> None:
    """One graph in readable form: the one with the id `wanted`, else a proved one that shows much:
    a loop, many grid dimensions, many operators in the loop. Raises PrismError for an unknown id.
    """
    from prism.sgraph import SGraph
    from prism.sgraph.text import text

    if wanted is None:
        proved = [item for item in result["graphs"] if item["verdict"] == "PROVED"]
        kernels = [SGraph.from_json(item["graph"]).kernels[0] for item in proved]
        rank = [
            (k.block.loop is not None, len(k.block.grid), len(k.block.varying(k.mapping)))
            for k in kernels
        ]
        shown = proved[rank.index(max(rank))] if rank else None
        title = "one of them"
    else:
        shown = next((item for item in result["graphs"] if item["id"] == wanted), None)
        title = "graph"
        if shown is None:
            raise PrismError(f"show={wanted}: no graph of the result has this id")
    if shown is not None:
        print(f"{title}: {shown['id']}, {shown['verdict']}")
        print(text(SGraph.from_json(shown["graph"])), end="")


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
