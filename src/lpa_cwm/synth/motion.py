"""Planar motions with a closed-form inverse: affine maps and sinusoidal shears.

Points are `xy` with the coordinate axis first, [2 ...], which is several times faster here.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
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
