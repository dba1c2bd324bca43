"""From a data set and a tracker to prediction files: resumable, divisible, the same bytes however it is run."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lpa_cwm.data.selection import Selection
from lpa_cwm.data.tapvid import TapVid
from lpa_cwm.experiments import predictions
from lpa_cwm.experiments.run import Run
from lpa_cwm.interfaces import Tracker
from lpa_cwm.metrics import Prediction
from lpa_cwm.progress import progress
from lpa_cwm.sharding import Executor, Shard, in_this_process
from lpa_cwm.tracker import CwmTracker, track_together
from lpa_cwm.types import Clip, Queries, Sample, Tracks


@dataclass(frozen=True)
class Job:
    """The videos of a data set as pieces of work; each worker makes the tracker itself, once."""

    dataset: TapVid
    make_tracker: Callable[[], Tracker]

    def begin(self) -> Callable[[int], Prediction]:
        """What follows the video of a number."""
        tracker = self.make_tracker()
        return lambda index: follow(tracker, self.dataset[index], self.dataset.selection)


def predict(
    job: Job, run: Run, folder: Path, executor: Executor = in_this_process, shard: Shard | None = None
) -> tuple[int, int]:
    """Make the files that are not there yet; how many were made, and how many were there."""
    run.check(folder)
    names = job.dataset.names
    mine = (shard or Shard()).of(len(names))
    todo = [index for index in lacking(names, [folder]) if index in mine]
    found = executor(job, todo) if todo else iter(())
    for index, prediction in progress(found, len(todo), run.method):
        run.claim(folder)
        predictions.write(folder, names[index], prediction, run.hash)
    return len(todo), len(mine) - len(todo)


@dataclass(frozen=True)
class JointJob:
    """The same videos for several trackers at once; what their common world model remembers has no time of its own."""

    dataset: TapVid
    make_trackers: Callable[[], Sequence[CwmTracker]]

    def begin(self) -> Callable[[int], list[Prediction]]:
        """What follows the video of a number, a prediction for each tracker."""
        trackers = self.make_trackers()

        def track(clip: Clip, queries: Queries) -> list[Tracks]:
            return track_together(trackers, clip, queries)

        return lambda index: [
            predicted(tracks) for tracks in both_ways(track, self.dataset[index], self.dataset.selection)
        ]


def lacking(names: Sequence[str], folders: Collection[Path]) -> list[int]:
    """Numbers of the videos of which any of the runs has no file yet."""
    return [i for i, name in enumerate(names) if not all(predictions.file_of(out, name).exists() for out in folders)]


def predict_together(job: JointJob, runs: Mapping[Path, Run], shard: Shard | None = None) -> None:
    """Make the files that any of the runs, by their folders in the order of the trackers, does not have yet."""
    for folder, run in runs.items():
        run.check(folder)
    names = job.dataset.names
    mine = (shard or Shard()).of(len(names))
    todo = [index for index in lacking(names, runs) if index in mine]
    for index, found in progress(in_this_process(job, todo), len(todo), f"{len(runs)} runs"):
        for (folder, run), prediction in zip(runs.items(), found, strict=True):
            run.claim(folder)
            predictions.write(folder, names[index], prediction, run.hash)


def follow(tracker: Tracker, sample: Sample, selection: Selection) -> Prediction:
    """Track one video's queries; the time is the tracker's own, without decoding the frames."""
    for frame in range(len(sample.clip)):
        _ = sample.clip[frame]
    start = time.perf_counter()
    (tracks,) = both_ways(lambda clip, queries: [tracker.track(clip, queries)], sample, selection)
    return predicted(tracks, time.perf_counter() - start)


def predicted(tracks: Tracks, seconds: float | None = None) -> Prediction:
    """Tracks as a prediction file has them."""
    score = None if tracks.strength is None else tracks.strength.cpu().numpy()
    return Prediction(tracks.xy.cpu().numpy(), tracks.visible.cpu().numpy(), score, seconds)


Track = Callable[[Clip, Queries], list[Tracks]]


def both_ways(track: Track, sample: Sample, selection: Selection) -> list[Tracks]:
    """Forward from each query; if queries are strided, backward as well."""
    after = track(sample.clip, sample.queries)
    if selection.queries != "strided":
        return after
    before = _backward(track, sample.clip, sample.queries)
    return [_joined(*one, sample.queries) for one in zip(before, after, strict=True)]


@dataclass(frozen=True, slots=True)
class Reversed:
    """Frames of a clip from the last to the first."""

    clip: Clip

    def __len__(self) -> int:
        return len(self.clip)

    def __getitem__(self, index: int) -> Tensor:
        return self.clip[len(self.clip) - 1 - index]


def _backward(track: Track, clip: Clip, queries: Queries) -> list[Tracks]:
    """Track towards the beginning: trackers only look forward, so the clip is turned round."""
    turned = Clip(Reversed(clip), f"{clip.name} reversed", clip.fps)
    found = track(turned, Queries(queries.xy, len(clip) - 1 - queries.frame))
    return [
        Tracks(one.xy.flip(1), one.visible.flip(1), None if one.strength is None else one.strength.flip(1))
        for one in found
    ]


def _joined(before: Tracks, after: Tracks, queries: Queries) -> Tracks:
    """What came before each query from one, the rest from the other."""
    frames = torch.arange(after.xy.shape[1], device=after.xy.device)
    late = frames >= queries.frame.to(frames.device)[:, None]
    strength = None
    if before.strength is not None and after.strength is not None:
        strength = after.strength.where(late, before.strength)
    return Tracks(after.xy.where(late[..., None], before.xy), after.visible.where(late, before.visible), strength)
