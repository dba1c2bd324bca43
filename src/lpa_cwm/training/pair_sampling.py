"""Frame pairs with point correspondences, sampled from annotated videos: the source of the feature cache."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from lpa_cwm.datasets.movif import MoviClips
from lpa_cwm.datasets.point_pairs import FilterCounts, PointPairs, PointPairSampler
from lpa_cwm.datasets.tapvid import load_dataset
from lpa_cwm.files import data_files
from lpa_cwm.geometry import rescale
from lpa_cwm.metrics.comparison import SIZE
from lpa_cwm.protocols import Dataset
from lpa_cwm.rng import generator
from lpa_cwm.types import Sample


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
    """Most visible points per pair."""
    gaps: tuple[int, int] = (1, 12)
    """Bounds of the number of frames between source and target; tracking is direct from the query's frame too."""
    occluded: int = 0
    """Most further points per pair that are occluded in the target: for these no candidate is right."""
    motion: float = 0.5
    """Least motion in pixels of the 256 x 256 raster."""

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
    """Most points per pair."""

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
