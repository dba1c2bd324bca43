"""From a data set and a tracker to prediction files: resumable, divisible, the same bytes however it is run."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lpa_cwm.config import Selection
from lpa_cwm.evaluation import predictions
from lpa_cwm.evaluation.run import Run
from lpa_cwm.geometry import HW, rescale
from lpa_cwm.metrics import Prediction
from lpa_cwm.metrics.comparison import SIZE
from lpa_cwm.progress import progress
from lpa_cwm.protocols import Dataset
from lpa_cwm.sharding import Executor, Shard, in_this_process
from lpa_cwm.types import Clip, Queries, Sample, Tracks

TrackAll = Callable[[Clip, Queries], dict[str, Tracks]]
"""Tracks of one clip by several methods, by their names."""


@dataclass(frozen=True)
class PredictJob:
    """The videos of a data set as pieces of work; each worker makes the trackers itself, once."""

    dataset: Dataset
    make_tracker: Callable[[], TrackAll]

    def begin(self) -> Callable[[int], dict[str, Prediction]]:
        """What tracks the video of a number."""
        track = self.make_tracker()
        return lambda index: predict_sample(track, self.dataset[index], self.dataset.selection)


def predict(
    job: PredictJob,
    runs: Mapping[str, tuple[Path, Run]],
    executor: Executor = in_this_process,
    shard: Shard | None = None,
) -> tuple[int, int]:
    """Write the prediction files that any of the runs lacks; the number of videos made, and present before."""
    folders = [folder for folder, _ in runs.values()]
    for folder, run in runs.values():
        run.check(folder)
    names = job.dataset.names
    mine = (shard or Shard()).of(len(names))
    todo = [index for index in lacking(names, folders) if index in mine]
    found = executor(job, todo) if todo else iter(())
    for index, tracked in progress(found, len(todo), ", ".join(runs)):
        for name, (folder, run) in runs.items():
            run.claim(folder)
            predictions.write(folder, names[index], tracked[name], run.hash)
    return len(todo), len(mine) - len(todo)


def lacking(names: Sequence[str], folders: Collection[Path]) -> list[int]:
    """Numbers of the videos of which any of the runs has no file yet."""
    return [i for i, name in enumerate(names) if not all(predictions.file_of(out, name).exists() for out in folders)]


def predict_sample(track: TrackAll, sample: Sample, selection: Selection) -> dict[str, Prediction]:
    """Track one video's queries; the time of a single method is its own, without decoding the frames."""
    for frame in range(len(sample.clip)):
        _ = sample.clip[frame]
    start = time.perf_counter()
    tracks = both_ways(track, sample, selection)
    seconds = time.perf_counter() - start if len(tracks) == 1 else None
    return {name: to_prediction(one, sample.clip.hw, seconds) for name, one in tracks.items()}


def to_prediction(tracks: Tracks, hw: HW, seconds: float | None = None) -> Prediction:
    """Tracks as a prediction file has them: positions are scaled from the clip's size to the 256 x 256 raster."""
    xy = rescale(tracks.xy, hw, (SIZE, SIZE))
    score = None if tracks.strength is None else tracks.strength.cpu().numpy()
    return Prediction(xy.cpu().numpy(), tracks.visible.cpu().numpy(), score, seconds)


def both_ways(track: TrackAll, sample: Sample, selection: Selection) -> dict[str, Tracks]:
    """Forward from each query; if queries are strided, backward as well."""
    after = track(sample.clip, sample.queries)
    if selection.queries != "strided":
        return after
    before = _backward(track, sample.clip, sample.queries)
    return {name: _joined(before[name], after[name], sample.queries) for name in after}


@dataclass(frozen=True, slots=True)
class Reversed:
    """Frames of a clip from the last to the first."""

    clip: Clip

    def __len__(self) -> int:
        return len(self.clip)

    def __getitem__(self, index: int) -> Tensor:
        return self.clip[len(self.clip) - 1 - index]


def _backward(track: TrackAll, clip: Clip, queries: Queries) -> dict[str, Tracks]:
    """Track towards the beginning: trackers only look forward, so the clip is turned round."""
    turned = Clip(Reversed(clip), f"{clip.name} reversed", clip.fps)
    found = track(turned, Queries(queries.xy, len(clip) - 1 - queries.frame))
    return {
        name: Tracks(one.xy.flip(1), one.visible.flip(1), None if one.strength is None else one.strength.flip(1))
        for name, one in found.items()
    }


def _joined(before: Tracks, after: Tracks, queries: Queries) -> Tracks:
    """What came before each query from one, the rest from the other."""
    frames = torch.arange(after.xy.shape[1], device=after.xy.device)
    late = frames >= queries.frame.to(frames.device)[:, None]
    strength = None
    if before.strength is not None and after.strength is not None:
        strength = after.strength.where(late, before.strength)
    return Tracks(after.xy.where(late[..., None], before.xy), after.visible.where(late, before.visible), strength)
