"""Query points with known goals for training the adjudicator, filtered as the paper's appendix says.

A pixel of frame t is kept if forward and backward flow agree, if neither it nor its goal lies near the border, and if
it moves. What was dropped is counted by reason.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from lpa_cwm.datasets.movif import NATIVE, FlowField, MoviClip, MoviClips, disagreement, rounded_goals
from lpa_cwm.geometry import axis_centers, center_of_flat, rescale
from lpa_cwm.sampling import resize_frame
from lpa_cwm.synth.pairs import draws


class Verdict(IntEnum):
    """What becomes of a pixel; of several reasons to drop it the first in this order counts."""

    KEPT = 0
    NOT_FINITE = 1
    SOURCE_NEAR_BORDER = 2
    GOAL_OUTSIDE = 3
    GOAL_NEAR_BORDER = 4
    FLOWS_DISAGREE = 5
    STILL = 6


@dataclass(frozen=True)
class Filter:
    """The appendix's thresholds, in pixels of the 128 variant."""

    disagreement: float = 2.0
    """Largest ||F(p) + B(round(p'))||."""
    border: float = 4.0
    """Smallest distance of a point and of its goal from the edge of the image."""
    motion: float = 0.25
    """Smallest length of the motion."""

    def judge(self, forward: FlowField, backward: FlowField) -> UInt8[np.ndarray, "h w"]:
        """The verdict on each pixel, from the flow to the next frame and the next frame's flow back."""
        side = len(forward)
        unit = side / NATIVE
        centers = np.stack(np.meshgrid(*2 * [axis_centers(0, side)]), axis=-1)
        goal = centers + forward
        error = disagreement(forward, backward)
        outside = ~rounded_goals(forward)[1]
        length = np.linalg.norm(forward, axis=-1)
        reasons = (
            (Verdict.NOT_FINITE, ~np.isfinite(length) | (~outside & ~np.isfinite(error))),
            (Verdict.SOURCE_NEAR_BORDER, near_edge(centers, side, self.border * unit)),
            (Verdict.GOAL_OUTSIDE, outside),
            (Verdict.GOAL_NEAR_BORDER, near_edge(goal, side, self.border * unit)),
            (Verdict.FLOWS_DISAGREE, ~(error <= self.disagreement * unit)),
            (Verdict.STILL, length < self.motion * unit),
        )
        verdicts = [verdict.value for verdict, _ in reasons]
        return np.select([applies for _, applies in reasons], verdicts, Verdict.KEPT.value).astype(np.uint8)


def near_edge(xy: Float[np.ndarray, "h w 2"], side: int, border: float) -> Bool[np.ndarray, "h w"]:
    """Whether points are less than `border` away from the edge of the image."""
    return ~(np.minimum(xy, side - xy).min(axis=-1) >= border)


@dataclass(frozen=True)
class Tally:
    """How many pixels met each verdict."""

    counts: Counter[Verdict]

    @classmethod
    def of(cls, verdicts: UInt8[np.ndarray, "h w"]) -> "Tally":
        """The count of one frame pair."""
        found = np.bincount(verdicts.ravel(), minlength=len(Verdict)).tolist()
        return cls(Counter(dict(zip(Verdict, found, strict=True))))

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.counts + other.counts)

    def __str__(self) -> str:
        whole = max(1, self.counts.total())
        rows = ((verdict.name.lower().replace("_", " "), self.counts[verdict]) for verdict in Verdict)
        return "\n".join(f"{name:<20}{count:>12,}{100 * count / whole:>8.2f} %" for name, count in rows)


@dataclass(frozen=True, slots=True)
class Matches:
    """Points of one frame and where they are in the next, at the training scale."""

    clip: str
    frame: int
    """Number of the source frame in its clip."""
    source: UInt8[Tensor, "3 s s"]
    target: UInt8[Tensor, "3 s s"]
    xy: Float[Tensor, "n 2"]
    goal: Float[Tensor, "n 2"]


@dataclass(frozen=True)
class MatchSampler:
    """Draws points from the pixels that pass the filter; each clip and frame has draws of its own."""

    points: int
    """Points per frame pair, fewer where fewer pass."""
    size: int = 256
    """Side of the frames that the points and pictures are mapped to."""
    seed: int = 0
    rules: Filter = Filter()

    def __call__(self, clip: MoviClip, t: int) -> tuple[Matches, Tally]:
        """Points of frame t with their goals in frame t + 1, and the count of all pixels' verdicts."""
        forward = clip.forward(t)
        verdicts = self.rules.judge(forward, clip.backward(t + 1))
        kept = np.flatnonzero(verdicts.ravel() == Verdict.KEPT)
        # The first points of one permutation, so that asking for more keeps those already drawn.
        chosen = draws("correspondence", self.seed, clip.name, t).permutation(kept)[: self.points]
        xy = center_of_flat(torch.from_numpy(chosen), clip.size)
        goal = xy + torch.from_numpy(forward.reshape(-1, 2)[chosen])
        native, scale = (clip.size, clip.size), (self.size, self.size)
        source, target = (resize_frame(clip.frame(time), scale) for time in (t, t + 1))
        matches = Matches(clip.name, t, source, target, rescale(xy, native, scale), rescale(goal, native, scale))
        return matches, Tally.of(verdicts)

    def over(self, clips: MoviClips, frames: Iterable[int] | None = None) -> Iterator[tuple[Matches, Tally]]:
        """Every frame pair of every clip, or those that begin with some frames."""
        for clip in map(clips.__getitem__, range(len(clips))):
            for t in range(len(clip) - 1) if frames is None else frames:
                yield self(clip, t)
