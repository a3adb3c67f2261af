"""The gate is blind for no configuration of the suite: every wrong output fails there.

At the sizes, with the inputs and in the dtype of the suite. Wrong in the way of kernels: attention
that leaves out a part of the keys, a product that leaves out a part of its sum, a norm that is not
divided by its root, another activation. A wrong eps is below the rounding of bf16 at inputs of unit
size; the cases with small values (test_cases_norm.py) see it.
"""

import pytest
import torch

from prism.config import compose, program_of, workload_of
from prism.files import write_json
from prism.measure.gate import CONTROLS, Gate
from prism.measure.inputs import round_to, widen, write_case
from prism.measure.torch_program import from_torch, to_torch, torch_callable

F = torch.nn.functional


def rms(X):
    return X / (X.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def attend(Q, K, V, keep=slice(None)):
    return torch.softmax(Q @ K[..., keep, :].mT, -1) @ V[..., keep, :]


def qk(function):
    """Of attention to queries that are normalized first."""
    return lambda Q, K, V: function(rms(Q), K, V)


ATTENTION = {
    "": attend,
    "a 32nd of the keys dropped": lambda Q, K, V: attend(Q, K, V, slice(K.shape[-2] // 32, None)),
    "no softmax": lambda Q, K, V: Q @ K.mT @ V,
    "plain average": lambda Q, K, V: V.mean(-2, keepdim=True).expand(Q.shape),
}
# Functions of the inputs, by workload and by what is wrong; "" is right.
OUTPUTS = {
    "rmsnorm": {
        "": lambda X, W: rms(X) @ W,
        "no norm": lambda X, W: X @ W,
        "no root": lambda X, W: X / X.square().mean(-1, keepdim=True) @ W,
        "a 16th of the sum dropped": lambda X, W: (
            rms(X)[:, X.shape[-1] // 16 :] @ W[len(W) // 16 :]
        ),
    },
    "rmsnorm_mlp": {
        "": lambda X, Wup, Wgate: (rms(X) @ Wup) * (rms(X) @ Wgate),
        "one factor": lambda X, Wup, Wgate: rms(X) @ Wup,
        "one factor twice": lambda X, Wup, Wgate: (rms(X) @ Wup).square(),
    },
    "swiglu": {
        "": lambda X, Wup, Wgate: F.silu(X @ Wgate) * (X @ Wup),
        "gate and up exchanged": lambda X, Wup, Wgate: F.silu(X @ Wup) * (X @ Wgate),
        "gelu": lambda X, Wup, Wgate: F.gelu(X @ Wgate) * (X @ Wup),
    },
    "attention": ATTENTION,
    "qk_attention": {label: qk(function) for label, function in ATTENTION.items()}
    | {"no norm": attend},
}
PAPER = compose(["suite=paper"])
CONFIGS = [
    (name, sizes)
    for name in PAPER.suite.workloads
    for sizes in workload_of(compose([f"workload={name}"]))["configs"]
]


@pytest.mark.parametrize(("name", "sizes"), CONFIGS, ids=lambda x: str(x))
def test_wrong_outputs_fail(name, sizes, tmp_path):
    program = program_of(workload_of(compose([f"workload={name}"]), sizes), PAPER.dtype)
    case = write_case(program, tmp_path, 0, 1 << 20)
    arrays = {n: torch.from_numpy(widen(a, case.dtype)) for n, a in case.inputs().items()}
    tensors = [to_torch(array.copy(), case.dtype) for array in case.inputs().values()]
    (output,) = torch_callable(program)(*tensors)
    from_torch(output).tofile(tmp_path / "eager.O.raw")
    write_json(tmp_path / "eager.json", {"seconds": 0.0})
    gate = Gate(case)
    assert gate.controls() == dict.fromkeys(CONTROLS, "failed")
    for label, function in OUTPUTS[name].items():
        verdict = gate.check({"O": round_to(function(**arrays).numpy(), case.dtype)})
        assert verdict.passed == (label == ""), (label, verdict)
