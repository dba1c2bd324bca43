"""Readers of published RAFT and SMURF weights."""

import re
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from lpa_cwm import validation
from lpa_cwm.baselines.raft import LARGE, SMALL, SMURF, Raft, RaftVariant
from lpa_cwm.errors import InputError
from lpa_cwm.io.checkpoints import check_state_dict, load_state_dict
from lpa_cwm.validation import reading

EXPECTED = "a published RAFT file (.pth)"
TENSORFLOW = re.compile(r"^(?:feature|flow)_model/(.+)/(kernel|bias)/\.ATTRIBUTES/VARIABLE_VALUE$")
"""A variable of SMURF's checkpoint; optimizer slots have longer names."""
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
"""From the names of torchvision and of SMURF's PyTorch port to RAFT's."""


def load_raft(path: Path) -> Raft:
    """Build RAFT, small RAFT or SMURF, as the file requires, and load its weights."""
    state = read_state(path)
    network = Raft(variant_of(state))
    check_state_dict(state, network, path, EXPECTED)
    network.load_state_dict(state)
    return network


def read_state(path: Path) -> dict[str, Tensor]:
    """Read tensors under RAFT's names from a `.pth` of RAFT or torchvision or an `.npz` of SMURF's variables."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; give a published RAFT file (.pth), or run `lpa-cwm data fetch raft`.")
    if path.suffix == ".npz":
        with reading(path, "an archive of SMURF's variables", "fetch it again"):
            return from_tensorflow(read_npz(path))
    return rename_torchvision(
        {name.removeprefix("module."): tensor for name, tensor in load_state_dict(path, EXPECTED).items()}
    )


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Read all arrays of an `.npz` archive."""
    with reading(path, "an archive of arrays", "expected SMURF's variables (.npz)"):
        return validation.read_npz(path)


def rename_torchvision(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Map torchvision's names to RAFT's; drop the shortcut's norm, which RAFT registers twice."""
    # RAFT numbers the recurrent units only if there are two.
    number = r"\1" if any("convgru2" in name for name in state) else ""
    rules = (*TORCHVISION, (r"\.recurrent_block\.convgru(\d)\.conv(\w)\.", rf".gru.conv\2{number}."))
    ours: dict[str, Tensor] = {}
    for name, tensor in state.items():
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        ours[name] = tensor
    return {name: tensor for name, tensor in ours.items() if ".norm3." not in name}


def from_tensorflow(variables: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Map SMURF's TensorFlow variables to RAFT's names; kernels [h w in out] become [out in h w]."""
    state: dict[str, Tensor] = {}
    for name, array in variables.items():
        if match := TENSORFLOW.match(name):
            module, kind = match.groups()
            # Keras counts only layers with weights; RAFT's sequence has a ReLU between the two.
            module = module.replace("mask/layer_with_weights-1", "mask/2").replace("layer_with_weights-", "")
            tensor = torch.from_numpy(array).float()
            state[f"{module.replace('/', '.')}.{'weight' if kind == 'kernel' else 'bias'}"] = (
                rearrange(tensor, "h w i o -> o i h w").contiguous() if kind == "kernel" else tensor
            )
    return state


def variant_of(state: dict[str, Tensor]) -> RaftVariant:
    """Infer the variant: small networks have one recurrent unit; SMURF's context encoder has no learned norm."""
    if "update_block.gru.convz.weight" in state:
        return SMALL
    return LARGE if "cnet.norm1.weight" in state else SMURF
