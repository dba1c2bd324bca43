"""Tracks before a query, by trackers that only run forward: the clip is reversed, and both directions are joined."""

from collections.abc import Callable
from dataclasses import replace

import torch

from lpa_cwm.types import Clip, Queries, ReversedFrames, Tracks


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
