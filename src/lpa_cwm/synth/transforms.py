"""What changes between the two frames of a synthetic pair: planar motion and photometric jitter.

Motions have a closed-form inverse: affine maps and sinusoidal shears. Their points are `xy` with the coordinate axis
first, [2 ...], which is several times faster here. Jitter changes light, color, shadow, blur, noise and compression.
"""

import io
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

Points = Float[Tensor, "2 *b"]
Vector = Float[Tensor, "2"]


def rotation(angle: float) -> Float[Tensor, "2 2"]:
    """Rotation matrix; the angle is in radians, from the x axis to the y axis."""
    cos, sin = torch.tensor(angle).cos(), torch.tensor(angle).sin()
    return torch.stack((cos, -sin, sin, cos)).view(2, 2)


@dataclass(frozen=True, slots=True)
class Affine:
    """A linear map followed by a translation."""

    linear: Float[Tensor, "2 2"]
    shift: Vector

    @classmethod
    def identity(cls) -> "Affine":
        """The identity map."""
        return cls(torch.eye(2), torch.zeros(2))

    @classmethod
    def around(cls, pivot: Vector, linear: Float[Tensor, "2 2"], shift: Vector) -> "Affine":
        """A linear map about a point, then a translation."""
        return cls(linear, pivot + shift - linear @ pivot)

    def __call__(self, xy: Points) -> Points:
        return torch.addmm(self.shift[:, None], self.linear, xy.flatten(1)).view(xy.shape)

    def inverse(self) -> "Affine":
        """The inverse map."""
        (a, b), (c, d) = self.linear.tolist()
        back = torch.tensor([[d, -b], [-c, a]]) / (a * d - b * c)
        return Affine(back, -(back @ self.shift))

    def after(self, first: "Affine") -> "Affine":
        """Composition: `first`, then this map."""
        return Affine(self.linear @ first.linear, self.linear @ first.shift + self.shift)


@dataclass(frozen=True, slots=True)
class SinusoidalShear:
    """Shears points along a direction by a sine of their coordinate across it; the inverse is exact."""

    along: Vector
    """Direction and amplitude of the shear."""
    across: Vector
    """Perpendicular to `along`; its length is the angular frequency."""
    phase: float

    def shear(self, xy: Points, sign: int) -> Points:
        """Apply the shear (+1) or its inverse (-1)."""
        flat = xy.flatten(1)
        swing = torch.sin(self.across @ flat + self.phase)
        return torch.addr(flat, self.along, swing, alpha=sign).view(xy.shape)


@dataclass(frozen=True, slots=True)
class PlanarMotion:
    """Motion from source to target: shears, then an affine map."""

    waves: tuple[SinusoidalShear, ...]
    affine: Affine

    def forward(self, xy: Points) -> Points:
        """Source points to target points."""
        for wave in self.waves:
            xy = wave.shear(xy, 1)
        return self.affine(xy)

    def backward(self, xy: Points) -> Points:
        """Target points to source points."""
        xy = self.affine.inverse()(xy)
        for wave in reversed(self.waves):
            xy = wave.shear(xy, -1)
        return xy


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


def soft_shadow(rng: np.random.Generator, side: int) -> Float[Tensor, "s s"]:
    """Fraction of the light that is left under a half plane or an ellipse with a soft edge."""
    ticks = torch.linspace(-1, 1, side)
    angle, (x, y) = rng.uniform(0, 2 * np.pi), rng.uniform(-0.8, 0.8, 2)
    across = (ticks - x) * np.cos(angle) + (ticks[:, None] - y) * np.sin(angle)
    along = (ticks[:, None] - y) * np.cos(angle) - (ticks - x) * np.sin(angle)
    if rng.random() < 0.5:
        distance = across
    else:
        distance = 1 - ((across / rng.uniform(0.2, 0.8)) ** 2 + (along / rng.uniform(0.2, 0.8)) ** 2).sqrt()
    return 1 - rng.uniform(0.15, 0.5) * torch.sigmoid(distance / rng.uniform(0.01, 0.2))


def motion_blur(picture: Picture, angle: float, length: float) -> Picture:
    """Mean of seven copies, shifted by whole pixels along a line of this length; the border is repeated."""
    total = torch.zeros_like(picture)
    for share in np.linspace(-0.5, 0.5, 7):
        dx, dy = round(share * length * np.cos(angle)), round(share * length * np.sin(angle))
        rows = (torch.arange(picture.shape[1]) + dy).clamp(0, picture.shape[1] - 1)
        columns = (torch.arange(picture.shape[2]) + dx).clamp(0, picture.shape[2] - 1)
        total += picture[:, rows][:, :, columns]
    return total / 7


def jpeg(frame: UInt8[Tensor, "3 s s"], quality: int) -> UInt8[Tensor, "3 s s"]:
    """The frame after JPEG compression."""
    file = io.BytesIO()
    Image.fromarray(frame.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=quality)
    return torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1).contiguous()


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
    shadow: float = 0.0
    """Probability that a frame has a soft shadow."""
    motion_blur: float = 0.0
    """Probability that a frame is blurred along a line, as by a moving camera."""
    gamma: float = 0.0
    """Standard deviation of the logarithm of the gamma of a frame."""
    jpeg: float = 0.0
    """Probability that both frames are compressed as JPEG."""

    @classmethod
    def strong(cls) -> "PhotometricJitter":
        """Poor footage: exposure, shadows, motion blur and compression differ between the frames."""
        return cls(
            shade=0.08,
            light=0.12,
            tint=0.03,
            slope=0.1,
            blur=0.3,
            grain=0.025,
            shadow=0.3,
            motion_blur=0.2,
            gamma=0.08,
            jpeg=0.6,
        )

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
        """Relight the second frame, degrade both, add noise, convert to bytes, and compress."""
        both_sigma = rng.uniform(0.4, 1.0) if rng.random() < self.blur else 0.0
        frames = []
        for picture in (pair[0], self.relight(pair[1], rng)):
            own_sigma = rng.uniform(0.4, 1.2) if rng.random() < self.blur / 2 else 0.0
            sigma = float(np.hypot(both_sigma, own_sigma))
            picture = self.degrade(picture, rng)
            sharp = gaussian_blur(picture, sigma) if sigma > 0 else picture
            noise = torch.Generator().manual_seed(int(rng.integers(2**62)))
            level = rng.uniform(0, self.grain)
            frames.append(to_uint8(sharp + level * torch.randn(sharp.shape, generator=noise)))
        if self.jpeg and rng.random() < self.jpeg:
            quality = int(rng.integers(30, 95))
            frames = [jpeg(frame, quality) for frame in frames]
        return frames

    def degrade(self, picture: Picture, rng: np.random.Generator) -> Picture:
        """Gamma, shadow and motion blur of one frame; draws nothing where the probabilities are zero."""
        if self.gamma:
            picture = picture.clamp(0, 1) ** float(np.exp(rng.normal(0, self.gamma)))
        if self.shadow and rng.random() < self.shadow:
            picture = picture * soft_shadow(rng, picture.shape[-1])
        if self.motion_blur and rng.random() < self.motion_blur:
            picture = motion_blur(picture, rng.uniform(0, np.pi), picture.shape[-1] * rng.uniform(0.005, 0.03))
        return picture
