"""Tracking over several frame gaps, after MFT (Neoral et al. 2024, arXiv:2305.12998).

A target frame t is reached from the frame of the query and from t-1, t-2, t-4, ...; each path continues the track
that was chosen in its source frame. The chosen path has the best similarity to the patch at the query, minus a
penalty for the forward-backward error summed along the path. That error also decides visibility.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lpa_cwm.baselines.pairwise import Flow, both_flows, by_source, keep_partial, working_size
from lpa_cwm.geometry import inside, pixel_centers, rescale
from lpa_cwm.sampling import read, unit_range
from lpa_cwm.tracker import validate_queries
from lpa_cwm.types import Clip, Grid, Queries, Tracks


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
        """Which source frames a point may be reached from: a gap of the list, or the frame of its own query."""
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
            motion = read(forward, torch.nan_to_num(points))
            back = read(backward, torch.nan_to_num(points + motion))
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
        values = read(image, (xy[:, None] + offsets).flatten(0, 1)[None])
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
