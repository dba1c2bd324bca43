"""Tracking of video files and streams: `track`, points from options, output files, and cost estimates.

A stream is tracked while its frames arrive; memory holds the estimates, not the frames.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from lpa_cwm.config import TrackerConfig
from lpa_cwm.errors import InputError, InterruptedTracking
from lpa_cwm.estimates import EstimateTable
from lpa_cwm.files import data_files
from lpa_cwm.geometry import HW
from lpa_cwm.io import visualization
from lpa_cwm.io.inputs import (
    FALLBACK_GRID,
    NumberedQueries,
    as_clip,
    as_queries,
    frame_range,
    points_on,
    read_points,
    read_region,
    renumber,
    select_frames,
    spaced_grid,
)
from lpa_cwm.io.tracks import TrackSource, save_tracks, to_rows
from lpa_cwm.io.video import PICTURES, FrameStream, read, refuse_address
from lpa_cwm.io.visualization import (
    VIDEO_SUFFIXES,
    OverlayStyle,
    confidence_colors,
    confidence_of,
    draw_tracks,
    overlay,
    write_video,
)
from lpa_cwm.masks import joint_group_size
from lpa_cwm.pair_tracking import NATIVE_MASKS
from lpa_cwm.protocols import Tracker
from lpa_cwm.registry import bundled_clip, load, resolve_device
from lpa_cwm.tracker import CwmTracker, count_pairs, reverse, track_clip, validate_queries
from lpa_cwm.types import Clip, Grid, Queries, Tracks

VIDEOS = frozenset({*VIDEO_SUFFIXES, ".avi", ".m4v", ".mpg", ".mpeg", ".ts", ".wmv", ".flv", ".3gp", ".ogv"})


def track(
    video: Any,
    points: Any = None,
    method: str = "lpa",
    *,
    frame: int | Sequence[int] = 0,
    backward: bool = False,
    device: str = "auto",
    quiet: bool = True,
    **settings: Any,
) -> Tracks:
    """Track points through a video.

    Args:
        video: A path, a `Clip`, a uint8 array [t h w 3], or a list of pictures.
        points: Rows (x, y) in the video's pixels, `Queries`, a `Grid`, or a file of points; by default a grid of 8 x 8.
        method: `uniform`, `apa`, `lpa`, or a baseline such as `lk` or `raft:weights.pth`.
        frame: Frame of the points; one number, or one per point.
        backward: Whether to track also from each point to the first frame.
        device: `auto` (CUDA, else MPS, else the CPU), `cpu`, `cuda` or `mps`.
        quiet: Whether to show no progress line.
        settings: What `load` takes: `world`, `weights`, and fields of `TrackerConfig`.

    Examples:
        >>> import numpy as np
        >>> video = np.zeros((3, 32, 48, 3), np.uint8)
        >>> track(video, [[20, 10]], method="static")
        Tracks(1 track, 3 frames, visible 100%)
    """
    clip = as_clip(video)
    tracker = load(method, device=resolve_device(device), **settings)
    result = track_clip(tracker, clip, as_queries(points, frame), backward=backward, quiet=quiet)
    if not result.complete:
        raise InterruptedTracking(result.tracks)
    return result.tracks


@dataclass(frozen=True)
class PointOptions:
    """Which points are tracked, and in which frames."""

    points: Sequence[str] = ()
    """Words x,y@frame#track, and .csv or .json files."""
    region: str | None = None
    """A box x0,y0,x1,y1 or a mask picture: only the grid's points on it."""
    grid: int | None = None
    """Points a side."""
    spacing: float | None = None
    """Distance of a grid's points, in pixels."""
    frame: int | None = None
    """Frame of the grid."""
    start: int = 0
    end: int | None = None
    stride: int = 1

    def __post_init__(self) -> None:
        given = [name for name in ("points", "grid", "spacing") if getattr(self, name) not in (None, ())]
        if len(given) > 1:
            raise InputError(f"Both --{given[0]} and --{given[1]} were given; give one of them.")
        if self.points and self.frame is not None:
            raise InputError("--frame is for grids; give the frame of a point as in 120,80@12.")
        if self.points and self.region is not None:
            raise InputError("Both --points and --object were given; give one of them.")

    def queries(self, clip: Clip) -> NumberedQueries:
        """Queries in frame numbers of the clip."""
        return read_points(self.points, self.start) if self.points else NumberedQueries(self.grid_on(clip.hw))

    def grid_on(self, hw: HW) -> Queries:
        """The points of the grid, or those of them on the object."""
        frame = self.start if self.frame is None else self.frame
        if self.region is not None:
            side = self.grid or FALLBACK_GRID
            return points_on(read_region(self.region, hw), frame, side=side, spacing=self.spacing)
        if self.spacing is not None:
            return spaced_grid(hw, self.spacing, frame)
        return Grid(self.grid or FALLBACK_GRID, frame).on(hw)


@dataclass(frozen=True)
class VideoJob:
    """A clip with its points and the files to write."""

    clip: Clip
    """The frames that are used."""
    queries: Queries
    numbers: range
    """Numbers of the frames in the whole clip."""
    fps: float
    """Of the whole clip."""
    path: Path | None = None
    """Where the clip is; None for the bundled one."""
    track_ids: Sequence[int] | None = None
    """The user's numbers of the tracks."""
    out: Path | None = None
    """Video with the tracks drawn on it."""
    save: Path | None = None
    """Table, arrays or recording."""
    form: str | None = None
    style: OverlayStyle = field(default_factory=OverlayStyle)

    def source(self) -> TrackSource:
        """The video of the tracks, for files."""
        return TrackSource(list(self.numbers), self.fps, self.clip.hw, self.clip.name, self.track_ids)

    def write(self, tracks: Tracks) -> list[Path]:
        """Write the files and return their paths."""
        if self.save and self.save.suffix.lower() == ".rrd":
            visualization.save_rerun(self.save, self.clip, tracks)
        elif self.save:
            save_tracks(tracks, self.save, self.source(), self.form)
        if self.out:
            # Sound fits frames at the clip's own pace only.
            sound = self.path if self.numbers.step == 1 else None
            start = self.numbers[0] / self.fps
            frames = overlay(tracks, self.clip, self.style, self.track_ids)
            write_video(self.out, frames, self.clip.fps, sound, start)
        return [path for path in (self.save, self.out) if path]


def clip_paths(given: Sequence[Path]) -> list[Path]:
    """Video files and folders of pictures; a folder of videos stands for all of them."""
    found = []
    for path in given:
        refuse_address(path)
        found += _clips_of(path) if path.is_dir() else [path]
    return found


def _clips_of(folder: Path) -> list[Path]:
    """The videos of a folder without earlier results, or the folder itself if it holds the frames of one clip."""
    inside = data_files(folder)
    videos = [one for one in inside if one.suffix.lower() in VIDEOS and one.is_file() and ".tracks" not in one.suffixes]
    pictures = sum(one.suffix.lower() in PICTURES for one in inside)
    if videos and pictures > 1:
        raise InputError(
            f"{folder} holds {pictures} pictures and also videos; give the videos, as in {folder}/*"
            f"{videos[0].suffix}, or a folder of pictures only."
        )
    return videos or [folder]


def prepare_job(path: Path | None, options: PointOptions, world: str) -> VideoJob:
    """Open a clip, or the bundled one, and check its points."""
    whole = bundled_clip(world) if path is None else read(path)
    numbers = frame_range(whole, options.start, options.end, options.stride)
    clip = select_frames(whole, numbers)
    points = options.queries(whole)
    queries = renumber(validate_queries(whole, points.queries), numbers)
    return VideoJob(clip, validate_queries(clip, queries), numbers, whole.fps, path, points.track_ids)


def default_outputs(path: Path | None, name: str) -> tuple[Path, Path]:
    """`<clip>.tracks.mp4` and `.csv` beside the clip; in the current folder if that cannot be written to.

    Earlier results are kept: then the names are `<clip>.tracks.2.mp4` and `.csv`, and so on.
    """
    folder = Path() if path is None else path.absolute().parent
    if path is None or not os.access(folder, os.W_OK | os.X_OK):
        folder = Path()
    stem = name if path is None else path.stem
    for number in count(1):
        tail = ".tracks" if number == 1 else f".tracks.{number}"
        video, table = (folder / f"{stem}{tail}{suffix}" for suffix in (".mp4", ".csv"))
        if not (video.exists() or table.exists()):
            return video, table
    raise AssertionError


def fill_name(path: Path | None, clip: str) -> Path | None:
    """The file for one of several clips: `{clip}` stands for the clip's name."""
    return None if path is None else path.with_name(path.name.replace("{clip}", clip))


def check_targets(jobs: Sequence[VideoJob]) -> None:
    """Refuse to write two clips to one file, or a result over a clip."""
    clips = {job.path.resolve(): job.path for job in jobs if job.path}
    written: dict[Path, VideoJob] = {}
    for job in jobs:
        for path in (job.out, job.save):
            if path is None:
                continue
            if path.resolve() in clips:
                raise InputError(f"{path} is a clip that is tracked; give another name for the result.")
            if written.setdefault(path.resolve(), job) is not job:
                other = written[path.resolve()].path
                raise InputError(
                    f"{other} and {job.path} cannot be written to one file, {path}; put {{clip}} into the name, as in "
                    "--save {clip}.csv, or track clips of the same name one at a time."
                )


DEFAULT_RATE = 24.0
"""Frames per second of an overlay if the stream does not tell."""


@dataclass
class StreamJob:
    """A stream with its points and the files to write."""

    stream: FrameStream
    points: NumberedQueries
    end: int | None = None
    """Frames after which to stop."""
    out: Path | None = None
    """Video with the tracks drawn on it, encoded while frames arrive."""
    save: Path | None = None
    """Table or arrays, written at the end."""
    form: str | None = None
    style: OverlayStyle = field(default_factory=OverlayStyle)
    on_row: Callable[[dict[str, Any]], None] = lambda row: None
    """Called with each row of the table as soon as it is known."""
    done: EstimateTable = field(default_factory=EstimateTable)
    interrupted: bool = False

    def run(self, tracker: CwmTracker) -> Tracks:
        """Track until the stream ends or Ctrl-C, and write the files."""
        frames = self.frames(tracker)
        if self.out:
            write_video(self.out, self.drawn(frames), self.stream.fps or DEFAULT_RATE)
        else:
            for _ in frames:
                pass
        tracks = self.done.to_tracks()
        if self.save:
            height, width = self.stream.first.shape[1:]
            source = TrackSource(None, self.stream.fps, (height, width), self.stream.name, self.points.track_ids)
            save_tracks(tracks, self.save, source, self.form)
        return tracks

    def frames(self, tracker: CwmTracker) -> Iterator[UInt8[Tensor, "3 h w"]]:
        """The frames that were tracked; an interrupt ends them."""
        latest: list[Tensor] = []

        def arriving() -> Iterator[Tensor]:
            for index, frame in enumerate(self.stream.frames):
                if index == self.end:
                    return
                latest[:] = [frame]
                yield frame

        try:
            for estimate in tracker.stream(arriving(), self.points.queries, self.stream.name):
                self.done.append(estimate)
                source = TrackSource([len(self.done) - 1], self.stream.fps, track_ids=self.points.track_ids)
                for row in to_rows(self.done.to_tracks(first=len(self.done) - 1), source):
                    self.on_row(row)
                yield latest[0]
        except KeyboardInterrupt:
            self.interrupted = True
            if not self.done:
                raise

    def drawn(self, frames: Iterator[UInt8[Tensor, "3 h w"]]) -> Iterator[UInt8[Tensor, "3 h2 w2"]]:
        """Frames with the tracks drawn on them."""
        for frame in frames:
            tracks = self.done.to_tracks(first=max(0, len(self.done) - self.style.tail - 1))
            by_confidence = self.style.color_by == "confidence"
            colors = confidence_colors(confidence_of(tracks)[:, -1]) if by_confidence else None
            marked = draw_tracks(frame, tracks.xy, tracks.visible, colors, style=self.style, ids=self.points.track_ids)
            plain = draw_tracks(frame, tracks.xy[:0], tracks.visible[:0], style=self.style)
            yield torch.cat([plain, marked], dim=2) if self.style.side_by_side else marked


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a tracking job."""

    points: int
    frames: int
    pairs: int
    """Frame pairs."""
    targets: int
    """(query, target) results."""
    factual: int | None
    """Predictions shared by queries; None for baselines."""
    counterfactual: int | None
    """Predictions with a perturbed source; None for baselines."""
    seconds: float
    """On this machine, from the time of the first frames."""
    peak_bytes: int
    """Memory of the process at its peak, while the first frames were tracked."""

    def text(self) -> str:
        """A few lines for people."""
        points = "1 point" if self.points == 1 else f"{self.points} points"
        lines = [f"{points}, {self.frames} frames: {self.targets} results from {self.pairs} frame pairs"]
        if self.factual is not None:
            counts = f"{self.factual} factual and {self.counterfactual} counterfactual"
            lines.append(f"predictor passes: about {counts}")
        time = f"about {self.seconds:.0f} s" if self.seconds >= 1 else "less than a second"
        lines.append(f"{time} on this machine and {self.peak_bytes / 2**30:.1f} GB of memory")
        return "\n".join(lines)


def estimate_cost(tracker: Tracker, clip: Clip, queries: Queries, backward: bool = False) -> Cost:
    """Count the predictions of a job in one or both directions, and time its first frames."""
    parts = [queries, *([reverse(clip, queries)[1]] if backward else [])]
    counts = [count_predictions(tracker, clip, part) for part in parts]
    pairs, direct, targets, factual, counterfactual = (sum(column) for column in zip(*counts, strict=True))
    timed = next((part for part, found in zip(parts, counts, strict=True) if found[2]), None)
    gaps = bool(further_gaps(tracker))
    first, further = time_sources(tracker, clip, timed, gaps) if timed is not None else (0.0, 0.0)
    seconds = targets * (first + further * (pairs - direct) / max(1, direct))
    ours = (factual, counterfactual) if isinstance(tracker, CwmTracker) else (None, None)
    return Cost(len(queries), len(clip), pairs, targets, *ours, seconds, peak_memory())


def further_gaps(tracker: Tracker) -> tuple[int, ...]:
    """Distances of the source frames besides the query's frame."""
    return tracker.config.gaps if isinstance(tracker, CwmTracker) else getattr(tracker, "further_gaps", ())


def count_predictions(tracker: Tracker, clip: Clip, queries: Queries) -> tuple[int, int, int, int, int]:
    """Frame pairs, those of them that begin at a query's frame, results, factual and counterfactual predictions."""
    direct, pairs = count_pairs(clip, queries), count_pairs(clip, queries, further_gaps(tracker))
    frames = queries.frame.tolist()
    groups = [(frames.count(start), len(clip) - 1 - start) for start in sorted(set(frames))]
    targets = sum(count * later for count, later in groups)
    if not isinstance(tracker, CwmTracker):
        return pairs, direct, targets, 0, 0
    config, patches = tracker.config, (tracker.world.size // tracker.world.patch) ** 2
    factual = sum(later * factual_masks(count, config, patches) for count, later in groups)
    factual += (pairs - direct) * config.gap_masks
    counterfactual = targets * (config.masks + config.passes * masks_per_pass(config))
    counterfactual += targets * config.gap_masks * (pairs - direct) // max(1, direct)
    return pairs, direct, targets, factual, counterfactual


def time_sources(tracker: Tracker, clip: Clip, queries: Queries, gaps: bool) -> tuple[float, float]:
    """Seconds per query and target: with one source frame, and for each further source frame.

    The queries of the earliest frame are tracked through two frames, which have one source. With gaps they are also
    tracked through three: the third frame has two sources, the query's frame and the one before.
    """
    start = int(queries.frame.min())
    rows = queries.frame == start
    here = Queries(queries.xy[rows], queries.frame[rows] * 0)
    frames = [clip[min(start + later, len(clip) - 1)] for later in range(3)]
    # The first run loads kernels and pages.
    first = time_tracking(tracker, Clip(frames[:2], clip.name, clip.fps), here)
    if first <= SLOW:
        first = time_tracking(tracker, Clip(frames[:2], clip.name, clip.fps), here)
    further = 0.0
    if gaps:
        both = time_tracking(tracker, Clip(frames, clip.name, clip.fps), here)
        further = max(0.0, both - 2 * first)
    return first / len(here), further / len(here)


def time_tracking(tracker: Tracker, clip: Clip, queries: Queries) -> float:
    """Seconds that a clip takes."""
    begin = time.perf_counter()
    tracker.track(clip, queries)
    return time.perf_counter() - begin


SLOW = 5.0
"""Seconds after which a second measurement is not worth its time."""


def peak_memory() -> int:
    """Bytes of memory that this process has taken at most; on a GPU, the GPU's."""
    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    if sys.platform == "win32":
        return 0
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def masks_per_pass(config: TrackerConfig) -> int:
    """Masks of one query in one re-evaluation; native crops come from the query frame and from a recent one."""
    if config.reevaluation != "native":
        return config.masks
    return NATIVE_MASKS * (2 if config.gaps else 1)


def factual_masks(queries: int, config: TrackerConfig, patches: int) -> int:
    """Masks imagined for one frame pair in the first pass and all re-evaluations."""
    first = config.masks * (queries if config.mask_sharing == "query" else 1)
    if config.passes == 0:
        return first
    if config.reevaluation == "native":
        return first + config.passes * queries * masks_per_pass(config)
    joint = math.ceil(queries / joint_group_size(patches)) * config.masks
    again = joint if config.reevaluation == "joint" else queries * config.masks
    return first + again + (config.passes - 1) * queries * config.masks
