"""The recurrent update: looked-up correlation and current flow to a better flow."""

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn

Step = Callable[[Tensor, Tensor], Tensor]
"""From hidden state and motion features to the next hidden state."""


class MotionEncoder(nn.Module):
    """Correlation windows and flow to motion features; the flow itself is passed on."""

    def __init__(self, windows: int, correlation: list[int], flow: tuple[int, int], outputs: int) -> None:
        super().__init__()
        self.convc1 = nn.Conv2d(windows, correlation[0], 1)
        self.convc2 = nn.Sequential()
        if len(correlation) > 1:
            self.convc2 = nn.Conv2d(correlation[0], correlation[1], 3, padding=1)
        self.convf1 = nn.Conv2d(2, flow[0], 7, padding=3)
        self.convf2 = nn.Conv2d(flow[0], flow[1], 3, padding=1)
        self.conv = nn.Conv2d(correlation[-1] + flow[1], outputs - 2, 3, padding=1)

    def forward(self, windows: Float[Tensor, "b k h w"], flow: Float[Tensor, "b 2 h w"]) -> Float[Tensor, "b c h w"]:
        """Concatenate what the windows and the flow say."""
        seen = self.convc2(self.convc1(windows).relu_()).relu_()
        moved = self.convf2(self.convf1(flow).relu_()).relu_()
        return torch.cat((self.conv(torch.cat((seen, moved), dim=1)).relu_(), flow), dim=1)


class Convolution:
    """Convolutions over (hidden state, context, motion) at once, whose share of the unchanging context is kept."""

    def __init__(self, parts: list[nn.Conv2d], context: Float[Tensor, "b c h w"]) -> None:
        weight = torch.cat([part.weight for part in parts])
        bias = torch.cat([part.bias for part in parts if part.bias is not None])
        hidden = parts[0].out_channels
        first, fixed, last = weight.tensor_split((hidden, hidden + context.shape[1]), dim=1)
        self.padding = (weight.shape[2] // 2, weight.shape[3] // 2)
        self.weight = torch.cat((first, last), dim=1)
        self.share = F.conv2d(context, fixed, bias, padding=self.padding)

    def __call__(self, hidden: Float[Tensor, "b d h w"], motion: Float[Tensor, "b m h w"]) -> Float[Tensor, "b e h w"]:
        """What one convolution over all three would give."""
        return F.conv2d(torch.cat((hidden, motion), dim=1), self.weight, padding=self.padding).add_(self.share)


class Gru(nn.Module):
    """Gated recurrent units over maps: one of 3x3, or one along x and then one along y."""

    def __init__(self, hidden: int, inputs: int, separable: bool) -> None:
        super().__init__()
        self.kernels = {"1": (1, 5), "2": (5, 1)} if separable else {"": (3, 3)}
        for suffix, kernel in self.kernels.items():
            for gate in "zrq":
                self.add_module(f"conv{gate}{suffix}", nn.Conv2d(hidden + inputs, hidden, kernel))

    def begin(self, context: Float[Tensor, "b c h w"]) -> Step:
        """The step of this context, from hidden state and motion to the next hidden state."""
        units = [self._unit(suffix, context) for suffix in self.kernels]

        def step(hidden: Tensor, motion: Tensor) -> Tensor:
            for gates, proposal in units:
                update, reset = gates(hidden, motion).sigmoid_().chunk(2, dim=1)
                hidden = torch.lerp(hidden, proposal(reset * hidden, motion).tanh_(), update)
            return hidden

        return step

    def _unit(self, suffix: str, context: Float[Tensor, "b c h w"]) -> tuple[Convolution, Convolution]:
        z, r, q = (cast(nn.Conv2d, self.get_submodule(f"conv{gate}{suffix}")) for gate in "zrq")
        return Convolution([z, r], context), Convolution([q], context)


class FlowHead(nn.Module):
    """Hidden state to a change of flow."""

    def __init__(self, inputs: int, middle: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, middle, 3, padding=1)
        self.conv2 = nn.Conv2d(middle, 2, 3, padding=1)

    def forward(self, hidden: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 2 h w"]:
        """Two convolutions."""
        return self.conv2(self.conv1(hidden).relu_())


def upsample_bilinear(flow: Float[Tensor, "b 2 h w"]) -> Float[Tensor, "b 2 h8 w8"]:
    """Eight times the size, corners to corners."""
    return 8 * F.interpolate(flow, scale_factor=8, mode="bilinear", align_corners=True)


def upsample_convex(flow: Float[Tensor, "b 2 h w"], mask: Float[Tensor, "b k h w"]) -> Float[Tensor, "b 2 h8 w8"]:
    """Eight times the size; each new pixel is a convex combination of the 3x3 cells around it."""
    weights = rearrange(mask, "b (n i j) h w -> b n i j h w", i=8, j=8).softmax(dim=1)
    around = F.unfold(8 * flow, 3, padding=1).unflatten(1, (2, 9)).unflatten(-1, flow.shape[-2:])
    return rearrange(einsum(weights, around, "b n i j h w, b d n h w -> b d h i w j"), "b d h i w j -> b d (h i) (w j)")
