"""Trackers of whole clips: ours with any number of adjudicators, and any tracker in both directions, with corrections.

After an interrupt the finished frames are kept.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from lpa_cwm.config import TrackerConfig
from lpa_cwm.errors import InputError, InterruptedTracking
from lpa_cwm.estimates import EstimateTable, FrameEstimate
from lpa_cwm.geometry import inside
from lpa_cwm.jobs import progress, progress_line, threads_of
from lpa_cwm.online import SINGLE, OnlineTracker
from lpa_cwm.pair_tracking import PairResult, track_pair
from lpa_cwm.probe import ObservedPair, observe_pair
from lpa_cwm.protocols import Adjudicator, Tracker, WorldModel
from lpa_cwm.types import Clip, Frames, Grid, Queries, ReversedFrames, Tracks

OnFrame = Callable[[int, int], None]
"""Called before each frame with the number of frames done and in all; it may raise to stop."""


@dataclass
class CwmTracker:
    """Tracks points with one adjudicator.

    Examples:
        >>> from lpa_cwm.registry import bundled_clip
        >>> clip = bundled_clip("toy")

        >>> from lpa_cwm import Queries, load
        >>> tracker = load("uniform", "toy", masks=2)
        >>> tracker.track(clip, Queries(torch.tensor([[60.0, 80.0]]), torch.tensor([22])))
        Tracks(1 track, 24 frames, visible 100%)
    """

    world: WorldModel
    """The world model."""
    adjudicator: Adjudicator
    """Weights the candidates."""
    config: TrackerConfig
    """Settings."""
    device: str = "cpu"
    """Where to compute."""
    quiet: bool = True
    """Whether to show no progress line."""
    workers: int | None = None
    """Threads that share the frame pairs and the points of a frame; on a CPU, by default as many as torch uses."""

    def __repr__(self) -> str:
        """World model, adjudicator and device; networks would fill pages."""
        adjudicator = getattr(self.adjudicator, "__name__", type(self.adjudicator).__name__)
        return f"CwmTracker({type(self.world).__name__}, {adjudicator}, device={self.device!r})"

    def track(self, clip: Clip, queries: Queries | Grid, backward: bool = False) -> Tracks:
        """Tracks in the clip's own pixels, after each query and, if asked for, before it.

        Args:
            clip: The video.
            queries: The points; several positions of one track correct it.
            backward: Whether to track also from each point to the first frame.
        """
        adjudicators = {SINGLE: self.adjudicator}
        names = ("config", "device", "quiet", "workers")
        settings = {name: getattr(self, name) for name in names}
        return track_many(self.world, adjudicators, clip, queries, backward=backward, **settings)[SINGLE]

    def stream(
        self, frames: Iterable[UInt8[Tensor, "3 h w"]], queries: Queries, name: str = "stream"
    ) -> Iterator[FrameEstimate]:
        """Estimates frame by frame while the frames arrive, in constant memory.

        Args:
            frames: Frames as they arrive.
            queries: The points; their frame numbers count from the first frame of the stream.
            name: Identity of the video; it fixes the masks.
        """
        online = self.online(name)
        online.add_queries(queries)
        for frame in frames:
            yield online.step(frame)[SINGLE]

    def online(self, name: str) -> OnlineTracker:
        """Tracks points of the video of this name while its frames arrive.

        Args:
            name: Identity of the video; it fixes the masks.
        """
        adjudicators = {SINGLE: self.adjudicator}
        workers = self.workers or threads_of(self.device)
        return OnlineTracker(self.world, adjudicators, self.config, self.device, name, workers)

    def observe(self, clip: Clip, source: int, target: int) -> ObservedPair:
        """One frame pair of a clip, ready for `track_pair`.

        Args:
            clip: The video.
            source: Number of the frame that has the points.
            target: Number of the frame in which they are looked for.
        """
        identity = "clip", clip.name, source, target
        return observe_pair(self.world, clip[source], clip[target], identity, self.config, self.device)

    def track_pair(self, observed: ObservedPair, xy: Float[Tensor, "n 2"]) -> PairResult:
        """The endpoints of points of the source in the target, by the direct path alone.

        Args:
            observed: What `observe` returned.
            xy: Points of the source frame, in the clip's pixels.
        """
        return track_pair(observed, {SINGLE: self.adjudicator}, xy)[SINGLE]


def track_many(
    world: WorldModel,
    adjudicators: Mapping[str, Adjudicator],
    clip: Clip,
    queries: Queries | Grid,
    *,
    config: TrackerConfig | None = None,
    device: str = "cpu",
    quiet: bool = True,
    backward: bool = False,
    workers: int | None = None,
    on_frame: OnFrame = lambda done, total: None,
) -> dict[str, Tracks]:
    """Track with several adjudicators; what does not depend on them is computed once.

    Args:
        world: The world model.
        adjudicators: The adjudicators by name.
        clip: The video.
        queries: The points.
        config: Settings; by default those of the world model.
        device: Where to compute.
        quiet: Whether to show no progress line.
        backward: Whether to track also from each point to the first frame.
        workers: Threads that share the frame pairs and the points of a frame; on a CPU, by default as many as torch
            uses.
        on_frame: Called before each frame with the number of frames done and in all; it may raise to stop.

    Examples:
        >>> from lpa_cwm.registry import bundled_clip
        >>> clip = bundled_clip("toy")

        >>> from lpa_cwm import Queries
        >>> from lpa_cwm.registry import load_adjudicator, load_world
        >>> point = Queries(torch.tensor([[60.0, 80.0]]), torch.tensor([22]))
        >>> track_many(load_world("toy"), {"uniform": load_adjudicator("uniform")}, clip, point)
        {'uniform': Tracks(1 track, 24 frames, visible 100%)}
    """
    queries = validate_queries(clip, queries)
    config, workers = config or world.defaults, workers or threads_of(device)

    def online(name: str) -> OnlineTracker:
        return OnlineTracker(world, adjudicators, config, device, name, workers)

    done: list[dict[str, EstimateTable]] = []
    run_directions(online, clip, queries, done, backward, quiet, on_frame)
    return {name: join_tables([tables[name] for tables in done], clip, queries) for name in adjudicators}


def run_directions(
    online: Callable[[str], OnlineTracker],
    clip: Clip,
    queries: Queries,
    done: list[dict[str, EstimateTable]],
    backward: bool,
    quiet: bool,
    on_frame: OnFrame,
) -> None:
    """Track forward and, if asked for, backward.

    `online` makes a tracker for the video of a name. `done` receives the estimates of each direction as they are made,
    so that an interrupt keeps them.
    """
    parts = [(clip, queries), *([reverse(clip, queries)] if backward else [])]
    for number, (part, asked) in enumerate(parts):
        tracker, offset = online(part.name), number * len(clip)
        done.append({name: EstimateTable() for name in tracker.adjudicators})

        def begin(index: int, offset: int = offset) -> None:
            on_frame(offset + index, len(clip) * len(parts))

        run_online(tracker, part, asked, done[-1], quiet, begin)


def join_tables(directions: list[EstimateTable], clip: Clip, queries: Queries) -> Tracks:
    """Tracks from the estimates of one or both directions; the second direction may be incomplete."""
    stacked = [table.to_tracks(len(clip)) for table in directions if table]
    if len(stacked) == 1:
        return stacked[0]
    joined = join_directions(stacked[1].reversed(), stacked[0], queries)
    # After an interrupt the backward direction is unknown between two given positions.
    return joined.where(~joined.xy[..., 0].isnan(), stacked[0])


def run_online(
    online: OnlineTracker,
    clip: Clip,
    queries: Queries,
    tables: Mapping[str, EstimateTable],
    quiet: bool,
    on_frame: Callable[[int], None],
) -> None:
    """Append the estimates of one frame after the other; frames before the first query are empty."""
    online.time = int(queries.frame.min())
    online.add_queries(queries)
    for table in tables.values():
        for _ in range(online.time):
            table.append(FrameEstimate.empty(len(online.anchors)))
    for index in progress(range(online.time, len(clip)), len(clip) - online.time, clip.name, quiet):
        on_frame(index)
        for name, estimate in online.step(clip[index]).items():
            tables[name].append(estimate)


def validate_queries(clip: Clip, queries: Queries | Grid) -> Queries:
    """Queries that can be tracked; anything else is refused with a sentence."""
    if not (isinstance(clip, Clip) and isinstance(queries, Queries | Grid)):
        given = f"{type(clip).__name__} and {type(queries).__name__}"
        raise InputError(f"{given} were given; expected a Clip and Queries; `lpa_cwm.track` takes paths and lists.")
    if len(clip) < 2:
        raise InputError(f"The clip {clip.name} has {len(clip)} frame(s); tracking needs at least two.")
    if isinstance(queries, Grid):
        queries = queries.on(clip.hw)
    if len(queries) == 0:
        raise InputError("There are no points to track; give at least one, for example 120,80@0.")
    height, width = clip.hw
    for (x, y), frame in zip(queries.xy.tolist(), queries.frame.tolist(), strict=True):
        if not 0 <= frame < len(clip):
            raise InputError(
                f"The point {x:g},{y:g}@{frame} is in frame {frame}, but {clip.name} has frames 0 to {len(clip) - 1}."
            )
        if not inside(torch.tensor([x, y]), (height, width)):
            raise InputError(
                f"The point {x:g},{y:g}@{frame} is not inside the frame of {clip.name}: "
                f"x must be in [0, {width}) and y in [0, {height})."
            )
    return queries


def count_pairs(clip: Clip, queries: Queries, gaps: tuple[int, ...] = ()) -> int:
    """Frame pairs that tracking these queries observes, if every point stays visible."""
    given = set(queries.frame.tolist())
    first = min(given)
    pairs = 0
    for target in range(first + 1, len(clip)):
        sources = {frame for frame in given if frame < target}
        pairs += len(sources | {target - gap for gap in gaps if target - gap > first})
    return pairs


def track_both_ways(
    track: Callable[[Clip, Queries], dict[str, Tracks]], clip: Clip, queries: Queries
) -> dict[str, Tracks]:
    """Tracks after and before the queries, by trackers that only run forward: the second time the clip is reversed."""
    forward = track(clip, queries)
    before = track(*reverse(clip, queries))
    return {name: join_directions(before[name].reversed(), after, queries) for name, after in forward.items()}


def reverse(clip: Clip, queries: Queries) -> tuple[Clip, Queries]:
    """The clip from its last frame to its first, and the same positions in it."""
    turned = Clip(ReversedFrames(clip), f"{clip.name} reversed", clip.fps)
    return turned, replace(queries, frame=len(clip) - 1 - queries.frame)


def join_directions(before: Tracks, after: Tracks, queries: Queries) -> Tracks:
    """Before its first given position a track is that of the backward direction, after its last that of the forward.

    Between two given positions the direction with the stronger response counts.
    """
    tracks = len(after.visible)
    frames = torch.arange(after.visible.shape[1])
    first, last = torch.full((tracks,), len(frames)), torch.full((tracks,), -1)
    first = first.scatter_reduce(0, queries.tracks.cpu(), queries.frame.cpu(), "amin")[:, None]
    last = last.scatter_reduce(0, queries.tracks.cpu(), queries.frame.cpu(), "amax")[:, None]
    forward = frames >= last
    if after.strength is not None and before.strength is not None:
        stronger = after.strength.nan_to_num(torch.inf) >= before.strength.nan_to_num(torch.inf)
        forward |= (frames >= first) & stronger.cpu()
    return after.where(forward, before)


@dataclass(frozen=True, slots=True)
class TrackedClip:
    """Tracks of a clip: complete, or up to the frame at which tracking stopped."""

    tracks: Tracks
    """Tracks; NaN and hidden in frames that were not reached."""
    done: int
    """Frames that were tracked; each counts twice if tracking runs in both directions."""
    total: int
    """Number of all frames, counted in the same way."""

    @property
    def complete(self) -> bool:
        """Whether tracking was not interrupted."""
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
        on_frame: Called before each frame with the number of frames done and in all; it may raise to stop. Of a
            baseline, which tracks a clip as a whole, the frames that it has read count as done.

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
    return _track_other(tracker, clip, queries, backward, quiet, on_frame)


def _track_cwm(
    tracker: CwmTracker, clip: Clip, queries: Queries, backward: bool, quiet: bool, on_frame: OnFrame
) -> TrackedClip:
    """What `CwmTracker.track` computes; an interrupt keeps the frames that are done."""
    done: list[dict[str, EstimateTable]] = []
    try:
        run_directions(tracker.online, clip, queries, done, backward, quiet, on_frame)
    except KeyboardInterrupt:
        if not done or len(done[0][SINGLE]) <= int(queries.frame.min()) + 1:
            raise
    directions = [tables[SINGLE] for tables in done]
    total = len(clip) * (2 if backward else 1)
    return TrackedClip(join_tables(directions, clip, queries), sum(map(len, directions)), total)


class WatchedFrames:
    """Frames that call a function before each access with the largest index so far: progress of a baseline."""

    def __init__(self, frames: Frames, on_read: Callable[[int], None]) -> None:
        self._frames = frames
        self._on_read = on_read
        self._furthest = 0

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, index: int) -> UInt8[Tensor, "3 h w"]:
        self._furthest = max(self._furthest, index)
        self._on_read(self._furthest)
        return self._frames[index]


def _track_other(
    tracker: Tracker, clip: Clip, queries: Queries, backward: bool, quiet: bool, on_frame: OnFrame
) -> TrackedClip:
    """A baseline tracks every given position separately; each frame takes the nearest one that reaches it."""
    single = Queries(queries.xy, queries.frame)
    total = len(clip) * (2 if backward else 1)
    before = None
    with progress_line(total, clip.name, quiet) as set_done:

        def watch(part: Clip, offset: int) -> Clip:
            def on_read(furthest: int) -> None:
                on_frame(offset + furthest, total)
                set_done(offset + furthest)

            return Clip(WatchedFrames(part.frames, on_read), part.name, part.fps)

        after, complete = _until_interrupt(tracker, watch(clip, 0), single)
        if backward and complete:
            turned, asked = reverse(clip, single)
            before, complete = _until_interrupt(tracker, watch(turned, len(clip)), asked)
            before = before.reversed()
        if complete:
            set_done(total)
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
