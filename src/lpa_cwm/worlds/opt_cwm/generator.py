"""The intervention generator: from the state of a source token to a colored Gaussian blot around the query."""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

WINDOW = 20
"""Side of the blot in pixels of a 256 x 256 frame."""


class Generator(nn.Module):
    """Chooses place, shape and amplitude of the blot in each channel."""

    def __init__(self, dim: int = 768, width: int = 512) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(dim, width),
            nn.LayerNorm(width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.ReLU(),
            nn.Linear(width, 18),
            nn.LayerNorm(18),
            nn.Tanh(),
        )

    def forward(self, states: Float[Tensor, "*b d"]) -> Float[Tensor, "*b 3 20 20"]:
        return blot(rearrange(self.mlp(states), "... (c k) -> ... c k", c=3))


def blot(raw: Float[Tensor, "*b 6"]) -> Float[Tensor, "*b 20 20"]:
    """A correlated Gaussian whose largest sample is the signed amplitude, from six numbers in (-1, 1)."""
    row_mean, column_mean, row_spread, column_spread, correlation, amplitude = raw.float()[..., None, None].unbind(-3)
    half = WINDOW / 2
    axis = torch.linspace(-half, half, WINDOW, device=raw.device)
    rows = (axis[:, None] - half * row_mean) / spread(row_spread)
    columns = (axis - half * column_mean) / spread(column_spread)
    correlation = 0.98 * correlation
    distance = (rows**2 - 2 * correlation * rows * columns + columns**2) / (1 - correlation**2)
    return amplitude * torch.exp((distance.amin((-2, -1), keepdim=True) - distance) / 2)


def spread(raw: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Standard deviation between 1 and 10 pixels."""
    return 1 + 4.5 * (raw + 1)


def place(
    blots: Float[Tensor, "b 3 window window"], pixel: Int[Tensor, "b 2"], size: int, scale: int = 1
) -> Float[Tensor, "b 3 size size"]:
    """Each blot on an empty frame, its middle sample on the query's (column, row); cut at the border."""
    blots = F.interpolate(blots, scale_factor=scale, mode="nearest")
    window = blots.shape[-1]
    # Coordinates of the frame's pixels in the window; one ring of zeros stands for everything outside.
    offset = torch.arange(size, device=pixel.device) - pixel[..., None] + window // 2
    column, row = (offset.clamp(-1, window) + 1).unbind(1)
    batch = torch.arange(len(blots), device=pixel.device)[:, None, None]
    ringed = rearrange(F.pad(blots, (1, 1, 1, 1)), "b c i j -> b i j c")
    return rearrange(ringed[batch, row[:, :, None], column[:, None, :]], "b y x c -> b c y x")
