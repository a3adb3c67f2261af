"""Runs generated Triton modules in Triton's interpreter, in a process of its own.

Triton reads TRITON_INTERPRET when it is imported, so `run_all` starts a child with it. Each job is
(source, inputs by name as float32 arrays, whether the inputs are given transposed); its answer is
the outputs by name, or the text of what was raised.
"""

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path


def run_all(jobs) -> list:
    """Answers in the order of the jobs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.pickle"
        path.write_bytes(pickle.dumps(list(jobs)))
        env = {**os.environ, "TRITON_INTERPRET": "1"}
        done = subprocess.run(
            [sys.executable, __file__, folder], env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return pickle.loads((Path(folder) / "answers.pickle").read_bytes())


def _answer(source, inputs, transposed, path):
    import torch

    from prism.codegen.triton.module import load, temps

    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    path.write_text(source)
    module = load(path)
    given = [torch.from_numpy(inputs[n]).to(types[d]) for n, (_, d) in module.INPUTS.items()]
    if transposed:  # the same values, the axes in memory in reverse order, with gaps
        given = [_strided(x) for x in given]
    outputs = [torch.full(s, float("nan"), dtype=types[d]) for s, d in module.OUTPUTS.values()]
    between = temps(module, "cpu")
    for tensor in between:
        tensor.fill_(float("nan"))
    module.prism_run(given, outputs, between)
    return {n: o.double().numpy() for n, o in zip(module.OUTPUTS, outputs, strict=True)}


def _strided(x):
    import torch

    if x.dim() == 0:
        return x
    shape = [2 * extent + 1 for extent in reversed(x.shape)]
    wide = torch.full(shape, float("nan"), dtype=x.dtype)
    view = wide[tuple(slice(0, 2 * e, 2) for e in reversed(x.shape))]
    view = view.permute(*reversed(range(x.dim())))
    view.copy_(x)
    return view


def main(folder: Path) -> None:
    answers = []
    for number, job in enumerate(pickle.loads((folder / "jobs.pickle").read_bytes())):
        try:
            answers.append(_answer(*job, folder / f"kernel{number}.py"))
        except Exception as error:
            answers.append(f"{type(error).__name__}: {error}")
    (folder / "answers.pickle").write_bytes(pickle.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
