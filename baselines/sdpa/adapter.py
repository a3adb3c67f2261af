"""scaled_dot_product_attention: PyTorch's fused attention, an expert's reference."""

import torch

from prism.measure.baseline import Unavailable
from prism.measure.compositions import attention_argument
from prism.measure.torch_program import device_of, torch_callable


class Adapter:
    """No options. See prism.measure.baseline for the interface."""

    def __init__(self, options):
        """No options."""

    def prepare(self, program, inputs):
        """The function of eager with each attention as one call; PyTorch chooses its kernel."""
        if not any(attention_argument(node, program) for node in program.nodes):
            raise Unavailable(
                f"{program.name} has no attention: no matmul of a softmax over a matmul's keys"
            )
        function = torch_callable(program, attention=True, device=device_of(inputs))
        return lambda tensors: function(*tensors.values())

    def version(self):
        """Versions for the row."""
        return {"torch": torch.__version__}
