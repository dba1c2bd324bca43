"""Tracking by optical flow: from the frame of the query, over several gaps; DIS, Lucas-Kanade, and a static point."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from lpa_cwm.baselines.raft import cell_grid
from lpa_cwm.errors import InputError, InterruptedTracking, require
from lpa_cwm.geometry import (
    HW,
    from_continuous_index,
    index_of,
    inside,
    pixel_centers,
    rescale,
    resize_frame,
    sample_bilinear,
    to_continuous_index,
    unit_range,
)
from lpa_cwm.io.video import LazyFrames
from lpa_cwm.synth.video_flow import dense_inverse_search, gray_image
from lpa_cwm.tracker import validate_queries
from lpa_cwm.types import Clip, Grid, Queries, Tracks

BATCH_PIXELS = 4 * 1920 * 1080
"""Maximum number of target pixels per call; larger batches would need gigabytes."""
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
        error = (endpoint - xy + sample_bilinear(backward, torch.nan_to_num(endpoint))).norm(dim=-1)
        return -error, error <= self.limit


@dataclass(frozen=True, slots=True)
class RangeMapOcclusion:
    """Range-map occlusion (Wang et al. 2018), used by SMURF: pixels that the backward flow never reaches are hidden."""

    limit: float = 0.5
    """Minimum occlusion of a hidden point."""

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


@dataclass(frozen=True, slots=True)
class Paths:
    """Candidate endpoints of all points in one target frame, one per source frame; NaN where there is no path."""

    xy: Float[Tensor, "s n 2"]
    cost: Float[Tensor, "s n"]
    """Forward-backward error summed along the path, in pixels of the working size."""


@dataclass(frozen=True, slots=True)
class GapTracker:
    """Tracks by optical flow over several gaps and chooses one path per point and frame."""

    flow: Flow
    gaps: tuple[int, ...] = (1, 2, 4, 8, 16)
    direct: bool = True
    """Whether each target is also reached from the frame of the query."""
    penalty: float = 0.0125
    """Loss of similarity per pixel of forward-backward error."""
    patch: int = 11
    """Side of the compared patch, in pixels of the working size."""
    limit: float = 6.0
    """Largest forward-backward error, summed along the path, of a visible point, in pixels of the working size."""
    batch: int = 4
    """Frame pairs per call of the flow estimator."""
    device: str = "cpu"
    size: int | None = 256
    """Side to which frames are resized, without keeping the aspect; None keeps the size of the clip."""

    @property
    def further_gaps(self) -> tuple[int, ...]:
        """Distances of the source frames besides the query's frame; none if there is only one source frame."""
        return self.gaps if self.direct else ()

    def track(self, clip: Clip, queries: Queries | Grid) -> Tracks:
        """Track frame by frame; the flow of each pair of frames is computed once for all points."""
        resized, asked = working_size(clip, validate_queries(clip, queries), self.size, kept=max(self.gaps) + 2)
        tracks = Tracks.at_queries(resized, asked)
        cost = torch.zeros_like(tracks.xy[..., 0]).where(tracks.visible, torch.nan)
        template = self._templates(resized, asked)

        def found() -> Tracks:
            visible = (cost <= self.limit) & inside(tracks.xy, resized.hw)
            return Tracks(rescale(tracks.xy, resized.hw, clip.hw), visible | tracks.visible, -cost)

        with keep_partial(found):
            for target in range(int(asked.frame.min()) + 1, len(clip)):
                rows = (asked.frame < target).nonzero()[:, 0]
                paths = self._paths(resized, asked.frame[rows], tracks.xy[rows], cost[rows], target)
                similarity = self._similarity(resized, target, paths.xy, template[rows])
                best = torch.nan_to_num(similarity - self.penalty * paths.cost, nan=-torch.inf).argmax(0)
                every = torch.arange(len(rows), device=rows.device)
                end = paths.xy[best, every]
                # A point without any path stays where it was, hidden.
                tracks.xy[rows, target] = end.where(end.isfinite(), tracks.xy[rows, target - 1])
                cost[rows, target] = paths.cost[best, every]
        return found()

    def _sources(self, frame: Int[Tensor, "n"], target: int) -> list[int]:
        """Source frames of a target: by gap, and the frames of the queries."""
        first = int(frame.min())
        by_gap = {target - gap for gap in self.gaps if target - gap >= first}
        return sorted(by_gap | (set(frame.tolist()) if self.direct else set()))

    def _paths(
        self, clip: Clip, frame: Int[Tensor, "n"], xy: Float[Tensor, "n t 2"], cost: Float[Tensor, "n t"], target: int
    ) -> Paths:
        """Continue every track from every source frame to the target."""
        sources = self._sources(frame, target)
        index = torch.tensor(sources, device=xy.device)
        at = self._allowed(frame, index, target)
        start = xy[:, index].transpose(0, 1).where(at[..., None], torch.nan)
        ends, errors = zip(*self._round_trips(clip, sources, start, target), strict=True)
        return Paths(torch.cat(ends), cost[:, index].T + torch.cat(errors))

    def _allowed(self, frame: Int[Tensor, "n"], source: Int[Tensor, "s"], target: int) -> Bool[Tensor, "s n"]:
        """Whether a point may be reached from a source frame: by a gap of the list, or from the frame of its query."""
        gap = target - source
        by_gap = torch.isin(gap, torch.tensor(self.gaps, device=gap.device))[:, None] & (source[:, None] >= frame)
        return by_gap | (source[:, None] == frame) if self.direct else by_gap

    def _round_trips(
        self, clip: Clip, sources: list[int], start: Float[Tensor, "s n 2"], target: int
    ) -> Iterator[tuple[Float[Tensor, "b n 2"], Float[Tensor, "b n"]]]:
        """Endpoints and round-trip errors, by batches of source frames."""
        goal = clip[target].to(self.device)
        for first in range(0, len(sources), self.batch):
            some = sources[first : first + self.batch]
            before = torch.stack([clip[source].to(self.device) for source in some])
            flows = both_flows(self.flow, before, goal.expand_as(before))
            forward, backward = (flow.to(start.device) for flow in flows)
            points = start[first : first + self.batch]
            motion = sample_bilinear(forward, torch.nan_to_num(points))
            back = sample_bilinear(backward, torch.nan_to_num(points + motion))
            yield points + motion, (motion + back).norm(dim=-1)

    def _templates(self, clip: Clip, queries: Queries) -> Float[Tensor, "n p p"]:
        """The gray patch around each query in its own frame."""
        templates = queries.xy.new_empty(len(queries), self.patch, self.patch)
        for source, rows in by_source(queries):
            templates[rows] = self._patches(clip, source, queries.xy[rows])
        return templates

    def _patches(self, clip: Clip, frame: int, xy: Float[Tensor, "n 2"]) -> Float[Tensor, "n p p"]:
        """Gray patches of a frame around some points."""
        image = unit_range(clip[frame]).to(xy).mean(0)[None, None]
        offsets = pixel_centers((self.patch, self.patch), xy.device).flatten(0, 1) - self.patch / 2
        values = sample_bilinear(image, (xy[:, None] + offsets).flatten(0, 1)[None])
        return values.reshape(len(xy), self.patch, self.patch)

    def _similarity(
        self, clip: Clip, target: int, xy: Float[Tensor, "s n 2"], template: Float[Tensor, "n p p"]
    ) -> Float[Tensor, "s n"]:
        """Similarity of the patch at each endpoint to the patch at the query; NaN where there is no path."""
        found = self._patches(clip, target, torch.nan_to_num(xy).flatten(0, 1)).unflatten(0, xy.shape[:2])
        return zncc(found, template).where(xy.isfinite().all(-1), torch.nan)


def zncc(a: Float[Tensor, "s n p p"], b: Float[Tensor, "n p p"]) -> Float[Tensor, "s n"]:
    """Zero-mean normalized cross-correlation of patches; 0 where a patch has no texture."""
    first, second = (patch - patch.mean((-2, -1), keepdim=True) for patch in (a, b))
    energy = first.square().sum((-2, -1)) * second.square().sum((-2, -1))
    return (first * second).sum((-2, -1)) / energy.clamp(min=1e-8).sqrt()


@dataclass(frozen=True, slots=True)
class StaticPoint:
    """A point that never moves and is always visible."""

    def track(self, clip: Clip, queries: Queries | Grid) -> Tracks:
        """Repeat each query from its frame to the last."""
        queries = validate_queries(clip, queries)
        tracks = Tracks.at_queries(clip, queries)
        started = queries.frame[:, None] <= torch.arange(len(clip), device=queries.frame.device)
        return Tracks(queries.xy[:, None].where(started[..., None], tracks.xy), started)


@dataclass(frozen=True, slots=True)
class DisFlow:
    """Dense inverse search (Kroeger et al. 2016, arXiv:1603.03590), OpenCV's medium preset; a `flow_trackers.Flow`."""

    def __call__(self, before: UInt8[Tensor, "b 3 h w"], after: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, "b 2 h w"]:
        """Flow of one pair after the other; OpenCV uses all cores for each."""
        cv2, search = dense_inverse_search()
        # One result for all: at 4K each copy of a flow has 66 MB.
        flows = torch.empty(len(before), 2, *before.shape[-2:], device=before.device)
        for flow, first, second in zip(flows, before, after, strict=True):
            found = search.calc(gray_image(cv2, first), gray_image(cv2, second), None)
            flow.copy_(rearrange(torch.from_numpy(found), "h w d -> d h w"))
        return flows


@dataclass(frozen=True, slots=True)
class LucasKanade:
    """Pyramidal Lucas-Kanade (Bouguet 2001), from frame to frame or direct; visible while the round trip closes."""

    window: int = 11
    """Side of the matched window, in pixels."""
    levels: int = 3
    """Coarser pyramid levels."""
    limit: float = 6.0
    """Largest forward-backward error, summed along the chain, of a visible point, in pixels."""
    size: int | None = 256
    """Side to which frames are resized, without keeping the aspect; None keeps the size of the clip."""
    direct: bool = False
    """Match each frame with the query's frame instead of the frame before."""

    def track(self, clip: Clip, queries: Queries | Grid) -> Tracks:
        """Follow each point into all frames after its query's."""
        cv2 = require("cv2", extra="flow")
        resized, asked = working_size(clip, validate_queries(clip, queries), self.size)
        tracks = Tracks.at_queries(resized, asked)
        error = torch.zeros_like(tracks.xy[..., 0]).where(tracks.visible, torch.nan)

        def found() -> Tracks:
            visible = (error <= self.limit) & inside(tracks.xy, resized.hw)
            return Tracks(rescale(tracks.xy, resized.hw, clip.hw), visible, -error)

        with keep_partial(found):
            for target in range(1, len(clip)):
                started = asked.frame < target
                for source in asked.frame[started].unique().tolist() if self.direct else [target - 1]:
                    rows = (started & (asked.frame == source) if self.direct else started).nonzero()[:, 0]
                    if len(rows):
                        frames = gray_image(cv2, resized[source]), gray_image(cv2, resized[target])
                        xy, miss = self._step(cv2, *frames, tracks.xy[rows, source])
                        tracks.xy[rows, target], error[rows, target] = xy, error[rows, source] + miss
        return found()

    def _step(
        self, cv2: Any, before: np.ndarray, after: np.ndarray, xy: Float[Tensor, "n 2"]
    ) -> tuple[Float[Tensor, "n 2"], Float[Tensor, "n"]]:
        """Endpoints in the next frame and the error of the round trip; infinite where OpenCV lost the point."""
        options = {"winSize": (self.window, self.window), "maxLevel": self.levels}
        start = to_continuous_index(xy.cpu()).numpy().astype(np.float32)[:, None]
        end, found, _ = cv2.calcOpticalFlowPyrLK(before, after, start, None, **options)
        back, returned, _ = cv2.calcOpticalFlowPyrLK(after, before, end, None, **options)
        miss = np.linalg.norm(back - start, axis=-1)[:, 0]
        miss[(found[:, 0] == 0) | (returned[:, 0] == 0)] = np.inf
        return from_continuous_index(torch.from_numpy(end[:, 0]).to(xy)), torch.from_numpy(miss).to(xy)
