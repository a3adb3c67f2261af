"""A concrete graph: an sGraph with a mapping, a size for every d_p, and code generation options."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from prism.errors import PrismError
from prism.program import Program, program_from_json, program_to_json
from prism.sgraph import SGraph


@dataclass(frozen=True)
class Concrete:
    """`program` has bound sizes; `sizes` holds, per kernel, d_p by the name of the parallel dim.

    Raises PrismError when a kernel has no mapping, or a size is missing or not positive.
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
