"""A concrete graph: an sGraph with a mapping, a size for every d_p, and code generation options."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from prism.errors import PrismError
from prism.instantiate.distinct import identity
from prism.instantiate.space import SCRATCH_BYTES, problem
from prism.instantiate.stable import kernels_of
from prism.program import Program, program_from_json, program_to_json
from prism.sgraph import Kernel, SGraph


@dataclass(frozen=True)
class Concrete:
    """`program` has bound sizes; `sizes` holds, per kernel, d_p by the name of the parallel dim.
    `kernels` are those of the graph in the program's numerics (`stable`); `bound` is, for each of
    them, the program whose sizes also hold the fresh axes that it sees. Both raise PrismError for a
    graph that has no stable form.

    A library kernel has no parallel dimension, and so no size. Raises PrismError when a kernel has
    no mapping, a size is missing or not positive, or a fresh axis is not new in the graph or is
    itself partitioned.
    """

    program: Program
    graph: SGraph
    sizes: tuple[Mapping[str, int], ...]
    options: Mapping[str, int | str] = field(default_factory=dict)

    def __post_init__(self):
        object.__setattr__(self, "sizes", tuple(dict(s) for s in self.sizes))
        object.__setattr__(self, "options", dict(self.options))
        if len(self.sizes) != len(self.graph.kernels):
            raise PrismError(
                f"concrete graph: sizes for {len(self.sizes)} kernels, "
                f"the graph has {len(self.graph.kernels)}"
            )
        for kernel, sizes in zip(self.graph.kernels, self.sizes, strict=True):
            if kernel.mapping is None:
                raise PrismError("concrete graph: a kernel has no mapping")
            if set(sizes) != set(kernel.block.pars):
                raise PrismError(
                    f"concrete graph: sizes for {sorted(sizes)}, "
                    f"parallel dimensions are {sorted(kernel.block.pars)}"
                )
            for par, size in sizes.items():
                if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                    raise PrismError(f"concrete graph: d_{par}={size!r} must be a positive integer")
        bind_fresh(self.program, self.graph.kernels, self.sizes)

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """What is lowered."""
        return kernels_of(self.program, self.graph)

    @cached_property
    def bound(self) -> tuple[Program, ...]:
        """The program as each of `kernels` sees it."""
        return bind_fresh(self.program, self.kernels, self.sizes)

    @property
    def key(self) -> Hashable:
        """Equal for points whose kernels do the same: see `distinct.identity`."""
        return identity(self.graph, self.sizes), tuple(sorted(self.options.items()))

    def problem(self, scratch_limit: int = SCRATCH_BYTES) -> str | None:
        """Why the sizes make no point of the space (see `space.problem`), or None."""
        parts = zip(self.bound, self.kernels, self.sizes, strict=True)
        reasons = (problem(*part, scratch_limit) for part in parts)
        return next((reason for reason in reasons if reason), None)

    def to_json(self) -> dict:
        """Plain data; `from_json` gives an equal concrete graph back."""
        return {
            "program": program_to_json(self.program),
            "graph": self.graph.to_json(),
            "sizes": [dict(s) for s in self.sizes],
            "options": dict(self.options),
        }

    @staticmethod
    def from_json(data: dict) -> Concrete:
        """Raises PrismError for data that is not a concrete graph."""
        try:
            parts = data["program"], data["graph"], tuple(data["sizes"]), data["options"]
            return Concrete(program_from_json(parts[0]), SGraph.from_json(parts[1]), *parts[2:])
        except (KeyError, TypeError, ValueError) as error:
            raise PrismError(f"concrete graph: not readable from JSON: {error!r}") from None

    def digest(self) -> str:
        """12 hexadecimal digits that name this concrete graph."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def bind_fresh(
    program: Program, kernels: Sequence[Kernel], sizes: Sequence[Mapping[str, int]]
) -> tuple[Program, ...]:
    """For each kernel, `program` with the extents of the fresh axes that the kernel sees.

    The extent of a fresh axis is d_p of the kernel that makes it. Raises PrismError for one whose
    name is taken, and for one that a kernel partitions.
    """
    made: dict[str, tuple[str, int]] = {}  # tensors with a fresh axis: its name and extent
    found = []
    for kernel, chosen in zip(kernels, sizes, strict=True):
        seen = [made[name] for name in kernel.reads if name in made]
        _check(program, kernel, seen)
        extents = dict(seen) | {axis: chosen[par] for axis, par in kernel.fresh.items()}
        for saver in kernel.block.savers:
            for axis in kernel.tensor_axes(saver)[len(saver.axes) :]:
                made[saver.arg] = axis, extents[axis]
        found.append(replace(program, sizes={**program.sizes, **extents}) if extents else program)
    return tuple(found)


def _check(program: Program, kernel: Kernel, seen: Sequence[tuple[str, int]]) -> None:
    """`seen`: the fresh axes, with extents, of the tensors that the kernel loads."""
    loaded = {axis for axis, _ in seen}
    taken = kernel.fresh.keys() & (loaded | program.sizes.keys())
    taken |= {axis for axis, extent in seen if dict(seen)[axis] != extent}
    if taken:
        raise PrismError(f"concrete graph: fresh axis {min(taken)!r} exists already")
    for var in kernel.mapping.ones if loaded else ():
        if var.axis in loaded:
            raise PrismError(f"concrete graph: {var.par} partitions the fresh axis {var.axis!r}")
