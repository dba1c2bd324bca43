"""SMURF's own occlusion: what the flow back never lands on is hidden ("wang" range map)."""

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from lpa_cwm.baselines.raft.network import cells
from lpa_cwm.geometry import index_of


@dataclass(frozen=True, slots=True)
class RangeMap:
    """A `pairwise.Rule`: seen unless the source pixel counts as occluded; strength is minus the occlusion."""

    limit: float = 0.5
    """Occlusion from which a point is hidden."""

    def __call__(
        self,
        forward: Float[Tensor, "b 2 h w"],
        backward: Float[Tensor, "b 2 h w"],
        xy: Float[Tensor, "n 2"],
        endpoint: Float[Tensor, "b n 2"],
    ) -> tuple[Float[Tensor, "b n"], Bool[Tensor, "b n"]]:
        """Look the occlusion up at the query's pixel."""
        height, width = backward.shape[-2:]
        column, row = index_of(xy, (height, width)).unbind(-1)
        occlusion = 1 - landings(backward).clamp(0, 1)[:, row, column]
        return -occlusion, occlusion < self.limit


def landings(flow: Float[Tensor, "b 2 h w"]) -> Float[Tensor, "b h w"]:
    """How many pixels the flow brings to each pixel, each shared bilinearly between the four centers around it."""
    batch, _, height, width = flow.shape
    index = rearrange(cells(flow) + flow, "b d h w -> d b (h w)")
    # What is not finite or far away goes just outside, where nothing is counted.
    index = torch.nan_to_num(index, nan=-2.0, posinf=-2.0, neginf=-2.0).clamp(-2, max(height, width) + 1)
    column, row = index.floor().long()
    part = index - index.floor()
    counts = flow.new_zeros(batch, height * width)
    for right in (0, 1):
        for below in (0, 1):
            x, y = column + right, row + below
            share = (part[0] if right else 1 - part[0]) * (part[1] if below else 1 - part[1])
            inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
            place = y.clamp(0, height - 1) * width + x.clamp(0, width - 1)
            counts.scatter_add_(1, place, share * inside)
    return rearrange(counts, "b (h w) -> b h w", h=height)
