"""When two points of the parameter space are the same kernel.

A parallel dimension of size 1 is as good as absent, and the names of grid dimensions mean nothing.
So graphs that differ in a dimension overlap where its size is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from prism.sgraph import Kernel, SGraph


def structure(graph: SGraph) -> Hashable:
    """Operators and mapping of a graph, whatever its grid dimensions are called."""
    return tuple(_structure(kernel, lambda _par: True) for kernel in graph.kernels)


def reduced(graph: SGraph, sizes: Sequence[Mapping[str, int]]) -> Hashable:
    """The structure that is left without the dimensions of size 1."""
    pairs = zip(graph.kernels, sizes, strict=True)
    return tuple(_structure(k, lambda par, s=s: s[par] > 1) for k, s in pairs)


def identity(graph: SGraph, sizes: Sequence[Mapping[str, int]]) -> Hashable:
    """Equal for two points exactly when they are the same kernels with the same sizes."""
    found = []
    for kernel, chosen in zip(graph.kernels, sizes, strict=True):
        cuts = {_cut(kernel, par): n for par, n in chosen.items() if n > 1}
        loop = chosen.get(kernel.block.loop, 1)
        found.append((kernel.library, kernel.block.savers, frozenset(cuts.items()), loop))
    return tuple(found)


def _structure(kernel: Kernel, active: Callable[[str], bool]) -> Hashable:
    cuts = frozenset(_cut(kernel, par) for par in kernel.block.pars if active(par))
    return kernel.library, kernel.block.savers, cuts


def _cut(kernel: Kernel, par: str) -> Hashable:
    """What a dimension cuts, and whether it is the loop."""
    axes = frozenset((v.tensor, v.axis) for v in kernel.mapping.ones if v.par == par)
    return par == kernel.block.loop, axes
