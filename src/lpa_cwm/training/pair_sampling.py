"""Frame pairs with point correspondences, from annotated videos or exact flow: the source of the feature cache.

Flow is filtered as in the paper's appendix. A pixel of frame t is kept if forward and backward flow agree, if neither
the pixel nor its target lies near the border, and if it moves. Dropped pixels are counted by reason.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from lpa_cwm.datasets.movif import NATIVE, FlowField, MoviClip, MoviClips, round_trip_error, rounded_targets
from lpa_cwm.datasets.tapvid import load_dataset
from lpa_cwm.files import data_files
from lpa_cwm.geometry import axis_centers, center_of_flat, rescale, resize_frame
from lpa_cwm.metrics.comparison import SIZE
from lpa_cwm.protocols import Dataset
from lpa_cwm.rng import generator, numpy_rng
from lpa_cwm.types import Sample


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


@dataclass(frozen=True, slots=True)
class Correspondence:
    """Two frames of one video, and points of the first with their true endpoints, in pixels of the frames."""

    source: UInt8[Tensor, "3 h w"]
    target: UInt8[Tensor, "3 h w"]
    xy: Float[Tensor, "n 2"]
    end: Float[Tensor, "n 2"]
    """NaN where the point is occluded."""
    identity: tuple[str, int, int]
    """Video, source frame, target frame."""


@runtime_checkable
class PairSampler(Protocol):
    """Frame pairs by video, so that videos can be sharded and split before anything is sampled."""

    @property
    def videos(self) -> Sequence[str]:
        """Identities of the videos."""
        ...

    def pairs_of(self, video: int) -> Iterator[Correspondence]:
        """The frame pairs of one video."""
        ...


@dataclass(frozen=True)
class TrackPairSampler:
    """Frame pairs at random gaps from annotated tracks, with points that are visible in both frames or occluded."""

    dataset: Dataset
    videos: Sequence[str]
    pairs: int = 4
    """Frame pairs per video."""
    queries: int = 8
    """Maximum number of visible points per pair."""
    gaps: tuple[int, int] = (1, 12)
    """Bounds of the number of frames between source and target; tracking is direct from the query's frame too."""
    occluded: int = 0
    """Maximum number of further points per pair that are occluded in the target; no candidate is right for these."""
    motion: float = 0.5
    """Minimum motion in pixels of the 256 x 256 raster."""

    def pairs_of(self, video: int) -> Iterator[Correspondence]:
        """Keyed pairs of one video; pairs without a point are left out."""
        sample = self.dataset[video]
        for number in range(self.pairs):
            draw = generator("pair", self.videos[video], number)
            source, target = self.frames(len(sample.clip), draw)
            moving = self.moving_rows(sample, source, target, draw)
            rows = torch.cat((moving, self.occluded_rows(sample, source, target, draw)))
            if len(rows):
                end = sample.truth.xy[rows, target].clone()
                end[len(moving) :] = torch.nan
                frames = sample.clip[source], sample.clip[target]
                yield Correspondence(*frames, sample.truth.xy[rows, source], end, (self.videos[video], source, target))

    def frames(self, length: int, draw: torch.Generator) -> tuple[int, int]:
        """A source frame and a later target frame."""
        least, most = (min(gap, length - 1) for gap in self.gaps)
        gap = int(torch.randint(least, most + 1, (), generator=draw))
        source = int(torch.randint(0, length - gap, (), generator=draw))
        return source, source + gap

    def moving_rows(self, sample: Sample, source: int, target: int, draw: torch.Generator) -> Int[Tensor, "k"]:
        """Tracks that are visible in both frames and move."""
        both = sample.truth.visible[:, source] & sample.truth.visible[:, target]
        motion = sample.truth.xy[:, target] - sample.truth.xy[:, source]
        far = rescale(motion, sample.clip.hw, (SIZE, SIZE)).norm(dim=-1) >= self.motion
        return sample_rows(both & far, self.queries, draw)

    def occluded_rows(self, sample: Sample, source: int, target: int, draw: torch.Generator) -> Int[Tensor, "k"]:
        """Tracks that are visible in the source only."""
        only = sample.truth.visible[:, source] & ~sample.truth.visible[:, target]
        return sample_rows(only, self.occluded, draw)


def sample_rows(which: Bool[Tensor, "n"], most: int, draw: torch.Generator) -> Int[Tensor, "k"]:
    """A random sample of the marked rows, sorted."""
    rows = which.nonzero()[:, 0]
    return rows[torch.randperm(len(rows), generator=draw)[:most]].sort().values


@dataclass(frozen=True)
class FlowPairSampler:
    """Adjacent frames of MOVi-F records with points of the true flow, filtered as in the paper."""

    clips: MoviClips
    pairs: int = 4
    """Frame pairs per video."""
    queries: int = 8
    """Maximum number of points per pair."""

    @property
    def videos(self) -> Sequence[str]:
        return [entry.name for entry in self.clips.entries]

    def matches(self, video: int) -> Iterator[tuple[PointPairs, FilterCounts]]:
        """Keyed frames of one video: the sampled points, and the filter's counts over all pixels."""
        clip = self.clips[video]
        order = torch.randperm(len(clip) - 1, generator=generator("frames", self.videos[video]))
        return (PointPairSampler(self.queries)(clip, start) for start in order[: self.pairs].sort().values.tolist())

    def pairs_of(self, video: int) -> Iterator[Correspondence]:
        """Frame pairs of one video in which a pixel passed the filter."""
        for found, _ in self.matches(video):
            if len(found.xy):
                identity = (found.clip, found.frame, found.frame + 1)
                yield Correspondence(found.source, found.target, found.xy, found.target_xy, identity)

    def filter_counts(self, videos: Iterable[int]) -> FilterCounts:
        """The filter's counts over all pixels of the sampled frame pairs of the given videos."""
        return sum((counts for video in videos for _, counts in self.matches(video)), FilterCounts(Counter()))


def training_pairs(
    path: Path, pairs: int = 4, queries: int = 8, gaps: tuple[int, int] = (1, 12), occluded: int = 0
) -> PairSampler:
    """Pairs to train on: the flow of MOVi-F's training records, or the tracks of annotated videos."""
    if path.is_dir() and data_files(path, "*.tfrecord-*"):
        return FlowPairSampler(MoviClips.of(path, "train"), pairs, queries)
    dataset = load_dataset(path)
    return TrackPairSampler(dataset, dataset.names, pairs, queries, gaps, occluded)
