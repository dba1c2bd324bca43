"""What `--adaptive` saves and loses: masks imagined, time, and end-point error against all ten masks, in one run.

python benchmarks/adaptive.py [--assets FOLDER] [--method lpa]
"""

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
import tyro

from lpa_cwm import hub
from lpa_cwm.config import METHOD, Method
from lpa_cwm.data.sim.assets import Assets
from lpa_cwm.data.sim.pairs import SimulatedPairs
from lpa_cwm.data.sim.recipe import recipe_named
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.training.world_evaluate import Points
from lpa_cwm.types import Clip, Queries
from lpa_cwm.world.wrapped import Wrapped


@dataclass(frozen=True)
class Counting(Wrapped):
    """A world model that notes how many masks it imagined and how many responses it gave."""

    counts: Counter = field(default_factory=Counter)

    def imagine(self, scene, hidden):
        self.counts["imagined"] += len(hidden)
        return super().imagine(scene, hidden)

    def intervene(self, scene, factual, xy):
        self.counts["asked"] += len(xy) * len(factual.hidden)
        return super().intervene(scene, factual, xy)


@dataclass(frozen=True)
class Adaptive:
    """Compare tolerances on simulated pairs the training never saw, first look only."""

    assets: Path | None = None
    """Objects and textures of the simulator; invented ones without."""
    method: str = METHOD
    pairs: int = 18
    queries: int = 16
    tolerances: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0)
    threads: int = 1

    def run(self):
        torch.set_num_threads(self.threads)
        source = SimulatedPairs(recipe_named("hard"), Assets.of(self.assets, "val"), seed=3)
        examples = [(index, source.pair(index, 256)) for index in range(self.pairs)]
        judge = hub.load_adjudicator(self.method)
        print("tolerance  masks a pair  responses a query  error, px  median  CPU s a pair")
        for tolerance in self.tolerances:
            world = Counting(hub.load_world("compact"))
            tracker = CwmTracker(world, judge, Method(passes=0, adaptive=tolerance))
            begin = time.process_time()
            error = torch.cat([self.errors(tracker, *example) for example in examples])
            spent = (time.process_time() - begin) / self.pairs
            masks, asked = world.counts["imagined"] / self.pairs, world.counts["asked"] / len(error)
            name = f"{tolerance:g} px" if tolerance else "all"
            print(f"{name:9s} {masks:13.1f} {asked:18.1f} {error.mean():10.2f} {error.median():7.2f} {spent:13.2f}")

    def errors(self, tracker, index, example):
        points = Points.of(example, self.queries, index)
        points = Points(*(part[points.visible] for part in (points.xy, points.goal, points.visible)))
        if not len(points.xy):
            return torch.zeros(0)
        clip = Clip(torch.stack((example.source, example.target)), f"adaptive {index}")
        tracks = tracker.track(clip, Queries(points.xy, torch.zeros(len(points.xy)).long()))
        return (tracks.xy[:, 1] - points.goal).norm(dim=-1)


if __name__ == "__main__":
    tyro.cli(Adaptive).run()
