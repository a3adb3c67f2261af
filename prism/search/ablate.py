"""What symbolic maps are worth (paper section 7.6, Table 4): the search with maps made concrete.

A map that is concrete is enumerated before anything else, and the whole search, from the members of
the e-class on, runs once for each assignment of it; a symbolic one is solved for afterwards. With
concrete sizes as well (as Mirage does), it runs once for each value of every d_p too. All use the
functions of the search itself, find the same graphs, and prove their lemmas once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import comb
from statistics import median

from prism.errors import PrismError
from prism.program.node import Node, topological
from prism.program.program import Program
from prism.program.serial import program_to_json
from prism.search.bounds import Bounds
from prism.search.budget import Budget, OutOfBudget
from prism.search.kernels import Loops, any_axis, grid_choices, grids, no_axis
from prism.search.members import members, operators
from prism.search.plans import in_one_kernel
from prism.search.result import INTERRUPTED
from prism.search.search import Search
from prism.sgraph.graph import GRID_DIMS
from prism.verify.prove import saturated_table

MAPS = ("imap", "fmap", "omap")
_REPEATS = 5  # of the symbolic search, whose seconds are few
Grid = tuple[dict[str, str | None], ...]  # one dictionary a dimension: tensor to axis


@dataclass(frozen=True)
class Variant:
    """Which maps are concrete, and whether grid and loop sizes are."""

    concrete: frozenset[str]
    sizes: bool = False

    def letters(self) -> dict[str, str]:
        """S or C for each map, and for the sizes."""
        found = {name: "C" if name in self.concrete else "S" for name in MAPS}
        return found | {"sizes": "C" if self.sizes else "S"}


VARIANTS = (
    *(
        Variant(frozenset(name for name, c in zip(MAPS, which, strict=True) if c))
        for which in sorted(product((False, True), repeat=3), key=sum)
    ),
    Variant(frozenset(MAPS), sizes=True),
)


def ablate(
    program: Program,
    bounds: Bounds | None = None,
    limit_s: float = 60.0,
    progress: Callable[[str, int], None] = lambda _stage, _count: None,
) -> dict:
    """Seconds of the search of single kernels with every choice of concrete maps, as plain data.

    `program` has its sizes. A variant that hits `limit_s` has ended "limit": its seconds are that
    limit and no measurement. Raises PrismError while a size is symbolic, and for a program that is
    searched in pieces.
    """
    bounds = bounds or Bounds()
    own = operators(tuple(node for _, node in program.outputs))
    if own > bounds.piece:
        raise PrismError(
            f"ablate: {program.name} has {own} operators; the ablation is of programs that are "
            f"searched in one piece, of at most {bounds.piece}"
        )
    bounds = replace(bounds, generated=1, kernels=1, library=(), split=False)
    rows = []
    for variant in VARIANTS:
        progress("".join(variant.letters().values()), len(rows))
        runs = [_Ablation(program, bounds, variant, limit_s)]
        runs[0].run_all()
        if not variant.concrete:
            runs += [_Ablation(program, bounds, variant, limit_s) for _ in range(_REPEATS - 1)]
            for run in runs[1:]:
                run.run_all()
        rows.append(_row(variant, runs))
    return {
        "workload": program.name,
        "program": program_to_json(program),
        "sizes": {axis: program.size(axis) for axis in program.sizes},
        "limit_s": limit_s,
        "rows": rows,
    }


def _row(variant: Variant, runs: list[_Ablation]) -> dict:
    first = runs[0]
    return variant.letters() | {
        "seconds": median(run.total for run in runs),
        "samples": [run.total for run in runs],
        "ended": "exhausted" if first.done else "limit",
        "graphs": len(first.graphs),
        "assignments": first.tried,
        "assignments_all": first.assignments_all(),
    }


class _Ablation(Search):
    """The search of single kernels, once for each assignment of what is concrete."""

    def __init__(self, program: Program, bounds: Bounds, variant: Variant, limit_s: float):
        super().__init__(program, replace(bounds, seconds=limit_s))
        self.variant = variant
        self.graphs: set[tuple] = set()
        self.tried, self.done, self.total = 0, False, 0.0

    def run_all(self) -> None:
        """Runs until the end or the limit."""
        self.budget = Budget(self.bounds, self.result)  # which starts now
        try:
            self.prepare()
            for grid, loop, sizes in self.assignments():
                self.budget.check()
                self.once(grid, loop, sizes)
                self.tried += 1
            self.done = True
        except OutOfBudget:
            pass
        self.total = self.budget.spent

    def prepare(self) -> None:
        """E-graph and lemmas, which do not depend on any map."""
        self.table = saturated_table(self.roots, self.budget.limits())
        plans = list(map(in_one_kernel, self.members_of()))
        self.add(plans)
        self.show(plans)
        if self.result.ended == INTERRUPTED:  # which ends a stage of a search, but this altogether
            raise KeyboardInterrupt

    def members_of(self) -> Iterator[tuple[Node, ...]]:
        """The members of the e-class, each as its roots."""
        classes, roots, _ = self.table
        bound = operators(self.roots) + self.bounds.extra_operators
        allowed = self.bounds.allowed(self.program)
        for member in members(classes, roots, self.program.inputs, bound):
            self.budget.check()
            if all(node.op in allowed for node in topological(member)):
                yield member

    def once(self, grid: Grid | None, loop: dict | None, sizes: dict[str, int] | None) -> None:
        """The search under one assignment; what it finds joins the graphs of the others."""
        for roots in self.members_of():
            found = self.grids_under(roots, grid)
            if not found:
                continue
            options = any_axis if self.bounds.loop else no_axis
            if loop is not None:
                options = lambda node: (loop[node.arg],)  # noqa: E731
            finder = Loops(roots, self.found, self.rejected, self.budget.check, options)
            finder.run()
            for split, inside, kinds in finder.result:
                if sizes is None or self.divides(found, split, sizes):
                    self.graphs.update((roots, split, inside, kinds, g) for g in found)

    def grids_under(self, roots: tuple[Node, ...], grid: Grid | None) -> set[tuple]:
        """Grid mappings that a grid's concrete maps allow."""
        if grid is None:
            choices = grid_choices(roots, self.found, self.fresh, self.rejected, self.budget.check)
            return set(grids(choices, (), self.bounds.grid))
        choices = []
        for maps in grid:
            here = grid_choices(
                roots,
                self.found,
                self.fresh,
                self.rejected,
                self.budget.check,
                (lambda node, m=maps: (m[node.arg],))
                if "imap" in self.variant.concrete
                else any_axis,
            )
            choices.append([c for c in here if self.outputs_agree(c.pairs, maps)])
        combined = set()
        for chosen in product(*choices):
            combined.update(g for g in grids(chosen, (), len(grid)) if len(g) == len(grid))
        return combined

    def outputs_agree(self, pairs: tuple, maps: Mapping[str, str | None]) -> bool:
        """Whether a choice partitions the outputs as a concrete omap says."""
        if "omap" not in self.variant.concrete:
            return True
        mapped = dict(pairs)
        return all(mapped.get(f"out:{i}") == maps[name] for i, name in enumerate(self.outputs))

    def divides(self, found: set[tuple], split: tuple, sizes: dict[str, int]) -> bool:
        """Whether concrete sizes divide the axes that they partition."""
        for grid in found:
            count: dict[tuple[str, str], int] = {}
            pairs = [
                (p, pair) for p, choice in zip(GRID_DIMS, grid, strict=False) for pair in choice
            ]
            for par, pair in [*pairs, *(("i", pair) for pair in split)]:
                count[pair] = count.get(pair, 1) * sizes.get(par, 1)
            if any(self.program.size(axis) % n for (_, axis), n in count.items()):
                return False
        return True

    # Assignments --------------------------------------------------------------------------

    def assignments(self) -> Iterator[tuple[Grid | None, dict | None, dict[str, int] | None]]:
        """All assignments of what is concrete; grid dimensions up to their order, no two alike: a
        map that two of them share partitions an axis twice, or nothing (equation (2))."""
        for grid in self.concrete_grids():
            for loop in self.concrete_loops():
                if not self.variant.sizes:
                    yield grid, loop, None
                    continue
                pars = [*GRID_DIMS[: len(grid)], *(["i"] if any(loop.values()) else [])]
                for values in product(self.powers(), repeat=len(pars)):
                    yield grid, loop, dict(zip(pars, values, strict=True))

    def concrete_grids(self) -> Iterator[Grid | None]:
        if not self.variant.concrete & {"imap", "omap"}:
            yield None
            return
        for count in range(self.bounds.grid + 1):
            yield from combinations(self.one_dimension(), count)

    def one_dimension(self) -> list[dict[str, str | None]]:
        """Every map of one grid dimension, as far as maps are concrete."""
        axes: dict[str, tuple] = {}
        if "imap" in self.variant.concrete:
            axes |= {name: any_axis(node) for name, node in self.program.inputs.items()}
        if "omap" in self.variant.concrete:
            axes |= {name: any_axis(node) for name, node in self.program.outputs}
        return [dict(zip(axes, chosen, strict=True)) for chosen in product(*axes.values())]

    def concrete_loops(self) -> Iterator[dict | None]:
        if "fmap" not in self.variant.concrete:
            yield None
            return
        inputs = self.program.inputs
        options = any_axis if self.bounds.loop else no_axis
        for chosen in product(*map(options, inputs.values())):
            yield dict(zip(inputs, chosen, strict=True))

    def powers(self) -> list[int]:
        """Sizes of a parallel dimension: powers of two up to the longest axis."""
        longest = max(self.program.size(axis) for axis in self.program.sizes)
        return [1 << k for k in range(1, longest.bit_length())]

    def assignments_all(self) -> int:
        """How many assignments there are."""
        loops = sum(1 for _ in self.concrete_loops())
        if not self.variant.concrete & {"imap", "omap"}:
            return loops
        values = len(self.powers()) if self.variant.sizes else 1
        looped = 1 + (loops - 1) * values if loops > 1 else 1
        return looped * sum(
            comb(len(self.one_dimension()), k) * values**k for k in range(self.bounds.grid + 1)
        )
