"""Point pairs with known motion for training the adjudicator, filtered as in the paper's appendix.

A pixel of frame t is kept if forward and backward flow agree, if neither the pixel nor its target lies near the
border, and if it moves. Dropped pixels are counted by reason.
"""

from collections import Counter
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from lpa_cwm.datasets.movif import NATIVE, FlowField, MoviClip, round_trip_error, rounded_targets
from lpa_cwm.geometry import axis_centers, center_of_flat, rescale
from lpa_cwm.rng import numpy_rng
from lpa_cwm.sampling import resize_frame


class Reason(IntEnum):
    """Why a pixel is dropped; the first reason in this order counts."""

    KEPT = 0
    NOT_FINITE = 1
    SOURCE_NEAR_BORDER = 2
    TARGET_OUTSIDE = 3
    TARGET_NEAR_BORDER = 4
    FLOWS_DISAGREE = 5
    STILL = 6


@dataclass(frozen=True)
class FlowFilter:
    """Thresholds of the paper's appendix, in pixels of the 128 variant."""

    disagreement: float = 2.0
    """Largest ||F(p) + B(round(p'))||."""
    border: float = 4.0
    """Smallest distance of a pixel and of its target from the edge of the image."""
    motion: float = 0.25
    """Smallest length of the motion."""

    def classify(self, forward: FlowField, backward: FlowField) -> UInt8[np.ndarray, "h w"]:
        """Reason per pixel, from the forward flow and the backward flow of the next frame."""
        side = len(forward)
        unit = side / NATIVE
        centers = np.stack(np.meshgrid(*2 * [axis_centers(0, side)]), axis=-1)
        target = centers + forward
        error = round_trip_error(forward, backward)
        outside = ~rounded_targets(forward)[1]
        length = np.linalg.norm(forward, axis=-1)
        rules = (
            (Reason.NOT_FINITE, ~np.isfinite(length) | (~outside & ~np.isfinite(error))),
            (Reason.SOURCE_NEAR_BORDER, near_edge(centers, side, self.border * unit)),
            (Reason.TARGET_OUTSIDE, outside),
            (Reason.TARGET_NEAR_BORDER, near_edge(target, side, self.border * unit)),
            (Reason.FLOWS_DISAGREE, ~(error <= self.disagreement * unit)),
            (Reason.STILL, length < self.motion * unit),
        )
        codes = [reason.value for reason, _ in rules]
        return np.select([applies for _, applies in rules], codes, Reason.KEPT.value).astype(np.uint8)


def near_edge(xy: Float[np.ndarray, "h w 2"], side: int, border: float) -> Bool[np.ndarray, "h w"]:
    """Whether points are less than `border` away from the edge of the image."""
    return ~(np.minimum(xy, side - xy).min(axis=-1) >= border)


@dataclass(frozen=True)
class FilterCounts:
    """Number of pixels per reason; counts of several frame pairs can be added."""

    counts: Counter[Reason]

    @classmethod
    def of(cls, reasons: UInt8[np.ndarray, "h w"]) -> "FilterCounts":
        """Count one frame pair."""
        found = np.bincount(reasons.ravel(), minlength=len(Reason)).tolist()
        return cls(Counter(dict(zip(Reason, found, strict=True))))

    def __add__(self, other: "FilterCounts") -> "FilterCounts":
        return FilterCounts(self.counts + other.counts)

    def __str__(self) -> str:
        whole = max(1, self.counts.total())
        rows = ((reason.name.lower().replace("_", " "), self.counts[reason]) for reason in Reason)
        return "\n".join(f"{name:<20}{count:>12,}{100 * count / whole:>8.2f} %" for name, count in rows)


@dataclass(frozen=True, slots=True)
class PointPairs:
    """Points of one frame and their positions in the next, at the training size."""

    clip: str
    frame: int
    """Number of the source frame in its clip."""
    source: UInt8[Tensor, "3 s s"]
    target: UInt8[Tensor, "3 s s"]
    xy: Float[Tensor, "n 2"]
    target_xy: Float[Tensor, "n 2"]


@dataclass(frozen=True)
class PointPairSampler:
    """Samples points among the pixels that pass the filter; seeded by clip and frame."""

    points: int
    """Points per frame pair, fewer where fewer pass."""
    size: int = 256
    """Side to which frames and points are resized."""
    seed: int = 0
    rules: FlowFilter = FlowFilter()

    def __call__(self, clip: MoviClip, t: int) -> tuple[PointPairs, FilterCounts]:
        """Points of frame t with their positions in frame t + 1, and the counts over all pixels."""
        forward = clip.forward(t)
        reasons = self.rules.classify(forward, clip.backward(t + 1))
        kept = np.flatnonzero(reasons.ravel() == Reason.KEPT)
        # A prefix of one permutation: a larger number of points contains the smaller one.
        chosen = numpy_rng("correspondence", self.seed, clip.name, t).permutation(kept)[: self.points]
        xy = center_of_flat(torch.from_numpy(chosen), clip.size)
        target_xy = xy + torch.from_numpy(forward.reshape(-1, 2)[chosen])
        native, scale = (clip.size, clip.size), (self.size, self.size)
        source, target = (resize_frame(clip.frame(time), scale) for time in (t, t + 1))
        scaled = rescale(xy, native, scale), rescale(target_xy, native, scale)
        return PointPairs(clip.name, t, source, target, *scaled), FilterCounts.of(reasons)
