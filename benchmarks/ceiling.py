"""What choosing among candidates can give: equal weights, LPA, and an oracle that knows the best one, in one run.

python benchmarks/ceiling.py clips/val [--videos 13] [--tracks 16]
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from lpa_cwm.worlds.remember import Remembering, digest
from tyro.conf import Positional

from lpa_cwm import registry
from lpa_cwm.config import Selection, TrackerConfig
from lpa_cwm.datasets.tapvid import load_dataset
from lpa_cwm.geometry import Crop
from lpa_cwm.metrics.cmc import cmc
from lpa_cwm.sampling import look
from lpa_cwm.tracker import CwmTracker, track_together


class Oracle:
    """Believes the candidate nearest to the truth; has no opinion on points that are hidden."""

    def __init__(self, sample, size):
        view = Crop.full((sample.clip[0].shape[-2], sample.clip[0].shape[-1]), size)
        self.number = {digest(look(sample.clip[t], view)): t for t in range(len(sample.clip))}
        self.queries = view.to_crop(sample.queries.xy)
        self.truth = view.to_crop(sample.truth.xy)
        self.visible = sample.truth.visible

    def __call__(self, pair, candidates):
        target = self.number[digest(pair.target)]
        track = torch.cdist(pair.xy, self.queries).argmin(1)
        error = (candidates.peak - self.truth[track, target, None]).norm(dim=-1)
        best = F.one_hot(error.nan_to_num(0).argmin(1), error.shape[1]).to(error)
        return torch.where(self.visible[track, target, None], best, 1 / error.shape[1])


@dataclass(frozen=True)
class Ceiling:
    """CMC's accuracy and coverage on a data set, first look only, as it is and with every point counted as seen."""

    dataset: Annotated[Path, Positional]
    videos: int = 13
    """Evenly spaced; a number that shares no factor with the count, or clips of two recipes in turn give but one."""
    tracks: int | None = 16
    world: str = "compact"
    threads: int = 1

    def run(self):
        torch.set_num_threads(self.threads)
        dataset = load_dataset(self.dataset, Selection(videos=(str(self.videos),), max_tracks=self.tracks))
        world = Remembering(registry.load_world(self.world))
        judges = {name: registry.load_adjudicator(name) for name in ("uniform", "lpa")}
        rows = {name: [] for name in (*judges, "oracle")}
        for index in range(len(dataset)):
            sample = dataset[index]
            asked = {**judges, "oracle": Oracle(sample, world.size)}
            trackers = [CwmTracker(world, judge, TrackerConfig(passes=0)) for judge in asked.values()]
            for name, tracks in zip(asked, track_together(trackers, sample.clip, sample.queries), strict=True):
                rows[name].append(measured(tracks, sample))
            print(f"{index + 1} of {len(dataset)}: {sample.clip.name}", flush=True)
        means = {name: 100 * np.nanmean(values, axis=0) for name, values in rows.items()}
        base = means["uniform"]
        print("adjudicator  coverage   DCA  above uniform  DCA, all counted as seen  above uniform as it is")
        for name, (coverage, dca, full) in means.items():
            gain, most = dca / base[1] - 1, full / base[1] - 1
            print(f"{name:11s} {coverage:9.1f} {dca:5.1f} {gain:14.1%} {full:25.1f} {most:23.1%}")


def measured(tracks, sample):
    """Coverage, DCA, and DCA with every point counted as seen."""
    truth = sample.truth.xy.numpy(), sample.truth.visible.numpy(), sample.queries.frame.numpy()
    as_is = cmc(tracks.xy.numpy(), tracks.visible.numpy(), *truth).values
    all_seen = cmc(tracks.xy.numpy(), np.ones_like(tracks.visible.numpy()), *truth).values
    return as_is["coverage"], as_is["dca_avg"], all_seen["dca_avg"]


if __name__ == "__main__":
    tyro.cli(Ceiling).run()
