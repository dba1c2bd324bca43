"""Checkpoints that are never half-written and never mixed up with those of another training."""

import os
from pathlib import Path
from typing import Any

import torch

from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write

Identity = dict[str, int | float | str]
"""The options that must not change between the parts of one training."""


def save(path: Path, identity: Identity, state: dict[str, Any]) -> None:
    """Write a checkpoint; whoever reads sees the old one or the new one, also after a crash."""
    with atomic_write(path) as aside:
        torch.save({"identity": identity, "state": state}, aside)
        with aside.open("rb+") as file:
            os.fsync(file.fileno())


def load(path: Path, identity: Identity) -> dict[str, Any] | None:
    """The state of a checkpoint of the same training, or nothing if there is none."""
    if not path.exists():
        return None
    try:
        held = torch.load(path, weights_only=True, map_location="cpu")
        before, state = dict(held["identity"]), dict(held["state"])
    except Exception as error:  # Damaged bytes are read until something, anything, fails.
        raise InputError(f"{path} is not a checkpoint of a training; remove it, or give another --out.") from error
    changed = sorted(name for name, value in identity.items() if before.get(name) != value)
    if changed:
        raise InputError(
            f"{path} was begun with another {' and '.join(changed)}; give the same, or another --out to begin anew."
        )
    return state
