"""Devices by name."""

import torch

from lpa_cwm.errors import InputError


def resolve_device(name: str = "auto") -> str:
    """A device of this machine in torch's words; auto takes CUDA, else MPS, else the CPU.

    Examples:
        >>> resolve_device("cpu")
        'cpu'
    """
    cuda, mps = torch.cuda.device_count(), torch.backends.mps.is_available()
    if name == "auto":
        return "cuda" if cuda else "mps" if mps else "cpu"
    kind, _, index = name.partition(":")
    here = {"cpu": not index, "cuda": int(index or 0) < cuda, "mps": mps and not index}
    if not here.get(kind, False):
        devices = ["cpu", *(f"cuda:{number}" for number in range(cuda)), *["mps"] * mps]
        raise InputError(f"This machine has no device {name}; choose auto or one of {', '.join(devices)}.")
    return name
