"""A packed folder: the cases, proved graphs and settings that a machine without the rest measures.

`manifest.json` names everything; `graphs/WORKLOAD.json` holds graphs that were proved as wholes
when the folder was packed, `search/WORKLOAD.json` the search that found them, for the report alone.
`prism pack` writes such a folder, and `python -m prism.measure` reads it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from prism.errors import PrismError, reading
from prism.measure.form import NUMBER, check
from prism.model.device import Device
from prism.program import Program, program_from_json, program_to_json
from prism.program.program import DTYPES
from prism.sgraph import SGraph

FORMAT = 1
MANIFEST = "manifest.json"
STATE = "measured.json"  # beside what was measured: of which device and settings
_SETTINGS = {
    "dtype": str,
    "tune": {"name": str, "count": int, "seconds": NUMBER, "seed": int},
    "baseline": {"*": {"name": str, "adapter": str, "options": dict}},
    "bench": {"rounds": int, "seconds": NUMBER},
    "seed": int,
}
_FORM = {
    "created": str,
    "device": str,
    "config": dict,
    "devices": {"*": {"gpus": [str], "settings": _SETTINGS, "hashes": {"*": str}}},
    "cases": {"*": {"program": {"sizes": {"*": int}, "params": {"*": NUMBER}, "inputs": [str]}}},
    "workloads": {"*": {"account": {"search_seconds": NUMBER, "search": dict}}},
    "files": {"*": str},
}
_AGAIN = "pack it again with `prism pack`"


@dataclass(frozen=True)
class Case:
    """A configuration to measure on one device, with the search's account for its row."""

    name: str
    program: Program
    config_hash: str
    account: Mapping

    @property
    def workload(self) -> str:
        """Its workload, which the file of its graphs is named after."""
        return self.program.name


@dataclass(frozen=True)
class Folder:
    """A folder whose manifest was read and checked."""

    path: Path
    manifest: Mapping

    @property
    def devices(self) -> dict[str, list[str]]:
        """The packed devices, and the names of the GPUs that each describes."""
        return {name: list(entry["gpus"]) for name, entry in self.manifest["devices"].items()}

    def settings(self, device: str) -> dict:
        """Dtype, device, tuning, baselines, benchmark and seed as packed for a device."""
        return self.manifest["devices"][device]["settings"]

    def cases(self, device: str) -> list[Case]:
        """Every case in the device's dtype, in the order of the suite."""
        entry, found = self.manifest["devices"][device], []
        for name, packed in self.manifest["cases"].items():
            program = program_from_json(packed["program"])
            found.append(
                Case(
                    name,
                    replace(program, dtype=entry["settings"]["dtype"]),
                    entry["hashes"][name],
                    self.manifest["workloads"][program.name]["account"],
                )
            )
        return found

    def graphs(self, case: Case) -> list[tuple[str, SGraph]]:
        """Id and graph of the proved graphs of a case's workload.

        Raises PrismError for a file that is missing, damaged, or of another program.
        """
        data = self.read(f"graphs/{case.workload}.json")
        path = self.path / f"graphs/{case.workload}.json"
        if data.get("program") != program_hash(case.program):
            raise PrismError(f"{path} holds the graphs of another program; {_AGAIN}")
        with reading(str(path)):
            return [(name, SGraph.from_json(graph)) for name, graph in data["graphs"]]

    def read(self, name: str) -> dict:
        """A packed file. Raises PrismError for one that is not as it was packed."""
        path = self.path / name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise PrismError(f"cannot read {path}: {error.strerror}; {_AGAIN}") from None
        if digest(content) != self.manifest["files"].get(name):
            raise PrismError(f"{path} is damaged: it is not as it was packed; {_AGAIN}")
        return json.loads(content)


def digest(content: bytes) -> str:
    """Hex digest of a file's content."""
    return hashlib.sha256(content).hexdigest()


def program_hash(program: Program) -> str:
    """What is the same for all sizes and dtypes of a program, and else different."""
    symbols = {axis: axis for axis in program.sizes}
    text = json.dumps(program_to_json(replace(program, sizes=symbols, dtype="fp32")))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_folder(path: Path) -> Folder:
    """Raises PrismError, one line, for what is not a whole packed folder of this format."""
    file = Path(path) / MANIFEST
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        why = error.strerror
        raise PrismError(f"cannot read {file}: {why}; `prism pack out={path}` writes it") from None
    except ValueError:
        raise PrismError(f"{file} is damaged: not JSON; {_AGAIN}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        there = data.get("format") if isinstance(data, dict) else None
        raise PrismError(
            f"{file}: has format {there!r}, this version of Prism reads {FORMAT}; "
            f"{_AGAIN} of this version"
        )
    folder = Folder(Path(path), data)
    with reading(str(file)):
        data["commit"]
        check(data, _FORM)
        if data["device"] not in data["devices"]:
            raise PrismError(f"device {data['device']!r} is not one of its devices")
        for name, entry in data["devices"].items():
            Device.from_json(entry["settings"]["device"])
            for case in folder.cases(name):
                if case.program.dtype not in DTYPES:
                    raise PrismError(f"dtype {case.program.dtype!r} is not one of {DTYPES}")
                if any(size < 1 for size in case.program.sizes.values()):
                    raise PrismError(f"{case.name}: a size is not positive")
                program_hash(case.program)
        for case in data["cases"]:
            for kind in ("graphs", "search"):
                data["files"][f"{kind}/{data['cases'][case]['program']['name']}.json"]
    return folder


def read_state(out: Path) -> dict:
    """What `out` holds measurements of. Raises PrismError where there are none."""
    path = Path(out) / STATE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        why = error.strerror
        raise PrismError(
            f"cannot read {path}: {why}; `python -m prism.measure` writes it"
        ) from None
    except ValueError:
        raise PrismError(f"{path} is damaged: not JSON; measure into another folder") from None
    with reading(str(path)):
        if data["format"] != FORMAT:
            raise PrismError(f"format {data['format']!r}, this version of Prism reads {FORMAT}")
        data["device"] + ""
        for entry in data["cases"].values():
            entry["key"], entry["seconds"]
    return data
