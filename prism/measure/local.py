"""Tuning by local search: around the best of what was tried, with random points in between.

After a start of random points most proposals change one thing of one of the best: a size to a value
near it in its range, an option, or the graph, to another one that takes the same sizes.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from prism.errors import PrismError
from prism.instantiate.concrete import Concrete
from prism.instantiate.distinct import identity
from prism.instantiate.sampling import sample
from prism.instantiate.space import problem, sizes
from prism.instantiate.stable import stable_graphs
from prism.measure.space import Space
from prism.sgraph import SGraph

START = 20  # random points before the first step
RANDOM = 4  # from then on one proposal in so many is a random one
BEST = 4  # steps start from as many of the fastest
STEPS = 60  # tries to find a valid step that is new, before a random point takes its place


class LocalStrategy:
    """The same seed and history give the same proposals."""

    pruned = 0

    def __init__(self):
        self._search: _Search | None = None

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
    def points(self) -> list[tuple[str, Concrete]]:
        """Random points."""
        space = self.space
        more = space.options, space.scratch_bytes
        return sample(space.graphs, space.program, space.limit, space.seed, *more)

    @cached_property
    def alike(self) -> dict[tuple, list[str]]:
        """Graphs by the parallel dimensions of their kernels: they take the same sizes."""
        found: dict[tuple, list[str]] = {}
        for name, graph in self.graphs.items():
            found.setdefault(_pars(graph), []).append(name)
        return found

    def propose(self, history: Sequence[dict], count: int) -> list[tuple[str, Concrete]]:
        known = {record["digest"] for record in history}
        seen = {self._key(one) for record in history if (one := self._concrete(record))}
        passed = [r for r in history if r["status"] == "ok" and r["median_us"] is not None]
        best = sorted(passed, key=lambda record: record["median_us"])[:BEST]
        found: list[tuple[str, Concrete]] = []
        for number in range(len(history), len(history) + count):
            rng = random.Random(f"{self.space.seed} {number}")
            step = None
            if number >= START and number % RANDOM and best:
                step = next(self._steps(best, rng, seen), None)
            step = step or next(self._random(known, seen), None)
            if step is None:
                break
            known.add(step[1].digest())
            seen.add(self._key(step[1]))
            found.append(step)
        return found

    def _random(self, known: set[str], seen: set) -> Iterator[tuple[str, Concrete]]:
        for name, concrete in self.points:
            if concrete.digest() not in known and self._key(concrete) not in seen:
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
            if self._key(concrete) not in seen and self._valid(concrete):
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

    def _valid(self, concrete: Concrete) -> bool:
        parts = zip(concrete.bound, concrete.kernels, concrete.sizes, strict=True)
        return all(problem(*part, self.space.scratch_bytes) is None for part in parts)

    def _concrete(self, record: Mapping) -> Concrete | None:
        """What a record is of; None when it is of no graph of this space."""
        graph = self.graphs.get(record["graph_id"])
        if graph is None or record["options"].keys() != self.space.options.keys():
            return None
        try:
            return Concrete(self.space.program, graph, record["sizes"], record["options"])
        except (PrismError, TypeError):
            return None

    @staticmethod
    def _key(concrete: Concrete) -> tuple:
        return identity(concrete.graph, concrete.sizes), tuple(sorted(concrete.options.items()))


def _pars(graph: SGraph) -> tuple:
    return tuple((kernel.library, kernel.block.pars) for kernel in graph.kernels)
