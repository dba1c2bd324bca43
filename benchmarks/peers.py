"""Seconds per frame of our trackers and of others in one interleaved run on one thread, as ratios to the first.

python benchmarks/peers.py [clip.mp4] --trackers lpa uniform dis lk [--points 16 64 256] [--plot cost.png]

A tracker is an adjudicator (`lpa`; `lpa-direct` without candidates from earlier frames), one with a world model
(`lpa@opt-cwm`), or any baseline that runs here, also those that `lpa-cwm list-trackers` runs from a checkout.
`--checkouts cotracker3=FOLDER tapir=FOLDER locotrack=FOLDER` runs the official code in these folders with random
weights, on which its speed does not depend (`peer_worker.py`); `cotracker3=FOLDER=FILE` loads a checkpoint.

The time of a frame is that of a clip of `frames` frames minus that of one of two, divided by the frames between:
loading and first frames do not count. Seconds are those of processors, of worker processes too, because they do not
count other programs; seconds of the clock are printed beside them. The smallest of all rounds counts. With several
numbers of `--workers` our trackers are timed with each, by the clock.
"""

import os
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import tyro
from tyro.conf import Positional

import lpa_cwm as lc
from lpa_cwm.baselines.worker import ExternalRepo, WorkerClient, WorkerTracker
from lpa_cwm.cli.main import keep_freed_memory
from lpa_cwm.config import ADJUDICATORS, WORLD
from lpa_cwm.protocols import Tracker
from lpa_cwm.registry import bundled_clip
from lpa_cwm.rng import generator
from lpa_cwm.types import Clip, Queries

WORKER = Path(__file__).with_name("peer_worker")


class Spent(NamedTuple):
    """Seconds of one tracking, or of one frame."""

    processor: float
    clock: float


class Case(NamedTuple):
    """What is timed: a tracker with a number of points and frames."""

    tracker: str
    points: int
    frames: int


def is_ours(name: str) -> bool:
    """Whether a tracker asks a world model."""
    return name.partition("@")[0].removesuffix("-direct") in ADJUDICATORS


def load_named(name: str, workers: int) -> Tracker:
    """`lpa`, `lpa-direct`, `lpa@opt-cwm` or a baseline."""
    if not is_ours(name):
        return lc.load(name)
    tracker, _, world = name.partition("@")
    adjudicator = tracker.removesuffix("-direct")
    settings: dict[str, Any] = {} if tracker == adjudicator else {"gaps": ()}
    return lc.load(adjudicator, world or WORLD, workers=workers, **settings)


def load_checkout(text: str) -> tuple[str, Tracker]:
    """Official code from `NAME=CHECKOUT`, with random weights, or from `NAME=CHECKOUT=CHECKPOINT`."""
    name, checkout, *checkpoint = text.split("=")
    options = {"tracker": name, "weights": "real" if checkpoint else "random"}
    path = Path(checkpoint[0]) if checkpoint else Path(checkout)
    repo = ExternalRepo(str(WORKER), Path(checkout), path, device="cpu", options=options)
    return f"{name} ({options['weights']} weights)", WorkerTracker(WorkerClient(repo))


def random_points(clip: Clip, count: int) -> Queries:
    """Keyed points in the first frame."""
    height, width = clip.hw
    unit = torch.rand(count, 2, generator=generator("peers", count))
    return Queries(unit * torch.tensor([width - 1.0, height - 1.0]), torch.zeros(count, dtype=torch.long))


def processor_seconds() -> float:
    """Processor seconds of this process and of its worker processes, running or ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + ended.ru_utime + ended.ru_stime
    for tasks in Path("/proc/self/task").glob("*/children"):
        for child in tasks.read_text().split():
            with suppress(OSError):
                # After the name in brackets: user and system time are the fields 14 and 15 of the whole line.
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def timed(tracker: Tracker, clip: Clip, queries: Queries) -> Spent:
    """Seconds of one tracking."""
    processor, clock = processor_seconds(), time.perf_counter()
    tracker.track(clip, queries)
    return Spent(processor_seconds() - processor, time.perf_counter() - clock)


@dataclass(frozen=True)
class Peers:
    """Time trackers against each other."""

    clip: Annotated[Path | None, Positional] = None
    trackers: tuple[str, ...] = ("lpa", "uniform", "dis", "lk")
    checkouts: tuple[str, ...] = ()
    """Official code: NAME=FOLDER, or NAME=FOLDER=CHECKPOINT."""
    points: tuple[int, ...] = (16, 64, 256)
    frames: int = 6
    lengths: tuple[int, ...] = ()
    """Numbers of frames of whole clips, for the cost against frames at the first number of points."""
    workers: tuple[int, ...] = (1,)
    """Numbers of threads of our trackers."""
    rounds: int = 3
    plot: Path | None = None
    """Picture of the cost against the number of points, and of frames if there are `lengths`."""

    def run(self) -> None:
        # As the command line does.
        keep_freed_memory()
        torch.set_num_threads(1)
        whole = lc.read(self.clip) if self.clip else bundled_clip("learned")
        loaded = dict(self.loaded())
        found: dict[Case, Spent] = {}
        for name, tracker in loaded.items():
            # Worker processes start, and first frames load kernels.
            self.time(tracker, whole, Case(name, self.points[0], 2))
        for number in range(self.rounds):
            for case in self.cases(list(loaded)):
                spent = self.time(loaded[case.tracker], whole, case)
                before = found.get(case, spent)
                found[case] = Spent(*(min(pair) for pair in zip(before, spent, strict=True)))
            print(f"round {number + 1} of {self.rounds} done", flush=True)
        self.show(found, list(loaded))
        self.show_lengths(found, list(loaded))
        self.show_workers(found)
        if self.plot:
            self.draw(found, list(loaded), self.plot)

    def loaded(self) -> Iterator[tuple[str, Tracker]]:
        """Trackers by the names of their rows."""
        for name in self.trackers:
            ours = is_ours(name)
            for workers in self.workers if ours else (1,):
                yield row_name(name, workers), load_named(name, workers)
        for text in self.checkouts:
            yield load_checkout(text)

    def cases(self, names: list[str]) -> Iterator[Case]:
        """Everything that is timed; zero frames stand for one further frame."""
        for points in self.points:
            yield from (Case(name, points, 0) for name in names)
        for frames in self.lengths:
            yield from (Case(name, self.points[0], frames) for name in names)

    def time(self, tracker: Tracker, whole: Clip, case: Case) -> Spent:
        """Seconds of a whole clip, or of one further frame."""

        def of(count: int) -> Spent:
            # Short clips run forward and backward in turn.
            turn = [*range(len(whole)), *range(len(whole) - 2, 0, -1)]
            frames = [whole[turn[index % len(turn)]] for index in range(count)]
            return timed(tracker, Clip(frames, whole.name), random_points(whole, case.points))

        if case.frames:
            return of(case.frames)
        long, short = of(self.frames), of(2)
        return Spent(*((a - b) / (self.frames - 2) for a, b in zip(long, short, strict=True)))

    def show(self, found: dict[Case, Spent], names: list[str]) -> None:
        """Seconds per frame, and the ratio to the first tracker."""
        print("\nseconds for each further frame: of processors, by the clock, ratio of processors' to the first row\n")
        print("| tracker |" + "".join(f" {count} points | clock | ratio |" for count in self.points))
        print("|---|" + "---|---|---|" * len(self.points))
        for name in names:
            cells = ""
            for count in self.points:
                spent, first = found[Case(name, count, 0)], found[Case(names[0], count, 0)]
                cells += f" {spent.processor:.3f} | {spent.clock:.3f} | {spent.processor / first.processor:.2f} |"
            print(f"| {name} |{cells}")

    def show_lengths(self, found: dict[Case, Spent], names: list[str]) -> None:
        """Seconds of whole clips."""
        if not self.lengths:
            return
        print(f"\nprocessor seconds of whole clips, {self.points[0]} points\n")
        print("| tracker |" + "".join(f" {count} frames |" for count in self.lengths))
        print("|---|" + "---|" * len(self.lengths))
        for name in names:
            cells = (f" {found[Case(name, self.points[0], count)].processor:.2f} |" for count in self.lengths)
            print(f"| {name} |" + "".join(cells))

    def show_workers(self, found: dict[Case, Spent]) -> None:
        """How many times faster our trackers are with more threads, by the clock."""
        first, *more = self.workers
        for name in self.trackers if more else ():
            for workers in more if is_ours(name) else ():
                for points in self.points:
                    one, many = (found[Case(row_name(name, count), points, 0)].clock for count in (first, workers))
                    print(f"\n{name}, {points} points: {workers} workers are {one / many:.2f} times as fast as {first}")

    def draw(self, found: dict[Case, Spent], names: list[str], path: Path) -> None:
        """Cost against the number of points and of frames, all axes logarithmic."""
        from matplotlib.figure import Figure

        panels = [("points", self.points, lambda name, count: Case(name, count, 0), "processor seconds per frame")]
        if self.lengths:
            one = self.points[0]
            label = f"processor seconds of a clip, {one} points"
            panels.append(("frames", self.lengths, lambda name, count: Case(name, one, count), label))
        figure = Figure(figsize=(5 * len(panels), 3.5), layout="constrained")
        for axes, (along, counts, case, label) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            for name in names:
                axes.loglog(counts, [found[case(name, count)].processor for count in counts], marker="o", label=name)
            axes.set(xlabel=along, ylabel=label)
            axes.legend(fontsize=8)
        figure.savefig(path, dpi=120)


def row_name(name: str, workers: int) -> str:
    """A tracker's name, and its threads if there are several."""
    return name if workers == 1 else f"{name}, {workers} workers"


if __name__ == "__main__":
    tyro.cli(Peers).run()
