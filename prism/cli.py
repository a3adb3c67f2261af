"""The command line: `prism STAGE`, such as `prism search`, each one stage of a run.

A stage is configured by Hydra overrides, or by `slice=JSON`, the plain data that the workflow hands
to each of its jobs. Whatever goes wrong is one line on stderr: exit code 2 for bad input, 1 for a
failure, 130 when interrupted. Results appear whole or not at all. A result that is whole but has no
kernel, or a system that failed, is a warning: its reason is part of the result.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from prism.errors import PrismError
from prism.stages.growth import ablate, growth
from prism.stages.offline import offline
from prism.stages.pack import pack, unpack
from prism.stages.report import report
from prism.stages.search import search
from prism.stages.tune import bench, tune

# What a stage reads beside Hydra overrides, and what for.
_KEYS = {
    "search": {
        "out": "write the result to this JSON file",
        "show": "print the graph with this id, such as 0.12, instead of the summary",
        "source": "with show=, also write its generated source, for device=NAME, to this file",
    },
    "tune": {
        "out": "folder for winner.json and kernel.cpp (needed)",
        "graphs": "result of `prism search`; without it the search runs first",
        "threads": "threads of a kernel; all cores by default",
    },
    "bench": {
        "out": "write the rows to this JSON Lines file (needed)",
        "winner": "folder that `prism tune` wrote; without it only the baselines run",
        "graphs": "result of `prism search`, for the search's seconds",
        "threads": "threads of every system; all cores by default",
    },
    "ablate": {"out": "write the seconds to this JSON file (needed)"},
    "growth": {"out": "write the seconds to this JSON file (needed)"},
    "pack": {
        "out": "folder to write (needed)",
        "graphs": "folder of results of `prism search`, such as results/paper-cpu/search; without "
        "it the search runs first",
    },
    "unpack": {
        "from": "folder that `prism pack` wrote (needed)",
        "measured": "where `python -m prism.measure` wrote, if it was told out=",
        "run": "the run's folder, such as results/paper-h200 (needed)",
    },
    "offline": {
        "out": "write what compiled to this JSON file (needed)",
        "graphs": "folder of results of `prism search`, such as results/paper-cpu/search; without "
        "it the search runs first",
        "sources": "also write each source that was compiled into this folder",
    },
    "report": {"run": "the run's folder, such as results/paper-cpu (needed)"},
}
_COMMON = {"slice": "configuration as JSON instead of overrides", "log": "also log to this file"}
_HELP = {
    "search": "find and prove the graphs of a workload",
    "tune": "instantiate, compile and time the proved graphs for one configuration",
    "bench": "time the winner beside the baselines, interleaved in rounds",
    "ablate": "time the search with maps enumerated instead of symbolic (Table 4)",
    "growth": "time the search of ever larger programs",
    "pack": "write a folder that `python -m prism.measure` tunes and times elsewhere",
    "unpack": "make a run's folder of what was measured of a packed one",
    "offline": "compile kernels for GPUs, without one, and tell what the compiler reports",
    "report": "tables, plots and report.html of a run",
}
_EXAMPLES = {
    "search": "prism search workload=rmsnorm out=rmsnorm.json",
    "tune": "prism tune workload=rmsnorm workload.d=8192 graphs=rmsnorm.json out=tuned",
    "bench": "prism bench workload=rmsnorm workload.d=8192 winner=tuned out=rows.jsonl",
    "ablate": "prism ablate workload=rmsnorm workload.d=1024 ablation.limit_s=20 out=ablation.json",
    "growth": "prism growth growth.seconds=30 out=growth.json",
    "pack": "prism pack device=h200 out=packed",
    "unpack": "prism unpack from=packed run=results/paper-h200",
    "offline": "prism offline workload=rmsnorm offline.configs=4 out=offline.json",
    "report": "prism report run=results/paper-cpu",
}

_FULL = (errno.ENOSPC, errno.EDQUOT)


_STAGES = {
    "search": search,
    "tune": tune,
    "bench": bench,
    "ablate": ablate,
    "growth": growth,
    "pack": pack,
    "unpack": unpack,
    "offline": offline,
    "report": report,
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise PrismError(f"{message}; see `{self.prog} --help`")


def parser() -> argparse.ArgumentParser:
    """The argument parser of all stages."""
    top = _Parser(prog="prism", description="Symbolic superoptimization of tensor programs.")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = top.add_subparsers(dest="stage", required=True, metavar="STAGE")
    for stage, text in _HELP.items():
        keys = "\n".join(f"  {key:<10}{why}" for key, why in (_KEYS[stage] | _COMMON).items())
        child = commands.add_parser(
            stage,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=f"KEY=VALUE is a Hydra override of conf/, or one of\n{keys}\n\n"
            f"example: {_EXAMPLES[stage]}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        child.add_argument("items", nargs="*", metavar="KEY=VALUE")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one stage and returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in argv
    try:
        args = parser().parse_args([item for item in argv if item != "--debug"])
        own, overrides = _split(args.stage, args.items)
        with _logging(own.pop("log", None)):
            _STAGES[args.stage](own, overrides)
        return 0
    except PrismError as error:
        cause = error.__context__  # bad input was not what filled a disk
        full = isinstance(cause, OSError) and cause.errno in _FULL
        return _fail(error, 1 if full else 2, debug)
    except KeyboardInterrupt as error:
        return _fail(error, 130, debug, "interrupted")
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return _fail(error, 1, debug, f"{error.strerror or error}{where}")
    except MemoryError as error:
        return _fail(error, 1, debug, f"not enough memory for these sizes: {error}")
    except Exception as error:  # a bug: still one line, and the traceback on request
        what = f"{type(error).__name__}: {error} (a fault of prism; --debug shows where)"
        return _fail(error, 1, debug, what)


def _fail(error: BaseException, code: int, debug: bool, text: str | None = None) -> int:
    line = " ".join((text or str(error)).split())
    print(f"prism: error: {line}", file=sys.stderr)
    if debug:
        import traceback

        traceback.print_exception(error)
    return code


def _split(stage: str, items: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """A stage's own `key=value` items apart from the Hydra overrides."""
    known = _KEYS[stage] | _COMMON
    own: dict[str, str] = {}
    overrides = []
    for item in items:
        key, equal, value = item.partition("=")
        if key not in known:
            overrides.append(item)
        elif not equal or not value:
            raise PrismError(f"{key}: needs a value, {key}=...")
        else:
            own[key] = value
    if "slice" in own and overrides:
        raise PrismError(f"{overrides[0]}: overrides and slice=JSON exclude each other")
    return own, overrides


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """A log that cannot be written is no error of the run."""


@contextlib.contextmanager
def _logging(path: str | None) -> Iterator[None]:
    if path is None:
        yield
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    handler = _LogFile(path, mode="w")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("prism")  # not the root: the e-graph engine logs all it is told
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
        log.info("done")
    except BaseException:
        log.exception("failed")
        raise
    finally:
        log.removeHandler(handler)
        with contextlib.suppress(OSError):  # a full disk must not hide the error itself
            handler.close()
