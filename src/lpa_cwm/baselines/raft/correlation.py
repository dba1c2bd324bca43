"""All-pairs correlation of two feature maps and the look-up of windows in its pyramid."""

from typing import Literal

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

Order = Literal["x first", "y first"]
"""Which index of a window comes first in the channels."""


class Pyramid:
    """Similarity of every source cell to every target cell, at four target resolutions."""

    def __init__(
        self, source: Float[Tensor, "b c h w"], target: Float[Tensor, "b c h w"], radius: int, levels: int = 4
    ) -> None:
        volume = einsum(source, target, "b c h w, b c i j -> b h w i j") / source.shape[1] ** 0.5
        level = rearrange(volume, "b h w i j -> (b h w) 1 i j")
        self.radius = radius
        # A window that misses the map altogether still has to lie in the padded one, and read zeros.
        self.margin = 2 * radius + 2
        self.levels = [F.pad(level[:, 0], [self.margin] * 4)]
        for _ in range(levels - 1):
            level = F.avg_pool2d(level, 2)
            self.levels.append(F.pad(level[:, 0], [self.margin] * 4))

    def look_up(self, cell: Float[Tensor, "b 2 h w"], order: Order) -> Float[Tensor, "b k h w"]:
        """Bilinear windows around a (column, row) of the target for each source cell, finest level first."""
        batch, _, height, _ = cell.shape
        centre = rearrange(cell, "b d h w -> (b h w) d")
        windows = torch.stack([self._window(level, centre / 2**number) for number, level in enumerate(self.levels)])
        axes = "(l x y)" if order == "x first" else "(l y x)"
        return rearrange(windows, f"l (b h w) x y -> b {axes} h w", b=batch, h=height)

    def _window(self, level: Float[Tensor, "q i j"], centre: Float[Tensor, "q 2"]) -> Float[Tensor, "q x y"]:
        """All points of a window share their fractional part: whole cells are gathered once and blended."""
        extent = 2 * self.radius + 1
        size = torch.tensor([level.shape[2], level.shape[1]], device=level.device)
        corner = centre.floor()
        part = (centre - corner)[:, :, None, None]
        first = (corner.long() - self.radius + self.margin).clamp(min=torch.zeros_like(size), max=size - extent - 1)
        steps = torch.arange(extent + 1, device=level.device)
        column, row = (first[:, :, None] + steps).unbind(1)
        flat = row[:, None, :] * level.shape[2] + column[:, :, None]
        cells = level.flatten(1).gather(1, flat.flatten(1)).unflatten(1, (extent + 1, extent + 1))
        along_x = torch.lerp(cells[:, :-1], cells[:, 1:], part[:, 0])
        return torch.lerp(along_x[:, :, :-1], along_x[:, :, 1:], part[:, 1])
