"""The compact score model: a small denoiser at NSG's noise level and Tweedie's formula (Efron, 2011)."""

from pathlib import Path

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lpa_cwm.adjudicators.score_models import TIME, noise_std
from lpa_cwm.files import bundled_weights
from lpa_cwm.io.checkpoints import load_weights

FILE = "score-compact.safetensors"
SIGMA = noise_std(TIME)


class DenoiserBlock(nn.Module):
    """Residual block of two convolutions (He et al., 2016), without normalization."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        # Zero initialization makes a block start as the identity: high learning rates without normalization.
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        return x + self.second(F.relu(self.first(x)))


class NoisePredictor(nn.Module):
    """From noisy frames in [-1, 1] of even sides to their noise, in units of its deviation."""

    def __init__(self, channels: int = 64, blocks: int = 5) -> None:
        super().__init__()
        # Work on the grid of 2x2 pixels: a quarter of the cost and twice the reach.
        self.enter = nn.Conv2d(12, channels, 3, padding=1)
        self.blocks = nn.Sequential(*(DenoiserBlock(channels) for _ in range(blocks)))
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


def load_compact_score(path: Path | None = None) -> CompactScore:
    """The bundled weights, or those of a file."""
    path = path or bundled_weights(FILE)
    network = NoisePredictor()
    load_weights(
        network, path, "a file of weights of the compact score model", "give a file that `lpa-cwm train score` wrote"
    )
    return CompactScore(network).eval()
