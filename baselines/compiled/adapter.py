"""torch.compile: the same function as eager, compiled, with the evidence that it was."""

import torch
from torch._dynamo.utils import counters
from torch._inductor import metrics

from prism.measure.torch_program import device_of, torch_callable

WITHOUT_GRAPHS = {
    "max-autotune": "max-autotune-no-cudagraphs",
    "reduce-overhead": "default",
}


class Adapter:
    """Options: `mode` (default "max-autotune"). See prism.measure.baseline for the interface.

    `fullgraph=True` makes a graph break an error and not a quiet return to eager, and from
    `started` on a recompilation raises. On a GPU the compiler's own CUDA graphs are off, as the
    harness captures every system's call in one.
    """

    def __init__(self, options):
        self.mode = options.get("mode", "max-autotune")
        self.graphs = "none"

    def prepare(self, program, inputs):
        """Compiles by calling once."""
        if any(tensor.is_cuda for tensor in inputs.values()):
            self.mode = WITHOUT_GRAPHS.get(self.mode, self.mode)
            self.graphs = "captured by the harness, as for every system"
        torch._dynamo.reset()
        counters.clear()
        metrics.reset()
        function = torch.compile(
            torch_callable(program, device=device_of(inputs)),
            mode=self.mode,
            fullgraph=True,
            dynamic=False,
        )
        function(*inputs.values())
        return lambda tensors: function(*tensors.values())

    def started(self):
        """From here on a recompilation is an error."""
        torch.compiler.set_stance("fail_on_recompile")

    def evidence(self):
        """What was compiled; `problem` when that is not exactly one whole graph by inductor."""
        graphs = counters["stats"]["unique_graphs"]
        breaks = sum(counters["graph_break"].values())
        lowered = counters["aot_autograd"]["total"]  # graphs that reached inductor
        found = {
            "mode": self.mode,
            "cuda_graphs": self.graphs,
            "graphs": graphs,
            "graph_breaks": breaks,
            "recompiles": max(0, graphs - 1),
            "lowered": lowered,
            "generated_kernels": metrics.generated_kernel_count,
        }
        if (graphs, lowered, breaks) != (1, 1, 0):
            found["problem"] = (
                f"not compiled as one graph: {graphs} captured, {lowered} lowered, {breaks} breaks"
            )
        return found

    def version(self):
        """Versions for the row."""
        return {"torch": torch.__version__}
