"""One distant lamp and light from all around."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32

from lpa_cwm.geometry import axis_centers
from lpa_cwm.simulator.poses import Numbers, Points
from lpa_cwm.simulator.texture import Color, Texture

LUMINANCE = np.array([0.2126, 0.7152, 0.0722], dtype=np.float32)
SUN_TINT = np.array([1.06, 1.0, 0.9], dtype=np.float32)


@dataclass(frozen=True)
class Light:
    """What falls on a white surface, as the fraction of white it then shows; columns are single colors or axes."""

    towards: Float32[np.ndarray, "3 1"]
    """Unit vector to the lamp."""
    sun: Float32[np.ndarray, "3 1"]
    """Of the lamp, on a surface that faces it."""
    mean: Float32[np.ndarray, "3 1"]
    """From all around, on average over the orientations of a surface."""
    slope: Float32[np.ndarray, "3 3"]
    """Change of it with the surface's unit normal; one column per axis."""

    @classmethod
    def of(
        cls,
        towards: Float[np.ndarray, "3"],
        sun: Float[np.ndarray, "3"],
        mean: Float[np.ndarray, "3"],
        slope: Float[np.ndarray, "3 3"],
    ) -> "Light":
        """From vectors of any precision."""
        place, lamp, rest = (vector.astype(np.float32)[:, None] for vector in (towards, sun, mean))
        return cls(place, lamp, rest, slope.astype(np.float32))

    def around(self, normal: Points) -> Color:
        """From all around, on surfaces with these normals."""
        return np.maximum(self.mean + self.slope @ normal, np.float32(0.05) * self.mean)

    def on(self, normal: Points, sunlit: Numbers, open_: Numbers) -> Color:
        """On surfaces: the lamp where it is not hidden, and the share of the surroundings that is open."""
        facing = np.maximum(self.towards.T @ normal, 0) * sunlit
        return self.around(normal) * open_ + facing * self.sun


def directions_of(height: int, width: int) -> Float[np.ndarray, "h w 3"]:
    """The unit direction of each pixel of a panorama; the middle column looks along x."""
    tilt = np.pi * (0.5 - axis_centers(0, height) / height)
    angle = np.pi * (1 - 2 * axis_centers(0, width) / width)
    flat = np.cos(tilt)[:, None] * np.stack((np.cos(angle), np.sin(angle)))[:, None]
    return np.stack((flat[0], flat[1], np.broadcast_to(np.sin(tilt)[:, None], (height, width))), axis=-1)


def light_of(panorama: Texture, brightness: float) -> Light:
    """The light of a panorama: a lamp where its sky is brightest, the rest from all around.

    `brightness` is what a white surface facing up shows in full light.
    """
    small = panorama.level(4)
    direction = directions_of(*small.shape[:2])
    solid = np.sqrt(1 - direction[..., 2:] ** 2)
    solid = solid / solid.sum()
    mean = (small * solid).sum((0, 1))
    slope = 2 * np.einsum("hwi,hwc->ci", direction, small * solid)
    # Sky that is low casts shadows longer than the scene; sky overhead, none to speak of.
    lamps = (small @ LUMINANCE) * np.exp(-(((direction[..., 2] - 0.7) / 0.35) ** 2))
    towards = direction.reshape(-1, 3)[lamps.argmax()]
    towards[2] = np.clip(towards[2], 0.5, 0.92)
    towards[:2] *= np.sqrt(1 - towards[2] ** 2) / np.linalg.norm(towards[:2])
    up = mean + slope[:, 2]
    contrast = small.reshape(-1, 3)[lamps.argmax()] @ LUMINANCE / (up @ LUMINANCE)
    share = float(np.clip(0.25 * contrast, 0.35, 0.65))
    around = brightness * (1 - share) / (up @ LUMINANCE)
    sun = brightness * share / towards[2] * SUN_TINT
    return Light.of(towards, sun, mean * around, slope * around)
