"""Fill a feature cache from a data set, as `lpa-cwm data cache` does: frame pairs, or rollouts of a tracker."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from lpa_cwm.adjudicators.apa import APA
from lpa_cwm.config import WORLD
from lpa_cwm.files import pin_settings
from lpa_cwm.presets import PRESETS, PresetName
from lpa_cwm.progress import progress
from lpa_cwm.registry import fingerprint, load_score_model, load_world
from lpa_cwm.sharding import Executor, Shard, run_local
from lpa_cwm.training.feature_cache import CLAIMS, FORMAT, FeatureRecorder, RecordingJob, fill_cache
from lpa_cwm.training.pair_sampling import FlowPairSampler, training_pairs
from lpa_cwm.training.rollouts import rollout_job


@dataclass(frozen=True)
class CacheSettings:
    """What the files of a cache depend on, beside the data set."""

    world: str = WORLD
    score_model: str = "compact"
    """Score model of the APA weights that are kept beside."""
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
