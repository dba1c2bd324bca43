"""CoTracker3 from its authors' checkout: the offline predictor, with the visibility it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from lpa_cwm.baselines.workers.serve import Place


def load(place: Place) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """`torch.hub` builds the predictor; nothing is downloaded."""
    settings: dict[str, Any] = {"source": "local", "trust_repo": True, "pretrained": False}
    predictor: Any = torch.hub.load(place.checkout, "cotracker3_offline", **settings)
    state = place.read()
    predictor.model.load_state_dict(state.get("model", state))
    predictor = predictor.to(place.device).eval()

    def answer(question: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        # The predictor resizes corner pixel to corner pixel: in its coordinates pixel centers are whole numbers.
        queries = torch.from_numpy(question["queries"]) - torch.tensor([0, 0.5, 0.5])
        video = torch.from_numpy(question["video"]).permute(0, 3, 1, 2).float()
        with torch.no_grad():
            tracks, visible = predictor(video[None].to(place.device), queries=queries[None].to(place.device))
        return {
            "tracks": (tracks[0].permute(1, 0, 2) + 0.5).cpu().numpy(),
            "visible": visible[0].permute(1, 0).cpu().numpy(),
        }

    return answer
