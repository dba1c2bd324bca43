"""Seconds per frame of our trackers and of baselines in one interleaved run on one thread, as ratios to the first.

python benchmarks/peers.py [clip.mp4] --trackers lpa uniform dis lk [--points 16 64 256] [--plot cost.png]

A tracker is an adjudicator (`lpa`), one with a world model (`lpa@opt-cwm`), or any baseline that runs here; official
code of others (CoTracker3 and so on) is used from the checkout that `lpa-cwm list-trackers` names. The time of a frame
is that of a clip of `frames` frames minus that of one of two, divided by the frames between: loading and first frames
do not count. The smallest of all rounds is printed: other processes can only add to it.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from tyro.conf import Positional

import lpa_cwm as lc
from lpa_cwm.config import WORLD
from lpa_cwm.protocols import Tracker
from lpa_cwm.registry import bundled_clip
from lpa_cwm.rng import generator
from lpa_cwm.types import Clip, Queries


def load_named(name: str) -> Tracker:
    """`lpa`, `lpa@opt-cwm` or a baseline."""
    adjudicator, _, world = name.partition("@")
    return lc.load(adjudicator, world or WORLD)


def random_points(clip: Clip, count: int) -> Queries:
    """Keyed points in the first frame."""
    height, width = clip.hw
    unit = torch.rand(count, 2, generator=generator("peers", count))
    return Queries(unit * torch.tensor([width - 1.0, height - 1.0]), torch.zeros(count, dtype=torch.long))


def seconds_of(tracker: Tracker, clip: Clip, queries: Queries) -> float:
    """Wall-clock seconds of one tracking."""
    begin = time.perf_counter()
    tracker.track(clip, queries)
    return time.perf_counter() - begin


@dataclass(frozen=True)
class Peers:
    """Time trackers against each other."""

    clip: Annotated[Path | None, Positional] = None
    trackers: tuple[str, ...] = ("lpa", "uniform", "dis", "lk")
    points: tuple[int, ...] = (16, 64, 256)
    frames: int = 6
    rounds: int = 3
    plot: Path | None = None
    """Picture of the cost against the number of points."""

    def run(self):
        torch.set_num_threads(1)
        whole = lc.read(self.clip) if self.clip else bundled_clip("learned")
        long, short = (Clip([whole[i] for i in range(count)], whole.name) for count in (self.frames, 2))
        loaded = {name: load_named(name) for name in self.trackers}
        found: dict[tuple[str, int], float] = {}
        for round_number in range(self.rounds):
            for count in self.points:
                queries = random_points(whole, count)
                for name, tracker in loaded.items():
                    spent = seconds_of(tracker, long, queries) - seconds_of(tracker, short, queries)
                    found[name, count] = min(found.get((name, count), float("inf")), spent / (self.frames - 2))
            print(f"round {round_number + 1} of {self.rounds} done", flush=True)
        self.show(found)
        if self.plot:
            self.draw(found, self.plot)

    def show(self, found: dict[tuple[str, int], float]) -> None:
        """Seconds per frame, and the ratio to the first tracker."""
        print("| tracker |" + "".join(f" {count} points, s | ratio |" for count in self.points))
        print("|---|" + "---|---|" * len(self.points))
        for name in self.trackers:
            cells = (
                f" {found[name, count]:.3f} | {found[name, count] / found[self.trackers[0], count]:.2f} |"
                for count in self.points
            )
            print(f"| {name} |" + "".join(cells))

    def draw(self, found: dict[tuple[str, int], float], path: Path) -> None:
        """Cost against the number of points, both logarithmic."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5, 3.5), layout="constrained")
        axes = figure.subplots()
        for name in self.trackers:
            axes.loglog(self.points, [found[name, count] for count in self.points], marker="o", label=name)
        axes.set(xlabel="points", ylabel="seconds per frame, one thread")
        axes.legend(fontsize=8)
        figure.savefig(path, dpi=120)


if __name__ == "__main__":
    tyro.cli(Peers).run()
