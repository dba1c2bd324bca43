"""Images on surfaces, read through a pyramid of ever smaller copies, so that distant detail does not shimmer."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Float32, Int, UInt8
from torch import Tensor

Wrap = Literal["none", "across", "both"]
Color = Float32[np.ndarray, "3 n"]
Picture = Float32[np.ndarray, "h w 3"]

_STEPS = np.arange(4097) / 4096
_ENCODED = np.where(_STEPS <= 0.0031308, 12.92 * _STEPS, 1.055 * _STEPS ** (1 / 2.4) - 0.055)
ENCODED = np.round(255 * _ENCODED).astype(np.uint8)
_LEVELS = np.arange(256) / 255
LINEAR = np.where(_LEVELS <= 0.04045, _LEVELS / 12.92, ((_LEVELS + 0.055) / 1.055) ** 2.4).astype(np.float32)


def linear(picture: UInt8[np.ndarray, "*hw 3"]) -> Float[np.ndarray, "*hw 3"]:
    """sRGB bytes to light, in which averages are meaningful."""
    return LINEAR[picture]


def encoded(light: Float[np.ndarray, "*shape"]) -> UInt8[np.ndarray, "*shape"]:
    """Light to sRGB bytes; what is brighter than white is white."""
    return ENCODED.take((np.clip(light, 0, 1) * np.float32(4096) + np.float32(0.5)).astype(np.int32))


def padded(image: Float[Tensor, "1 c h w"], wrap: Wrap) -> Float[Tensor, "1 c h2 w2"]:
    """One more pixel on every side, so that interpolation at the border sees what lies beyond it."""
    image = F.pad(image, (1, 1, 0, 0), mode="replicate" if wrap == "none" else "circular")
    return F.pad(image, (0, 0, 1, 1), mode="circular" if wrap == "both" else "replicate")


@dataclass(frozen=True)
class Texture:
    """Pages of equal size, each with its pyramid: the full image, and beside it a column of the smaller ones."""

    atlas: Float[Tensor, "1 c h w"]
    corner: Int[np.ndarray, "levels 2"]
    """(x, y) in the first page's part of the atlas where each level begins."""
    size: Int[np.ndarray, "levels 2"]
    """(width, height) of each level."""
    pages: int = 1

    @classmethod
    def of(cls, picture: Float32[np.ndarray, "h w c"], wrap: Wrap = "none") -> "Texture":
        """The pyramid of a linear picture; sides are halved while both are even and more than four pixels."""
        level = rearrange(torch.from_numpy(picture), "h w c -> 1 c h w").contiguous()
        levels = [level]
        while min(level.shape[-2:]) > 4 and not any(side % 2 for side in level.shape[-2:]):
            level = F.avg_pool2d(level, 2)
            levels.append(level)
        size = np.array([(level.shape[-1], level.shape[-2]) for level in levels])
        corner = np.ones_like(size)
        corner[1:, 0] = size[0, 0] + 3
        corner[2:, 1] += np.cumsum(size[1:-1, 1] + 2)
        width, height = (corner + size).max(0) + 1
        atlas = torch.zeros(1, picture.shape[-1], int(height), int(width))
        for level, (x, y) in zip(levels, corner, strict=True):
            whole = padded(level, wrap)
            atlas[..., y - 1 : y - 1 + whole.shape[-2], x - 1 : x - 1 + whole.shape[-1]] = whole
        return cls(atlas, corner, size)

    @classmethod
    def stack(cls, textures: Sequence["Texture"]) -> "Texture":
        """Textures of equal size as the pages of one."""
        first = textures[0]
        return cls(torch.cat([one.atlas for one in textures], dim=2), first.corner, first.size, len(textures))

    @property
    def texels(self) -> float:
        """Side of a square with as many texels as the full image."""
        return float(np.sqrt(self.size[0].prod()))

    def level(self, level: int) -> Float32[np.ndarray, "h w c"]:
        """One of the smaller copies."""
        (x, y), (width, height) = self.corner[level], self.size[level]
        return rearrange(self.atlas[0, :, y : y + height, x : x + width], "c h w -> h w c").numpy()

    def read(
        self, uv: Float32[np.ndarray, "2 n"], level: Float32[np.ndarray, "n"], page: Int[np.ndarray, "n"] | int = 0
    ) -> Float32[np.ndarray, "c n"]:
        """Colors at points of the unit square, the origin at its upper left; `level` is log2 of texels per sample."""
        level = np.clip(level, 0, len(self.size) - 1)
        fine = level.astype(np.int32)
        share = level - fine.astype(np.float32)
        color = self._read_level(uv, fine, page)
        if share.any():
            coarse = self._read_level(uv, np.minimum(fine + 1, len(self.size) - 1), page)
            color += share * (coarse - color)
        return color

    @cached_property
    def _layout(self) -> Float32[np.ndarray, "4 levels"]:
        """Scale and shift, along x and y, from points of each level to those of the first page, as sampled."""
        whole = np.array([self.atlas.shape[-1], self.atlas.shape[-2]])
        return np.concatenate((2 * self.size / whole, 2 * self.corner / whole - 1), axis=1).T.astype(
            np.float32, order="C"
        )

    def _read_level(
        self, uv: Float32[np.ndarray, "2 n"], level: Int[np.ndarray, "n"], page: Int[np.ndarray, "n"] | int
    ) -> Float32[np.ndarray, "c n"]:
        layout = self._layout.take(level, axis=1)
        grid = uv * layout[:2] + layout[2:]
        if self.pages > 1:
            grid[1] += np.float32(2 / self.pages) * np.asarray(page, dtype=np.float32)
        return F.grid_sample(self.atlas, torch.from_numpy(grid).T[None, None], align_corners=False)[0, :, 0].numpy()
