"""What LPA costs: its share of one frame pair, and its sixteen statistics against a plain loop in the same run.

python benchmarks/adjudication.py [--world compact]
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from lpa_cwm import registry
from lpa_cwm.adjudicators import features
from lpa_cwm.bundled import bundled_clip
from lpa_cwm.config import TrackerConfig
from lpa_cwm.masks import random_masks, shared
from lpa_cwm.probe import Probe, magnitude
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.types import Grid, Pair, Queries

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from features_reference import reference

QUERIES = 32


def seconds(work, repeats=5):
    """The fastest of several runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


@dataclass(frozen=True)
class Adjudication:
    """Time one pair with 32 queries and M = 10."""

    world: str = "toy"
    passes: int = 1
    plain: int = 8
    """Candidates the plain loop does; its time is scaled up."""

    def run(self):
        world = registry.load_world(self.world)
        clip = bundled_clip(self.world)
        queries = Grid(6).on(clip.hw)
        queries = Queries(queries.xy[:QUERIES], queries.frame[:QUERIES])
        tracker = CwmTracker(world, registry.load_adjudicator("lpa"), TrackerConfig(batch=16, passes=self.passes))
        whole = tracker.shoot(clip[0]).whole, tracker.shoot(clip[4]).whole
        scene = world.observe(*whole)
        probe = Probe(
            world, scene, shared(random_masks(10, tracker.patches, "benchmark"), QUERIES), queries.xy, QUERIES
        )
        _, candidates = next(iter(probe.candidates()))
        pair = Pair(*whole, queries.xy)
        strength = magnitude(candidates.response)
        pairs = list(tracker.pairs(clip, queries))[3][0]
        with torch.inference_mode():
            total = seconds(lambda: tracker.follow(pairs, queries.xy))
            learned = seconds(lambda: tracker.adjudicator(pair, candidates))
            vectorised = seconds(lambda: features.statistics(pair, candidates.peak, strength))
        flat = [(n, m) for n in range(QUERIES) for m in range(10)][: self.plain]
        loop = seconds(lambda: [reference(pair, pair.xy[n], candidates.peak[n, m], strength[n, m]) for n, m in flat], 1)
        loop *= QUERIES * 10 / self.plain
        print(f"one pair, {QUERIES} queries, M = 10, R = {self.passes}, {self.world} world: {total:.3f} s")
        print(f"  LPA: {learned:.3f} s, {learned / total:.0%} of it")
        print(
            f"  16 statistics of {QUERIES * 10} candidates: {vectorised:.3f} s, plain loop {loop:.1f} s, "
            f"ratio {loop / vectorised:.0f}"
        )


if __name__ == "__main__":
    tyro.cli(Adjudication).run()
