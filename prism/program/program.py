"""A tensor program: inputs, outputs, axis sizes and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from prism.errors import PrismError
from prism.program.mask import Causal
from prism.program.node import Node, Op, topological

DTYPES = ("bf16", "fp16", "fp32")
# stable: exponentials are shifted by the maximum of their row wherever the shift cancels; paper:
# they are computed as the program's graph has them, and overflow.
NUMERICS = ("stable", "paper")


@dataclass(frozen=True)
class Program:
    """`outputs` maps names to nodes; `sizes` maps each axis to an int or to a symbol's name.

    `params` are the named numbers that constants read (eps, a softmax scale). All inputs have one
    dtype; accumulation is fp32 whatever it is. `numerics` (NUMERICS) says how kernels compute, not
    what the value is. `generated` holds the rules of those inputs that nobody gives, as they follow
    from indices; to a search and a proof they are inputs like others, of arbitrary values.
    """

    name: str
    outputs: tuple[tuple[str, Node], ...]
    sizes: Mapping[str, int | str]
    dtype: str = "bf16"
    params: Mapping[str, float] = field(default_factory=dict)
    input_order: tuple[str, ...] = ()
    numerics: str = NUMERICS[0]
    generated: Mapping[str, Causal] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> list[Node]:
        """Every node, sources first."""
        return topological(node for _, node in self.outputs)

    @cached_property
    def inputs(self) -> dict[str, Node]:
        """INPUT nodes by name, generated ones too, in the order they were declared."""
        found = {n.arg: n for n in self.nodes if n.op is Op.INPUT}
        order = self.input_order or tuple(found)
        return {name: found[name] for name in order}

    @property
    def arguments(self) -> dict[str, Node]:
        """The inputs that a caller gives: those in memory."""
        return {name: node for name, node in self.inputs.items() if name not in self.generated}

    @property
    def env(self) -> dict[str, float]:
        """What constants may read: sizes that are known, and parameters."""
        return {k: v for k, v in self.sizes.items() if isinstance(v, int)} | dict(self.params)

    def size(self, axis: str) -> int:
        """Extent of `axis` in elements. Raises PrismError while it is symbolic."""
        value = self.sizes[axis]
        if not isinstance(value, int):
            raise PrismError(f"program {self.name}: the size of axis {axis!r} is still symbolic")
        return value

    def shape(self, node: Node) -> tuple[int, ...]:
        """Extents of a node's axes in elements."""
        return tuple(self.size(axis) for axis in node.axes)

    def bind(self, **values: int | float) -> Program:
        """The same program with sizes, or parameters, given values."""
        unknown = set(values) - set(self.sizes) - set(self.params)
        if unknown:
            raise PrismError(f"program {self.name}: no size or parameter {sorted(unknown)}")
        sizes = dict(self.sizes) | {
            axis: check_size(self.name, axis, values[axis]) for axis in self.sizes if axis in values
        }
        params = dict(self.params) | {k: v for k, v in values.items() if k in self.params}
        return replace(self, sizes=sizes, params=params)


def check_size(program: str, axis: str, value: object) -> int | str:
    """A positive integer, or a symbol's name. Raises PrismError naming the axis."""
    if isinstance(value, str) and value.isidentifier():
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # `workload.d=7e3` arrives as a float
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise PrismError(
            f"program {program}: size {axis}={value!r} must be a positive integer or a symbol"
        )
    return value
