"""A small score field of our own: a denoiser trained at NSG's noise level, read through Tweedie's formula."""

from pathlib import Path

import torch.nn.functional as F
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from lpa_cwm.adjudicators.score_models.noise import TIME, deviation
from lpa_cwm.errors import InputError
from lpa_cwm.files import bundled_weights

FILE = "score-compact.safetensors"
SIGMA = deviation(TIME)


class Block(nn.Module):
    """Two convolutions around which the input is passed unchanged."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        # A block begins as the identity, which lets a deep network learn at a high rate without normalization.
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        return x + self.second(F.relu(self.first(x)))


class NoisePredictor(nn.Module):
    """From noisy frames in [-1, 1] of even sides to their noise, in units of its deviation."""

    def __init__(self, channels: int = 64, blocks: int = 5) -> None:
        super().__init__()
        # Work on the grid of 2x2 pixels: a quarter of the cost and twice the reach.
        self.enter = nn.Conv2d(12, channels, 3, padding=1)
        self.blocks = nn.Sequential(*(Block(channels) for _ in range(blocks)))
        self.leave = nn.Conv2d(channels, 12, 3, padding=1)

    def forward(self, frames: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]:
        hidden = self.blocks(self.enter(F.pixel_unshuffle(frames, 2)))
        return F.pixel_shuffle(self.leave(hidden), 2)


class CompactScore(nn.Module):
    """Tweedie: the score is (denoised - frames) / sigma^2, that is, minus the predicted noise over sigma."""

    def __init__(self, network: NoisePredictor) -> None:
        super().__init__()
        self.network = network.eval().requires_grad_(False)

    def forward(self, frames: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]:
        return -self.network.to(frames.device)(frames) / SIGMA


def load(path: Path | None = None) -> CompactScore:
    """The shipped weights, or those of a training of one's own."""
    path = path or bundled_weights(FILE)
    network = NoisePredictor()
    try:
        network.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise InputError(
            f"{path} does not hold the weights of the compact score field; expected what `lpa-cwm train score` writes."
        ) from error
    return CompactScore(network)
