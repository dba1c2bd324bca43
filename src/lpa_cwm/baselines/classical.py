"""Baselines without learned weights: a static point, DIS optical flow, chained Lucas-Kanade."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from torch import Tensor

from lpa_cwm.baselines.flow_trackers import keep_partial, working_size
from lpa_cwm.errors import require
from lpa_cwm.geometry import inside, rescale
from lpa_cwm.tracker import validate_queries
from lpa_cwm.types import Clip, Grid, Queries, Tracks


@dataclass(frozen=True, slots=True)
class StaticPoint:
    """A point that never moves and is always visible."""

    def track(self, clip: Clip, queries: Queries | Grid) -> Tracks:
        """Repeat each query from its frame to the last."""
        queries = validate_queries(clip, queries)
        tracks = Tracks.at_queries(clip, queries)
        started = queries.frame[:, None] <= torch.arange(len(clip), device=queries.frame.device)
        return Tracks(queries.xy[:, None].where(started[..., None], tracks.xy), started)


@dataclass(frozen=True, slots=True)
class DisFlow:
    """Dense inverse search (Kroeger et al. 2016, arXiv:1603.03590), OpenCV's medium preset; a `flow_trackers.Flow`."""

    def __call__(self, before: UInt8[Tensor, "b 3 h w"], after: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, "b 2 h w"]:
        """Flow of one pair after the other; OpenCV uses all cores for each."""
        cv2 = require("cv2", extra="flow")
        search = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
        # One result for all: at 4K each copy of a flow has 66 MB.
        flows = torch.empty(len(before), 2, *before.shape[-2:], device=before.device)
        for flow, first, second in zip(flows, before, after, strict=True):
            found = search.calc(gray(cv2, first), gray(cv2, second), None)
            flow.copy_(rearrange(torch.from_numpy(found), "h w d -> d h w"))
        return flows


@dataclass(frozen=True, slots=True)
class LucasKanade:
    """Pyramidal Lucas-Kanade (Bouguet 2001), chained from frame to frame; visible while the round trip closes."""

    window: int = 11
    """Side of the matched window, in pixels."""
    levels: int = 3
    """Coarser pyramid levels."""
    limit: float = 6.0
    """Largest forward-backward error, summed along the chain, of a visible point, in pixels."""
    size: int | None = 256
    """Side to which frames are resized, without keeping the aspect; None keeps the size of the clip."""

    def track(self, clip: Clip, queries: Queries | Grid) -> Tracks:
        """Follow each point into the next frame, from its query's frame to the last."""
        cv2 = require("cv2", extra="flow")
        resized, asked = working_size(clip, validate_queries(clip, queries), self.size)
        tracks = Tracks.at_queries(resized, asked)
        error = torch.zeros_like(tracks.xy[..., 0]).where(tracks.visible, torch.nan)

        def found() -> Tracks:
            visible = (error <= self.limit) & inside(tracks.xy, resized.hw)
            return Tracks(rescale(tracks.xy, resized.hw, clip.hw), visible, -error)

        with keep_partial(found):
            after = gray(cv2, resized[0])
            for target in range(1, len(clip)):
                before, after = after, gray(cv2, resized[target])
                rows = (asked.frame < target).nonzero()[:, 0]
                if len(rows):
                    xy, miss = self._step(cv2, before, after, tracks.xy[rows, target - 1])
                    tracks.xy[rows, target], error[rows, target] = xy, error[rows, target - 1] + miss
        return found()

    def _step(
        self, cv2: Any, before: np.ndarray, after: np.ndarray, xy: Float[Tensor, "n 2"]
    ) -> tuple[Float[Tensor, "n 2"], Float[Tensor, "n"]]:
        """Endpoints in the next frame and the error of the round trip; infinite where OpenCV lost the point."""
        options = {"winSize": (self.window, self.window), "maxLevel": self.levels}
        # OpenCV has pixel centers at whole numbers.
        start = (xy.cpu() - 0.5).numpy().astype(np.float32)[:, None]
        end, found, _ = cv2.calcOpticalFlowPyrLK(before, after, start, None, **options)
        back, returned, _ = cv2.calcOpticalFlowPyrLK(after, before, end, None, **options)
        miss = np.linalg.norm(back - start, axis=-1)[:, 0]
        miss[(found[:, 0] == 0) | (returned[:, 0] == 0)] = np.inf
        return torch.from_numpy(end[:, 0]).to(xy) + 0.5, torch.from_numpy(miss).to(xy)


def gray(cv2: Any, frame: UInt8[Tensor, "3 h w"]) -> np.ndarray:
    """A frame as a gray OpenCV image."""
    return cv2.cvtColor(rearrange(frame.cpu(), "c h w -> h w c").contiguous().numpy(), cv2.COLOR_RGB2GRAY)
