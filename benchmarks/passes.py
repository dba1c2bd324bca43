"""Gain of re-evaluation and of sub-pixel endpoints: end-point errors with R = 0 and 1, for two adjudicators.

python benchmarks/passes.py [--assets FOLDER]
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
import tyro

from lpa_cwm import registry
from lpa_cwm.config import TrackerConfig
from lpa_cwm.evaluation.world_stages import EvaluationPoints
from lpa_cwm.simulator.assets import Assets
from lpa_cwm.simulator.clip import SimulatedPairs
from lpa_cwm.simulator.scene import scene_config
from lpa_cwm.types import Clip, Queries


@dataclass(frozen=True)
class Passes:
    """Compare on simulated pairs of both recipes, with objects and pictures that were not used for training."""

    assets: Path | None = None
    """Objects and textures of the simulator; by default procedural ones."""
    pairs: int = 9
    """Clips of each recipe."""
    methods: tuple[str, ...] = ("uniform", "lpa")
    world: str = "learned"
    threads: int = 1

    def run(self):
        torch.set_num_threads(self.threads)
        assets = Assets.of(self.assets, "val")
        sources = {name: SimulatedPairs(scene_config(name), assets, seed=3) for name in ("hard", "movi")}
        examples = [(f"{name}{i}", i, one.pair(i, 256)) for name, one in sources.items() for i in range(self.pairs)]
        print("method   R answer    mean px  median  within 1 2 4 8 16 px, %        visibility, balanced %")
        for passes, subpixel in product((0, 1), (False, True)):
            for method in self.methods:
                tracker = registry.load(method, self.world, TrackerConfig(passes=passes, subpixel=subpixel))
                error, shown, seen = (torch.cat(part) for part in zip(*self.answers(tracker, examples), strict=True))
                near = "  ".join(f"{100 * (error[seen] < far).float().mean():.1f}" for far in (1, 2, 4, 8, 16))
                right = (shown[seen].float().mean() + 1 - shown[~seen].float().mean()) / 2
                means = f"{error[seen].mean():7.2f} {error[seen].median():7.2f}"
                print(
                    f"{method:8s} {passes} {'subpixel' if subpixel else 'pixel':8s}  {means}  {near}  {100 * right:.1f}"
                )

    def answers(self, tracker, examples):
        for name, index, example in examples:
            points = EvaluationPoints.of(example, 16, index)
            if len(points.xy):
                clip = Clip(torch.stack((example.source, example.target)), name)
                tracks = tracker.track(clip, Queries(points.xy, torch.zeros(len(points.xy)).long()))
                yield (tracks.xy[:, 1] - points.end).norm(dim=-1), tracks.visible[:, 1], points.visible


if __name__ == "__main__":
    tyro.cli(Passes).run()
