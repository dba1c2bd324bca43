"""Weight files: only tensors are loaded, and names, shapes and kinds of numbers must match the network."""

import argparse
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from lpa_cwm.errors import InputError
from lpa_cwm.validation import file_size, reading

MOST_HEADER = 8 << 20
"""Bytes of the table of contents of a safetensors file."""
COPIES = 4
"""A file's tensors together may have this many times its size: tensors can share memory."""


def load_plain(path: Path) -> Any:
    """The content of a PyTorch file: tensors and plain values; code in it is not executed."""
    size = file_size(path)
    packed = zipfile.is_zipfile(path)
    if packed:
        with zipfile.ZipFile(path) as archive:
            # PyTorch stores; a packed entry would take memory that the size of the file does not limit.
            if any(entry.compress_type or entry.file_size > size for entry in archive.infolist()):
                raise ValueError("its entries are packed")
    # Checkpoints often hold the options of the training; a namespace runs no code.
    with torch.serialization.safe_globals([argparse.Namespace]):
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=packed)
    check_tensors(tensors_in(content), size)
    return content


def tensors_in(content: Any) -> Iterator[Tensor]:
    """All tensors of nested dictionaries, lists and tuples."""
    level = [content]
    while level:
        value = level.pop()
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict):
            level += value.values()
        elif isinstance(value, list | tuple):
            level += value


def check_tensors(tensors: Iterator[Tensor], size: int) -> None:
    """Refuse tensors that are not dense, not in memory, or larger than a file of this size can hold."""
    most = COPIES * size
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            raise ValueError(f"it holds a tensor that is {tensor.layout} on {tensor.device}")
        # A tensor whose strides are zero is larger than its memory.
        most -= tensor.numel() * tensor.element_size()
        if most < 0:
            raise ValueError("its tensors are larger than the file")


def load_state_dict(path: Path, expected: str, within: str | None = None) -> dict[str, Tensor]:
    """The named tensors of a PyTorch file, or of one entry of it."""
    try:
        content = load_plain(path)
        named = dict(content[within] if within else content)
        if not all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in named.items()):
            raise TypeError("not all of its entries are named tensors")
        return named
    except Exception as error:  # Any exception can come from unknown bytes.
        place = f" under {within!r}" if within else ""
        raise InputError(f"{path} does not hold named tensors{place}; expected {expected}; fetch it again.") from error


def check_state_dict(state: Mapping[str, Tensor], network: nn.Module, path: Path, expected: str) -> None:
    """Refuse tensors whose names or shapes differ from those of the network, and numbers that are not finite."""
    needed = network.state_dict()
    wanted = {name: tuple(tensor.shape) for name, tensor in needed.items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong:
        given, due = (shapes.get(wrong[0], "absent") for shapes in (found, wanted))
        raise InputError(
            f"{path} is not {expected}: {len(wrong)} tensors differ, first {wrong[0]} ({given} instead of {due})."
        )
    for name, tensor in state.items():
        if tensor.is_floating_point() != needed[name].is_floating_point() or tensor.is_complex():
            raise InputError(f"{path} is not {expected}: {name} holds {tensor.dtype}.")
        if not tensor.isfinite().all():
            raise InputError(f"{path} is not {expected}: {name} has numbers that are not finite.")


@contextmanager
def open_safetensors(path: Path) -> Iterator[Any]:
    """A safetensors file, whose table of contents has a limited size."""
    size = file_size(path)
    with path.open("rb") as file:
        head = file.read(8)
    if len(head) < 8 or struct.unpack("<Q", head)[0] > min(size, MOST_HEADER):
        raise ValueError("its header is longer than the file")
    with safe_open(path, framework="pt") as opened:
        yield opened


def load_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and texts of a safetensors file."""
    with open_safetensors(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def load_weights(network: nn.Module, path: Path, expected: str, remedy: str) -> None:
    """Load the weights of a safetensors file into a network of the same names and shapes, in single precision."""
    with reading(path, expected, remedy):
        state, _ = load_safetensors(path)
        check_state_dict(state, network, path, expected)
        network.load_state_dict({name: value.float() for name, value in state.items()})
