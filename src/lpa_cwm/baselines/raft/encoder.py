"""Frame to features at one eighth of its size; module names are those of the published files."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

Norm = Literal["instance", "batch", "none"]


def norm_layer(kind: Norm, channels: int) -> nn.Module:
    """Normalization without or with learned parts."""
    layers = {"instance": nn.InstanceNorm2d, "batch": nn.BatchNorm2d}
    return layers[kind](channels) if kind in layers else nn.Identity()


class Block(nn.Module):
    """Residual block: two 3x3 convolutions, or three with a narrow middle."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm, narrow: bool) -> None:
        super().__init__()
        middle = outputs // 4
        if narrow:
            shapes = [(inputs, middle, 1, 1), (middle, middle, 3, stride), (middle, outputs, 1, 1)]
        else:
            shapes = [(inputs, outputs, 3, stride), (outputs, outputs, 3, 1)]
        self.depth = len(shapes)
        for number, (before, after, kernel, step) in enumerate(shapes, start=1):
            self.add_module(f"conv{number}", nn.Conv2d(before, after, kernel, step, kernel // 2))
            self.add_module(f"norm{number}", norm_layer(norm, after))
        shortcut = (nn.Conv2d(inputs, outputs, 1, stride), norm_layer(norm, outputs)) if stride > 1 else ()
        self.downsample = nn.Sequential(*shortcut)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h2 w2"]:
        """Every convolution is followed by a rectifier, the last one too."""
        y = x
        for number in range(1, self.depth + 1):
            y = self.get_submodule(f"norm{number}")(self.get_submodule(f"conv{number}")(y)).relu_()
        return (self.downsample(x) + y).relu_()


class Encoder(nn.Module):
    """Stem and three stages of two blocks, of which the second and third halve the size."""

    def __init__(self, widths: tuple[int, int, int], outputs: int, norm: Norm, narrow: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 7, 2, 3)
        self.norm1 = norm_layer(norm, widths[0])
        before = widths[0]
        for number, width in enumerate(widths, start=1):
            stride = 1 if number == 1 else 2
            blocks = Block(before, width, stride, norm, narrow), Block(width, width, 1, norm, narrow)
            self.add_module(f"layer{number}", nn.Sequential(*blocks))
            before = width
        self.conv2 = nn.Conv2d(before, outputs, 1)

    def forward(self, frame: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c h8 w8"]:
        """RGB in [-1, 1] to features."""
        x = torch.relu_(self.norm1(self.conv1(frame)))
        for number in (1, 2, 3):
            x = self.get_submodule(f"layer{number}")(x)
        return self.conv2(x)
