"""The noise level at which NSG asks for the score: a variance-preserving diffusion at a very early time."""

import math

TIME = 0.006
"""Diffusion time (t_s), between 0 (image) and 1 (noise)."""
SLOWEST, FASTEST = 0.1, 20.0
"""Noise rate at times 0 and 1; it grows linearly between them."""


def deviation(time: float) -> float:
    """Standard deviation of the noise at a diffusion time, for images in [-1, 1]."""
    accumulated = SLOWEST * time + (FASTEST - SLOWEST) * time**2 / 2
    return math.sqrt(-math.expm1(-accumulated))
