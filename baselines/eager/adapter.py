"""PyTorch eager: the program as a PyTorch user writes it, run as it is."""

import torch

from prism.measure.torch_program import device_of, torch_callable


class Adapter:
    """See prism.measure.baseline for the interface."""

    def __init__(self, options):
        """No options."""

    def prepare(self, program, inputs):
        """The plain function; nothing to compile."""
        function = torch_callable(program, device=device_of(inputs))
        return lambda tensors: function(*tensors.values())

    def version(self):
        """Versions for the row."""
        return {"torch": torch.__version__}
