"""CoTracker3 (Karaev et al. 2024, arXiv:2410.11831) from its checkout: offline predictor with its own visibility."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from lpa_cwm.baselines.workers.serve import Setup


def load(setup: Setup) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Build the predictor through `torch.hub`, without downloads."""
    settings: dict[str, Any] = {"source": "local", "trust_repo": True, "pretrained": False}
    predictor: Any = torch.hub.load(setup.checkout, "cotracker3_offline", **settings)
    state = setup.read()
    predictor.model.load_state_dict(state.get("model", state))
    predictor = predictor.to(setup.device).eval()

    def answer(question: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        # The predictor resizes corner pixel to corner pixel: in its coordinates pixel centers are whole numbers.
        queries = torch.from_numpy(question["queries"]) - torch.tensor([0, 0.5, 0.5])
        video = torch.from_numpy(question["video"]).permute(0, 3, 1, 2).float()
        with torch.no_grad():
            tracks, visible = predictor(video[None].to(setup.device), queries=queries[None].to(setup.device))
        return {
            "tracks": (tracks[0].permute(1, 0, 2) + 0.5).cpu().numpy(),
            "visible": visible[0].permute(1, 0).cpu().numpy(),
        }

    return answer
