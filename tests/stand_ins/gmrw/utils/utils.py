"""Stand-in for GMRW's functions from affinity to flow, with their real conventions."""

from collections import OrderedDict

import torch
import wandb
from utils import html

UNUSED = wandb, html


def trim_statedict_keys(model):
    return OrderedDict((key[7:] if "module" in key else key, item) for key, item in model.items())


def compute_flow_from_affinity(
    affinities,
    H=None,
    W=None,
    weight_method="argmax",
    weights_masking=False,
    img2feature_downsample=1,
    device=None,
    save_gpu_memory=False,
    evaluation=False,
    return_xy=False,
    window_threshold=None,
):
    """(B, T, h, w, h, w) to (B, T, 2, H, W), x first."""
    assert weight_method == "weighted_sum"
    batch, frames, rows, columns = affinities.shape[:4]
    ys, xs = torch.meshgrid(torch.arange(rows).float(), torch.arange(columns).float(), indexing="ij")
    dx = (affinities * xs).sum((-2, -1)) - xs
    dy = (affinities * ys).sum((-2, -1)) - ys
    flow = torch.stack((dx * W / columns, dy * H / rows), dim=2).flatten(0, 1)
    larger = torch.nn.functional.interpolate(flow, size=(H, W), mode="bilinear", align_corners=True)
    return larger.unflatten(0, (batch, frames))
