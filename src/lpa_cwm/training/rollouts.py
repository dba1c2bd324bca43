"""Candidate sets of whole tracks: the tracker runs over annotated clips, and what it adjudicates is recorded.

The sources of later frames are the tracker's own estimates with their real drift, not the truth (as in DAgger, Ross et
al., 2011), so that LPA learns from the sets it will meet.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from lpa_cwm.adjudicators.features import extract
from lpa_cwm.config import TrackerConfig
from lpa_cwm.datasets.tapvid import load_dataset
from lpa_cwm.errors import InputError
from lpa_cwm.geometry import rescale
from lpa_cwm.online import ONLY, OnlineTracker, give
from lpa_cwm.protocols import Adjudicator, Dataset
from lpa_cwm.registry import load_adjudicator
from lpa_cwm.rng import generator
from lpa_cwm.training.feature_cache import CandidateSets, FeatureRecorder, concatenate
from lpa_cwm.training.pair_sampling import sample_rows
from lpa_cwm.types import Candidates, Pair, Queries, Sample


@dataclass(frozen=True)
class RolloutRecorder:
    """Tracks points through a clip and keeps the features of complete candidate sets, those with all gaps."""

    recorder: FeatureRecorder
    adjudicator: Adjudicator
    config: TrackerConfig
    queries: int = 8
    """Most points per clip; half of them, where there are, become hidden on the way."""
    stride: int = 3
    """Frames between recorded target frames."""

    @torch.inference_mode()
    def record(self, sample: Sample, video: str) -> CandidateSets | None:
        """The candidate sets of one clip; None if no point is visible in its first frame or no set is complete."""
        rows = self.choose(sample, video)
        if not len(rows):
            return None
        world, device = self.recorder.world, self.recorder.device
        truth = rescale(sample.truth.xy[rows], sample.clip.hw, (world.size, world.size))
        truth = truth.where(sample.truth.visible[rows, :, None], torch.nan)
        complete = self.config.masks + self.config.gap_masks * len(self.config.gaps)
        parts: list[CandidateSets] = []

        def keep(tracks: Int[Tensor, "k"], pair: Pair, candidates: Candidates) -> None:
            late = online.time - max(self.config.gaps, default=0)
            if candidates.strength.shape[1] == complete and late > 0 and (late - 1) % self.stride == 0:
                weights = self.recorder.apa(pair, candidates).weights
                end = truth[tracks, online.time].to(device)
                parts.append(self.recorder.pack(extract(pair, candidates), candidates, end, weights))

        online = OnlineTracker(world, {ONLY: self.adjudicator}, self.config, device, video, on_candidates=keep)
        give(online, Queries(sample.truth.xy[rows, 0], torch.zeros(len(rows), dtype=torch.long)))
        for frame in range(len(sample.clip)):
            online.step(sample.clip[frame])
        return concatenate(parts) if parts else None

    def choose(self, sample: Sample, video: str) -> Int[Tensor, "k"]:
        """Keyed points of the first frame, as many as possible of each kind."""
        draw = generator("rollout", video)
        seen = sample.truth.visible[:, 0]
        lost = seen & ~sample.truth.visible.all(1)
        some = sample_rows(lost, self.queries // 2, draw)
        return torch.cat((some, sample_rows(seen & ~lost, self.queries - len(some), draw)))


@dataclass(frozen=True)
class RolloutJob:
    """The clips of a data set as pieces of work; each worker makes its own recorder, once."""

    dataset: Dataset
    make_recorder: Callable[[], RolloutRecorder]

    @property
    def videos(self) -> Sequence[str]:
        """Identities of the clips."""
        return self.dataset.names

    def setup(self) -> Callable[[int], CandidateSets | None]:
        """A function that records the clip of a number."""
        recorder = self.make_recorder()
        return lambda video: recorder.record(self.dataset[video], self.videos[video])


def rollout_job(path: Path, make_recorder: Callable[[], FeatureRecorder], adjudicator: str, queries: int) -> RolloutJob:
    """Rollouts over the annotated clips of a file or folder, by the world model's own tracker settings."""

    def make() -> RolloutRecorder:
        recorder = make_recorder()
        config = replace(recorder.world.defaults, **recorder.settings)
        if not config.gaps:
            raise InputError(
                "Rollouts need a tracker with gaps, but this world model's default is direct tracking; "
                "use another world model, or cache frame pairs without --rollouts."
            )
        return RolloutRecorder(recorder, load_adjudicator(adjudicator), config, queries)

    return RolloutJob(load_dataset(path), make)
