"""Backward flow of natural video without labels: optical flow that passes a forward-backward check.

Dense inverse search (Kroeger et al. 2016, arXiv:1603.03590) tracks every target point from frame to frame back to the
source and forward again. The flow is known where the round trip closes (the forward-backward check of Sundaram et al.
2010) and the squares around both ends correlate. Nothing is known of all other points, not even that they are occluded.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from lpa_cwm.errors import require
from lpa_cwm.geometry import inside, sample_bilinear
from lpa_cwm.rng import numpy_rng
from lpa_cwm.synth.pair_shards import FLOW_STRIDE, SIZE, VIDEO_KINDS, FlowPair, FlowSource, flow_grid
from lpa_cwm.synth.pairs import VideoPairs, resize_crop

CLOSED = 1.0
"""Largest error of a round trip, in pixels."""
ALIKE = 0.5
"""Smallest correlation of brightness around both ends of known flow."""
AROUND = 9
"""Side of the squares that are compared, in pixels."""
NOISE = 3.0
"""Standard deviation of brightness, in gray levels, that counts as no texture: it lowers the correlation."""
LEAST_KNOWN = 0.25
"""Smallest share of known points in a pair."""
ATTEMPTS = 10
KINDS = dict(zip(VIDEO_KINDS, (((5, 16), 4.0), ((1, 4), 1.0)), strict=True))
"""For each kind of pairs: minimum and maximum number of frames between source and target, and the smallest upper
quartile of the motion in pixels."""


@dataclass(frozen=True)
class VideoFlow:
    """Pairs of natural video with backward flow where a round trip closes."""

    pairs: VideoPairs
    motion: float
    """Smallest upper quartile of the lengths of known flow, in pixels."""

    def __call__(self, index: int) -> FlowPair:
        """Pair `index`: the first sample with enough motion and enough known points, or the last of several samples."""
        rng = numpy_rng("video flow", self.pairs.name, *self.pairs.gaps, self.pairs.seed, index)
        found = self.sample(rng)
        for _ in range(ATTEMPTS - 1):
            length = found.flow[:, found.visible].norm(dim=0)
            if len(length) >= LEAST_KNOWN * found.visible.numel() and length.quantile(0.75) >= self.motion:
                break
            found = self.sample(rng)
        return found

    def sample(self, rng: np.random.Generator) -> FlowPair:
        """Two frames of a clip, tracked through all frames between them."""
        square = self.pairs.square(rng, SIZE)
        return follow_back([resize_crop(np.ascontiguousarray(frame), SIZE) for frame in square])


def video_sources(pairs: VideoPairs) -> dict[str, FlowSource]:
    """Sources of the kinds of pairs of natural video."""
    return {kind: VideoFlow(replace(pairs, gaps=gaps), motion) for kind, (gaps, motion) in KINDS.items()}


def follow_back(frames: Sequence[UInt8[Tensor, "3 s s"]]) -> FlowPair:
    """Flow from the last frame to the first, and which points have known flow."""
    cv2, search = dense_inverse_search()
    grays = [gray_image(cv2, frame) for frame in frames]
    grid = rearrange(flow_grid((SIZE, SIZE)), "d h w -> (h w) d")
    origin, inside_back = follow(search, grays[::-1], grid)
    again, inside_forth = follow(search, grays, origin)
    known = inside_back & inside_forth & ((again - grid).norm(dim=-1) <= CLOSED)
    known &= correlation(grays[0], origin, grays[-1], grid) >= ALIKE
    flow, visible = (
        rearrange(part, "(h w) ... -> ... h w", w=SIZE // FLOW_STRIDE)
        for part in ((origin - grid).where(known[:, None], torch.nan), known)
    )
    return FlowPair(torch.stack((frames[0], frames[-1])), flow, visible)


def dense_inverse_search() -> tuple[Any, Any]:
    """OpenCV, and its dense inverse search with the medium preset."""
    cv2 = require("cv2", extra="flow")
    return cv2, cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)


def follow(
    search: Any, grays: Sequence[np.ndarray], xy: Float[Tensor, "n 2"]
) -> tuple[Float[Tensor, "n 2"], Bool[Tensor, "n"]]:
    """Points of the first image in the last one, and which of them never left the images."""
    kept = torch.ones(len(xy), dtype=torch.bool)
    for before, after in pairwise(grays):
        flow = rearrange(torch.from_numpy(search.calc(before, after, None)), "h w d -> 1 d h w")
        xy = xy + sample_bilinear(flow, xy[None])[0]
        kept &= inside(xy, before.shape)
    return xy, kept


def correlation(
    first: np.ndarray, here: Float[Tensor, "n 2"], second: np.ndarray, there: Float[Tensor, "n 2"]
) -> Float[Tensor, "n"]:
    """Zero-normalized cross-correlation of the squares around points of two images."""
    one, other = (squares(gray, xy) for gray, xy in ((first, here), (second, there)))
    norms = (part.square().mean(1).sqrt() + NOISE for part in (one, other))
    return (one * other).mean(1) / math.prod(norms)


def squares(gray: np.ndarray, xy: Float[Tensor, "n 2"]) -> Float[Tensor, "n s"]:
    """Brightness around points, the mean removed."""
    ticks = torch.arange(AROUND) - AROUND // 2
    around = torch.cartesian_prod(ticks, ticks).to(xy)
    places = rearrange(xy[:, None] + around, "n s d -> 1 (n s) d")
    values = sample_bilinear(torch.from_numpy(gray).float()[None, None], places).view(len(xy), -1)
    return values - values.mean(1, keepdim=True)


def gray_image(cv2: Any, frame: UInt8[Tensor, "3 h w"]) -> np.ndarray:
    """A frame as a gray OpenCV image."""
    return cv2.cvtColor(rearrange(frame.cpu(), "c h w -> h w c").contiguous().numpy(), cv2.COLOR_RGB2GRAY)
