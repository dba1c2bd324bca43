"""Any flow or correspondence estimator as a tracker: each target straight from the query's frame.

The flow from the query's frame to the target is read at the pixel that holds the query and added to the query
itself, so the sub-pixel part of the query is kept: flow read at pixel i is the motion of its center i + 0.5, and is
taken for that of the whole pixel. The flow back is read bilinearly at the endpoint.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from lpa_cwm.baselines.start import begun
from lpa_cwm.errors import InputError
from lpa_cwm.geometry import index_of, inside
from lpa_cwm.sampling import read
from lpa_cwm.types import Clip, Queries, Tracks

Flow = Callable[[UInt8[Tensor, "b 3 h w"], UInt8[Tensor, "b 3 h w"]], Float[Tensor, "b 2 h w"]]
"""From the pixels of one batch of frames to those of another: (dx, dy), in pixels."""


@runtime_checkable
class Rule(Protocol):
    """Decides from the two flows of a pair which endpoints are seen."""

    def __call__(
        self,
        forward: Float[Tensor, "b 2 h w"],
        backward: Float[Tensor, "b 2 h w"],
        xy: Float[Tensor, "n 2"],
        endpoint: Float[Tensor, "b n 2"],
    ) -> tuple[Float[Tensor, "b n"], Bool[Tensor, "b n"]]:
        """Strength (0 where nothing speaks against the endpoint, else below) and whether it is seen."""
        ...


@dataclass(frozen=True, slots=True)
class ForwardBackward:
    """Seen if going there and back ends near the start; strength is minus the distance in pixels."""

    limit: float = 6.0
    """Greatest distance from the start, in pixels."""

    def __call__(
        self,
        forward: Float[Tensor, "b 2 h w"],
        backward: Float[Tensor, "b 2 h w"],
        xy: Float[Tensor, "n 2"],
        endpoint: Float[Tensor, "b n 2"],
    ) -> tuple[Float[Tensor, "b n"], Bool[Tensor, "b n"]]:
        """Measure the round trip."""
        miss = (endpoint - xy + read(backward, torch.nan_to_num(endpoint))).norm(dim=-1)
        return -miss, miss <= self.limit


@dataclass(frozen=True, slots=True)
class PairwiseTracker:
    """Direct query-to-target tracking by dense flow; endpoints outside the frame or not finite are never visible."""

    flow: Flow
    rule: Rule = ForwardBackward()
    batch: int = 4
    """Targets whose flow is in memory at once."""
    device: str = "cpu"
    """Where the flow is computed."""

    def track(self, clip: Clip, queries: Queries) -> Tracks:
        """Each target frame on its own; nothing is carried from frame to frame."""
        tracks = begun(clip, queries)
        strength = torch.zeros_like(tracks.xy[..., 0]).where(tracks.visible, torch.nan)
        for source, rows in by_source(queries):
            for first in range(source + 1, len(clip), self.batch):
                targets = torch.arange(first, min(first + self.batch, len(clip)), device=rows.device)
                xy, visible, confidence = self._follow(clip, source, targets, queries.xy[rows])
                at = (rows[:, None], targets)
                tracks.xy[at], tracks.visible[at], strength[at] = xy, visible, confidence
        return Tracks(tracks.xy, tracks.visible, strength)

    def _follow(
        self, clip: Clip, source: int, targets: Int[Tensor, "b"], xy: Float[Tensor, "n 2"]
    ) -> tuple[Float[Tensor, "n b 2"], Bool[Tensor, "n b"], Float[Tensor, "n b"]]:
        """Endpoint, visibility and strength in each target."""
        after = torch.stack([clip[target].to(self.device) for target in targets.tolist()])
        before = clip[source].to(self.device).expand_as(after)
        # Both directions in one call: an estimator may share what it knows of each frame.
        flow = self._dense(torch.cat((before, after)), torch.cat((after, before)))
        # Points are few: they and what is read for them stay where the queries are.
        forward, backward = flow.to(xy.device).chunk(2)
        column, row = index_of(xy, clip.hw).unbind(-1)
        endpoint = xy + rearrange(forward[:, :, row, column], "b d n -> b n d")
        strength, visible = self.rule(forward, backward, xy, endpoint)
        possible = inside(endpoint, clip.hw) & strength.isfinite()
        strength = strength.where(possible, -torch.inf)
        return endpoint.transpose(0, 1), (visible & possible).T, strength.T

    def _dense(self, before: UInt8[Tensor, "b 3 h w"], after: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, "b 2 h w"]:
        flow = self.flow(before, after)
        due = (len(before), 2, *before.shape[-2:])
        if tuple(flow.shape) != due:
            raise InputError(f"The flow estimator returned the shape {tuple(flow.shape)}; {due} was expected.")
        return flow


def by_source(queries: Queries) -> Iterator[tuple[int, Int[Tensor, "k"]]]:
    """Each source frame with the rows of its queries."""
    for source in queries.frame.unique().tolist():
        yield source, (queries.frame == source).nonzero()[:, 0]
