"""Every change of coordinates, and reading images at points; the only module that knows where a pixel's center is.

A point `xy` is (x, y) in raster pixels of its own image: (0, 0) is the image's corner and pixel i has its center at
i + 0.5. Resizing an image then multiplies its points by the ratio of sizes, and nothing else.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Float64, Int, UInt8
from PIL import Image
from torch import Tensor

HW = tuple[int, int]
HALF_PIXEL = 0.5
"""From the edge of a pixel to its center."""


@lru_cache(maxsize=1024)
def constant(
    values: tuple[float | tuple[float, ...], ...], dtype: torch.dtype, device: torch.device | None = None
) -> Tensor:
    """A small tensor of numbers, made once per device: copying it to a GPU makes the host wait. Never write to it."""
    # It can outlive inference mode, in which it may be made first.
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)


def center_of(index: Int[Tensor, "*b 2"]) -> Float[Tensor, "*b 2"]:
    """The point in the middle of a pixel given by its (column, row)."""
    return index.to(torch.get_default_dtype()) + 0.5


def index_of(xy: Float[Tensor, "*b 2"], hw: HW) -> Int[Tensor, "*b 2"]:
    """(column, row) of the pixel that holds the point; points outside are moved to the nearest pixel."""
    limit = constant((hw[1] - 1, hw[0] - 1), torch.long, xy.device)
    return xy.floor().long().clamp(min=torch.zeros_like(limit), max=limit)


def to_continuous_index(xy: Float[Tensor, "*b 2"]) -> Float[Tensor, "*b 2"]:
    """Coordinates in which pixel i has its center at i, as in matplotlib and OpenCV."""
    return xy - 0.5


def from_continuous_index(xy: Float[Tensor, "*b 2"]) -> Float[Tensor, "*b 2"]:
    """The inverse of `to_continuous_index`."""
    return xy + 0.5


def axis_centers(first: int, last: int) -> Float64[np.ndarray, "k"]:
    """Centers of the pixels `first` to `last - 1` along one axis, for numpy."""
    return np.arange(first, last) + 0.5


def center_of_flat(flat: Int[Tensor, "*b"], width: int) -> Float[Tensor, "*b 2"]:
    """The center of a pixel given by its raster position."""
    return center_of(torch.stack((flat % width, flat // width), dim=-1))


def pixel_centers(hw: HW, device: torch.device | None = None) -> Float[Tensor, "h w 2"]:
    """The center of every pixel."""
    rows = torch.arange(hw[0], device=device)
    columns = torch.arange(hw[1], device=device)
    return center_of(torch.stack(torch.meshgrid(columns, rows, indexing="xy"), dim=-1))


def centered_grid(side: int, device: torch.device | None = None) -> Float[Tensor, "s 2"]:
    """Pixel centers of a square, relative to the square's center, in raster order."""
    return rearrange(pixel_centers((side, side), device) - side / 2, "i j d -> (i j) d")


def patch_centers(hw: HW, patch: int, device: torch.device | None = None) -> Float[Tensor, "p 2"]:
    """Centers of the patches in raster order, in pixels."""
    grid = pixel_centers((hw[0] // patch, hw[1] // patch), device)
    return rearrange(grid * patch, "i j d -> (i j) d")


def rescale(xy: Float[Tensor, "*b 2"], source: HW, target: HW) -> Float[Tensor, "*b 2"]:
    """The same point after its image was resized from `source` to `target`."""
    ratio = constant((target[1] / source[1], target[0] / source[0]), xy.dtype, xy.device)
    return xy * ratio


def to_sampler(xy: Float[Tensor, "*b 2"], hw: HW) -> Float[Tensor, "*b 2"]:
    """Coordinates for `grid_sample(align_corners=False)`, which also has pixel centers at the half."""
    size = constant((hw[1], hw[0]), xy.dtype, xy.device)
    return 2 * xy / size - 1


def from_sampler(xy: Float[Tensor, "*b 2"], hw: HW) -> Float[Tensor, "*b 2"]:
    """The inverse of `to_sampler`."""
    size = constant((hw[1], hw[0]), xy.dtype, xy.device)
    return (xy + 1) / 2 * size


def patch_of(xy: Float[Tensor, "*b 2"], hw: HW, patch: int) -> Int[Tensor, "*b 2"]:
    """(column, row) of the patch that holds the point."""
    return index_of(xy, hw) // patch


def inside(xy: Float[Tensor, "*b 2"], hw: HW) -> Tensor:
    """Whether the point lies in the image; NaN does not."""
    return (xy >= 0).all(-1) & (xy[..., 0] < hw[1]) & (xy[..., 1] < hw[0])


@dataclass(frozen=True, slots=True)
class Crop:
    """A rectangle of a frame, in whole pixels, that is shown resized to a square of `size` pixels."""

    x: int
    y: int
    width: int
    height: int
    size: int

    @classmethod
    def full(cls, hw: HW, size: int) -> "Crop":
        """The whole frame; its aspect is not kept."""
        return cls(0, 0, hw[1], hw[0], size)

    @classmethod
    def around(cls, xy: Float[Tensor, "2"], side: int, hw: HW, size: int) -> "Crop":
        """A square centered on a point, shifted (never padded) to stay inside the frame."""
        column, row = index_of(xy, hw).tolist()
        x = min(max(column - side // 2, 0), hw[1] - side)
        y = min(max(row - side // 2, 0), hw[0] - side)
        return cls(x, y, side, side, size)

    def to_crop(self, xy: Float[Tensor, "*b 2"]) -> Float[Tensor, "*b 2"]:
        """From the frame's pixels to the crop's."""
        corner = constant((self.x, self.y), xy.dtype, xy.device)
        return rescale(xy - corner, (self.height, self.width), (self.size, self.size))

    def to_frame(self, xy: Float[Tensor, "*b 2"]) -> Float[Tensor, "*b 2"]:
        """From the crop's pixels to the frame's."""
        corner = constant((self.x, self.y), xy.dtype, xy.device)
        return rescale(xy, (self.size, self.size), (self.height, self.width)) + corner


def sample_bilinear(image: Float[Tensor, "b c h w"], xy: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n c"]:
    """Bilinear values at points; outside the image the border is repeated."""
    grid = to_sampler(xy, (image.shape[-2], image.shape[-1])).unsqueeze(1)
    values = F.grid_sample(image, grid.to(image.dtype), padding_mode="border", align_corners=False)
    return rearrange(values, "b c 1 n -> b n c")


def sample_pixels(frame: UInt8[Tensor, "c h w"], xy: Float[Tensor, "*b 2"]) -> Float[Tensor, "*b c"]:
    """Bilinear colors in [0, 1] at points of a frame in bytes, of which only their pixels are read.

    Outside the frame the border is repeated.
    """
    height, width = frame.shape[-2:]
    place = to_continuous_index(xy)
    corner = place.floor()
    share = place - corner
    column, row = corner.long().unbind(-1)
    flat = frame.flatten(1)
    value = torch.zeros(())
    for dx, dy in ((0, 0), (1, 0), (0, 1), (1, 1)):
        index = (row + dy).clamp(0, height - 1) * width + (column + dx).clamp(0, width - 1)
        weight = (share[..., 0] if dx else 1 - share[..., 0]) * (share[..., 1] if dy else 1 - share[..., 1])
        value = value + flat[:, index.to(flat.device)].to(weight) * weight
    return value.movedim(0, -1) / 255


def sample_crop(
    image: Float[Tensor, "b c h w"], xy: Float[Tensor, "b 2"], extent: float, size: int
) -> Float[Tensor, "b c size size"]:
    """A `size` x `size` grid of bilinear samples whose outer samples lie `extent` apart, centered on each point."""
    values = sample_bilinear(image, crop_points(xy, extent, size))
    return rearrange(values, "b (i j) c -> b c i j", i=size)


def crop_points(xy: Float[Tensor, "b 2"], extent: float, size: int) -> Float[Tensor, "b k 2"]:
    """The points that `crop` samples, in raster order."""
    offsets = torch.linspace(-extent / 2, extent / 2, size, dtype=xy.dtype, device=xy.device)
    square = torch.stack(torch.meshgrid(offsets, offsets, indexing="xy"), dim=-1)
    return rearrange(xy[:, None, None] + square, "b i j d -> b (i j) d")


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


def resample_frame(frame: UInt8[Tensor, "3 h w"], hw: HW) -> UInt8[Tensor, "3 h2 w2"]:
    """Antialiased bicubic resize; several times as fast as `resize_frame`."""
    return F.interpolate(frame[None], hw, mode="bicubic", align_corners=False, antialias=True)[0]


def crop_resize(frame: UInt8[Tensor, "3 h w"], view: Crop) -> Float[Tensor, "3 s s"]:
    """The part of a frame inside a crop, at the crop's size, RGB in [0, 1]."""
    part = frame[:, view.y : view.y + view.height, view.x : view.x + view.width]
    return unit_range(resize_frame(part, (view.size, view.size)))
