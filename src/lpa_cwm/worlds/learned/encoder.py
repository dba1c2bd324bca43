"""Descriptions of one frame: a descriptor of every 8 x 8 patch, and a context of the whole frame."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from lpa_cwm.geometry import HW

PATCH = 8
"""Side of the patches in which the target is seen or hidden."""
STRIDE = 4
"""Step between described positions of a frame."""


@dataclass(frozen=True, slots=True)
class Description:
    """A frame as the network sees it, in the role of source and of target."""

    frame: Float[Tensor, "b 3 h w"]
    patches: Float[Tensor, "b i j d"]
    """Unit descriptors of the 8 x 8 patches whose corners lie on multiples of four pixels."""
    context: Float[Tensor, "b i4 j4 c"]
    """What belongs together, on a grid of four pixels; each group of channels has unit length."""
    coarse: Float[Tensor, "b i8 j8 e"]
    """The same, richer, on a grid of eight pixels."""

    @property
    def hw(self) -> HW:
        """Height and width of the frame."""
        return self.frame.shape[-2], self.frame.shape[-1]

    @property
    def aligned(self) -> Float[Tensor, "b p d"]:
        """Descriptors of the patches of the grid, in raster order: the frame in the role of target."""
        return rearrange(self.patches[:, ::2, ::2], "b i j d -> b (i j) d")

    @classmethod
    def join(cls, parts: "Sequence[Description]") -> "Description":
        """Several descriptions as one batch."""
        return cls(*(torch.cat([getattr(part, entry.name) for part in parts]) for entry in fields(cls)))

    def single(self) -> "list[Description]":
        """The descriptions of single frames."""
        parts = (getattr(self, entry.name).split(1) for entry in fields(self))
        return [Description(*one) for one in zip(*parts, strict=True)]

    def repeated(self, times: int) -> "Description":
        """Every frame several times in a row."""
        return Description(*(getattr(self, entry.name).repeat_interleave(times, dim=0) for entry in fields(self)))


class ChannelNorm(nn.LayerNorm):
    """Layer normalization (Ba et al. 2016) over the channels of every pixel."""

    def forward(self, input: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class PatchDescriptor(nn.Module):
    """Descriptor of 8 x 8 patches at every fourth pixel; its receptive field is exactly the patch."""

    def __init__(self, dim: int = 64, width: int = 128) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 48, 4, stride=2)
        self.second = nn.Conv2d(48, width, 3, stride=2)
        self.head = nn.Sequential(
            nn.LayerNorm(width, eps=1e-3), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, dim)
        )

    def forward(self, frame: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b i j d"]:
        hidden = self.second(F.relu(self.first(frame * 4 - 2)))
        return F.normalize(self.head(F.relu(hidden).permute(0, 2, 3, 1)), dim=-1)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions around a ReLU, added to the input (He et al. 2016)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = ChannelNorm(width)
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        return x + self.second(F.relu(self.first(self.norm(x))))


class ContextEncoder(nn.Module):
    """A small U-Net (Ronneberger et al. 2015) from the frame to features on grids of four and of eight pixels."""

    def __init__(self, context: int, coarse: int, groups: int, widths: tuple[int, ...] = (32, 64, 96, 128)) -> None:
        super().__init__()
        self.groups = groups
        self.stem = nn.Conv2d(3, widths[0], 8, stride=4, padding=2)
        self.blocks = nn.ModuleList(
            nn.Sequential(*(ResidualBlock(width) for _ in range(1 if level in (0, 3) else 2)))
            for level, width in enumerate(widths)
        )
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(nn.Conv2d(low, high, 4, stride=2, padding=1) for low, high in pairs)
        self.up = nn.ModuleList(nn.Conv2d(high, low, 1) for low, high in pairs)
        self.merge = nn.ModuleList(ResidualBlock(low) for low, _ in pairs)
        self.context = nn.Conv2d(widths[0], context, 1)
        self.coarse = nn.Conv2d(widths[1], coarse, 1)

    def forward(self, frame: Float[Tensor, "b 3 h w"]) -> tuple[Float[Tensor, "b i4 j4 c"], Float[Tensor, "b i8 j8 e"]]:
        levels = [self.blocks[0](self.stem(frame * 4 - 2))]
        for down, block in zip(self.down, self.blocks[1:], strict=True):
            levels.append(block(F.relu(down(levels[-1]))))
        for level in (2, 1, 0):
            above = F.interpolate(levels[level + 1], levels[level].shape[-2:], mode="bilinear", align_corners=False)
            levels[level] = self.merge[level](levels[level] + self.up[level](above))
        context = rearrange(self.context(levels[0]), "b (g c) i j -> b i j g c", g=self.groups)
        coarse = self.coarse(levels[1]).permute(0, 2, 3, 1)
        return F.normalize(context, dim=-1).flatten(-2), coarse
