"""Tuning by local search: around the best of what was tried, with other points in between.

After a start in the order of the device's model (see `ranked`) most proposals change one thing of
one of the best: a size to a value near it in its range, an option, or the graph, to another one
that takes the same sizes.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from prism.errors import PrismError
from prism.instantiate.concrete import Concrete
from prism.instantiate.space import sizes
from prism.instantiate.stable import stable_graphs
from prism.measure.ranked import Points, ranked
from prism.measure.space import Space
from prism.sgraph import SGraph

START = 20  # points in the model's order before the first step
OTHERS = 4  # from then on one proposal in so many is the next in that order
BEST = 4  # steps start from as many of the fastest
STEPS = 60  # tries to find a valid step that is new, before the model's order has its turn


class LocalStrategy:
    """The same seed and history give the same proposals."""

    def __init__(self):
        self._search: _Search | None = None

    @property
    def pruned(self) -> int:
        """Configurations that do not fit the device."""
        return self._search.order[1] if self._search else 0

    def propose(
        self, space: Space, history: Sequence[dict], count: int
    ) -> list[tuple[str, Concrete]]:
        """At most `count` new configurations."""
        if self._search is None:
            self._search = _Search(space)
        return self._search.propose(history, count)


class _Search:
    def __init__(self, space: Space):
        self.space = space
        self.graphs = dict(stable_graphs(space.program, space.graphs))

    @cached_property
    def order(self) -> tuple[Points, int]:
        """The points in the model's order, and how many do not fit."""
        return ranked(self.space)

    @cached_property
    def alike(self) -> dict[tuple, list[str]]:
        """Graphs by the parallel dimensions of their kernels: they take the same sizes."""
        found: dict[tuple, list[str]] = {}
        for name, graph in self.graphs.items():
            found.setdefault(_pars(graph), []).append(name)
        return found

    def propose(self, history: Sequence[dict], count: int) -> list[tuple[str, Concrete]]:
        known = {record["digest"] for record in history}
        seen = {one.key for record in history if (one := self._concrete(record))}
        passed = [r for r in history if r["status"] == "ok" and r["median_us"] is not None]
        best = sorted(passed, key=lambda record: record["median_us"])[:BEST]
        found: list[tuple[str, Concrete]] = []
        for number in range(len(history), len(history) + count):
            rng = random.Random(f"{self.space.seed} {number}")
            step = None
            if number >= START and number % OTHERS and best:
                step = next(self._steps(best, rng, seen), None)
            step = step or next(self._next(known, seen), None)
            if step is None:
                break
            known.add(step[1].digest())
            seen.add(step[1].key)
            found.append(step)
        return found

    def _next(self, known: set[str], seen: set) -> Iterator[tuple[str, Concrete]]:
        for name, concrete in self.order[0]:
            if concrete.digest() not in known and concrete.key not in seen:
                yield name, concrete

    def _steps(
        self, best: Sequence[dict], rng: random.Random, seen: set
    ) -> Iterator[tuple[str, Concrete]]:
        """Valid steps that are new, at most `STEPS` tries."""
        for _ in range(STEPS):
            record = rng.choice(best)
            start = self._concrete(record)
            if start is None:
                continue
            name, concrete = self._step(record["graph_id"], start, rng)
            if concrete.key not in seen and concrete.problem(self.space.scratch_bytes) is None:
                yield name, concrete

    def _step(self, name: str, start: Concrete, rng: random.Random) -> tuple[str, Concrete]:
        graph, chosen, options = start.graph, [dict(s) for s in start.sizes], dict(start.options)
        others = [other for other in self.alike[_pars(graph)] if other != name]
        ranges = [
            (kernel, par, values)
            for kernel, one in enumerate(graph.kernels)
            for par, values in sizes(self.space.program, one).items()
            if len(values) > 1
        ]
        choices = [o for o, values in self.space.options.items() if len(values) > 1]
        kinds = {"size": 4 * bool(ranges), "option": bool(choices), "graph": 2 * bool(others)}
        (kind,) = rng.choices(list(kinds), list(kinds.values())) if any(kinds.values()) else [""]
        if kind == "size":
            kernel, par, values = rng.choice(ranges)
            at = bisect_left(values, chosen[kernel][par]) + rng.choice((-2, -1, 1, 2))
            chosen[kernel][par] = values[min(max(at, 0), len(values) - 1)]
        elif kind == "option":
            option = rng.choice(choices)
            now = options.get(option)
            options[option] = rng.choice([v for v in self.space.options[option] if v != now])
        elif kind == "graph":
            name = rng.choice(others)
            graph = self.graphs[name]
        return name, Concrete(self.space.program, graph, tuple(chosen), options)

    def _concrete(self, record: Mapping) -> Concrete | None:
        """What a record is of; None when it is of no graph of this space."""
        graph = self.graphs.get(record["graph_id"])
        if graph is None or record["options"].keys() != self.space.options.keys():
            return None
        try:
            return Concrete(self.space.program, graph, record["sizes"], record["options"])
        except (PrismError, TypeError):
            return None


def _pars(graph: SGraph) -> tuple:
    return tuple((kernel.library, kernel.block.pars) for kernel in graph.kernels)
