"""Photometric jitter between the two frames of a pair: brightness, color, shading, blur and noise."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

Picture = Float[Tensor, "3 s s"]


def to_uint8(picture: Picture) -> UInt8[Tensor, "3 s s"]:
    """RGB in [0, 1] to rounded bytes."""
    return picture.mul(255).add_(0.5).clamp_(0, 255).to(torch.uint8)


def gaussian_blur(picture: Picture, sigma: float) -> Picture:
    """Separable Gaussian blur with seven taps; the border is repeated."""
    taps = np.exp(-0.5 * (np.arange(-3, 4) / sigma) ** 2)
    for axis in (1, 2):
        ends = [picture.narrow(axis, place, 1) for place in (0, picture.shape[axis] - 1)]
        padded = torch.cat((*ends[:1] * 3, picture, *ends[1:] * 3), dim=axis)
        picture = torch.zeros_like(picture)
        # Seven shifted sums are several times faster than a convolution with three channels.
        for place, tap in enumerate((taps / taps.sum()).tolist()):
            picture.add_(padded.narrow(axis, place, picture.shape[axis]), alpha=tap)
    return picture


@dataclass(frozen=True)
class PhotometricJitter:
    """Amount of photometric change between two frames."""

    shade: float = 0.05
    """Standard deviation of the log brightness change of each layer."""
    light: float = 0.05
    """Standard deviation of the log brightness change of the whole image."""
    tint: float = 0.015
    """The same per color channel."""
    slope: float = 0.06
    """Standard deviation of the linear illumination gradient across the image."""
    blur: float = 0.25
    """Probability that both frames are blurred; each frame is blurred in addition with half of it."""
    grain: float = 0.02
    """Maximum standard deviation of the noise of a frame."""

    def layer_gain(self, rng: np.random.Generator) -> float:
        """Brightness of a layer in the target relative to the source."""
        return float(np.exp(rng.normal(0, self.shade)))

    def relight(self, picture: Picture, rng: np.random.Generator) -> Picture:
        """The image under slightly different illumination."""
        gain = np.exp(rng.normal(0, self.light) + rng.normal(0, self.tint, 3))
        lean = rng.normal(0, self.slope, 2)
        ticks = torch.linspace(-0.5, 0.5, picture.shape[-1])
        ramp = 1 + lean[0] * ticks + lean[1] * ticks[:, None]
        return picture * torch.from_numpy(gain).float()[:, None, None] * ramp

    def apply(self, pair: tuple[Picture, Picture], rng: np.random.Generator) -> list[UInt8[Tensor, "3 s s"]]:
        """Relight the second frame, blur both, add noise, and convert to bytes."""
        both_sigma = rng.uniform(0.4, 1.0) if rng.random() < self.blur else 0.0
        frames = []
        for picture in (pair[0], self.relight(pair[1], rng)):
            own_sigma = rng.uniform(0.4, 1.2) if rng.random() < self.blur / 2 else 0.0
            sigma = float(np.hypot(both_sigma, own_sigma))
            sharp = gaussian_blur(picture, sigma) if sigma > 0 else picture
            noise = torch.Generator().manual_seed(int(rng.integers(2**62)))
            level = rng.uniform(0, self.grain)
            frames.append(to_uint8(sharp + level * torch.randn(sharp.shape, generator=noise)))
        return frames
