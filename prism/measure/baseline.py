"""Baselines: what an adapter is, and how one is loaded from its folder.

An adapter is `baselines/NAME/adapter.py` with a class `Adapter`:

- `Adapter(options: dict)`.
- `prepare(program, inputs) -> call`: `inputs` are torch tensors by name, `call(inputs)` takes such
  a dict and returns the list of output tensors in the program's order. Everything that is not the
  program itself (compiling, packing that a user would do once) belongs in `prepare`. Raises
  `Unavailable(reason)` when the system is not there.
- `version() -> dict` of library names to versions.
- optionally `started()`, called after warm-up before the first timed call, and
  `evidence() -> dict`, called after the last: facts for the row; a non-empty "problem" in it fails
  the row.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prism.errors import PrismError


class Unavailable(PrismError):
    """Raised by an adapter whose system is not installed or cannot do this program."""


@dataclass(frozen=True)
class BaselineSpec:
    """A baseline of the configuration: `adapter` is the path of its adapter.py."""

    name: str
    adapter: str
    options: Mapping[str, object] = field(default_factory=dict)


def load_adapter(spec: BaselineSpec):
    """The adapter object of a baseline. Raises PrismError naming the file."""
    path = Path(spec.adapter)
    if not path.is_file():
        raise PrismError(f"baseline {spec.name}: there is no adapter {path}")
    module_spec = importlib.util.spec_from_file_location(f"baseline_{spec.name}", path)
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    if not hasattr(module, "Adapter"):
        raise PrismError(f"baseline {spec.name}: {path} defines no class Adapter")
    return module.Adapter(dict(spec.options))
