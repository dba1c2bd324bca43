"""Motions of the plane that can be undone in closed form: affine maps and sliding waves.

Points are `xy` with the coordinate first, [2 ...] as flow is stored: that order is several times faster here.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Points = Float[Tensor, "2 *b"]
Vector = Float[Tensor, "2"]


def rotation(angle: float) -> Float[Tensor, "2 2"]:
    """The turn by an angle in radians, from the x axis towards the y axis."""
    cos, sin = torch.tensor(angle).cos(), torch.tensor(angle).sin()
    return torch.stack((cos, -sin, sin, cos)).view(2, 2)


@dataclass(frozen=True, slots=True)
class Affine:
    """A linear map followed by a shift."""

    linear: Float[Tensor, "2 2"]
    shift: Vector

    @classmethod
    def identity(cls) -> "Affine":
        """The map that leaves every point where it is."""
        return cls(torch.eye(2), torch.zeros(2))

    @classmethod
    def around(cls, pivot: Vector, linear: Float[Tensor, "2 2"], shift: Vector) -> "Affine":
        """A linear map about a point, then a shift."""
        return cls(linear, pivot + shift - linear @ pivot)

    def __call__(self, xy: Points) -> Points:
        return torch.addmm(self.shift[:, None], self.linear, xy.flatten(1)).view(xy.shape)

    def inverse(self) -> "Affine":
        """The map that undoes this one."""
        (a, b), (c, d) = self.linear.tolist()
        back = torch.tensor([[d, -b], [-c, a]]) / (a * d - b * c)
        return Affine(back, -(back @ self.shift))

    def after(self, first: "Affine") -> "Affine":
        """The map that does `first`, then this."""
        return Affine(self.linear @ first.linear, self.linear @ first.shift + self.shift)


@dataclass(frozen=True, slots=True)
class Wave:
    """Slides points along a direction by a sine of their place across it.

    Sliding leaves the place across unchanged, so sliding back is the exact inverse.
    """

    along: Vector
    """Direction and amplitude of the slide."""
    across: Vector
    """Perpendicular to `along`; its length is the angular frequency."""
    phase: float

    def slide(self, xy: Points, sign: int) -> Points:
        """Forwards (+1) or back (-1)."""
        flat = xy.flatten(1)
        swing = torch.sin(self.across @ flat + self.phase)
        return torch.addr(flat, self.along, swing, alpha=sign).view(xy.shape)


@dataclass(frozen=True, slots=True)
class Motion:
    """From a source point to its place in the target: some waves, then an affine map."""

    waves: tuple[Wave, ...]
    affine: Affine

    def forward(self, xy: Points) -> Points:
        """Where source points go."""
        for wave in self.waves:
            xy = wave.slide(xy, 1)
        return self.affine(xy)

    def backward(self, xy: Points) -> Points:
        """Where target points come from."""
        xy = self.affine.inverse()(xy)
        for wave in reversed(self.waves):
            xy = wave.slide(xy, -1)
        return xy
