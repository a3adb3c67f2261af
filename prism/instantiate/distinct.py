"""When two points of the parameter space are the same kernel.

A parallel dimension of size 1 is as good as absent, and the names of grid dimensions mean nothing.
So graphs that differ in a dimension overlap where its size is 1.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from prism.sgraph import Kernel, SGraph


def operators(graph: SGraph) -> Hashable:
    """Operators of a graph; graphs that differ here differ in structure whatever the sizes."""
    return tuple((kernel.library, kernel.block.savers) for kernel in graph.kernels)


def structure(graph: SGraph) -> Hashable:
    """Operators and mapping of a graph, whatever its grid dimensions are called."""
    return tuple(_structure(kernel, kernel.block.pars) for kernel in graph.kernels)


def reduced(graph: SGraph, sizes: Sequence[Mapping[str, int]]) -> Hashable:
    """The structure that is left without the dimensions of size 1."""
    pairs = zip(graph.kernels, sizes, strict=True)
    return tuple(_structure(k, [p for p, n in s.items() if n > 1]) for k, s in pairs)


def identity(graph: SGraph, sizes: Sequence[Mapping[str, int]]) -> Hashable:
    """Equal for two points exactly when they are the same kernels with the same sizes."""
    found = []
    for kernel, chosen in zip(graph.kernels, sizes, strict=True):
        pars = [par for par, n in chosen.items() if n > 1]
        cuts = zip(_cuts(kernel, pars), (chosen[par] for par in pars), strict=True)
        loop = chosen.get(kernel.block.loop, 1)
        found.append((kernel.library, kernel.block.savers, frozenset(cuts), loop))
    return tuple(found)


def _structure(kernel: Kernel, pars: Sequence[str]) -> Hashable:
    return kernel.library, kernel.block.savers, frozenset(_cuts(kernel, pars))


def _cuts(kernel: Kernel, pars: Sequence[str]) -> list[Hashable]:
    """What each dimension cuts, (tensor, axis) pairs, and whether it is the loop."""
    found: dict[str, list] = {par: [] for par in pars}
    for var in kernel.mapping.ones:
        if var.par in found:
            found[var.par].append(var[:2])
    return [(par == kernel.block.loop, frozenset(axes)) for par, axes in found.items()]
