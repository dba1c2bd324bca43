"""Cost of LPA: its share of one frame pair, and its sixteen statistics against a plain loop in the same run.

python benchmarks/adjudication.py [--world learned]
"""

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import tyro

from lpa_cwm import registry
from lpa_cwm.adjudicators import features
from lpa_cwm.config import TrackerConfig
from lpa_cwm.probe import first_pass
from lpa_cwm.registry import bundled_clip
from lpa_cwm.responses import dense_magnitude
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.types import Grid

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from features_reference import reference

QUERIES = 32
SOURCE, TARGET = 0, 4
"""Frames of the bundled clip."""


def seconds(work, repeats=5):
    """Processor time of the fastest of several runs."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


@dataclass(frozen=True)
class Adjudication:
    """Time one pair with 32 queries and M = 10, on one core."""

    world: str = "toy"
    passes: int = 1
    plain: int = 8
    """Candidates of the plain loop; its time is scaled up."""

    def run(self):
        torch.set_num_threads(1)
        clip = bundled_clip(self.world)
        xy = Grid(6).on(clip.hw).xy[:QUERIES]
        config = TrackerConfig(batch=QUERIES, passes=self.passes)
        tracker = CwmTracker(registry.load_world(self.world), registry.load_adjudicator("lpa"), config)
        with torch.inference_mode():
            # Both frames are described and matched anew in each run, as in tracking.
            total = seconds(lambda: tracker.track_pair(tracker.observe(clip, SOURCE, TARGET), xy))
            _, pair, candidates = next(first_pass(tracker.observe(clip, SOURCE, TARGET), xy))
            learned = seconds(lambda: tracker.adjudicator(replace(pair, derived={}), candidates))
            vectorized = seconds(lambda: features.statistics(pair, candidates))
        strength = dense_magnitude(candidates.response.dense())
        flat = [(n, m) for n in range(QUERIES) for m in range(config.masks)][: self.plain]
        loop = seconds(lambda: [reference(pair, pair.xy[n], candidates.peak[n, m], strength[n, m]) for n, m in flat], 1)
        loop *= QUERIES * config.masks / self.plain
        print(f"one pair, {QUERIES} queries, M = 10, R = {self.passes}, {self.world} world: {total:.3f} s")
        print(f"  LPA: {learned:.3f} s, {learned / total:.0%} of it")
        print(
            f"  16 statistics of {QUERIES * 10} candidates: {vectorized:.3f} s, plain loop {loop:.1f} s, "
            f"ratio {loop / vectorized:.0f}"
        )


if __name__ == "__main__":
    tyro.cli(Adjudication).run()
