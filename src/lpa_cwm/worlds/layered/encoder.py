"""What belongs together in the source: a small pyramid of convolutions that describes places at two resolutions."""

from itertools import pairwise
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

COARSE_STRIDE = 4
FINE_STRIDE = 2


Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def silent(layer: Layer) -> Layer:
    """A layer that begins by answering zero, so that what it corrects begins uncorrected."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


class Residual(nn.Module):
    """Two 3x3 convolutions beside the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = silent(nn.Conv2d(width, width, 3, padding=1))

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        return x + self.second(F.silu(self.first(F.silu(x))))


class Pyramid(nn.Module):
    """Strided convolutions down to 1/16, and sums on the way back up."""

    def __init__(self, inputs: int, widths: tuple[int, ...], outputs: tuple[int, ...], stem: int) -> None:
        """`widths` from fine to coarse, each level half the size of the one before; `outputs` of the finest levels."""
        super().__init__()
        self.stem = nn.Conv2d(inputs, widths[0], 2 * stem + 1, stride=stem, padding=stem)
        steps = list(pairwise(widths))
        self.blocks = nn.ModuleList(Residual(width) for width in widths)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in steps)
        self.up = nn.ModuleList(nn.Conv2d(b, a, 1) for a, b in steps)
        self.back = nn.ModuleList(Residual(width) for width in widths[:-1])
        self.heads = nn.ModuleList(nn.Conv2d(a, b, 1) for a, b in zip(widths, outputs, strict=False))

    def forward(self, x: Float[Tensor, "b c h w"]) -> list[Tensor]:
        # Channels last: convolutions of so few channels are a third faster.
        x = self.stem(x.contiguous(memory_format=torch.channels_last))
        levels = []
        for i, block in enumerate(self.blocks):
            x = block(self.down[i - 1](F.silu(x)) if i else x)
            levels.append(x)
        for i in reversed(range(len(self.back))):
            rise = F.interpolate(self.up[i](F.silu(x)), size=levels[i].shape[-2:], mode="bilinear")
            x = self.back[i](levels[i] + rise)
            levels[i] = x
        return [head(F.silu(level)) for head, level in zip(self.heads, levels, strict=False)]


class Context(nn.Module):
    """Descriptions of the source: a fine one at half resolution, a coarse one at a quarter."""

    def __init__(self, fine: int, coarse: int) -> None:
        super().__init__()
        self.pyramid = Pyramid(3, (20, 40, 64, 64), (fine, coarse), stem=FINE_STRIDE)

    def forward(
        self, source: Float[Tensor, "b 3 h w"]
    ) -> tuple[Float[Tensor, "b f h2 w2"], Float[Tensor, "b c h4 w4"]]:
        fine, coarse = self.pyramid(source - 0.5)
        return fine, coarse


def mlp(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """One hidden layer and a silent one."""
    return nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), silent(nn.Linear(width, outputs)))


def agreement(first: Float[Tensor, "*#b c"], second: Float[Tensor, "*#b c"], groups: int) -> Float[Tensor, "*b groups"]:
    """Inner products of two descriptions, group by group."""
    product = first * second
    members = torch.eye(groups, device=product.device).repeat_interleave(product.shape[-1] // groups, 0)
    # A product with a small matrix: sums over so few neighbors are far slower.
    return product @ members.to(product.dtype)


def unit_groups(values: Float[Tensor, "b c h w"], groups: int) -> Float[Tensor, "b c h w"]:
    """The channels in groups of unit length."""
    grouped = values.unflatten(1, (groups, -1))
    return (grouped / torch.sqrt(grouped.square().sum(2, keepdim=True) + 1e-4)).flatten(1, 2)
