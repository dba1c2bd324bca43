"""`lpa-cwm cache`: what LPA is trained on, from videos with known motion and a frozen world model."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional

from lpa_cwm.config import WORLD
from lpa_cwm.registry import fingerprint

if TYPE_CHECKING:
    from lpa_cwm.training.feature_cache import FeatureRecorder
    from lpa_cwm.training.pair_sampling import Correspondences


@dataclass(frozen=True)
class Cache:
    """Ask the world model about annotated tracks and keep the candidates' evidence; run again to go on."""

    dataset: Annotated[Path, Positional]
    """Annotated videos of TAP-Vid format, or a folder of MOVi-F records; `lpa-cwm simulate` writes both."""
    out: Path
    """Folder of the cache: one file per video."""
    world: str = WORLD
    """World model that is asked."""
    score: str = "compact"
    """Score field of the analytic weights that are kept beside."""
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
    shard: str = "1/1"
    """Do every n-th video, beginning with the i-th: i/n."""
    device: str = "cpu"
    """Where to compute."""
    executor: Literal["local", "ray"] = "local"
    """One video after the other here, or over a Ray cluster (`RAY_ADDRESS`, else this machine)."""
    workers: int | None = None
    """Ray actors; by default one for each device."""
    json: bool = False
    """Print a summary for machines."""

    def run(self) -> None:
        """Fill the cache."""
        from lpa_cwm.evaluation.ray_cluster import executor
        from lpa_cwm.files import pin_settings
        from lpa_cwm.progress import progress
        from lpa_cwm.sharding import Shard
        from lpa_cwm.training.feature_cache import Job, cache
        from lpa_cwm.training.pair_sampling import RecordCorrespondences

        source, shard = self.source(), Shard.parse(self.shard)
        videos = shard.of(len(source.videos))
        pin_settings(self.out / "cache.json", self.settings())
        job = Job(source, self.recorder)
        done = cache(job, self.out, executor(self.executor, self.device, self.workers), shard)
        counts = dict(progress(done, len(videos), "evidence"))
        groups, size = sum(counts.values()), sum(path.stat().st_size for path in counts)
        if self.json:
            print(json.dumps({"out": str(self.out), "groups": groups, "videos": len(videos), "bytes": size}))
            return
        print(f"{groups} groups of {len(videos)} videos, {size / max(1, groups) / 1e6:.2f} MB a group")
        if isinstance(source, RecordCorrespondences):
            print(f"pixels of their frame pairs:\n{source.filter_counts(videos)}")
        print(self.out)

    def settings(self) -> dict[str, Any]:
        """What the files depend on."""
        numbers = {name: getattr(self, name) for name in ("masks", "pairs", "queries", "hidden")}
        numbers["gaps"] = list(self.gaps)
        weights = {"shipped_weights": fingerprint(self.world, self.score)}
        return {"dataset": self.dataset.name, "world": self.world, "score": self.score, **weights, **numbers}

    def recorder(self) -> "FeatureRecorder":
        """What asks the world model; each worker makes its own."""
        from lpa_cwm.adjudicators.apa import APA
        from lpa_cwm.registry import load_score_model, load_world
        from lpa_cwm.training.feature_cache import FeatureRecorder

        return FeatureRecorder(
            load_world(self.world), APA(load_score_model(self.score, self.device)), self.masks, device=self.device
        )

    def source(self) -> "Correspondences":
        """Tracks of annotated videos, or flow of records."""
        from lpa_cwm.datasets.movif import MoviClips
        from lpa_cwm.datasets.tapvid import load_dataset
        from lpa_cwm.files import data_files
        from lpa_cwm.training.pair_sampling import RecordCorrespondences, TrackCorrespondences

        if self.dataset.is_dir() and data_files(self.dataset, "*.tfrecord-*"):
            clips = MoviClips.of(self.dataset, "train")
            return RecordCorrespondences(clips, self.pairs, self.queries)
        dataset = load_dataset(self.dataset)
        return TrackCorrespondences(dataset, dataset.names, self.pairs, self.queries, self.gaps, self.hidden)
