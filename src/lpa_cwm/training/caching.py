"""Fill a feature cache from a data set, as `lpa-cwm data cache` does: frame pairs, or rollouts of a tracker.

In a rollout the tracker runs over annotated clips, and what it adjudicates is recorded. The sources of later frames are
the tracker's own estimates with their real drift, not the truth (as in DAgger, Ross et al., 2011), so that LPA learns
from the sets it will meet.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from lpa_cwm.adjudicators.apa import APA
from lpa_cwm.adjudicators.features import extract
from lpa_cwm.config import PRESETS, WORLD, PresetName, TrackerConfig
from lpa_cwm.datasets.tapvid import load_dataset
from lpa_cwm.errors import InputError
from lpa_cwm.files import pin_settings
from lpa_cwm.geometry import rescale
from lpa_cwm.jobs import Executor, Shard, progress, run_local
from lpa_cwm.online import ONLY, OnlineTracker, give
from lpa_cwm.protocols import Adjudicator, Dataset
from lpa_cwm.registry import fingerprint, load_adjudicator, load_score_model, load_world
from lpa_cwm.rng import generator
from lpa_cwm.training.feature_cache import (
    CLAIMS,
    FORMAT,
    CandidateSets,
    FeatureRecorder,
    RecordingJob,
    concatenate_sets,
    fill_cache,
)
from lpa_cwm.training.pair_sampling import FlowPairSampler, sample_rows, training_pairs
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
        return concatenate_sets(parts) if parts else None

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
        config = recorder.world.defaults.changed(recorder.settings)
        if not config.gaps:
            raise InputError(
                "Rollouts need a tracker with gaps, but this world model's default is direct tracking; "
                "use another world model, or cache frame pairs without --rollouts."
            )
        return RolloutRecorder(recorder, load_adjudicator(adjudicator), config, queries)

    return RolloutJob(load_dataset(path), make)


@dataclass(frozen=True)
class CacheSettings:
    """What the files of a cache depend on, apart from the data set."""

    world: str = WORLD
    score_model: str = "compact"
    """Score model of the APA weights that are stored with the features."""
    masks: int = 10
    """Candidates per query."""
    pairs: int = 4
    """Frame pairs per video."""
    queries: int = 8
    """Most queries per pair."""
    hidden: int = 0
    """Most further queries per pair that are hidden in the target frame; annotated videos only."""
    gaps: tuple[int, int] = (1, 12)
    """Fewest and most frames between source and target; records give adjacent frames only."""
    rollouts: Literal["none", "uniform", "lpa"] = "none"
    """Record the sets that a tracker with this adjudicator meets on its way through a clip, instead of frame pairs."""
    preset: PresetName = "default"
    """Preset of the tracker's other settings."""

    @classmethod
    def of_preset(cls, preset: PresetName, **given: Any) -> "CacheSettings":
        """The preset's settings, and over them those that are given."""
        return cls(preset=preset, **(PRESETS[preset].cache | given))

    def identity(self, dataset: Path) -> dict[str, Any]:
        """The description in `cache.json`; a folder holds one kind of cache."""
        names = {"dataset": dataset.name, "world": self.world, "score": self.score_model}
        weights = {"shipped_weights": fingerprint(self.world, self.score_model)}
        numbers: dict[str, Any] = {name: getattr(self, name) for name in ("masks", "pairs", "queries", "hidden")}
        numbers["gaps"] = list(self.gaps)
        # Left out by default: the folder may have been begun without them.
        numbers |= {} if self.preset == "default" else {"preset": self.preset}
        numbers |= {} if self.rollouts == "none" else {"rollouts": self.rollouts}
        return names | weights | numbers | FORMAT

    def recorder(self, device: str = "cpu") -> FeatureRecorder:
        """The recorder of a worker."""
        apa = APA(load_score_model(self.score_model, device))
        settings = {**PRESETS[self.preset].tracker, "masks": self.masks}
        return FeatureRecorder(load_world(self.world), apa, settings, device=device)


@dataclass(frozen=True)
class CacheSummary:
    """What a cache, or its shard, holds."""

    sets: int
    videos: int
    bytes: int
    filtered: str = ""
    """For records: the pixels that each filter of the correspondences took away, as a table."""


def cache_features(
    dataset: Path,
    out: Path,
    settings: CacheSettings | None = None,
    *,
    device: str = "cpu",
    executor: Executor = run_local,
    shard: Shard | None = None,
) -> CacheSummary:
    """Cache the candidates of annotated tracks or of records with flow; run again to go on."""
    settings = settings or CacheSettings()
    recorder, source = partial(settings.recorder, device), None
    if settings.rollouts == "none":
        source = training_pairs(dataset, settings.pairs, settings.queries, settings.gaps, settings.hidden)
        job = RecordingJob(source, recorder)
    else:
        job = rollout_job(dataset, recorder, settings.rollouts, settings.queries)
    videos = (shard or Shard()).of(len(job.videos))
    pin_settings(out / CLAIMS, settings.identity(dataset))
    counts = dict(progress(fill_cache(job, out, executor, shard), len(videos), "candidates"))
    filtered = str(source.filter_counts(videos)) if isinstance(source, FlowPairSampler) else ""
    return CacheSummary(sum(counts.values()), len(videos), sum(path.stat().st_size for path in counts), filtered)
