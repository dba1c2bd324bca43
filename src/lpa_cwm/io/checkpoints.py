"""Published PyTorch checkpoints: only tensors are loaded, and names and shapes must match the network."""

import argparse
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from lpa_cwm.errors import InputError


def load_state_dict(path: Path, expected: str, within: str | None = None) -> dict[str, Tensor]:
    """Load the named tensors of a PyTorch file, or of one entry of it, without running code."""
    try:
        # Checkpoints often hold the options of the training; a namespace runs no code.
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        named = dict(content[within] if within else content)
        if not all(isinstance(tensor, Tensor) for tensor in named.values()):
            raise TypeError("not all of its entries are tensors")
        return named
    except Exception as error:  # Any exception can come from unknown bytes.
        place = f" under {within!r}" if within else ""
        raise InputError(f"{path} does not hold named tensors{place}; expected {expected}; fetch it again.") from error


def check_state_dict(state: Mapping[str, Tensor], network: nn.Module, path: Path, expected: str) -> None:
    """Refuse tensors whose names or shapes differ from those of the network."""
    wanted = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong:
        given, needed = (shapes.get(wrong[0], "absent") for shapes in (found, wanted))
        raise InputError(
            f"{path} is not {expected}: {len(wrong)} tensors differ, first {wrong[0]} ({given} instead of {needed})."
        )
