"""Queries with known endpoints: what the evidence cache is made from."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from lpa_cwm.datasets.movif import MoviClips
from lpa_cwm.datasets.point_pairs import FilterCounts, PointPairs, PointPairSampler
from lpa_cwm.geometry import rescale
from lpa_cwm.metrics.comparison import SIZE
from lpa_cwm.protocols import Dataset
from lpa_cwm.rng import generator
from lpa_cwm.types import Sample


@dataclass(frozen=True, slots=True)
class Correspondence:
    """Two frames of one video and points of the first whose places in the second are known, in pixels of the frames."""

    source: UInt8[Tensor, "3 h w"]
    target: UInt8[Tensor, "3 h w"]
    xy: Float[Tensor, "n 2"]
    end: Float[Tensor, "n 2"]
    """NaN where the point is hidden."""
    identity: tuple[str, int, int]
    """Video, source frame, target frame."""


@runtime_checkable
class Correspondences(Protocol):
    """Correspondences by video, so that videos can be shared out and split before anything is sampled."""

    @property
    def videos(self) -> Sequence[str]:
        """Identities of the videos."""
        ...

    def of(self, video: int) -> Iterator[Correspondence]:
        """Those of one video."""
        ...


@dataclass(frozen=True)
class TrackCorrespondences:
    """Pairs of frames at random gaps from annotated tracks; queries are visible in both frames, or are lost."""

    dataset: Dataset
    videos: Sequence[str]
    pairs: int = 4
    """Frame pairs per video."""
    queries: int = 8
    """Most queries per pair."""
    gaps: tuple[int, int] = (1, 12)
    """Fewest and most frames between source and target; the tracker asks from the query's frame, not the last one."""
    hidden: int = 0
    """Most further queries per pair that are hidden in the target: about these no candidate is right."""
    motion: float = 0.5
    """Least motion in pixels of the 256 x 256 raster."""

    def of(self, video: int) -> Iterator[Correspondence]:
        """Keyed pairs of one video; pairs in which nothing moves enough are left out."""
        sample = self.dataset[video]
        for number in range(self.pairs):
            draw = generator("pair", self.videos[video], number)
            source, target = self.frames(len(sample.clip), draw)
            moving, lost = self.moving(sample, source, target, draw), self.lost(sample, source, target, draw)
            rows = torch.cat((moving, lost))
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

    def moving(self, sample: Sample, source: int, target: int, draw: torch.Generator) -> Int[Tensor, "k"]:
        """Tracks that are seen in both frames and move."""
        both = sample.truth.visible[:, source] & sample.truth.visible[:, target]
        motion = sample.truth.xy[:, target] - sample.truth.xy[:, source]
        far = rescale(motion, sample.clip.hw, (SIZE, SIZE)).norm(dim=-1) >= self.motion
        return some(both & far, self.queries, draw)

    def lost(self, sample: Sample, source: int, target: int, draw: torch.Generator) -> Int[Tensor, "k"]:
        """Tracks that are seen in the source only."""
        return some(sample.truth.visible[:, source] & ~sample.truth.visible[:, target], self.hidden, draw)


def some(which: Bool[Tensor, "n"], most: int, draw: torch.Generator) -> Int[Tensor, "k"]:
    """A keyed choice among the rows that are marked."""
    rows = which.nonzero()[:, 0]
    return rows[torch.randperm(len(rows), generator=draw)[:most]].sort().values


@dataclass(frozen=True)
class RecordCorrespondences:
    """Adjacent frames of records in MOVi-F's format, filtered as in the paper."""

    clips: MoviClips
    pairs: int = 4
    """Frame pairs per video."""
    queries: int = 8
    """Most queries per pair."""

    @property
    def videos(self) -> Sequence[str]:
        return [entry.name for entry in self.clips.entries]

    def matches(self, video: int) -> Iterator[tuple[PointPairs, FilterCounts]]:
        """Keyed frames of one video: the points drawn, and the verdicts on all pixels."""
        clip = self.clips[video]
        order = torch.randperm(len(clip) - 1, generator=generator("frames", self.videos[video]))
        return (PointPairSampler(self.queries)(clip, start) for start in order[: self.pairs].sort().values.tolist())

    def of(self, video: int) -> Iterator[Correspondence]:
        """Those frame pairs of one video in which a pixel passed."""
        for found, _ in self.matches(video):
            if len(found.xy):
                identity = (found.clip, found.frame, found.frame + 1)
                yield Correspondence(found.source, found.target, found.xy, found.target_xy, identity)

    def filter_counts(self, videos: Iterable[int]) -> FilterCounts:
        """What the filter made of all pixels of the frame pairs of some videos."""
        return sum(
            (filter_counts for video in videos for _, filter_counts in self.matches(video)), FilterCounts(Counter())
        )
