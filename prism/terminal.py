"""What the command line shows: tables, graphs, progress bars."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prism.errors import PrismError

if TYPE_CHECKING:
    from rich.console import Console

    from prism.instantiate import Concrete
    from prism.sgraph import SGraph
    from prism.sgraph.family import KernelFamily, ListedKernels, Loop, Piece, Space


_LINES = {"families": 10, "causes": 7, "rules": 5, "gaps": 5}  # of a summary, at most


def summary(result: Mapping) -> None:
    """The search at a glance: stages, counts, what was not proved, causes of rejection, rules."""
    from prism.report.telemetry import gap_reasons, rules

    rows = [
        [stage, f"{result['seconds'][stage]:.2f}", f"{counts['in']:,}", f"{counts['out']:,}"]
        for stage, counts in result["candidates"].items()
    ]
    rows.append(["total", _total(result), "", ""])
    _table(f"search {result['workload']}", ("stage", "seconds", "in", "out"), rows, 1)
    if len(result["space"]) > 1:
        print(
            "stages are summed over pieces, whose processes may take more together than the total"
        )
    counts = result["graphs"]
    print(
        f"graphs proved: {amount(counts['all'])}, of one kernel {amount(counts['single_kernel'])}; "
        f"ended: {result['ended']}; peak memory {result['peak_mib']:.0f} MiB"
    )
    if result.get("cached"):
        print("cached: nothing was searched; the seconds and the memory are those measured then")
    _telling("not proved, unused", len(result["gaps"]), gap_reasons(result))
    for gap in result["gaps"][: _LINES["gaps"]]:
        print(f"  {one_line(gap['what'])}: {one_line(gap['reason'])}")
    _cut(len(result["gaps"]), "gaps", "more")
    rejected = sorted(result["rejected"].items(), key=lambda item: (-item[1], item[0]))
    _telling("partial candidates rejected", sum(n for _, n in rejected))
    for cause, count in rejected[: _LINES["causes"]]:
        print(f"  {count:,} {one_line(cause)}")
    _cut(len(rejected), "causes", "other causes")
    costs = rules(result)
    _telling("matches of rules", sum(matches for _, matches, _ in costs))
    for name, matches, seconds in costs[: _LINES["rules"]]:
        print(f"  {matches:,} in {1e3 * seconds:.3g} ms: {one_line(name)}")
    _cut(len(costs), "rules", "other rules")


def _total(found: Mapping) -> str:
    """The seconds of a search; those of one that was stopped are no time, and say so."""
    from prism.report.telemetry import stopped

    total, why = found["seconds"]["total"], stopped(found["ended"])
    return f"> {total:.2f} ({why})" if why else f"{total:.2f}"


def amount(number: int) -> str:
    """A count in words, however large: `722,815`, or `about 3.1e+25`."""
    return f"{number:,}" if number < 10**12 else f"about {number:.1e}"


def one_line(text: str) -> str:
    """The text without line ends, cut where it would fill the screen."""
    line = " ".join(text.split())
    return line if len(line) <= 96 else f"{line[:93]}..."


def _telling(what: str, count: int, parts: str = "") -> None:
    print(f"{what}: {f'{count:,}' if count else 'none'}{parts and f' ({parts})'}")


def _cut(count: int, kind: str, what: str) -> None:
    if (more := count - _LINES[kind]) > 0:
        print(f"  and {more} {what}")


def _console() -> Console:
    """A console wide enough for a table of graphs where stdout is no terminal."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=120)


# Graphs -----------------------------------------------------------------------------------


def graph(result: Mapping, wanted: str) -> SGraph | None:
    """The graph with the id `wanted` as text, proved once more, as a whole; None if it is not.

    Raises PrismError where there is none.
    """
    from prism.given import proofs
    from prism.program import program_from_json
    from prism.sgraph.family import Space
    from prism.sgraph.text import text

    try:
        found = Space.from_json(result["space"]).graph(wanted)
    except PrismError as error:
        raise PrismError(f"show={wanted}: {error}") from None
    (reason,) = proofs(program_from_json(result["program"]))([found])
    print(f"graph {wanted}, {f'UNKNOWN as a whole: {reason}' if reason else 'PROVED as a whole'}")
    print(text(found), end="")
    return None if reason else found


def settings(concrete: Concrete) -> str:
    """Sizes of parallel dimensions and options, as one line."""
    kernels = [" ".join(f"{p}={n}" for p, n in sizes.items()) for sizes in concrete.sizes]
    options = " ".join(f"{key}={value}" for key, value in concrete.options.items())
    return f"sizes {'; '.join(k or '-' for k in kernels)}, options {options or 'none'}"


def graphs(result: Mapping) -> None:
    """What was found by kind of kernel graph, and examples as text that differ much."""
    from prism.sgraph import SGraph
    from prism.sgraph.family import Space
    from prism.sgraph.text import text

    space = Space.from_json(result["space"])
    several = len(space.pieces) > 1
    lines = max(2, _LINES["families"] // len(space.pieces))
    for number, piece in enumerate(space.pieces, 1):
        kinds: dict[str, list[int]] = {}
        for family in range(len(piece.graphs)):
            kinds.setdefault(sketch(piece, family), []).append(family)
        known = [(kind, fs, sum(piece.counts[f] for f in fs)) for kind, fs in kinds.items()]
        known.sort(key=lambda item: (not piece.single(item[1][0]), -item[2]))
        rows = []
        for kind, found, count in known[:lines]:
            more = f" and {len(found) - 1} more" if found[1:] else ""
            rows.append([kind, f"{count:,}", f"{found[0]}{more}"])
        if known[lines:]:
            rest = sum(count for *_, count in known[lines:])
            rows.append([f"{len(known) - lines:,} other kinds", f"{rest:,}", ""])
        title = f"kernel graphs of piece {number}" if several else "kernel graphs"
        _table(title, ("kernel graph", "graphs", "family"), rows, 1)
    print("  {generated kernel}, {first one}/ leaves partial results, others call the library")
    for title, number, name in examples(space):
        where = f" (piece {number + 1})" if several else ""
        full = "+".join(name if i == number else "0.0" for i in range(len(space.pieces)))
        print(f"{title}{where}: {full}, PROVED")
        family, at = map(int, name.split("."))
        print(text(SGraph(space.pieces[number].kernel_graph(family, at))), end="")
    whole = "+".join("0.0" for _ in space.pieces)
    print(f"show=ID prints another one; an id is FAMILY.NUMBER for each piece, such as {whole}")


def sketch(piece: Piece, family: int) -> str:
    """The kernels of a family of graphs: `{square sum div} matmul` is one generated kernel, then a
    call of a library operator; `{exp sum}/` leaves partial results."""
    from prism.sgraph.graph import MOVES

    shown = []
    for step in piece.graphs[family]:
        kernel = piece.kernels[step.family].kernel(0, {})  # they all have the same operators
        words = " ".join(n.op.value for n in kernel.block.nodes if n.op not in MOVES)
        shown.append(words if kernel.library else f"{{{words}}}{'/' * bool(kernel.fresh)}")
    return " ".join(shown)


def examples(space: Space) -> list[tuple[str, int, str]]:
    """(what it shows, piece, id in the piece) of graphs that differ much, as far as there are such:
    a single kernel with a loop and most grid dimensions, a split over two kernels, a library call.
    """
    shows = {
        "one kernel": lambda piece, steps: len(steps) == 1 and not steps[0].library,
        "two kernels, the first leaves partial results": lambda piece, steps: (
            len(steps) == 2
            and not any(k.library for k in steps)
            and bool(steps[0].kernel(0, {}).fresh)
        ),
        "with a library operator": lambda piece, steps: (
            any(k.library for k in steps) and not all(k.library for k in steps)
        ),
    }
    found = []
    for title, fits in shows.items():
        best: tuple | None = None
        for number, piece in enumerate(space.pieces):
            for family, graph in enumerate(piece.graphs):
                steps = [piece.kernels[step.family] for step in graph]
                if fits(piece, steps):
                    rank, at = _showy(steps)
                    if best is None or rank > best[0]:
                        best = rank, number, f"{family}.{at}"
        if best:
            found.append((title, *best[1:]))
    return found


def _showy(steps: Sequence[KernelFamily | ListedKernels]) -> tuple[tuple, int]:
    """How much the graph of a family that shows most does show, and its number."""
    number, ops, partial, shown = 0, 0, 0, [0, 0, 0, 0]
    for kernels in steps:
        at, some = _most(kernels)
        first = kernels.kernel(0, {})
        partial += sum(axis in first.fresh for _, axis, _ in first.mapping.ones)
        number = number * kernels.count + at
        shown = [a + b for a, b in zip(shown, some, strict=True)]
        ops += len(first.block.nodes)
    return (-len(steps), partial, *shown, -ops), number


def _most(kernels: KernelFamily | ListedKernels) -> tuple[int, tuple[int, int, int, int]]:
    """The kernel that shows most: its number; whether it has a loop, how many accumulators that
    reduce, how many grid dimensions, and how many operators in the loop."""
    from prism.program.node import Op
    from prism.sgraph.family import ListedKernels

    if isinstance(kernels, ListedKernels):
        found = [
            (
                int(k.block.loop is not None),
                sum(n.op is Op.ACCUM and not n.arg.startswith("concat") for n in k.block.nodes),
                len(k.block.grid),
                len(k.block.varying(k.mapping)),
            )
            for k in kernels.kernels
        ]
        return found.index(max(found)), max(found)
    loops = [(bool(x.inside), _sums(x), len(x.inside)) for x in kernels.loops]
    grids = [len(grid) for grid in kernels.grids]
    loop, grid = max(loops), max(grids)
    number = loops.index(loop) * len(grids) + grids.index(grid)
    return number, (loop[0], loop[1], grid, loop[2])


def _sums(loop: Loop) -> int:
    return sum(not kind.startswith("concat") for _, kind in loop.accumulated)


# Tables of seconds ------------------------------------------------------------------------


def ablation(found: Mapping) -> None:
    """Seconds of the search with each choice of concrete maps; a limit is no time."""
    sizes = ",".join(f"{axis}={size}" for axis, size in found["sizes"].items())
    rows = []
    for row in found["rows"]:
        stopped = row["ended"] == "limit"
        seconds = f"> {found['limit_s']:g} (limit)" if stopped else f"{row['seconds']:.3g}"
        tried = f"{row['assignments']:,} of {amount(row['assignments_all'])}"
        rows.append([row[m] for m in ("imap", "fmap", "omap", "sizes")] + [seconds, tried])
    columns = ("imap", "fmap", "omap", "sizes", "seconds", "assignments")
    _table(f"ablation {found['workload']} {sizes} (S symbolic, C concrete)", columns, rows, 4)


def growth(found: Mapping) -> None:
    """Seconds and sizes of the searches of ever larger programs."""
    columns = ("program", "operators", "pieces", "seconds", "graphs", "kernels", "MiB", "ended")
    rows = [
        [
            *(str(row[key]) for key in columns[:3]),
            _total(row),
            f"10^{row['graphs_log10']:.1f}",
            *(f"{row[key]:,.0f}" for key in ("kernels", "peak_mib")),
            row["ended"],
        ]
        for row in found["rows"]
    ]
    _table("growth", columns, rows, 1)


def offline(found: Mapping) -> None:
    """How many configurations compiled on each device, and why the others did not."""
    if found["status"] != "ok":
        return
    rows = []
    for device in found["devices"]:
        here = [row for row in found["rows"] if row["device"] == device]
        causes = Counter(row["cause"] for row in here if row["cause"])
        passed = str(sum(row["status"] == "ok" for row in here))
        why = ", ".join(f"{cause} {n}" for cause, n in sorted(causes.items())) or "-"
        rows.append([f"{device} (sm_{here[0]['arch']})" if here else device, why, passed])
    title = f"{len(found['rows']) // max(1, len(rows))} configurations, not run"
    _table(title, ("device", "not compiled", "compiled"), rows, 2)
    print(f"in {found['seconds']['total']:.1f} s, with {found['jobs']} compilers at once")


def packed(out: Path, manifest: Mapping) -> None:
    """What a packed folder holds, and what to do with it."""
    graphs = sum(workload["graphs"] for workload in manifest["workloads"].values())
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(
        f"{out}: {len(manifest['cases'])} configurations for {manifest['device']}, {graphs} proved "
        f"graphs, {size / 1e6:.1f} MB; `python -m prism.measure {out}` measures it where that is"
    )


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> None:
    """A table whose first `words` columns are text and the rest numbers."""
    from rich.table import Table

    table = Table(title=title)
    for n, column in enumerate(columns):
        table.add_column(column, justify="left" if n < words else "right")
    for row in rows:
        table.add_row(*row)
    _console().print(table)


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


def writable(path: Path, key: str = "out") -> None:
    """Fails before the work rather than after it when `path`, given as `key`, cannot be written."""
    if path.is_dir():
        raise PrismError(f"{key}={path}: is a folder, not a file")
    if path.exists() and not path.is_file():  # it would be replaced by a file
        raise PrismError(f"{key}={path}: is a device or a pipe, not a file")
    writable_folder(path.parent, key, path)


def writable_folder(folder: Path, key: str, path: Path | None = None) -> None:
    """`writable` of a folder, which is made; `path` is what was given, if it is another."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PrismError(f"{key}={path or folder}: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise PrismError(f"{key}={path or folder}: folder {folder} cannot be written")
