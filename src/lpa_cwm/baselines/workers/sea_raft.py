"""SEA-RAFT from its authors' checkout: flow between pairs of frames."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from lpa_cwm.baselines.workers.serve import Place

CONFIG = "sintel-M"
"""Which file of the checkout's `config/eval` unless told; it has to be the checkpoint's."""


def load(place: Place) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """The network of the configuration, filled from the checkpoint alone."""
    sys.path[:0] = [os.path.join(place.checkout, "core"), place.checkout]
    import extractor
    import raft

    # The encoders would download ImageNet weights, only for the checkpoint to replace them.
    extractor.ResNetFPN._init_weights = lambda self, args: None
    name = place.options.get("config", CONFIG) + ".json"
    with open(os.path.join(place.checkout, "config", "eval", name)) as file:
        settings = argparse.Namespace(**json.load(file))
    network = raft.RAFT(settings)
    fill(network, place)
    network = network.to(place.device).eval()

    def answer(question: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        before, after = (pictures(question[name]).to(place.device) for name in ("before", "after"))
        with torch.no_grad():
            return {"flow": flow(network, before, after, settings).cpu().numpy()}

    return answer


def fill(network: torch.nn.Module, place: Place) -> None:
    """The whole network from the checkpoint; what else that holds is left."""
    if place.checkpoint.endswith(".safetensors"):
        from safetensors.torch import load_file

        state = load_file(place.checkpoint)
    else:
        state = place.read()
    missing = network.load_state_dict(state, strict=False).missing_keys
    if missing:
        raise ValueError(f"{place.checkpoint} lacks {len(missing)} tensors, first {missing[0]}")


def pictures(frames: np.ndarray) -> torch.Tensor:
    """RGB from 0 to 255, as the network wants it."""
    return torch.from_numpy(frames).permute(0, 3, 1, 2).float()


def flow(
    network: torch.nn.Module, before: torch.Tensor, after: torch.Tensor, settings: argparse.Namespace
) -> torch.Tensor:
    """At the size the configuration asks for (a power of two), brought back to the frames' own."""
    size = before.shape[-2:]
    if settings.scale:
        factor = 2.0**settings.scale
        before = F.interpolate(before, scale_factor=factor, mode="bilinear", align_corners=False)
        after = F.interpolate(after, scale_factor=factor, mode="bilinear", align_corners=False)
    found = network(before, after, iters=settings.iters, test_mode=True)["flow"][-1]
    if settings.scale:
        found = F.interpolate(found, size=size, mode="bilinear", align_corners=False) * 0.5**settings.scale
    return found
