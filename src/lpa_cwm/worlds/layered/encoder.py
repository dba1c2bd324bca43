"""The learned features of the source, and the layers that the other modules share."""

from itertools import pairwise
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

COARSE_STRIDE = 4
FINE_STRIDE = 2


Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def zero_init(layer: Layer) -> Layer:
    """Set a layer's parameters to zero, so that a residual starts as the identity (Zhang et al., arXiv:1901.09321)."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


class ResidualConvs(nn.Module):
    """A pre-activation residual block of two 3x3 convolutions (He et al. 2016, arXiv:1603.05027)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = zero_init(nn.Conv2d(width, width, 3, padding=1))

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        return x + self.conv2(F.silu(self.conv1(F.silu(x))))


class SmallUNet(nn.Module):
    """A U-Net (Ronneberger et al. 2015, arXiv:1505.04597) whose skip connections are sums, with a head per level."""

    def __init__(self, inputs: int, widths: tuple[int, ...], outputs: tuple[int, ...], stem: int) -> None:
        """`widths` from fine to coarse, each level half the size of the one before; `outputs` of the finest levels."""
        super().__init__()
        self.stem = nn.Conv2d(inputs, widths[0], 2 * stem + 1, stride=stem, padding=stem)
        steps = list(pairwise(widths))
        self.encoder = nn.ModuleList(ResidualConvs(width) for width in widths)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in steps)
        self.up = nn.ModuleList(nn.Conv2d(b, a, 1) for a, b in steps)
        self.decoder = nn.ModuleList(ResidualConvs(width) for width in widths[:-1])
        self.heads = nn.ModuleList(nn.Conv2d(a, b, 1) for a, b in zip(widths, outputs, strict=False))

    def forward(self, x: Float[Tensor, "b c h w"]) -> list[Tensor]:
        # Channels last: convolutions of few channels are a third faster.
        x = self.stem(x.contiguous(memory_format=torch.channels_last))
        levels = []
        for i, block in enumerate(self.encoder):
            x = block(self.down[i - 1](F.silu(x)) if i else x)
            levels.append(x)
        for i in reversed(range(len(self.decoder))):
            raised = F.interpolate(self.up[i](F.silu(x)), size=levels[i].shape[-2:], mode="bilinear")
            x = self.decoder[i](levels[i] + raised)
            levels[i] = x
        return [head(F.silu(level)) for head, level in zip(self.heads, levels, strict=False)]


class SourceEncoder(nn.Module):
    """Features of the source: fine ones at half resolution, coarse ones at a quarter."""

    def __init__(self, fine: int, coarse: int) -> None:
        super().__init__()
        self.unet = SmallUNet(3, (20, 40, 64, 64), (fine, coarse), stem=FINE_STRIDE)

    def forward(
        self, source: Float[Tensor, "b 3 h w"]
    ) -> tuple[Float[Tensor, "b f h2 w2"], Float[Tensor, "b c h4 w4"]]:
        fine, coarse = self.unet(source - 0.5)
        return fine, coarse


def mlp(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """One hidden layer and a zero-initialized output layer."""
    return nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), zero_init(nn.Linear(width, outputs)))


def group_similarity(
    first: Float[Tensor, "*#b c"], second: Float[Tensor, "*#b c"], groups: int
) -> Float[Tensor, "*b groups"]:
    """Inner products of two feature vectors, one per group of channels."""
    product = first * second
    members = torch.eye(groups, device=product.device).repeat_interleave(product.shape[-1] // groups, 0)
    # A product with a small matrix: sums over few channels are far slower.
    return product @ members.to(product.dtype)


def normalize_groups(values: Float[Tensor, "b c h w"], groups: int) -> Float[Tensor, "b c h w"]:
    """Scale each group of channels to unit length."""
    grouped = values.unflatten(1, (groups, -1))
    return (grouped / torch.sqrt(grouped.square().sum(2, keepdim=True) + 1e-4)).flatten(1, 2)
