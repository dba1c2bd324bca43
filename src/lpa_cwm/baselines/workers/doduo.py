"""DODUO (Jiang et al. 2023, arXiv:2309.15110) from its checkout: dense correspondence of frame pairs, as flow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from lpa_cwm.baselines.workers.serve import Setup

MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
MULTIPLE = 16
"""Divisor of the sides of a frame: cells of 8 pixels in 2x2 windows."""


def load(setup: Setup) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Build the network of the published configuration and load the checkpoint."""
    sys.path.insert(0, setup.checkout)
    from src.models.components import models_corr_seg_flow
    from src.models.components.unimatch.unimatch import UniMatch

    # The constructor would download DINO; the checkpoint contains it.
    models_corr_seg_flow.load_pretrained_weights = lambda *arguments: None
    network = models_corr_seg_flow.CorrSegFlowNet(
        unimatch=UniMatch(bilinear_upsample=True),
        dino_backbone=("vit_small", 8),
        dino_corr_mask_ratio=0.99,
        dino_corr_mask_binary=True,
    )
    network.load_state_dict(setup.read()["state_dict"])
    network = network.to(setup.device).eval()

    def answer(question: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        before, after = (normalize(question[name]).to(setup.device) for name in ("before", "after"))
        height, width = question["before"].shape[1:3]
        with torch.no_grad():
            flows = [
                network({"frame_src": before[i : i + 1], "frame_dst": after[i : i + 1]})[1]["flow"]
                for i in range(len(before))
            ]
        return {"flow": torch.cat(flows)[..., :height, :width].cpu().numpy()}

    return answer


def normalize(frames: np.ndarray) -> torch.Tensor:
    """Frames normalized by ImageNet's statistics, padded below and to the right by repeating the border."""
    unit = torch.from_numpy(frames).permute(0, 3, 1, 2).float() / 255
    normal = (unit - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(DEVIATION).view(3, 1, 1)
    height, width = normal.shape[-2:]
    return F.pad(normal, (0, -width % MULTIPLE, 0, -height % MULTIPLE), mode="replicate")
