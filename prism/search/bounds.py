"""The space that is searched, and the budget."""

from __future__ import annotations

from dataclasses import dataclass

from prism.errors import PrismError
from prism.program.node import COMPUTE, Op
from prism.program.program import Program
from prism.sgraph.graph import GRID_DIMS

GENERATORS = ("guided", "exhaustive")


@dataclass(frozen=True)
class Bounds:
    """What is searched, and for how long.

    `generator` is "guided" (from the e-class down) or "exhaustive" (the paper's, from the loaders
    up): they explore the same space, the second for reference and in small spaces only.
    `extra_operators` is how many operators a graph may have beyond the program's own (loaders,
    accumulators and savers are not counted), and `operators` which ones it may use besides the
    program's own (none named: all); `kernels` how many operators its kernel graph may
    have, `generated` (1 or 2) how many of them are generated kernels; `library` names the operators
    that may be calls of predefined ones. `grid` is the most grid dimensions, `loop` whether kernels
    have loops, `split` whether a first kernel may leave partial results for a second one to reduce.
    `piece` is the most operators that are searched as one program: a larger one is cut.

    `seconds` is the time after which the search returns what it has, but for a last second of
    proof; `memory` (MiB) is the most that it, and each of its e-graphs, may take; `nodes` (e-nodes)
    the most of one e-graph; `seed` that of the numbers which refute.

    Raises PrismError for a value outside these meanings.
    """

    generator: str = "guided"
    extra_operators: int = 1
    operators: tuple[str, ...] = ()
    kernels: int = 5
    generated: int = 2
    library: tuple[str, ...] = ("matmul",)
    grid: int = 3
    loop: bool = True
    split: bool = True
    piece: int = 12
    seconds: float = 60.0
    memory: int = 2048
    nodes: int = 400_000
    seed: int = 0

    def __post_init__(self):
        if self.generator not in GENERATORS:
            raise PrismError(f"search: generator {self.generator!r} is not one of {GENERATORS}")
        least = {"extra_operators": 0, "kernels": 1, "generated": 1, "grid": 0, "piece": 1}
        most = {"generated": 2, "grid": len(GRID_DIMS)}
        for name, low in least.items():
            value, high = getattr(self, name), most.get(name)
            if value < low or (high is not None and value > high):
                upper = "" if high is None else f" to {high}"
                raise PrismError(f"search: {name}={value} must be from {low}{upper}")
        known = {op.value for op in COMPUTE}
        for name in ("operators", "library"):
            if unknown := sorted(set(getattr(self, name)) - known):
                raise PrismError(f"search: {name}: {unknown[0]!r} is none of {sorted(known)}")

    def allowed(self, program: Program) -> frozenset[Op]:
        """The operators that a graph of `program` may use."""
        own = {node.op for node in program.nodes}
        return frozenset(own | (set(map(Op, self.operators)) or COMPUTE))
