"""One clip by any tracker: in both directions, with corrections, and so that an interrupt keeps what is done."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace

import torch

from lpa_cwm.backward_tracking import join_directions
from lpa_cwm.errors import InterruptedTracking
from lpa_cwm.online import ONLY, FrameEstimate, OnlineTracker, give
from lpa_cwm.progress import progress
from lpa_cwm.protocols import Tracker
from lpa_cwm.tracker import CwmTracker, validate_queries
from lpa_cwm.types import Clip, Grid, Queries, ReversedFrames, Tracks

OnFrame = Callable[[int, int], None]
"""Called before each frame with the number of frames done and in all; it may raise to stop."""


@dataclass(frozen=True, slots=True)
class TrackedClip:
    """Tracks of a clip, complete or as far as they came."""

    tracks: Tracks
    done: int
    """Frames that were tracked; each counts twice if tracking runs in both directions."""
    total: int

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
    """Track points after each query and, with `backward`, before it; several positions of one track correct it.

    An interrupt (Ctrl-C) after the first tracked frame returns what is done; an earlier one is raised.
    """
    queries = validate_queries(clip, queries)
    if isinstance(tracker, CwmTracker):
        return _track_cwm(tracker, clip, queries, backward, quiet, on_frame)
    return _track_other(tracker, clip, queries, backward)


def reverse_clip(clip: Clip) -> Clip:
    """The clip from its last frame to its first."""
    return Clip(ReversedFrames(clip), f"{clip.name} reversed", clip.fps)


def reverse_queries(clip: Clip, queries: Queries) -> Queries:
    """The same positions in the reversed clip."""
    return replace(queries, frame=len(clip) - 1 - queries.frame)


def _track_cwm(
    tracker: CwmTracker, clip: Clip, queries: Queries, backward: bool, quiet: bool, on_frame: OnFrame
) -> TrackedClip:
    """What `CwmTracker.track` computes, frame by frame."""
    total = len(clip) * (2 if backward else 1)
    after: list[FrameEstimate] = []
    before: list[FrameEstimate] = []
    try:
        _step_through(tracker, clip, queries, after, quiet, lambda done: on_frame(done, total))
        if backward:
            turned, mirrored = reverse_clip(clip), reverse_queries(clip, queries)
            _step_through(tracker, turned, mirrored, before, quiet, lambda done: on_frame(len(clip) + done, total))
    except KeyboardInterrupt:
        if len(after) <= int(queries.frame.min()) + 1:
            raise
    forward = stack_estimates(after, len(clip))
    if before:
        joined = join_directions(stack_estimates(before, len(clip)).reversed(), forward, queries)
        forward = _fill(joined, forward)
    return TrackedClip(forward, len(after) + len(before), total)


def _step_through(
    tracker: CwmTracker,
    clip: Clip,
    queries: Queries,
    done: list[FrameEstimate],
    quiet: bool,
    on_frame: Callable[[int], None],
) -> None:
    """Append the estimates of one frame after the other, from the first query's frame on."""
    online = OnlineTracker(tracker.world, {ONLY: tracker.adjudicator}, tracker.config, tracker.device, clip.name)
    online.time = int(queries.frame.min())
    give(online, queries)
    done.extend([FrameEstimate.empty(len(online.anchors))] * online.time)
    for index in progress(range(online.time, len(clip)), len(clip) - online.time, clip.name, quiet):
        on_frame(index)
        done.append(online.step(clip[index])[ONLY])


def stack_estimates(done: list[FrameEstimate], total: int) -> Tracks:
    """Tracks through all frames; nowhere in those that were not reached."""
    count = len(done[-1].visible)
    estimates = [one.extended(count) for one in done] + [FrameEstimate.empty(count)] * (total - len(done))
    names = [entry.name for entry in fields(FrameEstimate)]
    return Tracks(**{name: torch.stack([getattr(one, name) for one in estimates], dim=1) for name in names})


def _fill(tracks: Tracks, other: Tracks) -> Tracks:
    """Take the other tracks where these are unknown, as after an interrupt between two given positions."""
    unknown = tracks.xy[..., 0].isnan()
    theirs = other.known()
    return Tracks(
        **{
            name: torch.where(unknown[..., None] if value.ndim == 3 else unknown, theirs[name], value)
            for name, value in tracks.known().items()
        }
    )


def _track_other(tracker: Tracker, clip: Clip, queries: Queries, backward: bool) -> TrackedClip:
    """A baseline tracks every given position by itself; each frame takes the nearest one that reaches it."""
    single = Queries(queries.xy, queries.frame)
    after, complete = _until_interrupt(tracker, clip, single)
    before = None
    if backward and complete:
        before, complete = _until_interrupt(tracker, reverse_clip(clip), reverse_queries(clip, single))
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
    both = after if before is None else _late(after, before, later.to(after.visible.device))
    reaches = later | (before is not None)
    distance = (frames - given).abs().float().where(reaches, torch.inf)
    count = int(queries.tracks.max()) + 1
    rows = torch.stack([_nearest(distance, (queries.tracks == track).nonzero()[:, 0]) for track in range(count)])
    at = (rows.to(both.xy.device), frames.to(both.xy.device).expand_as(rows))
    return Tracks(**{name: value[at] for name, value in both.known().items()})


def _nearest(distance: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """For each frame, the one of these rows with the smallest distance."""
    return rows[distance[rows].argmin(0)]


def _late(after: Tracks, before: Tracks, later: torch.Tensor) -> Tracks:
    """Frames from each given position on from `after`, the others from `before`; fields that both know."""
    theirs = before.known()
    names: Iterable[str] = [name for name in after.known() if name in theirs]
    return Tracks(
        **{
            name: torch.where(later[..., None] if theirs[name].ndim == 3 else later, after.known()[name], theirs[name])
            for name in names
        }
    )
