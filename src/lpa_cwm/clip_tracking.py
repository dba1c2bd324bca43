"""One clip by any tracker: in both directions, with corrections; an interrupt keeps the frames that are done."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from lpa_cwm.errors import InterruptedTracking
from lpa_cwm.estimates import EstimateTable
from lpa_cwm.online import ONLY
from lpa_cwm.protocols import Tracker
from lpa_cwm.tracker import CwmTracker, join_directions, reverse, step_through, validate_queries
from lpa_cwm.types import Clip, Grid, Queries, Tracks

OnFrame = Callable[[int, int], None]
"""Called before each frame with the number of frames done and in all; it may raise to stop."""


@dataclass(frozen=True, slots=True)
class TrackedClip:
    """Tracks of a clip: complete, or up to the frame at which tracking stopped."""

    tracks: Tracks
    """Tracks; NaN and hidden in frames that were not reached."""
    done: int
    """Frames that were tracked; each counts twice if tracking runs in both directions."""
    total: int
    """Frames in all, counted alike."""

    @property
    def complete(self) -> bool:
        """Whether nothing interrupted it."""
        return self.done == self.total


def track_clip(
    tracker: Tracker,
    clip: Clip,
    queries: Queries | Grid,
    *,
    backward: bool = False,
    quiet: bool = True,
    on_frame: OnFrame = lambda done, total: None,
) -> TrackedClip:
    """Track points of one clip by any tracker; an interrupt (Ctrl-C) keeps what is done.

    An interrupt before the first tracked frame is raised.

    Args:
        tracker: Our tracker or a baseline.
        clip: The video.
        queries: The points; several positions of one track correct it.
        backward: Whether to track also from each point to the first frame.
        quiet: Whether to show no progress line.
        on_frame: Called before each frame with the number of frames done and in all; it may raise to stop. Not called
            by baselines, which track a clip as a whole.

    Examples:
        >>> from lpa_cwm.registry import bundled_clip
        >>> clip = bundled_clip("toy")

        >>> from lpa_cwm import Queries, load
        >>> point = Queries(torch.tensor([[60.0, 80.0]]), torch.tensor([22]))
        >>> result = track_clip(load("static"), clip, point)
        >>> result.tracks, result.complete
        (Tracks(1 track, 24 frames, visible 100%), True)
    """
    queries = validate_queries(clip, queries)
    if isinstance(tracker, CwmTracker):
        return _track_cwm(tracker, clip, queries, backward, quiet, on_frame)
    return _track_other(tracker, clip, queries, backward)


def _track_cwm(
    tracker: CwmTracker, clip: Clip, queries: Queries, backward: bool, quiet: bool, on_frame: OnFrame
) -> TrackedClip:
    """What `CwmTracker.track` computes, frame by frame."""
    parts = [(clip, queries), *([reverse(clip, queries)] if backward else [])]
    total = len(clip) * len(parts)
    directions = [EstimateTable() for _ in parts]
    try:
        for number, (part, asked) in enumerate(parts):
            begun = partial(lambda offset, index: on_frame(offset + index, total), number * len(clip))
            step_through(tracker.online(part.name), part, asked, {ONLY: directions[number]}, quiet, begun)
    except KeyboardInterrupt:
        if len(directions[0]) <= int(queries.frame.min()) + 1:
            raise
    stacked = [done.to_tracks(len(clip)) for done in directions if done]
    tracks = stacked[0]
    if len(stacked) > 1:
        joined = join_directions(stacked[1].reversed(), tracks, queries)
        # After an interrupt the backward direction is unknown between two given positions.
        tracks = joined.where(~joined.xy[..., 0].isnan(), tracks)
    return TrackedClip(tracks, sum(map(len, directions)), total)


def _track_other(tracker: Tracker, clip: Clip, queries: Queries, backward: bool) -> TrackedClip:
    """A baseline tracks every given position by itself; each frame takes the nearest one that reaches it."""
    single = Queries(queries.xy, queries.frame)
    after, complete = _until_interrupt(tracker, clip, single)
    before = None
    if backward and complete:
        before, complete = _until_interrupt(tracker, *reverse(clip, single))
        before = before.reversed()
    total = len(clip) * (2 if backward else 1)
    done = total if complete else min(total - 1, _reached(after) + (0 if before is None else _reached(before)))
    return TrackedClip(nearest_given(after, before, queries), done, total)


def _until_interrupt(tracker: Tracker, clip: Clip, queries: Queries) -> tuple[Tracks, bool]:
    """Tracks, and whether they are complete."""
    try:
        return tracker.track(clip, queries), True
    except InterruptedTracking as stopped:
        if _reached(stopped.tracks) <= 1:
            raise
        return stopped.tracks, False


def _reached(tracks: Tracks) -> int:
    """Number of frames in which some point is known."""
    return int((~tracks.xy[..., 0].isnan()).any(0).sum())


def nearest_given(after: Tracks, before: Tracks | None, queries: Queries) -> Tracks:
    """One track for each track number, from tracks of every given position: the nearest in time that reaches a frame.

    `before` has the same positions tracked backward; without it only later frames are reached.
    """
    frames, given = torch.arange(after.visible.shape[1]), queries.frame[:, None]
    later = frames >= given
    both = after if before is None else after.where(later, before)
    reaches = later | (before is not None)
    distance = (frames - given).abs().float().where(reaches, torch.inf)
    count = int(queries.tracks.max()) + 1
    rows = torch.stack([_nearest(distance, (queries.tracks == track).nonzero()[:, 0]) for track in range(count)])
    at = (rows.to(both.xy.device), frames.to(both.xy.device).expand_as(rows))
    return Tracks(**{name: value[at] for name, value in both.known().items()})


def _nearest(distance: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """For each frame, the one of these rows with the smallest distance."""
    return rows[distance[rows].argmin(0)]
