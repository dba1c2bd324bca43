"""Mipmapped textures, and procedural skies, floors and walls in linear RGB."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Float32, Int, UInt8
from PIL import Image
from torch import Tensor

from lpa_cwm.synth.images import colored, grid, noise

Wrap = Literal["none", "across", "both"]
Color = Float32[np.ndarray, "3 n"]
Picture = Float32[np.ndarray, "h w 3"]

_STEPS = np.arange(4097) / 4096
_ENCODED = np.where(_STEPS <= 0.0031308, 12.92 * _STEPS, 1.055 * _STEPS ** (1 / 2.4) - 0.055)
ENCODED = np.round(255 * _ENCODED).astype(np.uint8)
_LEVELS = np.arange(256) / 255
LINEAR = np.where(_LEVELS <= 0.04045, _LEVELS / 12.92, ((_LEVELS + 0.055) / 1.055) ** 2.4).astype(np.float32)


def to_linear(picture: UInt8[np.ndarray, "*hw 3"]) -> Float[np.ndarray, "*hw 3"]:
    """sRGB bytes to linear RGB."""
    return LINEAR[picture]


def to_srgb(light: Float[np.ndarray, "*shape"]) -> UInt8[np.ndarray, "*shape"]:
    """Linear RGB to sRGB bytes, clipped at white."""
    return ENCODED.take((np.clip(light, 0, 1) * np.float32(4096) + np.float32(0.5)).astype(np.int32))


def padded(image: Float[Tensor, "1 c h w"], wrap: Wrap) -> Float[Tensor, "1 c h2 w2"]:
    """Pad by one pixel on every side for interpolation at the border."""
    image = F.pad(image, (1, 1, 0, 0), mode="replicate" if wrap == "none" else "circular")
    return F.pad(image, (0, 0, 1, 1), mode="circular" if wrap == "both" else "replicate")


@dataclass(frozen=True)
class Texture:
    """Mipmapped texture (Williams 1983) with pages of equal size; all levels of a page lie in one atlas."""

    atlas: Float[Tensor, "1 c h w"]
    corner: Int[np.ndarray, "levels 2"]
    """(x, y) of each level in the first page."""
    size: Int[np.ndarray, "levels 2"]
    """(width, height) of each level."""
    pages: int = 1

    @classmethod
    def of(cls, picture: Float32[np.ndarray, "h w c"], wrap: Wrap = "none") -> "Texture":
        """Build the mipmap of a linear image; sides are halved while both are even and larger than four pixels."""
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
        """Stack textures of equal size as pages."""
        first = textures[0]
        return cls(torch.cat([one.atlas for one in textures], dim=2), first.corner, first.size, len(textures))

    @property
    def texels(self) -> float:
        """Square root of the number of texels of the full image."""
        return float(np.sqrt(self.size[0].prod()))

    def level(self, level: int) -> Float32[np.ndarray, "h w c"]:
        """One level of the mipmap."""
        (x, y), (width, height) = self.corner[level], self.size[level]
        return rearrange(self.atlas[0, :, y : y + height, x : x + width], "c h w -> h w c").numpy()

    def read(
        self, uv: Float32[np.ndarray, "2 n"], level: Float32[np.ndarray, "n"], page: Int[np.ndarray, "n"] | int = 0
    ) -> Float32[np.ndarray, "c n"]:
        """Trilinear colors at points of the unit square, v down; `level` is log2 of texels per sample."""
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
        """Scale and offset from each level to sampling coordinates of the atlas."""
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


SIDE = 512


def speckled(rng: np.random.Generator, rough: float) -> Float32[np.ndarray, "s s"]:
    """Coarse patches with fine grain: gravel, sand or lawn."""
    return (0.35 * noise(rng, SIDE, 1.6) + 0.65 * noise(rng, SIDE, rough)).astype(np.float32)


def asphalt(rng: np.random.Generator) -> Picture:
    """Gray, brown, sandy or green ground."""
    base = np.array([(0.23, 0.22, 0.21), (0.32, 0.24, 0.16), (0.42, 0.35, 0.25), (0.12, 0.18, 0.05)])
    color = base[rng.integers(len(base))] * rng.uniform(0.8, 1.2, 3)
    light = 0.35 + 1.3 * speckled(rng, rng.uniform(0.7, 1.1))
    hue = 1 + 0.25 * (noise(rng, SIDE, 1.2)[..., None] - 0.5) * rng.normal(size=3)
    return (color * light[..., None] * hue).astype(np.float32)


def tiling(rng: np.random.Generator, rows: int, columns: int, shift: float) -> Picture:
    """Planks, bricks or tiles with dark joints; every other row is shifted by `shift` of a piece."""
    x, y = grid(SIDE)
    row = np.floor(y * rows)
    # An even number of rows keeps the image periodic.
    along = (x * columns + shift * (row % 2)) % columns
    piece = (row * columns + np.floor(along)).astype(np.int64)
    gap = rng.uniform(0.003, 0.012)
    away = np.minimum(np.minimum(along % 1, 1 - along % 1) / columns, np.minimum(y * rows % 1, 1 - y * rows % 1) / rows)
    joint = np.clip((away * SIDE - gap * SIDE / 2 + 0.5), 0, 1)[..., None]
    tone = rng.uniform(0.65, 1.2, rows * columns)[piece][..., None]
    base = np.array([(0.42, 0.24, 0.12), (0.5, 0.45, 0.4), (0.38, 0.13, 0.08), (0.25, 0.28, 0.32)])
    color = base[rng.integers(len(base))] * rng.uniform(0.8, 1.2, 3)
    grain = 0.7 + 0.6 * (0.5 * noise(rng, SIDE, 0.8) + 0.5 * streaks(rng))[..., None]
    return (color * tone * grain * (0.3 + 0.7 * joint)).astype(np.float32)


def streaks(rng: np.random.Generator) -> Float32[np.ndarray, "s s"]:
    """Noise stretched along the rows, like wood grain."""
    tall = np.asarray(Image.fromarray(noise(rng, SIDE, 0.9)).resize((SIDE * 8, SIDE), Image.Resampling.BILINEAR))
    # The first and last columns do not match; a joint of the planks hides it.
    return tall[:, :SIDE]


def planks(rng: np.random.Generator) -> Picture:
    """A wooden floor."""
    return tiling(rng, 2 * int(rng.integers(4, 8)), int(rng.integers(1, 3)), 0.5)


def bricks(rng: np.random.Generator) -> Picture:
    """Bricks in a running bond."""
    return tiling(rng, 2 * int(rng.integers(4, 7)), int(rng.integers(3, 6)), 0.5)


def tiles(rng: np.random.Generator) -> Picture:
    """Square tiles."""
    count = 2 * int(rng.integers(2, 5))
    return tiling(rng, count, count, 0.0)


def carpet(rng: np.random.Generator) -> Picture:
    """A carpet with a few colors."""
    color = colored(rng, noise(rng, SIDE, rng.uniform(1.0, 1.6)))
    gray = color.mean(-1, keepdims=True)
    calm = 0.15 + 0.5 * (0.5 * gray + 0.5 * color) ** 2
    return (calm * (0.6 + 0.8 * noise(rng, SIDE, 0.7))[..., None]).astype(np.float32)


FLOORS: tuple[Callable[[np.random.Generator], Picture], ...] = (planks, planks, bricks, tiles, carpet)


def relief(rng: np.random.Generator) -> Float32[np.ndarray, "s s 1"]:
    """Periodic gray detail of mean one that multiplies the ground color."""
    grain = speckled(rng, rng.uniform(0.8, 1.2))
    strength = rng.uniform(0.7, 1.5)
    field = np.maximum(1 + strength * (grain - grain.mean()), 0.05)
    return (field / field.mean())[..., None].astype(np.float32)


def mirrored(picture: Picture) -> Picture:
    """An image and its reflections, which tile without seams."""
    wide = np.concatenate((picture, picture[:, ::-1]), axis=1)
    return np.concatenate((wide, wide[::-1]), axis=0)


def sky(rng: np.random.Generator) -> Picture:
    """A panorama [512, 1024] with clouds, sun, hills and plain ground."""
    height = np.linspace(np.pi / 2, -np.pi / 2, 512, dtype=np.float32)[:, None]
    blue = np.array([0.16, 0.33, 0.7]) * rng.uniform(0.6, 1.2)
    haze = np.array([0.75, 0.78, 0.8]) * rng.uniform(0.7, 1.1) + rng.uniform(-0.1, 0.15) * np.array([1, 0, -1])
    clear = np.exp(-4 * np.maximum(height, 0))[..., None] * (haze - blue) + blue
    cloud = np.tile(noise(rng, 512, 1.6), (1, 2))
    cover = np.clip(3 * (cloud - rng.uniform(0.4, 0.8)), 0, 1)[..., None]
    light = clear * (1 - cover) + cover * (0.55 + 0.5 * cloud[..., None])
    light = light + sun_glow(rng, height)
    ground = asphalt(rng)
    land = np.tile(ground, (1, 2, 1)).mean((0, 1)) * (0.9 + 0.2 * np.tile(noise(rng, 512, 1.8), (1, 2)))[..., None]
    light = np.where(height[..., None] < 0, land + 0.5 * np.exp(20 * np.minimum(height, 0))[..., None] * haze, light)
    ridge = hills(rng)
    slope = np.array([0.16, 0.2, 0.16]) * rng.uniform(0.5, 1.2) + 0.25 * haze
    wood = slope * (0.7 + 0.6 * np.tile(noise(rng, 512, 0.8), (1, 2)))[..., None]
    return np.where(((height >= 0) & (height < ridge))[..., None], wood, light).astype(np.float32)


def sun_glow(rng: np.random.Generator, height: Float32[np.ndarray, "h 1"]) -> Float[np.ndarray, "h w 3"]:
    """Light around the sun."""
    angle = np.linspace(-np.pi, np.pi, 1024, dtype=np.float32)[None]
    stand, place = rng.uniform(0.5, 1.2), rng.uniform(-np.pi, np.pi)
    near = np.sin(height) * np.sin(stand) + np.cos(height) * np.cos(stand) * np.cos(angle - place)
    return (np.exp(400 * (near - 1)) * 3 + 0.35 * np.exp(12 * (near - 1)))[..., None] * np.array([1, 0.93, 0.8])


def hills(rng: np.random.Generator) -> Float[np.ndarray, "w"]:
    """Height of the horizon in radians, periodic."""
    angle = np.linspace(0, 2 * np.pi, 1024, endpoint=False)
    waves = [rng.normal() / turn * np.cos(turn * angle + rng.uniform(0, 2 * np.pi)) for turn in range(1, 40)]
    return 0.06 * np.maximum(np.sum(waves, axis=0) + rng.uniform(-0.5, 1.5), 0)


def plaster(rng: np.random.Generator) -> Picture:
    """A painted wall [256, 512] with a skirting board."""
    paint = rng.uniform(0.35, 0.85) + rng.normal(0, 0.07, 3)
    tone = np.tile(noise(rng, 256, 1.2), (1, 2))[..., None]
    surface = np.clip(paint * (0.85 + 0.3 * tone), 0, 1).astype(np.float32)
    surface[-12:] *= rng.uniform(0.2, 0.6)
    return surface


def with_posters(rng: np.random.Generator, surface: Picture, posters: list[Image.Image]) -> Picture:
    """The wall with framed posters."""
    surface = surface.copy()
    for place, poster in enumerate(posters):
        width, height = (int(side) for side in rng.uniform((70, 60), (150, 130)))
        x = int((place + rng.uniform(0.1, 0.9)) * (512 - width) / len(posters))
        y = int(rng.uniform(40, 230 - height))
        surface[y - 3 : y + height + 3, max(x - 3, 0) : x + width + 3] = rng.uniform(0, 0.3)
        surface[y : y + height, x : x + width] = to_linear(np.asarray(poster.resize((width, height))))
    return surface
