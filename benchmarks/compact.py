"""What the compact world model costs per (query, target), motion held fixed against total effect, and its peak memory.

python benchmarks/compact.py [--photos FOLDER]
"""

import resource
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from lpa_cwm.adjudicators.uniform import uniform
from lpa_cwm.config import TrackerConfig
from lpa_cwm.synth.layered import LayeredPairs
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.types import Clip, Grid
from lpa_cwm.worlds.layered.world import LayeredMotionWorld


@dataclass(frozen=True)
class Compact:
    """Time one frame pair with M = 10, R = 1 and masks of the re-evaluation shared by all queries."""

    photos: Path | None = None
    """Photographs to make the pair from; a procedural one without."""
    queries: int = 32
    total_queries: int = 2
    """Queries of the total-effect mode, which shares almost nothing between them."""
    threads: int = 2

    def run(self):
        torch.set_num_threads(self.threads)
        example = LayeredPairs.of(self.photos, "val").pair(3, 256)
        clip = Clip(torch.stack((example.source, example.target)), "benchmark")
        direct = self.seconds(LayeredMotionWorld.load(), clip, self.queries, repeats=3)
        total = self.seconds(LayeredMotionWorld.load().total_effect(), clip, self.total_queries, repeats=1)
        print(f"per (query, target), {self.queries} queries, {self.threads} threads:")
        print(f"motion fixed: {direct[0]:.4f} s, {direct[1]:.4f} s of CPU")
        print(f"total effect: {total[0]:.4f} s, {total[1]:.4f} s of CPU, {total[1] / direct[1]:.0f} times as much")
        self.seconds(LayeredMotionWorld.load(), clip, 64, repeats=1)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"peak memory with 64 queries: {peak:.2f} GB")

    def seconds(self, world, clip, count, repeats):
        """Wall and CPU time per query of the fastest of several runs; a busy machine spoils the first only."""
        tracker = CwmTracker(world, uniform, TrackerConfig(masks=10, passes=1, reevaluation="joint"))
        queries = Grid(8).on(clip.hw)
        some = type(queries)(queries.xy[:count], queries.frame[:count])
        times = []
        for _ in range(repeats):
            start = time.perf_counter(), time.process_time()
            tracker.track(clip, some)
            times.append(((time.perf_counter() - start[0]) / count, (time.process_time() - start[1]) / count))
        return min(times)


if __name__ == "__main__":
    tyro.cli(Compact).run()
