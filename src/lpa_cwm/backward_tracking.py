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
    turned = Clip(ReversedFrames(clip), f"{clip.name} reversed", clip.fps)
    before = track(turned, replace(queries, frame=len(clip) - 1 - queries.frame))
    return {name: join_directions(before[name].reversed(), after, queries) for name, after in forward.items()}


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
    forward = forward.to(after.visible.device)
    merged = {}
    for name, value in after.known().items():
        mask = forward[..., None] if value.ndim == 3 else forward
        merged[name] = torch.where(mask, value, getattr(before, name))
    return Tracks(**merged)
