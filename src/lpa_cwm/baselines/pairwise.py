"""Direct tracking by optical flow: every target frame straight from the frame of the query.

The forward flow is read at the pixel that holds the query and added to the query, so the sub-pixel part of the query
is kept. The backward flow is read bilinearly at the endpoint.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from lpa_cwm.baselines.raft import cell_grid
from lpa_cwm.errors import InputError, InterruptedTracking
from lpa_cwm.geometry import HW, index_of, inside, rescale
from lpa_cwm.io.video import LazyFrames
from lpa_cwm.sampling import read, resize_frame
from lpa_cwm.tracker import validate_queries
from lpa_cwm.types import Clip, Grid, Queries, Tracks

BATCH_PIXELS = 4 * 1920 * 1080
"""Pixels of the target frames of one call: frames and flows of larger batches would need gigabytes."""
Flow = Callable[[UInt8[Tensor, "b 3 h w"], UInt8[Tensor, "b 3 h w"]], Float[Tensor, "b 2 h w"]]
"""Optical flow (dx, dy) in pixels from each frame of one batch to the same frame of another."""


@runtime_checkable
class VisibilityRule(Protocol):
    """Decides from the two flows of a pair whether the endpoints are visible."""

    def __call__(
        self,
        forward: Float[Tensor, "b 2 h w"],
        backward: Float[Tensor, "b 2 h w"],
        xy: Float[Tensor, "n 2"],
        endpoint: Float[Tensor, "b n 2"],
    ) -> tuple[Float[Tensor, "b n"], Bool[Tensor, "b n"]]:
        """Strength (0 at best, negative otherwise) and visibility of each endpoint."""
        ...


@dataclass(frozen=True, slots=True)
class ForwardBackward:
    """Forward-backward consistency (Kalal et al. 2010): visible if the round trip ends near its start."""

    limit: float = 6.0
    """Largest round-trip error of a visible point, in pixels."""

    def __call__(
        self,
        forward: Float[Tensor, "b 2 h w"],
        backward: Float[Tensor, "b 2 h w"],
        xy: Float[Tensor, "n 2"],
        endpoint: Float[Tensor, "b n 2"],
    ) -> tuple[Float[Tensor, "b n"], Bool[Tensor, "b n"]]:
        """Strength is minus the round-trip error."""
        error = (endpoint - xy + read(backward, torch.nan_to_num(endpoint))).norm(dim=-1)
        return -error, error <= self.limit


@dataclass(frozen=True, slots=True)
class RangeMapOcclusion:
    """Range-map occlusion (Wang et al. 2018), used by SMURF: pixels that the backward flow never reaches are hidden."""

    limit: float = 0.5
    """Occlusion from which a point is hidden."""

    def __call__(
        self,
        forward: Float[Tensor, "b 2 h w"],
        backward: Float[Tensor, "b 2 h w"],
        xy: Float[Tensor, "n 2"],
        endpoint: Float[Tensor, "b n 2"],
    ) -> tuple[Float[Tensor, "b n"], Bool[Tensor, "b n"]]:
        """Strength is minus the occlusion at the pixel of the query."""
        height, width = backward.shape[-2:]
        column, row = index_of(xy, (height, width)).unbind(-1)
        occlusion = 1 - splat_count(backward).clamp(0, 1)[:, row, column]
        return -occlusion, occlusion < self.limit


def splat_count(flow: Float[Tensor, "b 2 h w"]) -> Float[Tensor, "b h w"]:
    """Number of pixels that the flow moves onto each pixel, by bilinear splatting."""
    batch, _, height, width = flow.shape
    index = rearrange(cell_grid(flow) + flow, "b d h w -> d b (h w)")
    # Values that are not finite or far away are moved just outside the frame, where they do not count.
    index = torch.nan_to_num(index, nan=-2.0, posinf=-2.0, neginf=-2.0).clamp(-2, max(height, width) + 1)
    column, row = index.floor().long()
    part = index - index.floor()
    counts = flow.new_zeros(batch, height * width)
    # Each moved pixel is shared by the four pixels around its endpoint.
    for right in (0, 1):
        for below in (0, 1):
            x, y = column + right, row + below
            share = (part[0] if right else 1 - part[0]) * (part[1] if below else 1 - part[1])
            within = (x >= 0) & (x < width) & (y >= 0) & (y < height)
            flat = y.clamp(0, height - 1) * width + x.clamp(0, width - 1)
            counts.scatter_add_(1, flat, share * within)
    return rearrange(counts, "b (h w) -> b h w", h=height)


@dataclass(frozen=True, slots=True)
class PairwiseTracker:
    """Direct query-to-target tracking by optical flow; endpoints outside the frame are never visible."""

    flow: Flow
    rule: VisibilityRule = ForwardBackward()
    batch: int = 4
    """Target frames per call of the flow estimator; fewer if the frames are large."""
    device: str = "cpu"
    size: int | None = 256
    """Side to which frames are resized, without keeping the aspect; None keeps the size of the clip."""

    def track(self, clip: Clip, queries: Queries | Grid) -> Tracks:
        """Track each target frame independently."""
        resized, asked = working_size(clip, validate_queries(clip, queries), self.size)
        tracks = Tracks.at_queries(resized, asked)
        strength = torch.zeros_like(tracks.xy[..., 0]).where(tracks.visible, torch.nan)

        def found() -> Tracks:
            return Tracks(rescale(tracks.xy, resized.hw, clip.hw), tracks.visible, strength)

        batch = max(1, min(self.batch, BATCH_PIXELS // (resized.hw[0] * resized.hw[1])))
        with keep_partial(found):
            for source, rows in by_source(asked):
                for first in range(source + 1, len(clip), batch):
                    targets = torch.arange(first, min(first + batch, len(clip)), device=rows.device)
                    xy, visible, confidence = self._endpoints(resized, source, targets, asked.xy[rows])
                    at = (rows[:, None], targets)
                    tracks.xy[at], tracks.visible[at], strength[at] = xy, visible, confidence
        return found()

    def _endpoints(
        self, clip: Clip, source: int, targets: Int[Tensor, "b"], xy: Float[Tensor, "n 2"]
    ) -> tuple[Float[Tensor, "n b 2"], Bool[Tensor, "n b"], Float[Tensor, "n b"]]:
        """Endpoint, visibility and strength in each target frame."""
        after = torch.stack([clip[target].to(self.device) for target in targets.tolist()])
        before = clip[source].to(self.device).expand_as(after)
        # Points are few: they, and the values read for them, stay on the device of the queries.
        forward, backward = (flow.to(xy.device) for flow in both_flows(self.flow, before, after))
        column, row = index_of(xy, clip.hw).unbind(-1)
        endpoint = xy + rearrange(forward[:, :, row, column], "b d n -> b n d")
        strength, visible = self.rule(forward, backward, xy, endpoint)
        possible = inside(endpoint, clip.hw) & strength.isfinite()
        strength = strength.where(possible, -torch.inf)
        return endpoint.transpose(0, 1), (visible & possible).T, strength.T


def both_flows(
    flow: Flow, before: UInt8[Tensor, "b 3 h w"], after: UInt8[Tensor, "b 3 h w"]
) -> tuple[Float[Tensor, "b 2 h w"], Float[Tensor, "b 2 h w"]]:
    """Forward and backward flow in one call, so that an estimator can share the encoding of each frame."""
    found = flow(torch.cat((before, after)), torch.cat((after, before)))
    expected = (2 * len(before), 2, *before.shape[-2:])
    if tuple(found.shape) != expected:
        raise InputError(f"The flow estimator returned the shape {tuple(found.shape)}; {expected} was expected.")
    forward, backward = found.chunk(2)
    return forward, backward


@contextmanager
def keep_partial(found: Callable[[], Tracks]) -> Iterator[None]:
    """Let an interrupt carry the tracks found so far."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise InterruptedTracking(found()) from error


def by_source(queries: Queries) -> Iterator[tuple[int, Int[Tensor, "k"]]]:
    """Each source frame with the rows of its queries."""
    for source in queries.frame.unique().tolist():
        yield source, (queries.frame == source).nonzero()[:, 0]


def working_size(clip: Clip, queries: Queries, size: int | None, kept: int = 8) -> tuple[Clip, Queries]:
    """The clip and its queries resized to `size` x `size` pixels; None changes nothing."""
    if size is None or clip.hw == (size, size):
        return clip, queries
    hw: HW = (size, size)
    frames = LazyFrames(len(clip), partial(_resized, clip, hw), kept)
    return Clip(frames, clip.name, clip.fps), replace(queries, xy=rescale(queries.xy, clip.hw, hw))


def _resized(clip: Clip, hw: HW, index: int) -> UInt8[Tensor, "3 h w"]:
    return resize_frame(clip[index], hw)
