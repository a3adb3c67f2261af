"""Configurations in the order of their modelled time."""

from __future__ import annotations

from collections.abc import Sequence

from prism.codegen import BACKENDS
from prism.codegen.errors import LoweringError
from prism.codegen.lower import lower
from prism.errors import PrismError
from prism.instantiate.concrete import Concrete
from prism.model.cost import cost
from prism.model.device import Device
from prism.model.fit import fit

Ranked = list[tuple[float, str, Concrete]]


def rank(points: Sequence[tuple[str, Concrete]], device: Device) -> Ranked:
    """(modelled microseconds, graph id, concrete), the least first; ties stay in their order.

    Left out are points that do not fit the device (see `fit`) and those that cannot be lowered.
    Raises PrismError for a device without a GPU, of which there is no model.
    """
    if device.gpu is None:
        raise PrismError(
            f"device {device.name}: configurations are ranked by a model of GPUs; "
            f"use tune=random on this device"
        )
    library = BACKENDS[device.backend].library
    found = []
    for graph_id, concrete in points:
        try:
            program = lower(concrete, library)
            if not fit(program, device.gpu).reason:
                found.append((cost(program, device.gpu).us, graph_id, concrete))
        except LoweringError:
            continue
    return sorted(found, key=lambda one: one[0])
