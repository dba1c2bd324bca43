"""All-pairs correlation of two feature maps and the look-up of windows in its pyramid."""

from typing import Literal

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from lpa_cwm.geometry import center_of, to_sampler

Order = Literal["x first", "y first"]
"""Which index of a window comes first in the channels."""


class Pyramid:
    """Similarity of every source cell to every target cell, at four target resolutions."""

    def __init__(
        self, source: Float[Tensor, "b c h w"], target: Float[Tensor, "b c h w"], radius: int, order: Order
    ) -> None:
        volume = einsum(source, target, "b c h w, b c i j -> b h w i j") / source.shape[1] ** 0.5
        self.levels = [rearrange(volume, "b h w i j -> (b h w) 1 i j")]
        while len(self.levels) < 4:
            self.levels.append(F.avg_pool2d(self.levels[-1], 2))
        span = torch.arange(-radius, radius + 1, device=source.device)
        indexing = "ij" if order == "x first" else "xy"
        self.window = torch.stack(torch.meshgrid(span, span, indexing=indexing), dim=-1)

    def look_up(self, cell: Float[Tensor, "b 2 h w"]) -> Float[Tensor, "b k h w"]:
        """Bilinear windows around a (column, row) of the target for each source cell; zero outside; finest first."""
        batch, _, height, _ = cell.shape
        center = rearrange(cell, "b d h w -> (b h w) 1 1 d")
        windows = [self._window(level, center / 2**number) for number, level in enumerate(self.levels)]
        return rearrange(torch.cat(windows, dim=1), "(b h w) k -> b k h w", b=batch, h=height)

    def _window(self, level: Float[Tensor, "q 1 i j"], center: Float[Tensor, "q 1 1 2"]) -> Float[Tensor, "q k"]:
        hw = (level.shape[2], level.shape[3])
        # Both parts are small: only their sum has a row for each cell and point of the window.
        points = to_sampler(center, hw) + (to_sampler(center_of(self.window), hw) + 1)
        return F.grid_sample(level, points, align_corners=False).flatten(1)
