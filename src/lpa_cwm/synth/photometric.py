"""What light and camera do to a picture, differently at each moment: brightness, color, shade, blur and noise."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

Picture = Float[Tensor, "3 s s"]


def to_uint8(picture: Picture) -> UInt8[Tensor, "3 s s"]:
    """RGB in [0, 1] to rounded bytes."""
    return picture.mul(255).add_(0.5).clamp_(0, 255).to(torch.uint8)


def blurred(picture: Picture, sigma: float) -> Picture:
    """Gaussian blur with seven taps; the border is repeated."""
    taps = np.exp(-0.5 * (np.arange(-3, 4) / sigma) ** 2)
    for axis in (1, 2):
        ends = [picture.narrow(axis, place, 1) for place in (0, picture.shape[axis] - 1)]
        padded = torch.cat((*ends[:1] * 3, picture, *ends[1:] * 3), dim=axis)
        picture = torch.zeros_like(picture)
        # Seven shifted sums are several times faster than a convolution of three channels.
        for place, tap in enumerate((taps / taps.sum()).tolist()):
            picture.add_(padded.narrow(axis, place, picture.shape[axis]), alpha=tap)
    return picture


@dataclass(frozen=True)
class Weather:
    """How much may change between the two frames besides the motion."""

    shade: float = 0.05
    """Standard deviation of the logarithm of each layer's own change of brightness."""
    light: float = 0.05
    """Standard deviation of the logarithm of the whole picture's change of brightness."""
    tint: float = 0.015
    """The same for each color by itself."""
    slope: float = 0.06
    """Standard deviation of the change of light from one side of the picture to the other."""
    blur: float = 0.25
    """Probability that a pair, and then again that a frame of it, is blurred."""
    grain: float = 0.02
    """Largest standard deviation of the noise of a frame."""

    @classmethod
    def calm(cls) -> "Weather":
        """Nothing changes but what moves."""
        return cls(shade=0.0, light=0.0, tint=0.0, slope=0.0, blur=0.0, grain=0.0)

    def shading(self, rng: np.random.Generator) -> float:
        """A layer's brightness in the target relative to the source."""
        return float(np.exp(rng.normal(0, self.shade)))

    def relit(self, picture: Picture, rng: np.random.Generator) -> Picture:
        """The picture under slightly different light."""
        gain = np.exp(rng.normal(0, self.light) + rng.normal(0, self.tint, 3))
        lean = rng.normal(0, self.slope, 2)
        ticks = torch.linspace(-0.5, 0.5, picture.shape[-1])
        ramp = 1 + lean[0] * ticks + lean[1] * ticks[:, None]
        return picture * torch.from_numpy(gain).float()[:, None, None] * ramp

    def exposed(self, pair: tuple[Picture, Picture], rng: np.random.Generator) -> list[UInt8[Tensor, "3 s s"]]:
        """Both frames as a camera gives them: the second relit, then each blurred and grainy, as bytes."""
        both_sigma = rng.uniform(0.4, 1.0) if rng.random() < self.blur else 0.0
        frames = []
        for picture in (pair[0], self.relit(pair[1], rng)):
            own_sigma = rng.uniform(0.4, 1.2) if rng.random() < self.blur / 2 else 0.0
            sigma = float(np.hypot(both_sigma, own_sigma))
            sharp = blurred(picture, sigma) if sigma > 0 else picture
            noise = torch.Generator().manual_seed(int(rng.integers(2**62)))
            level = rng.uniform(0, self.grain)
            frames.append(to_uint8(sharp + level * torch.randn(sharp.shape, generator=noise)))
        return frames
