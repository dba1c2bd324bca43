"""`lpa-cwm cache`: what LPA is trained on, from videos with known motion and a frozen world model."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional

from lpa_cwm.config import WORLD

if TYPE_CHECKING:
    from lpa_cwm.training.groups import Correspondences


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
    gaps: tuple[int, int] = (1, 12)
    """Fewest and most frames between source and target; records give adjacent frames only."""
    shard: str = "1/1"
    """Do every n-th video, beginning with the i-th: i/n."""
    device: str = "cpu"
    """Where to compute."""
    json: bool = False
    """Print a summary for machines."""

    def run(self) -> None:
        """Fill the cache."""
        from lpa_cwm.adjudicate.analytic import Analytic
        from lpa_cwm.hub import load_score, load_world
        from lpa_cwm.progress import progress
        from lpa_cwm.sharding import Shard
        from lpa_cwm.training.evidence_cache import Recorder, cache

        source = self.source()
        recorder = Recorder(load_world(self.world), Analytic(load_score(self.score)), self.masks, device=self.device)
        share = Shard.parse(self.shard)
        videos = len(share.of(len(source.videos)))
        groups = sum(count for _, count in progress(cache(source, recorder, self.out, share), videos, "evidence"))
        size = sum(path.stat().st_size for path in self.out.glob("*.safetensors"))
        if self.json:
            print(json.dumps({"out": str(self.out), "groups": groups, "videos": videos, "bytes": size}))
            return
        print(f"{groups} groups of {videos} videos, {size / max(1, groups) / 1e6:.2f} MB a group")
        print(self.out)

    def source(self) -> "Correspondences":
        """Tracks of annotated videos, or flow of records."""
        from lpa_cwm.data.movif import MoviClips
        from lpa_cwm.data.tapvid import load_dataset
        from lpa_cwm.training.groups import RecordCorrespondences, TrackCorrespondences

        if self.dataset.is_dir() and any(self.dataset.glob("*.tfrecord-*")):
            clips = MoviClips.of(self.dataset, "train", "*.tfrecord-*")
            return RecordCorrespondences(clips, self.pairs, self.queries)
        dataset = load_dataset(self.dataset)
        return TrackCorrespondences(dataset, dataset.names, self.pairs, self.queries, self.gaps)
