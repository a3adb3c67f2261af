"""Keys and overrides that a stage is given, and what it says of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from prism.errors import PrismError


def needed(own: Mapping[str, str], key: str, stage: str) -> str:
    """A key of the stage. Raises PrismError where it was not given."""
    if key not in own:
        raise PrismError(f"{stage}: {key}=... is needed; see `prism {stage} --help`")
    return own[key]


def gives(overrides: Sequence[str], key: str) -> bool:
    """Whether overrides set a key."""
    from prism import config

    return any(config.key_of(item) == key for item in overrides)


def device_asked(overrides: Sequence[str]) -> str | None:
    """The file of conf/device that the command line names; None for none and for `auto`."""
    from prism import config

    named = [item.partition("=")[2] for item in overrides if config.key_of(item) == "device"]
    return named[-1] if named and named[-1] != "auto" else None


def on_device(overrides: Sequence[str]) -> Any:
    """The configuration of a stage that measures, after checking that its device is here."""
    from prism import config, devices

    cfg = config.compose(overrides)
    config.say_device(cfg)
    if "gpu" in cfg.device:
        devices.require(cfg.device.name, cfg.device.get("gpus", ()))
    return cfg


def threads_of(own: Mapping[str, str]) -> int:
    """The threads asked for, at most the cores there are; else all of them. Raises PrismError."""
    cores = len(os.sched_getaffinity(0))
    try:
        threads = int(own.get("threads", cores))
    except ValueError:
        threads = 0
    if threads < 1:
        raise PrismError(f"threads={own['threads']}: must be a positive integer")
    if threads > cores:
        print(f"prism: threads={threads}: this machine has {cores}, using them", file=sys.stderr)
    return min(threads, cores)


def warn(text: str) -> None:
    """Says a warning on stderr."""
    print(f"prism: warning: {text}", file=sys.stderr)
