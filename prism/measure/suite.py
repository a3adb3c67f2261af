"""All cases of a packed folder on one device: breadth first, within a time limit, resumed.

The first pass gives every case its rows, without the baselines that compile for long where there
is little time for each; the second times those cases again with all baselines; the next ones go on
with the tuning of each case and time it again where that found another winner. Whatever was done is
kept as it comes, so that a run that was stopped or killed goes on where it was when it is started
again.

In the folder `out` are `tune/CASE` and `bench/CASE.jsonl` as a run has them, each pair of the same
winner; `work/CASE`, where tuning goes on; and `measured.json`, which says of what.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prism.errors import PrismError
from prism.files import write_bytes, write_json
from prism.measure.baseline import BaselineSpec
from prism.measure.bench import LATE, PRISM, BenchSettings, bench
from prism.measure.environment import revision
from prism.measure.folder import FORMAT, STATE, Folder, read_state
from prism.measure.gpu import CACHE
from prism.measure.lock import Locked, folder_lock, work_folder
from prism.measure.rows import Row, read_rows, write_rows
from prism.measure.strategy import STRATEGIES
from prism.measure.tune import TuneBudget, tune
from prism.measure.winner import KERNEL, WINNER
from prism.measure.work import LATER, LEFT_OUT, ROWS, TIMING, TUNING, Work, no_winner
from prism.model.device import Device

ROOT = Path(__file__).resolve().parents[2]  # where an adapter's path begins
FIRST_SHARE = 0.25  # of a case's seconds in the first pass, for tuning; compiling baselines is slow
LONGER = 1.5  # times its share that the baselines of a case may compile
PREPARE = (5.0, 300.0)  # seconds that a baseline may compile at least, and at most
SHORT = 60.0  # seconds of a case's share, below which slow baselines wait for the second pass
COMPILING = 45.0  # seconds without which a slow baseline is left for the second pass
UNKNOWN = 120.0  # seconds that it may compile there while none was measured
WORTH = 20.0  # seconds of compiling that are worth the start of a benchmark
LEAST = 5.0  # seconds of a tuning that are worth its start
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass
class Suite:
    """A folder measured on one of its devices; `seconds` limits one call of `run`."""

    folder: Folder
    device: str
    out: Path
    seconds: float | None
    threads: int
    say: Callable[[str], None] = field(default=lambda line: print(line, flush=True))

    def __post_init__(self):
        self.settings = self.folder.settings(self.device)
        self.until = time.monotonic() + (self.seconds or float("inf"))
        self.budget = self.settings["tune"]

    def run(self) -> list[str]:
        """Measures until all is done or the time is over; returns the cases without a row.

        Raises PrismError for a folder that is not as it was packed, an `out` that holds another
        device's results or that another run is at work on, and for a disk that cannot be written.
        """
        with folder_lock(self.out), work_folder("suite") as self.cases:
            before = CACHE.set(self.cases / "triton")
            try:
                return self._passes(self._start())
            finally:
                CACHE.reset(before)

    def _passes(self, work: list[Work]) -> list[str]:
        self._first(work)
        self._second(work)
        if self.seconds is not None:
            self._deepen(work)
        return [one.case.name for one in work if not one.rows]

    @property
    def left(self) -> float:
        """Seconds until the limit."""
        return self.until - time.monotonic()

    def _start(self) -> list[Work]:
        """The cases, with what is kept of earlier calls; checks every file of the folder."""
        state = read_state(self.out) if (self.out / STATE).is_file() else {}
        if state.get("device", self.device) != self.device:
            raise PrismError(
                f"out={self.out}: holds measurements of device {state['device']}; "
                f"choose another out=FOLDER for {self.device}"
            )
        known, work = state.get("cases", {}), []
        for case in self.folder.cases(self.device):
            self.folder.graphs(case)
            graphs = self.folder.manifest["files"][f"graphs/{case.workload}.json"]
            one = Work(case, self.out / "work" / case.name, f"{case.config_hash} {graphs}")
            earlier = known.get(case.name, {})
            if earlier.get("key") == one.key:
                one.seconds = earlier["seconds"]
                self._publish(one)
            elif earlier:
                self.say(f"{case.name}: measured with other settings before; measured anew")
                self._forget(one)
            work.append(one)
        self._store(work)
        return work

    def _forget(self, one: Work) -> None:
        for folder in (one.folder, self.out / "tune" / one.case.name):
            shutil.rmtree(folder, ignore_errors=True)
        (self.out / "bench" / f"{one.case.name}.jsonl").unlink(missing_ok=True)

    def _store(self, work: list[Work]) -> None:
        cases = {w.case.name: {"key": w.key, "seconds": w.seconds} for w in work}
        packed = {key: self.folder.manifest[key] for key in ("commit", "created")}
        data = {"format": FORMAT, "device": self.device, "packed": packed, "cases": cases}
        write_json(self.out / STATE, data, indent=1)

    # Passes -------------------------------------------------------------------------------

    def _first(self, work: list[Work]) -> None:
        """A row for every case that has none of its winner; then what an error kept from being
        whole is tried again.

        Each gets a fair share of the time. A baseline may compile for longer than that, as long as
        every case after it can still get what one takes without (`least`); once there is little
        for that, those that are slow to compile are left for the second pass, which also gets what
        a case leaves of its share.
        """
        todo = [one for one in work if not one.timed]
        todo += [one for one in work if one.timed and one.broken]
        least, rest = [], [self.settings["bench"]["seconds"]]  # of a case, and of its timing
        short, fair = False, self.left / max(1, len(todo))
        for number, one in enumerate(todo):
            after = len(todo) - number - 1
            share, start = self.left / (after + 1), time.monotonic()
            if share <= 0:
                break
            if one.winner is None or one.broken:
                self._tune(one, FIRST_SHARE * (min(share, fair) if self._slow else share))
            tuned, most = time.monotonic(), LONGER * share
            if self.seconds is not None:
                reserve = after * (_mean(least) if least else share / 2)
                most = min(most, self.left - reserve - _mean(rest))
            short = short or share < SHORT or most < COMPILING
            self._bench(one, most, without_slow=short)
            self._store(work)
            least.append(time.monotonic() - start - one.compiled)
            rest = [*rest[number == 0 :], time.monotonic() - tuned - one.compiled]

    def _second(self, work: list[Work]) -> None:
        """Times the cases again of which a baseline had no time to compile.

        Each gets a fair share of what is left, and at least what compiling is likely to take: one
        comparison that is whole is worth more than two that are cut again.
        """
        todo = [one for one in work if one.timed and one.cut]
        for number, one in enumerate(todo):
            known = [s for other in work for s in other.compile_seconds(one.lacking)]
            likely = LONGER * _mean(known) if known else UNKNOWN
            rest = max(0.0, (one.seconds or 0.0) - one.compiled)
            share = self.left / (len(todo) - number)
            most = min(max(share - rest, likely), self.left - rest)
            if most >= min(WORTH, likely):
                self._bench(one, most)
                self._store(work)

    def _deepen(self, work: list[Work]) -> None:
        """Goes on with tuning, in turns, while a case can be tuned and timed again in its share."""
        while todo := [one for one in work if one.rows and not one.finished]:
            needed = [LEAST + (one.seconds or 0.0) for one in todo]
            for number, one in enumerate(todo):
                share = self.left / (len(todo) - number)
                if self.left < needed[number]:
                    one.finished = True  # for this call
                    continue
                self._tune(one, max(LEAST, share - (one.seconds or 0.0)))
                if not one.timed:
                    most = max(LONGER * share, LONGER * one.compiled)
                    self._bench(one, most, without_slow=one.cut)
                    self._store(work)

    def _tune(self, one: Work, seconds: float) -> None:
        """One tuning, which goes on where the last one of the case was."""
        earlier, budget = one.winner, self.budget
        tried = earlier["tried"] if earlier else 0
        if tried >= budget["count"]:
            one.finished = True
            return
        one.chooser = one.chooser or STRATEGIES[budget["name"]]()
        planned = {key: budget[key] for key in ("count", "seconds", "seed")}
        told = {"workload": one.case.workload, "case": one.case.name, "budget": planned}
        told |= {"strategy": budget["name"]}
        limit = min(budget["seconds"], seconds)
        try:
            found = tune(
                one.case.program,
                self.folder.graphs(one.case),
                Device.from_json(self.settings["device"]),
                TuneBudget(budget["count"] - tried, limit, budget["seed"]),
                one.folder,
                self.threads,
                context=told,
                strategy=one.chooser,
                earlier=earlier,
                until=self.until,
                case_dir=self.cases / one.case.name,
            )
        except Locked:
            raise  # the time is over for all
        except Exception as error:
            reason, one.finished = f"{TUNING}: {_line(error)}", True
            if earlier is None or not earlier["candidates"]:
                found = no_winner(one.case, self.settings, reason) | told
                write_json(one.folder / WINNER, found)
            return
        one.finished = found["tried"] in (tried, budget["count"])
        if found["tried"] == 0 and self.left <= 0:
            (one.folder / WINNER).unlink(missing_ok=True)  # there was no time to try anything

    # Rows ---------------------------------------------------------------------------------

    @property
    def _slow(self) -> set[str]:
        """Names of the baselines that compile for long."""
        return {b["name"] for b in self.settings["baseline"].values() if b.get("slow")}

    def _bench(self, one: Work, most: float, without_slow: bool = False) -> None:
        """Times the winner beside the baselines, each of which may compile for about `most`
        seconds; a failure is a row like any other, and so is a slow baseline that is left out."""
        start, settings = time.monotonic(), self.settings
        allowed = min(PREPARE[1], max(PREPARE[0], most))
        if self.left <= 0:
            return
        baselines = [
            BaselineSpec(spec["name"], str(ROOT / spec["adapter"]), spec["options"])
            for spec in settings["baseline"].values()
            if one.case.workload in spec.get("workloads", (one.case.workload,))
        ]
        slow = [spec.name for spec in baselines if without_slow and spec.name in self._slow]
        baselines = [spec for spec in baselines if spec.name not in slow]
        context = {
            "workload": one.case.workload,
            "config": one.case.name.partition("@")[2],
            "config_hash": one.case.config_hash,
            **one.case.account,
        }
        winner, new = one.folder if one.winner else None, one.folder / f"new-{ROWS}"
        try:
            bench(
                one.case.program,
                winner,
                baselines,
                BenchSettings(
                    **settings["bench"],
                    device=Device.from_json(settings["device"]),
                    threads=self.threads,
                    seed=settings["seed"],
                    prepare_timeout=allowed,
                    limited=allowed < PREPARE[1],
                    until=self.until,
                ),
                new,
                context,
                case_dir=self.cases / one.case.name,
            )
        except Locked:
            raise
        except Exception as error:
            write_rows(new, [self._failed(one, f"{TIMING}: {_line(error)}", context)])
        found = read_rows(new)
        if any(row["reason"] == LATE for row in found):
            new.unlink()  # half of a comparison; the next call makes it anew
            return
        if slow:
            left = {**context, "search_seconds": None, "search": {}}
            found += [self._failed(one, LATER, left, name, LEFT_OUT) for name in slow]
            write_rows(new, found)
        os.replace(new, one.folder / ROWS)
        one.seconds = time.monotonic() - start
        self._publish(one)
        self._tell(one)

    def _failed(
        self, one: Work, reason: str, context: Mapping, system: str = PRISM, cause: str = ""
    ) -> dict:
        """The row of a system of which nothing could be measured."""
        program = one.case.program
        known = {k: v for k, v in context.items() if k in Row.__dataclass_fields__}
        variant = ((one.winner or {}).get("digest") or "") if system == PRISM else ""
        return Row(
            **known,
            shape=dict(program.sizes),
            dtype=program.dtype,
            system=system,
            variant=variant,
            device=self.device,
            reason=reason,
            cause=cause,
            **revision(),
        ).to_json()

    def _publish(self, one: Work) -> None:
        """Puts a timed winner and its rows where a run has them."""
        if not one.timed:
            return
        place = self.out / "tune" / one.case.name
        kernels = sorted(one.folder.glob(f"{KERNEL}.*"))
        for path in (*kernels, one.folder / WINNER):
            if path.is_file():
                _copy(path, place / path.name)
        for path in place.glob(f"{KERNEL}.*"):
            if path.name not in {kernel.name for kernel in kernels}:
                path.unlink()
        _copy(one.folder / ROWS, self.out / "bench" / f"{one.case.name}.jsonl")

    def _tell(self, one: Work) -> None:
        """A line of the case's times."""
        shown = []
        for row in one.rows:
            time_us = row["median_us"]
            ok = row["status"] == "ok" and time_us
            shown.append(f"{row['system']} {f'{time_us:.1f} us' if ok else row['reason']}")
        tried = (one.winner or {}).get("tried", 0)
        self.say(f"{one.case.name}: {', '.join(shown)} ({tried} configurations tried)")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _copy(source: Path, target: Path) -> None:
    content = source.read_bytes()
    if not target.is_file() or target.read_bytes() != content:
        write_bytes(target, content)


def _line(error: Exception) -> str:
    """What a case failed of. A full disk is raised again: it ends all of them."""
    if isinstance(error, OSError) and error.errno in _FULL:
        raise error
    kind = "" if isinstance(error, PrismError) else f"{type(error).__name__}: "
    return kind + " ".join(str(error).split())
