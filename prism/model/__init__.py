"""What a device is, and what a tile program should cost on it: modelled figures, never measured."""

from prism.model.device import CPU, Device, Gpu

__all__ = ["CPU", "Device", "Gpu"]
