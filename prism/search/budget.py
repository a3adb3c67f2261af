"""Time and memory of a search: stages end when they are spent, and keep what they have."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

from prism.search.bounds import Bounds
from prism.search.result import INTERRUPTED, SearchResult
from prism.verify.egraph import Limits


class OutOfBudget(Exception):
    """Time or memory is spent; what was found so far is the result."""


class Budget:
    """Watches one search, and writes into its result what stages took and what ended them.

    Memory is what this process takes beyond what it had at the start.
    """

    def __init__(self, bounds: Bounds, result: SearchResult):
        self.bounds, self.result = bounds, result
        self.start, self.before = time.perf_counter(), memory_mib()
        self.deadline = bounds.seconds
        self.peak = self.before  # MiB
        self._checks = 0

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start

    @contextmanager
    def stage(self, name: str, share: float) -> Iterator[None]:
        """Counts the seconds of a stage, which ends when `share` of the whole time is spent.

        The end of the budget and Ctrl-C end the stage, not the search.
        """
        since = time.perf_counter()
        self.deadline = share * self.bounds.seconds
        try:
            yield
        except OutOfBudget as spent:
            self.stop(f"{spent}, in stage {name}")
        except KeyboardInterrupt:
            self.stop(INTERRUPTED)
        finally:
            self.result.seconds[name] += time.perf_counter() - since
            self.peak = max(self.peak, memory_mib())

    def stop(self, reason: str) -> None:
        """Says in the result what kept the search from its end; an interrupt stays the reason."""
        if self.result.ended != INTERRUPTED:
            self.result.ended = reason

    def check(self) -> None:
        """Raises OutOfBudget when the stage's time, or the memory, is spent."""
        if self.spent > self.deadline:
            raise OutOfBudget(f"time limit of {self.bounds.seconds:.3g} s")
        self._checks += 1
        if self._checks % _CHECKS == 1:
            self.peak = max(self.peak, memory_mib())
            if self.peak - self.before > self.bounds.memory:
                raise OutOfBudget(f"memory limit of {self.bounds.memory} MiB")

    def limits(self) -> Limits:
        """What is left of the budget for one e-graph; a second at least, as nothing is of any use
        without its proof."""
        left = max(1.0, self.bounds.seconds - self.spent)
        return Limits(nodes=self.bounds.nodes, seconds=left, memory_mib=self.bounds.memory)


_CHECKS = 256  # looking at the memory takes longer than at the clock


def memory_mib() -> float:
    """Memory that this process has now, in MiB (on Linux; elsewhere the most that it ever had)."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / (1 << 20)
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
