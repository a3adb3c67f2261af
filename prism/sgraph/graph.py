"""sGraphs: a kernel graph whose kernels hold block graphs (paper section 2).

Grid and loop sizes are never part of a graph: they are the symbols d_x, d_y, d_z, d_i. Which data
dimension a parallel dimension partitions is a mapping variable m[T, d, p]; an assignment of those
variables is a `Mapping`, and a kernel without one is still fully symbolic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

from prism.errors import PrismError
from prism.program.node import LEGAL, Node, Op, topological
from prism.program.serial import nodes_from_json, nodes_to_json

GRID_DIMS = ("x", "y", "z")
LOOP_DIM = "i"
MOVES = frozenset({Op.LOAD, Op.SAVE, Op.ACCUM})  # operators of a block that compute nothing


class MapVar(NamedTuple):
    """m[T, d, p]: 1 when parallel dimension `par` partitions axis `axis` of tensor `tensor`."""

    tensor: str
    axis: str
    par: str

    def __str__(self) -> str:
        return f"m[{self.tensor},{self.axis},{self.par}]"


@dataclass(frozen=True)
class Mapping:
    """The variables that are 1; all others are 0. Loaders carry imap and fmap, savers omap.

    Raises PrismError where a parallel dimension partitions two axes of one tensor, which equation
    (1) forbids.
    """

    ones: frozenset[MapVar]

    def __post_init__(self):
        for var in self.ones:
            if self._table[var.tensor, var.par] != var.axis:
                raise PrismError(f"mapping: {var.par} partitions two axes of tensor {var.tensor!r}")

    def axis(self, tensor: str, par: str) -> str | None:
        """The axis of `tensor` that `par` partitions, or None where it is replicated."""
        return self._table.get((tensor, par))

    def pars(self, tensor: str, axis: str) -> tuple[str, ...]:
        """The parallel dimensions that partition `axis` of `tensor`, in name order, grid first."""
        found = (v.par for v in self.ones if (v.tensor, v.axis) == (tensor, axis))
        return tuple(sorted(found, key=lambda p: (p == LOOP_DIM, p)))

    @cached_property
    def _table(self) -> dict[tuple[str, str], str]:
        return {(v.tensor, v.par): v.axis for v in self.ones}

    def __str__(self) -> str:
        return " ".join(sorted(map(str, self.ones)))


def after_loop(nodes: Iterable[Node]) -> frozenset[Node]:
    """ACCUM nodes and all that is computed from them, among `nodes`, sources first."""
    after: set[Node] = set()
    for node in nodes:
        if node.op is Op.ACCUM or any(s in after for s in node.src):
            after.add(node)
    return frozenset(after)


@dataclass(frozen=True)
class BlockGraph:
    """What one thread block does: LOAD leaves, operators, ACCUM over the loop, SAVE roots.

    `grid` lists the active grid dimensions, at most three; `loop` is the for-loop dimension or
    None. LOAD.arg and SAVE.arg name kernel-level tensors.
    """

    grid: tuple[str, ...]
    loop: str | None
    savers: tuple[Node, ...]
    legal: ClassVar[frozenset[Op]] = LEGAL["block"]

    def __post_init__(self):
        if len(self.grid) > len(GRID_DIMS) or set(self.grid) - set(GRID_DIMS):
            raise PrismError(f"block graph: grid dimensions {self.grid} are not among {GRID_DIMS}")
        for node in self.nodes:
            if node.op not in self.legal:
                raise PrismError(f"block graph: operator {node.op.value} is not legal here")
            if node.op is Op.ACCUM and self.loop is None:
                raise PrismError("block graph: an accumulator needs a for-loop dimension")
            if node.op is Op.ACCUM and len(node.src) > 1 and Op.RESCALE not in self.legal:
                raise PrismError("block graph: an accumulator takes 1 operand here")
        if any(s.op is not Op.SAVE for s in self.savers):
            raise PrismError("block graph: every root must be an output saver")

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every node, sources first."""
        return tuple(topological(self.savers))

    @cached_property
    def loaders(self) -> tuple[Node, ...]:
        """The LOAD nodes."""
        return tuple(n for n in self.nodes if n.op is Op.LOAD)

    @property
    def pars(self) -> tuple[str, ...]:
        """All parallel dimensions, P = Pg + Pf."""
        return self.grid + ((self.loop,) if self.loop else ())

    @cached_property
    def after_loop(self) -> frozenset[Node]:
        """ACCUM nodes and all that is computed from them: what happens once, after the loop."""
        return after_loop(self.nodes)

    def varying(self, mapping: Mapping) -> frozenset[Node]:
        """Nodes whose value differs from one loop iteration to the next."""
        found: set[Node] = set()
        for node in self.nodes:
            if node.op is Op.LOAD:
                if self.loop and mapping.axis(node.arg, self.loop):
                    found.add(node)
            elif node.op is not Op.ACCUM and any(s in found for s in node.src):
                found.add(node)
        return frozenset(found)


@dataclass(frozen=True)
class Kernel:
    """An operator of the kernel graph: graph-defined, or predefined where `library` is set.

    A library kernel stands for the backend's own kernel of one operator on whole tensors. Its block
    holds that operator alone, without grid or loop, and its mapping is empty.

    A saver's mapping variable whose axis the saved value lacks is a *fresh axis*: each block's
    result is one element along it, so the tensor in memory has the axis with extent d_p.

    Raises PrismError for a library kernel that is not of that form, and for fresh axes other than
    one a kernel over one grid dimension.
    """

    block: BlockGraph
    mapping: Mapping | None = None
    library: bool = False

    def __post_init__(self):
        if self.library:
            self._check_library()
        found = sorted(set(self._fresh_vars.values()))
        if len(found) > 1:
            raise PrismError(f"kernel: more than one fresh axis: {found}")
        for axis, par in found:
            if par not in self.block.grid:
                raise PrismError(f"kernel: fresh axis {axis!r} over {par}, no grid dimension")

    @cached_property
    def fresh(self) -> dict[str, str]:
        """The fresh axis by name, with the grid dimension p whose size d_p is its extent.

        Empty for most kernels, and while there is no mapping.
        """
        return dict(self._fresh_vars.values())

    def tensor_axes(self, saver: Node) -> tuple[str, ...]:
        """Axes of the tensor that `saver` writes: those of its value, then its fresh axis."""
        found = self._fresh_vars.get(saver)
        return saver.axes + ((found[0],) if found else ())

    @cached_property
    def _fresh_vars(self) -> dict[Node, tuple[str, str]]:
        """(axis, parallel dimension) of the savers that have a fresh axis."""
        savers = {s.arg: s for s in self.block.savers}
        found: dict[Node, tuple[str, str]] = {}
        for var in self.mapping.ones if self.mapping is not None else ():
            saver = savers.get(var.tensor)
            if saver is not None and var.axis not in saver.axes:
                if saver in found:
                    raise PrismError(f"kernel: tensor {var.tensor!r} has more than one fresh axis")
                found[saver] = var.axis, var.par
        return found

    @property
    def operator(self) -> Node:
        """The one operator of a library kernel."""
        return self.block.savers[0].src[0]

    def _check_library(self) -> None:
        block = self.block
        if block.grid or block.loop or self.mapping is None or self.mapping.ones:
            raise PrismError("library kernel: it has neither grid nor loop, and an empty mapping")
        computing = [n for n in block.nodes if n.op not in MOVES]
        if len(block.savers) != 1 or [*block.savers[0].src] != computing:
            raise PrismError(
                f"library kernel: it saves one operator, got {[n.op.value for n in computing]}"
            )

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the kernel-level tensors it loads, each once."""
        return tuple(dict.fromkeys(n.arg for n in self.block.loaders))

    @property
    def writes(self) -> tuple[str, ...]:
        """Names of the tensors it saves."""
        return tuple(n.arg for n in self.block.savers)


@dataclass(frozen=True)
class SGraph:
    """The kernel graph: kernels in an order in which every tensor is written before it is read."""

    kernels: tuple[Kernel, ...]

    @property
    def operators(self) -> int:
        """Number of computing operators (loaders, accumulators and savers apart)."""
        return sum(n.op not in MOVES for k in self.kernels for n in k.block.nodes)

    def to_json(self) -> dict:
        """Plain data; `from_json` gives an equal graph back."""
        return {"kernels": [_kernel_to_json(k) for k in self.kernels]}

    @staticmethod
    def from_json(data: dict) -> SGraph:
        """Raises PrismError for data that is not a graph."""
        try:
            return SGraph(tuple(_kernel_from_json(k) for k in data["kernels"]))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise PrismError(f"sGraph: not readable from JSON: {error!r}") from None


def _kernel_to_json(kernel: Kernel) -> dict:
    index = {node: i for i, node in enumerate(kernel.block.nodes)}
    mapping = kernel.mapping and sorted(list(v) for v in kernel.mapping.ones)
    library = {"library": True} if kernel.library else {}
    return {
        "grid": list(kernel.block.grid),
        "loop": kernel.block.loop,
        "nodes": nodes_to_json(kernel.block.nodes),
        "savers": [index[s] for s in kernel.block.savers],
        "mapping": mapping,
        **library,
    }


def _kernel_from_json(data: dict) -> Kernel:
    nodes = nodes_from_json(data["nodes"])
    savers = tuple(nodes[i] for i in data["savers"])
    mapping = data["mapping"]
    if mapping is not None:
        mapping = make_mapping(MapVar(*v) for v in mapping)
    library = data.get("library", False)
    if not isinstance(library, bool):
        raise ValueError(f"library={library!r}")
    return Kernel(BlockGraph(tuple(data["grid"]), data["loop"], savers), mapping, library)


def make_mapping(ones: Iterable[MapVar]) -> Mapping:
    """A Mapping of the given variables."""
    return Mapping(frozenset(ones))
