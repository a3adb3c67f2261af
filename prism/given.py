"""What a stage is given beside its configuration: a slice, a search's result, a tuned winner.

Each is read and checked before the work starts; what is wrong with it is one line.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from prism import config
from prism.budgets import check_budgets
from prism.errors import PrismError, reading
from prism.program import Program, program_from_json

if TYPE_CHECKING:
    from prism.sgraph import SGraph
    from prism.sgraph.family import Space

SINGLE, OTHERS = 20_000, 2_000  # graphs that a tuning chooses from

_CASE = {"case": str, "workload": dict, "dtype": str, "device": dict}
_SLICES = {
    "search": {"workload": dict, "dtype": str, "search": dict},
    "tune": _CASE | {"tune": dict},
    "ablate": {"workload": dict, "dtype": str, "search": dict, "ablation": dict},
    "growth": {"search": dict, "growth": dict},
    "pack": {"device": str, "pack": dict, "cases": dict, "devices": dict, "config": dict},
    "offline": {"cases": dict, "offline": dict, "devices": dict, "seed": int},
    "bench": _CASE | {"baseline": dict, "bench": dict, "seed": int, "config_hash": str},
}
_KINDS = {str: "text", dict: "an object", int: "an integer"}


def slice_of(text: str, stage: str) -> dict:
    """The slice of a stage. Raises PrismError for what the workflow would not hand to it."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise PrismError(f"slice: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise PrismError(f"slice: must be an object of JSON, got {text[:40]}")
    for key, kind in _SLICES[stage].items():
        value = data.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise PrismError(f"slice: `{key}` must be {_KINDS[kind]}, got {value!r}")
    with reading("slice"):
        if "workload" in data:
            config.check_workload(data["workload"])
        check_budgets(data)
    return data


def search_result(path: str, program: Program) -> dict:
    """The result of `prism search`, after checking that it is of this program, whatever its sizes.

    Dtype and numerics may differ: a proof is of real numbers.
    """
    what = f"graphs={path}"
    try:
        data = json.loads(Path(path).read_text())
    except ValueError as error:
        raise PrismError(f"{what}: not a result of `prism search`: {error}") from None
    except OSError as error:
        raise PrismError(f"{what}: {error.strerror}; `prism search` writes it") from None
    with reading(f"{what}: not a result of `prism search`"):
        searched = program_from_json(data["program"])
        data["seconds"]["total"] + 0.0
        for piece in space_of(data).pieces:
            for family, count in enumerate(piece.counts):
                piece.kernel_graph(family, 0), piece.kernel_graph(family, count - 1)
    symbols = {axis: axis for axis in program.sizes}
    wanted = replace(program, sizes=symbols, dtype=searched.dtype, numerics=searched.numerics)
    if differ := difference(searched, wanted):
        raise PrismError(f"{what}: holds the graphs of another program: {differ}")
    return data


def space_of(found: Mapping) -> Space:
    """The graphs of a search's result. Raises PrismError for data of another form."""
    from prism.sgraph.family import Space

    if not isinstance(found["space"], list) or not found["space"]:
        raise PrismError("`space` must be a list of pieces")
    return Space.from_json(found["space"])


def proved(found: Mapping, seed: int = 0) -> list[tuple[str, SGraph]]:
    """Id and graph of the proved graphs that tuning chooses from.

    Those of one generated kernel, all up to `SINGLE` and else as many drawn at random, and at most
    `OTHERS` of the rest. The same seed draws the same ones.
    """
    space = space_of(found)
    drawn = [*space.draw(SINGLE, seed, True), *space.draw(OTHERS, seed, False)]
    return [(name, space.graph(name)) for name in drawn]


def search_account(found: Mapping) -> dict:
    """What a row tells of the search: its seconds, and what they went into."""
    kept = {key: found[key] for key in ("seconds", "candidates", "rules", "peak_mib")}
    account = kept | {"gaps": len(found["gaps"]), "ended": found["ended"]}
    return {"search_seconds": found["seconds"]["total"], "search": account}


def proofs(program: Program) -> Callable[[Sequence[SGraph]], list[str]]:
    """Proves graphs of the program as wholes, whatever a file says of them.

    The function returns why each is not proved, "" where it is.
    """
    from prism.verify import encode, prove

    def reasons(graphs: Sequence[SGraph]) -> list[str]:
        encoded: list[dict | str] = []
        for graph in graphs:
            try:
                found = encode(graph, program.inputs)
                missing = [name for name, _ in program.outputs if name not in found]
                encoded.append(f"it does not write {missing[0]}" if missing else found)
            except PrismError as error:
                encoded.append(str(error))
        verdicts = iter(prove(program, [e for e in encoded if not isinstance(e, str)]).verdicts)
        found = [e if isinstance(e, str) else next(verdicts) for e in encoded]
        return [f if isinstance(f, str) else "" if f.proved else f.reason for f in found]

    return reasons


def interrupted(found: Mapping) -> bool:
    """Whether Ctrl-C ended the search, or that of one of its pieces."""
    return str(found.get("ended", "")).endswith("interrupted")


def winner(folder: str, case: str, program: Program) -> Path:
    """The folder of a winner, after checking that it was tuned for this case and program."""
    from prism.instantiate import Concrete
    from prism.measure.winner import read_winner

    path, what = Path(folder), f"winner={folder}"
    if not (path / "winner.json").is_file():
        raise PrismError(f"{what}: no winner.json there; run `prism tune out={folder}`")
    stored = read_winner(path)
    with reading(f"{what}: not a result of `prism tune`"):
        tuned = (stored["case"], stored["dtype"])
        stored["seconds"]["tune"], stored["seconds"]["compile"], stored["reason"]
        concrete = None
        if stored["status"] == "ok":
            stored["graph_id"], stored["source_sha256"], stored["digest"], stored["backend"]
            concrete = Concrete.from_json(stored["concrete"])
    if tuned != (case, program.dtype):
        names = (f"{name} in {dtype}" for name, dtype in (tuned, (case, program.dtype)))
        raise PrismError(f"{what}: was tuned for {' and not for '.join(names)}")
    if concrete and (differ := difference(concrete.program, program)):
        raise PrismError(f"{what}: was tuned for another program or other settings: {differ}")
    return path


def difference(there: Program, here: Program) -> str:
    """In what two programs differ, in words; empty when they are the same."""
    facts = _facts(there), _facts(here)
    found = []
    for name in facts[0] | facts[1]:
        one, other = (side.get(name, "none") for side in facts)
        if one != other:
            found.append(f"{name}: {one} there, {other} here")
    ops = [Counter(node.op.value for node in program.nodes) for program in (there, here)]
    if ops[0] != ops[1]:
        one, other = (sorted(more.elements()) for more in (ops[0] - ops[1], ops[1] - ops[0]))
        found.append(
            f"operators: {', '.join(one) or 'none'} there, {', '.join(other) or 'none'} here"
        )
    if not found and there.outputs != here.outputs:  # nodes are equal when they are the same one
        found = ["the formula: the same operators in another order"]
    return "; ".join(found)


def _facts(program: Program) -> dict[str, object]:
    return (
        {"workload": program.name, "dtype": program.dtype, "numerics": program.numerics}
        | {f"size {axis}": size for axis, size in program.sizes.items()}
        | {f"parameter {name}": value for name, value in program.params.items()}
        | {f"input {name}": f"[{', '.join(n.axes)}]" for name, n in program.inputs.items()}
        | {"inputs": ", ".join(program.inputs)}
        | {f"mask {name}": f"{rule.align} aligned" for name, rule in program.generated.items()}
        | {"outputs": ", ".join(name for name, _ in program.outputs)}
    )
