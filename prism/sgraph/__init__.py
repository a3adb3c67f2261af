"""sGraphs: symbolic kernel and block graphs, their mapping variables, shapes and constraints."""

from prism.sgraph.graph import (
    GRID_DIMS,
    LOOP_DIM,
    BlockGraph,
    Kernel,
    Mapping,
    MapVar,
    SGraph,
    make_mapping,
)

__all__ = [
    "GRID_DIMS",
    "LOOP_DIM",
    "BlockGraph",
    "Kernel",
    "MapVar",
    "Mapping",
    "SGraph",
    "make_mapping",
]
