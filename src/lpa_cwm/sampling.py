"""Reading images at points, in patches and in crops; the border rules are stated here."""

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int, UInt8
from PIL import Image
from torch import Tensor

from lpa_cwm.geometry import Crop, to_sampler


def read(image: Float[Tensor, "b c h w"], xy: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n c"]:
    """Bilinear values at points; outside the image the border is repeated."""
    grid = to_sampler(xy, (image.shape[-2], image.shape[-1])).unsqueeze(1)
    values = F.grid_sample(image, grid.to(image.dtype), padding_mode="border", align_corners=False)
    return rearrange(values, "b c 1 n -> b n c")


def crop(
    image: Float[Tensor, "b c h w"], xy: Float[Tensor, "b 2"], extent: float, size: int
) -> Float[Tensor, "b c size size"]:
    """A `size` x `size` grid of bilinear samples whose outer samples lie `extent` apart, centered on each point."""
    values = read(image, crop_points(xy, extent, size))
    return rearrange(values, "b (i j) c -> b c i j", i=size)


def crop_points(xy: Float[Tensor, "b 2"], extent: float, size: int) -> Float[Tensor, "b k 2"]:
    """The points that `crop` samples, in raster order."""
    offsets = torch.linspace(-extent / 2, extent / 2, size, dtype=xy.dtype, device=xy.device)
    square = torch.stack(torch.meshgrid(offsets, offsets, indexing="xy"), dim=-1)
    return rearrange(xy[:, None, None] + square, "b i j d -> b (i j) d")


def gather_patches(image: Float[Tensor, "b c h w"], patches: Int[Tensor, "b n"], side: int) -> Float[Tensor, "b n c s"]:
    """Pixels of the patches with the given raster numbers; the image is cut into squares of `side` pixels."""
    pixels = rearrange(image, "b c (i u) (j v) -> b (i j) c (u v)", u=side, v=side)
    return pixels.gather(1, patches[:, :, None, None].expand(-1, -1, *pixels.shape[2:]))


def unit_range(frame: UInt8[Tensor, "*b 3 h w"]) -> Float[Tensor, "*b 3 h w"]:
    """uint8 to RGB in [0, 1]."""
    return frame.float() / 255


def resize_frame(frame: UInt8[Tensor, "3 h w"], hw: tuple[int, int]) -> UInt8[Tensor, "3 h2 w2"]:
    """Antialiased (Lanczos) resize, as TAP-Vid's evaluators do it; the aspect is not kept."""
    if tuple(frame.shape[-2:]) == hw:
        return frame
    picture = Image.fromarray(rearrange(frame, "c h w -> h w c").cpu().numpy())
    resized = np.asarray(picture.resize((hw[1], hw[0]), Image.Resampling.LANCZOS))
    return rearrange(torch.from_numpy(resized.copy()), "h w c -> c h w").to(frame.device)


def crop_resize(frame: UInt8[Tensor, "3 h w"], view: Crop) -> Float[Tensor, "3 s s"]:
    """The part of a frame inside a crop, at the crop's size, RGB in [0, 1]."""
    part = frame[:, view.y : view.y + view.height, view.x : view.x + view.width]
    return unit_range(resize_frame(part, (view.size, view.size)))
