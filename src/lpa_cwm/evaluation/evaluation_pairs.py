"""Frame pairs with known motion on which world models are evaluated: generated pairs, shards, annotated videos."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from lpa_cwm.geometry import Crop, center_of, inside, rescale
from lpa_cwm.protocols import Dataset
from lpa_cwm.rng import KeyPart, generator
from lpa_cwm.sampling import crop_resize, unit_range
from lpa_cwm.synth.pair_shards import SIZE, PairShards, flow_grid
from lpa_cwm.synth.pairs import Example, PairSource

MIN_MOTION = 2.0
"""Points of generated pairs that move less than this, in pixels, are not evaluated."""
POINTS = 16
"""Points of a generated pair."""
MAX_ANNOTATED = 32
"""Maximum number of annotated points of a pair."""


@dataclass(frozen=True, slots=True)
class EvaluationPoints:
    """Points of the source with their true endpoints and visibility in the target."""

    xy: Float[Tensor, "n 2"]
    end: Float[Tensor, "n 2"]
    visible: Bool[Tensor, "n"]

    @classmethod
    def of(cls, example: Example, count: int, index: int) -> "EvaluationPoints":
        """Random points of an example with known motion: up to `count` that move, half as many that get occluded."""
        assert example.flow is not None
        assert example.visible is not None
        draw = generator("world", "points", index)
        chosen = []
        for places, most in ((example.flow.norm(dim=0) > MIN_MOTION, count), (~example.visible, count // 2)):
            every = places.nonzero()
            chosen.append(every[torch.randperm(len(every), generator=draw)[:most]])
        rows, columns = torch.cat(chosen).unbind(-1)
        xy = center_of(torch.stack((columns, rows), dim=-1))
        return cls(xy, xy + example.flow[:, rows, columns].T, example.visible[rows, columns])

    @classmethod
    def seen(cls, xy: Float[Tensor, "n 2"], end: Float[Tensor, "n 2"]) -> "EvaluationPoints":
        """Points that are visible in both frames."""
        return cls(xy, end, torch.ones(len(xy), dtype=torch.bool))


@dataclass(frozen=True, slots=True)
class EvaluationPair:
    """Two frames at working size and points to follow; pairs of natural video have no points."""

    identity: tuple[KeyPart, ...]
    """Key of the random masks."""
    source: Float[Tensor, "3 h w"]
    target: Float[Tensor, "3 h w"]
    points: EvaluationPoints | None


def generated_pairs(
    source: PairSource, indices: Iterable[int], size: int, points: int = POINTS
) -> Iterator[EvaluationPair]:
    """The pairs of a source, with random points where the motion is known."""
    for index in indices:
        example = source.pair(index, size)
        asked = None if example.flow is None else EvaluationPoints.of(example, points, index)
        yield EvaluationPair((source.name, index), unit_range(example.source), unit_range(example.target), asked)


def sharded_pairs(shards: PairShards, kind: str, count: int, points: int = POINTS) -> Iterator[EvaluationPair]:
    """About `count` evenly spaced pairs of one kind, with random points that move and are visible in both frames."""
    chosen = shards.of_kinds(kind)
    grid = rearrange(flow_grid((SIZE, SIZE)), "d h w -> (h w) d")
    for index in range(0, len(chosen), max(1, len(chosen) // count)):
        pair = chosen[index]
        flow = rearrange(pair.flow, "d h w -> (h w) d")
        places = (pair.visible.flatten() & (flow.norm(dim=-1) > MIN_MOTION)).nonzero()[:, 0]
        places = places[torch.randperm(len(places), generator=generator("points", kind, index))[:points]]
        source, target = unit_range(pair.frames)
        asked = EvaluationPoints.seen(grid[places] + flow[places], grid[places])
        yield EvaluationPair((f"{kind}/{index}",), source, target, asked)


def annotated_pairs(
    dataset: Dataset, frames: Sequence[tuple[int, int]], min_motion: float, size: int
) -> Iterator[EvaluationPair]:
    """Frame pairs of annotated videos, with the points that are visible in both frames and move far enough.

    Distances are in pixels of the working size. Videos that are too short for a pair do not have it.
    """
    working = (size, size)
    for number, name in enumerate(dataset.names):
        sample = dataset[number]
        for first, second in frames:
            if max(first, second) >= len(sample.clip):
                continue
            seen = sample.truth.visible[:, first] & sample.truth.visible[:, second]
            xy, end = (rescale(sample.truth.xy[seen, frame], sample.clip.hw, working) for frame in (first, second))
            far = ((end - xy).norm(dim=-1) > min_motion) | (min_motion == 0)
            kept = (inside(xy, working) & inside(end, working) & far).nonzero()[:MAX_ANNOTATED, 0]
            whole = Crop.full(sample.clip.hw, size)
            source, target = (crop_resize(sample.clip[frame], whole) for frame in (first, second))
            yield EvaluationPair(
                (f"{name}/{first}-{second}",), source, target, EvaluationPoints.seen(xy[kept], end[kept])
            )
