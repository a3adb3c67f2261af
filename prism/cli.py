"""The command line: `prism search|tune|bench|report`, each one stage of a run.

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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from prism import files, terminal
from prism.errors import PrismError

# What a stage reads beside Hydra overrides, and what for.
_KEYS = {
    "search": {
        "out": "write the result to this JSON file",
        "show": "print the graph with this id instead of an example",
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
    "report": {"run": "the run's folder, such as results/paper-cpu (needed)"},
}
_COMMON = {"slice": "configuration as JSON instead of overrides", "log": "also log to this file"}
_HELP = {
    "search": "find and prove the fused graphs of a workload",
    "tune": "instantiate, compile and time the proved graphs for one configuration",
    "bench": "time the winner beside the baselines, interleaved in rounds",
    "report": "tables, plots and report.html of a run",
}
_EXAMPLES = {
    "search": "prism search workload=rmsnorm out=rmsnorm.json",
    "tune": "prism tune workload=rmsnorm workload.d=8192 graphs=rmsnorm.json out=tuned",
    "bench": "prism bench workload=rmsnorm workload.d=8192 winner=tuned out=rows.jsonl",
    "report": "prism report run=results/paper-cpu",
}

_FULL = (errno.ENOSPC, errno.EDQUOT)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise PrismError(f"{message}; see `{self.prog} --help`")


def parser() -> argparse.ArgumentParser:
    """The argument parser of all stages."""
    top = _Parser(prog="prism", description="Symbolic superoptimization of tensor programs.")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error")
    stages = top.add_subparsers(dest="stage", required=True, metavar="STAGE")
    for stage, text in _HELP.items():
        keys = "\n".join(f"  {key:<10}{why}" for key, why in (_KEYS[stage] | _COMMON).items())
        child = stages.add_parser(
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


# Stages -----------------------------------------------------------------------------------


def _search(own: dict[str, str], overrides: Sequence[str]) -> None:
    from prism import config, given

    out = own.get("out")
    if out is not None:
        terminal.writable(Path(out))
    if "slice" in own:  # of a workflow, where the seconds of a search are results
        data, remember = given.slice_of(own["slice"], "search"), False
    else:
        cfg = config.compose(overrides)
        data, remember = config.search_slice(cfg), cfg.search.cache
    result = _run_search(data, remember)
    interrupted = result["ended"] == "interrupted"
    if "show" not in own:
        terminal.summary(result)
    if out is not None and not (interrupted and "slice" in own):  # a workflow takes whole results
        files.write_json(Path(out), result)
    if interrupted:
        raise KeyboardInterrupt  # what it found is stored and printed, but is not all
    if "show" in own:
        terminal.graph(result, own["show"])
    elif "slice" not in own:  # a workflow's output is long enough
        terminal.graphs(result)


def _run_search(data: Mapping, remember: bool) -> dict:
    """The search of a slice, as JSON data; `remember` looks into the cache first."""
    from prism import cache, config, given

    with given.reading("search"):
        program = config.symbolic(data["workload"], data["dtype"])
        bounds = config.bounds_of(data["search"])
    with terminal.progress(f"search {program.name}") as progress:
        return cache.search(
            program, bounds, lambda stage, count: progress(stage, count, None), remember, _warn
        )


def _tune(own: dict[str, str], overrides: Sequence[str]) -> None:
    from prism import config, given
    from prism.measure.tune import TuneBudget, tune

    out = Path(_needed(own, "out", "tune"))
    terminal.writable(out / "winner.json")
    if "slice" in own:
        data, path = given.slice_of(own["slice"], "tune"), _needed(own, "graphs", "tune")
        cfg = None
    else:
        cfg = config.compose(overrides)
        config.say_device(cfg)
        data, path = config.case_slices(cfg, overrides=overrides)[0], own.get("graphs")
    with given.reading("tune"):
        program = config.program_of(data["workload"], data["dtype"])
        backend, strategy = data["device"]["backend"], data["tune"]["name"]
        budget = TuneBudget(**{key: data["tune"][key] for key in ("count", "seconds", "seed")})
    if path:
        found = given.search_result(path, program)
        if found.get("ended") == "interrupted":
            _warn(f"graphs={path}: its search was interrupted; tuning what it had found")
    else:
        found = _run_search(config.search_slice(cfg), cfg.search.cache)
        if found["ended"] == "interrupted":
            raise KeyboardInterrupt
    with terminal.progress(f"tune {data['case']}") as progress:
        winner = tune(
            program,
            given.proved(found, data["tune"]["seed"]),
            backend,
            budget,
            out,
            _threads(own),
            progress=progress,
            context={"workload": program.name, "case": data["case"]},
            strategy=strategy,
        )
    if winner["status"] == "ok":
        print(f"{data['case']}: {winner['median_us']:.1f} us, graph {winner['graph_id']}")
    else:
        _warn(f"{data['case']}: no kernel: {winner['reason']}")


def _bench(own: dict[str, str], overrides: Sequence[str]) -> None:
    from prism import config, given
    from prism.measure.bench import BaselineSpec, BenchSettings, bench, failures

    out = Path(_needed(own, "out", "bench"))
    terminal.writable(out)
    if "slice" in own:
        data = given.slice_of(own["slice"], "bench")
    else:
        cfg = config.compose(overrides)
        config.say_device(cfg)
        _, data = config.case_slices(cfg, overrides=overrides)
    with given.reading("bench"):
        program = config.program_of(data["workload"], data["dtype"])
        baselines = [
            BaselineSpec(spec["name"], str(config.root() / spec["adapter"]), spec["options"])
            for spec in data["baseline"].values()
        ]
        settings = BenchSettings(
            **data["bench"],
            threads=_threads(own),
            seed=data["seed"],
            device=data["device"]["backend"],
        )
    winner = given.winner(own["winner"], data["case"], program) if "winner" in own else None
    context = {
        "workload": program.name,
        "config": data["case"].partition("@")[2],
        "config_hash": data["config_hash"],
    }
    if "graphs" in own:
        context["search_seconds"] = given.search_result(own["graphs"], program)["seconds"]["total"]
    with terminal.progress(f"bench {data['case']}") as progress:
        rows = bench(program, winner, baselines, settings, out, context, progress=progress)
    for row in rows:
        time = f"{row['median_us']:.1f} us" if row["median_us"] else row["reason"]
        print(f"{data['case']}: {row['system']}: {time}")
    for line in failures(rows):
        if winner is not None or not line.startswith("prism: "):  # without one, no kernel is meant
            _warn(f"{data['case']}: {line}")


def _report(own: dict[str, str], overrides: Sequence[str]) -> None:
    from prism.report import build

    if overrides:
        raise PrismError(f"{overrides[0]}: report reads a run as it is; only run=FOLDER is known")
    run = Path(_needed(own, "run", "report"))
    if not run.is_dir():
        raise PrismError(f"run={run}: no such folder; a run leaves it, such as results/paper-cpu")
    print(build(run))


_STAGES = {"search": _search, "tune": _tune, "bench": _bench, "report": _report}


# Help for the stages ----------------------------------------------------------------------


def _needed(own: Mapping[str, str], key: str, stage: str) -> str:
    if key not in own:
        raise PrismError(f"{stage}: {key}=... is needed; see `prism {stage} --help`")
    return own[key]


def _threads(own: Mapping[str, str]) -> int:
    cores = len(os.sched_getaffinity(0))
    try:
        threads = int(own.get("threads", cores))
    except ValueError:
        threads = 0
    if threads < 1:
        raise PrismError(f"threads={own['threads']}: must be a positive integer")
    if threads > cores:
        print(f"prism: threads={threads}: this machine has {cores}, using them", file=sys.stderr)
    return min(threads, cores)


def _warn(text: str) -> None:
    print(f"prism: warning: {text}", file=sys.stderr)
