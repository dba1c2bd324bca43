"""DODUO from its authors' checkout: correspondence between pairs of frames, as flow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from lpa_cwm.baselines.workers.serve import Place

MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
MULTIPLE = 16
"""Of which the sides of a frame have to be multiples: cells of eight pixels, in two by two windows."""


def load(place: Place) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """The network of the published configuration, filled from the checkpoint alone."""
    sys.path.insert(0, place.checkout)
    from src.models.components import models_corr_seg_flow
    from src.models.components.unimatch.unimatch import UniMatch

    # The constructor would download DINO, which the checkpoint holds too.
    models_corr_seg_flow.load_pretrained_weights = lambda *arguments: None
    network = models_corr_seg_flow.CorrSegFlowNet(
        unimatch=UniMatch(bilinear_upsample=True),
        dino_backbone=("vit_small", 8),
        dino_corr_mask_ratio=0.99,
        dino_corr_mask_binary=True,
    )
    network.load_state_dict(place.read()["state_dict"])
    network = network.to(place.device).eval()

    def answer(question: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        before, after = (pictures(question[name]).to(place.device) for name in ("before", "after"))
        height, width = question["before"].shape[1:3]
        with torch.no_grad():
            flows = [
                network({"frame_src": before[i : i + 1], "frame_dst": after[i : i + 1]})[1]["flow"]
                for i in range(len(before))
            ]
        return {"flow": torch.cat(flows)[..., :height, :width].cpu().numpy()}

    return answer


def pictures(frames: np.ndarray) -> torch.Tensor:
    """RGB with ImageNet's mean and deviation, filled up below and to the right by repeating the border."""
    unit = torch.from_numpy(frames).permute(0, 3, 1, 2).float() / 255
    normal = (unit - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(DEVIATION).view(3, 1, 1)
    height, width = normal.shape[-2:]
    return F.pad(normal, (0, -width % MULTIPLE, 0, -height % MULTIPLE), mode="replicate")
