"""Modelled memory traffic of one kernel of a tile program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from prism.codegen.tile import Load, Statement, Store, Tensor, TileKernel, View
from prism.instantiate.spans import ceil_div
from prism.model.device import Gpu
from prism.model.roofline import ITEM_BYTES

SECTOR = 32  # bytes that memory and caches move at least (CUDA C++ best practices guide)


@dataclass(frozen=True)
class Traffic:
    """Bytes of one kernel. `memory` moves between memory and the second-level cache, `cache`
    between that and the multiprocessors, by all blocks together; `first` is what a block loads
    before its loop, `step` what an iteration loads, before which there is nothing to work on."""

    memory: float
    cache: float
    first: float
    step: float


def traffic(kernel: TileKernel, tensors: Mapping[str, Tensor], gpu: Gpu) -> Traffic:
    """Modelled bytes: every view once a block, or once an iteration where it is loaded in the loop.

    From memory a tensor comes once, and once more for each chunk of a grid dimension that does not
    cut it when what the blocks load in between fills the second-level cache. A tensor between
    kernels costs no memory traffic when all of them together fit half of that cache. Assumes that
    blocks start in the grid's order, and that neighbours share sectors through the cache.
    """
    l2 = gpu.l2_mib * 2**20
    iterations = kernel.loop.count if kernel.loop else 1
    temps = sum(tensor_bytes(t) for t in tensors.values() if t.role == "temp")
    memory = cache = first = step = 0.0
    tiles = {}
    for statement in (*kernel.pre, *kernel.body, *kernel.post):
        if _moves(statement, kernel, tensors):
            view = kernel.views[statement.view]
            tiles[view.name] = _tile_bytes(view, tensors[view.tensor])
    for statement in (*kernel.pre, *kernel.body, *kernel.post):
        if not _moves(statement, kernel, tensors):
            continue
        view = kernel.views[statement.view]
        tensor, moved = tensors[view.tensor], tiles[view.name]
        in_loop = statement in kernel.body
        again = iterations if in_loop and all(s.step is None for s in view.spans) else 1
        cache += moved * kernel.blocks * again
        if isinstance(statement, Load):
            first += 0 if in_loop else moved
            step += moved * again / iterations if in_loop else 0
        if tensor.role != "temp" or temps > l2 / 2:
            times = _rereads(kernel, view, tiles, l2) if isinstance(statement, Load) else 1
            memory += tensor_bytes(tensor) * times
    return Traffic(memory, cache, first, step)


def _moves(statement: Statement, kernel: TileKernel, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a statement reads or writes memory; a mask is in none."""
    if not isinstance(statement, (Load, Store)):
        return False
    return tensors[kernel.views[statement.view].tensor].role != "mask"


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes of all of a tensor."""
    return prod(tensor.shape) * ITEM_BYTES[tensor.dtype]


def _tile_bytes(view: View, tensor: Tensor) -> float:
    """Bytes of a block's tile, all iterations together, in whole sectors of each contiguous run."""
    elements, run = prod(s.tile for s in view.spans), 1
    for span in reversed(view.spans):
        run *= span.extent
        if span.extent != span.size:
            break
    item = ITEM_BYTES[tensor.dtype]
    return elements / run * ceil_div(run * item, SECTOR) * SECTOR


def _rereads(kernel: TileKernel, view: View, tiles: Mapping[str, float], l2: float) -> int:
    """How often memory gives the view's tensor: once, times the grid dimensions that do not cut
    the view and whose next chunk comes when the cache holds other things."""
    cuts = {name: {s.grid for s in kernel.views[name].spans} for name in tiles}
    times = 1
    for at, (par, count) in enumerate(kernel.grid):
        if par in cuts[view.name]:
            continue
        inner = kernel.grid[at + 1 :]  # what runs before this dimension's next chunk
        between = sum(t * prod(c for p, c in inner if p in cuts[n]) for n, t in tiles.items())
        times *= count if between > l2 else 1
    return times
