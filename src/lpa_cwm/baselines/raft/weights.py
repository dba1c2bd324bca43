"""Published RAFT files into our network, as they are."""

from pathlib import Path

import torch
from torch import Tensor

from lpa_cwm.baselines.raft.network import LARGE, SMALL, Raft
from lpa_cwm.errors import InputError


def load(path: Path) -> Raft:
    """A network of the size that the file is for."""
    state = entries(path)
    network = Raft(SMALL if "update_block.gru.convz.weight" in state else LARGE)
    fill(network, state, path)
    return network


def entries(path: Path) -> dict[str, Tensor]:
    """Tensors by name, without what the authors' training wrapper and a module registered twice left behind."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; give a published RAFT file (.pth), or run `lpa-cwm fetch raft`.")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        return {name.removeprefix("module."): tensor for name, tensor in state.items() if ".norm3." not in name}
    except Exception as error:  # Foreign bytes are unpickled until something, anything, fails.
        raise InputError(f"{path} is not a file of named tensors; expected a published RAFT file (.pth).") from error


def fill(network: Raft, state: dict[str, Tensor], path: Path) -> None:
    """Load every tensor, or name the first that does not fit."""
    wanted = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong:
        raise InputError(
            f"{path} is not for this network: {len(wrong)} tensors differ, first {wrong[0]} "
            f"({found.get(wrong[0], 'absent')} instead of {wanted.get(wrong[0], 'absent')})."
        )
    network.load_state_dict(state)
