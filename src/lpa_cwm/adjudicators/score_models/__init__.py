"""Score models: the gradient of the log-density of images (Song et al., 2021), which APA compares with motion.

Both are evaluated at NSG's noise level: a variance-preserving diffusion at a very early time.
"""

import math

TIME = 0.006
"""Diffusion time (t_s), between 0 (image) and 1 (noise)."""
BETA_MIN, BETA_MAX = 0.1, 20.0
"""Noise rate at times 0 and 1; it grows linearly between them."""


def noise_std(time: float) -> float:
    """Standard deviation of the noise at a diffusion time, for images in [-1, 1]."""
    accumulated = BETA_MIN * time + (BETA_MAX - BETA_MIN) * time**2 / 2
    return math.sqrt(-math.expm1(-accumulated))
