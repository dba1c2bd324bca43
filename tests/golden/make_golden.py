"""Write `adm_tiny.npz` and `raft_tiny.npz` with the official networks: `make_golden.py <guided-diffusion> <RAFT>`."""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))
from golden_weights import formula_weights  # noqa: E402


def fill(network):
    """Load the formula's weights into a network."""
    shapes = {name: tensor.shape for name, tensor in network.state_dict().items()}
    # Official RAFT registers the norm of a shortcut under two names; both get the values of the first.
    shared = {name: name.replace(".norm3.", ".downsample.1.") for name in shapes if ".norm3." in name}
    weights = formula_weights(shapes)
    network.load_state_dict(weights | {name: weights[twin] for name, twin in shared.items()})
    return network.eval()


def adm():
    """Outputs of a narrow ADM at two timesteps."""
    from guided_diffusion.unet import UNetModel

    layout = {"channel_mult": (1, 1, 2, 2, 4, 4), "num_res_blocks": 2, "attention_resolutions": (8, 16, 32)}
    options = {"num_head_channels": 16, "resblock_updown": True, "use_scale_shift_norm": True}
    network = fill(UNetModel(256, 3, 32, out_channels=6, **layout, **options))
    x = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    outputs = {f"out_t{time:g}".replace(".", "_"): network(x, torch.tensor([time])) for time in (5.994, 500.0)}
    return {"x": x, **outputs}


def raft():
    """Flow of both variants between two noise frames of which one is the other, moved and darkened."""
    from raft import RAFT

    noise = torch.rand(1, 3, 17, 21, generator=torch.Generator().manual_seed(1)) * 255
    whole = torch.nn.functional.interpolate(noise, (136, 168), mode="bicubic").clamp(0, 255).round()
    frames = whole[..., 4:132, 4:164], (0.9 * whole[..., 2:130, 8:168]).round()
    found = {"frame0": frames[0][0].byte(), "frame1": frames[1][0].byte()}
    for name, small in (("small", True), ("large", False)):
        arguments = argparse.Namespace(small=small, mixed_precision=False, alternate_corr=False)
        flow = fill(RAFT(arguments))(*frames, iters=4, test_mode=True)[1][0]
        found[name] = flow[:, 1::3, 1::3]  # A ninth of the pixels: each depends on the whole network.
    return found


if __name__ == "__main__":
    sys.path += [sys.argv[1], str(Path(sys.argv[2]) / "core")]
    with torch.no_grad():
        for name, arrays in {"adm_tiny": adm(), "raft_tiny": raft()}.items():
            np.savez_compressed(HERE / f"{name}.npz", **{key: value.numpy() for key, value in arrays.items()})
