"""Trackers of whole clips: forward from the queries, and backward if asked for."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from lpa_cwm.config import TrackerConfig
from lpa_cwm.errors import InputError
from lpa_cwm.estimates import EstimateTable, FrameEstimate
from lpa_cwm.geometry import inside
from lpa_cwm.jobs import progress
from lpa_cwm.online import ONLY, OnlineTracker, give
from lpa_cwm.pair_tracking import PairResult, track_pair
from lpa_cwm.probe import ObservedPair, observe_pair
from lpa_cwm.protocols import Adjudicator, WorldModel
from lpa_cwm.types import Clip, Grid, Queries, ReversedFrames, Tracks


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

    def track(self, clip: Clip, queries: Queries | Grid, backward: bool = False) -> Tracks:
        """Tracks in the clip's own pixels, after each query and, if asked for, before it.

        Args:
            clip: The video.
            queries: The points; several positions of one track correct it.
            backward: Whether to track also from each point to the first frame.
        """
        adjudicators = {ONLY: self.adjudicator}
        settings = {"config": self.config, "device": self.device, "quiet": self.quiet, "backward": backward}
        return track_many(self.world, adjudicators, clip, queries, **settings)[ONLY]

    def stream(
        self, frames: Iterable[UInt8[Tensor, "3 h w"]], queries: Queries, name: str = "stream"
    ) -> Iterator[FrameEstimate]:
        """Estimates frame by frame while the frames come in, with memory that does not grow.

        Args:
            frames: Frames as they arrive.
            queries: The points; their frame numbers count from the first frame of the stream.
            name: Identity of the video; it fixes the masks.
        """
        online = self.online(name)
        give(online, queries)
        for frame in frames:
            yield online.step(frame)[ONLY]

    def online(self, name: str) -> OnlineTracker:
        """Tracks points of the video of this name while its frames come in.

        Args:
            name: Identity of the video; it fixes the masks.
        """
        return OnlineTracker(self.world, {ONLY: self.adjudicator}, self.config, self.device, name)

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
        return track_pair(observed, {ONLY: self.adjudicator}, xy)[ONLY]


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
    on_frame: Callable[[int, int], None] = lambda done, total: None,
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
    total = len(clip) * (2 if backward else 1)

    def track(part: Clip, asked: Queries) -> dict[str, Tracks]:
        online = OnlineTracker(world, adjudicators, config or world.defaults, device, part.name)
        offset = 0 if part is clip else len(clip)
        tables = {name: EstimateTable() for name in adjudicators}
        step_through(online, part, asked, tables, quiet, lambda index: on_frame(offset + index, total))
        return {name: table.to_tracks(len(part)) for name, table in tables.items()}

    return track_both_ways(track, clip, queries) if backward else track(clip, queries)


def step_through(
    online: OnlineTracker,
    clip: Clip,
    queries: Queries,
    tables: Mapping[str, EstimateTable],
    quiet: bool,
    on_frame: Callable[[int], None],
) -> None:
    """Append the estimates of one frame after the other; before the first query's frame nothing is anywhere."""
    online.time = int(queries.frame.min())
    give(online, queries)
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
