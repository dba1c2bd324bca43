"""SEA-RAFT (Wang et al. 2024, arXiv:2405.14793) from its checkout: flow of frame pairs."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from lpa_cwm.baselines.workers.serve import Setup

CONFIG = "sintel-M"
"""Default file of `config/eval` in the checkout; it has to fit the checkpoint."""


def load(setup: Setup) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Build the configured network and load the checkpoint."""
    sys.path[:0] = [os.path.join(setup.checkout, "core"), setup.checkout]
    # Modules of the checkout, not of this package.
    extractor, raft = (importlib.import_module(name) for name in ("extractor", "raft"))

    # The encoders would download ImageNet weights, which the checkpoint replaces.
    extractor.ResNetFPN._init_weights = lambda self, args: None
    name = setup.options.get("config", CONFIG) + ".json"
    with open(os.path.join(setup.checkout, "config", "eval", name)) as file:
        settings = argparse.Namespace(**json.load(file))
    network = raft.RAFT(settings)
    load_weights(network, setup)
    network = network.to(setup.device).eval()

    def answer(question: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        before, after = (to_tensor(question[name]).to(setup.device) for name in ("before", "after"))
        with torch.no_grad():
            return {"flow": flow(network, before, after, settings).cpu().numpy()}

    return answer


def load_weights(network: torch.nn.Module, setup: Setup) -> None:
    """Load all tensors of the network; other tensors of the checkpoint are ignored."""
    if setup.checkpoint.endswith(".safetensors"):
        from safetensors.torch import load_file

        state = load_file(setup.checkpoint)
    else:
        state = setup.read()
    missing = network.load_state_dict(state, strict=False).missing_keys
    if missing:
        raise ValueError(f"{setup.checkpoint} lacks {len(missing)} tensors, first {missing[0]}")


def to_tensor(frames: np.ndarray) -> torch.Tensor:
    """Channels-first RGB from 0 to 255."""
    return torch.from_numpy(frames).permute(0, 3, 1, 2).float()


def flow(
    network: torch.nn.Module, before: torch.Tensor, after: torch.Tensor, settings: argparse.Namespace
) -> torch.Tensor:
    """Flow at the configured scale (a power of two), resized to the frames."""
    size = before.shape[-2:]
    if settings.scale:
        factor = 2.0**settings.scale
        before = F.interpolate(before, scale_factor=factor, mode="bilinear", align_corners=False)
        after = F.interpolate(after, scale_factor=factor, mode="bilinear", align_corners=False)
    found = network(before, after, iters=settings.iters, test_mode=True)["flow"][-1]
    if settings.scale:
        found = F.interpolate(found, size=size, mode="bilinear", align_corners=False) * 0.5**settings.scale
    return found
