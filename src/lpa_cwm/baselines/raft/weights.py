"""Published files of the RAFT family into our network, as they are."""

import re
import zipfile
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from lpa_cwm.baselines.raft.network import LARGE, SMALL, SMURF, Layout, Raft
from lpa_cwm.errors import InputError
from lpa_cwm.io.checkpoints import check_fit, tensors

EXPECTED = "a published RAFT file (.pth)"
TENSORFLOW = re.compile(r"^(?:feature|flow)_model/(.+)/(kernel|bias)/\.ATTRIBUTES/VARIABLE_VALUE$")
"""A variable of SMURF's checkpoint; what its optimizer left there has longer names."""
TORCHVISION = (
    (r"^raft\.", ""),
    (r"^feature_encoder\.", "fnet."),
    (r"^context_encoder\.", "cnet."),
    (r"net\.convnormrelu\.0\.", "net.conv1."),
    (r"net\.convnormrelu\.1\.", "net.norm1."),
    (r"net\.conv\.", "net.conv2."),
    (r"\.convnormrelu(\d)\.0\.", r".conv\1."),
    (r"\.convnormrelu(\d)\.1\.", r".norm\1."),
    (r"\.motion_encoder\.conv\.0\.", ".encoder.conv."),
    (r"\.motion_encoder\.conv(c|f)\w+?(\d)\.0\.", r".encoder.conv\1\2."),
    (r"^mask_predictor\.convrelu\.0\.", "update_block.mask.0."),
    (r"^mask_predictor\.conv\.", "update_block.mask.2."),
)
"""torchvision's names, which SMURF's port to PyTorch has too, to the authors' names, which are ours."""


def load(path: Path) -> Raft:
    """The network that the file is for: RAFT, small RAFT or SMURF."""
    state = entries(path)
    network = Raft(layout_of(state))
    check_fit(state, network, path, EXPECTED)
    network.load_state_dict(state)
    return network


def entries(path: Path) -> dict[str, Tensor]:
    """Tensors under the authors' names: from a `.pth` of RAFT's or torchvision's, or an `.npz` of SMURF's variables."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; give a published RAFT file (.pth), or run `lpa-cwm fetch raft`.")
    if path.suffix == ".npz":
        return from_tensorflow(arrays(path))
    return renamed({name.removeprefix("module."): tensor for name, tensor in tensors(path, EXPECTED).items()})


def arrays(path: Path) -> dict[str, np.ndarray]:
    """What an archive of numpy's holds."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)
    except (OSError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is not an archive of arrays; expected SMURF's variables (.npz).") from error


def renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """torchvision's names undone, and without the shortcut's norm, which the authors' network registers twice."""
    # The authors number the recurrent units only where there are two.
    number = r"\1" if any("convgru2" in name for name in state) else ""
    rules = (*TORCHVISION, (r"\.recurrent_block\.convgru(\d)\.conv(\w)\.", rf".gru.conv\2{number}."))
    ours: dict[str, Tensor] = {}
    for name, tensor in state.items():
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        ours[name] = tensor
    return {name: tensor for name, tensor in ours.items() if ".norm3." not in name}


def from_tensorflow(arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """SMURF's variables under our names, kernels turned from [h w in out] to [out in h w]."""
    state: dict[str, Tensor] = {}
    for name, array in arrays.items():
        if match := TENSORFLOW.match(name):
            module, kind = match.groups()
            # Keras counts layers with weights only; the authors' sequence has a rectifier between the two.
            module = module.replace("mask/layer_with_weights-1", "mask/2").replace("layer_with_weights-", "")
            tensor = torch.from_numpy(array).float()
            state[f"{module.replace('/', '.')}.{'weight' if kind == 'kernel' else 'bias'}"] = (
                rearrange(tensor, "h w i o -> o i h w").contiguous() if kind == "kernel" else tensor
            )
    return state


def layout_of(state: dict[str, Tensor]) -> Layout:
    """Small networks have one recurrent unit; SMURF's context encoder has no norm to learn."""
    if "update_block.gru.convz.weight" in state:
        return SMALL
    return LARGE if "cnet.norm1.weight" in state else SMURF
