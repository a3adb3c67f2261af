"""Configurations in the order of their modelled time."""

from __future__ import annotations

from collections.abc import Sequence

from prism.codegen import BACKENDS
from prism.codegen.errors import LoweringError
from prism.codegen.lower import lower
from prism.instantiate.concrete import Concrete
from prism.model.cost import cost
from prism.model.device import Device
from prism.model.fit import fit
from prism.model.host import host_us

Ranked = list[tuple[float, str, Concrete]]


def rank(points: Sequence[tuple[str, Concrete]], device: Device, threads: int = 1) -> Ranked:
    """(modelled microseconds, graph id, concrete), the least first; ties stay in their order.

    Left out are points that do not fit the device (see `fit`) and those that cannot be lowered.
    `threads` are a CPU's; its microseconds only rank (see `host`).
    """
    library = BACKENDS[device.backend].library
    found = []
    for graph_id, concrete in points:
        try:
            program = lower(concrete, library)
            if device.gpu is None:
                found.append((host_us(program, threads), graph_id, concrete))
            elif not fit(program, device.gpu).reason:
                found.append((cost(program, device.gpu).us, graph_id, concrete))
        except LoweringError:
            continue
    return sorted(found, key=lambda one: one[0])
