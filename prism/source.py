"""The generated source of one graph, without its device and without tuning."""

from __future__ import annotations

import os

from prism.codegen import BACKENDS
from prism.codegen.errors import LoweringError
from prism.codegen.lower import lower
from prism.errors import PrismError
from prism.instantiate.concrete import Concrete
from prism.instantiate.sampling import sample
from prism.model.device import Device
from prism.model.rank import rank
from prism.program import Program
from prism.sgraph import SGraph

POINTS = 300  # sizes of the graph to choose from


def source_of(
    name: str, graph: SGraph, program: Program, device: Device, seed: int
) -> tuple[str, Concrete]:
    """Source of a graph, and the sizes and options that it has there: those that the model of
    the device ranks first; of the CPU with as many threads as are here.

    Raises PrismError where no sizes can be printed for the device.
    """
    manifest, why = BACKENDS[device.backend], "no sizes of it fit"
    points = sample(
        [(name, graph)], program, POINTS, seed, manifest.options, manifest.scratch_bytes
    )
    for _, _, concrete in rank(points, device, len(os.sched_getaffinity(0))):
        try:
            return manifest.source(lower(concrete, manifest.library)), concrete
        except LoweringError as error:
            why = str(error)
    raise PrismError(f"graph {name} cannot be printed for device {device.name}: {why}")
