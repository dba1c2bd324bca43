"""The squares in which the target is seen or hidden, and compared."""

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from lpa_cwm.geometry import pixel_centers

PATCH = 8
"""Side in pixels."""


def patch_centers(hw: tuple[int, int], device: torch.device | None = None) -> Float[Tensor, "p 2"]:
    """Centers of the patches in raster order, in pixels."""
    grid = pixel_centers((hw[0] // PATCH, hw[1] // PATCH), device)
    return rearrange(grid * PATCH, "i j d -> (i j) d")


def patch_grid(side: int = PATCH, device: torch.device | None = None) -> Float[Tensor, "s 2"]:
    """Pixels of a square about its center, in raster order."""
    return rearrange(pixel_centers((side, side), device) - side / 2, "i j d -> (i j) d")


def pixels_in(patches: Int[Tensor, "b n"], image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b n 3 s"]:
    """The pixels of some patches."""
    pixels = rearrange(image, "b c (i u) (j v) -> b (i j) c (u v)", u=PATCH, v=PATCH)
    return pixels.gather(1, patches[:, :, None, None].expand(-1, -1, 3, PATCH**2))
