"""A world model for tests and documentation: colors are coordinates, so the motion is known from the pixels.

A plane moves by a similarity (shift, rotation, zoom) behind a static disc. Red and green are the coordinates of the
plane point that a pixel shows, blue is a texture, and a fully blue pixel belongs to the disc. `ToyWorld` fits the pose
of the plane in both frames, which gives the motion between any two frames or crops to a few hundredths of a pixel.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from lpa_cwm.config import TrackerConfig
from lpa_cwm.errors import InputError
from lpa_cwm.geometry import HW, from_sampler, inside, pixel_centers, to_sampler
from lpa_cwm.masks import mask_pixels
from lpa_cwm.rng import generator
from lpa_cwm.types import Clip, Queries, Tracks

FLAT, SLOPE = 0.5, 0.4
"""Red and green are FLAT + SLOPE * (plane coordinate), which stays within [0.1, 0.9] up to one frame outside."""
DISC_BLUE, TEXTURE_BLUE = 1.0, 0.35


@dataclass(frozen=True, slots=True)
class ToyMotion:
    """How the plane moves from each frame to the next, in units of the frame's side, about the frame's center."""

    shift: tuple[float, float] = (0.0, 0.0)
    turn: float = 0.0
    """Rotation in radians."""
    zoom: float = 1.0
    disc: tuple[float, float, float] | None = None
    """Center x, y and radius of the disc in front."""

    def matrix(self, frame: int) -> Float[Tensor, "2 3"]:
        """Plane coordinates to frame coordinates (both centered, unit side) in a given frame."""
        angle, scale = torch.tensor(self.turn * frame), self.zoom**frame
        linear = scale * torch.stack(
            (torch.stack((angle.cos(), -angle.sin())), torch.stack((angle.sin(), angle.cos())))
        )
        return torch.cat((linear, torch.tensor(self.shift)[:, None] * frame), dim=1)


def apply(matrix: Float[Tensor, "2 3"], xy: Float[Tensor, "*b 2"]) -> Float[Tensor, "*b 2"]:
    """An affine map of points."""
    return xy @ matrix[:, :2].T + matrix[:, 2]


def inverse(matrix: Float[Tensor, "2 3"]) -> Float[Tensor, "2 3"]:
    """The affine map that undoes another."""
    linear = torch.linalg.inv(matrix[:, :2])
    return torch.cat((linear, -linear @ matrix[:, 2:]), dim=1)


def centered(xy: Float[Tensor, "*b 2"], hw: HW) -> Float[Tensor, "*b 2"]:
    """Pixels to coordinates of unit side around the frame's center."""
    return to_sampler(xy, hw) / 2


def uncentered(xy: Float[Tensor, "*b 2"], hw: HW) -> Float[Tensor, "*b 2"]:
    """Back to pixels."""
    return from_sampler(2 * xy, hw)


def behind_disc(motion: ToyMotion, xy: Float[Tensor, "*b 2"], hw: HW) -> Bool[Tensor, "*b"]:
    """Whether the disc covers a point, given in pixels."""
    if motion.disc is None:
        return torch.zeros(xy.shape[:-1], dtype=torch.bool)
    middle = centered(torch.tensor(motion.disc[:2], dtype=torch.float64), (1, 1)).to(xy.dtype)
    return (centered(xy, hw) - middle).norm(dim=-1) < motion.disc[2]


def toy_frame(motion: ToyMotion, frame: int, hw: HW) -> UInt8[Tensor, "3 h w"]:
    """An image of the plane and the disc."""
    centers = pixel_centers(hw)
    plane = apply(inverse(motion.matrix(frame)), centered(centers, hw))
    texture = ((6 * torch.pi * plane).sin().prod(-1) + 1) / 2
    picture = torch.cat((FLAT + SLOPE * plane, TEXTURE_BLUE * texture[..., None]), dim=-1)
    picture[behind_disc(motion, centers, hw)] = torch.tensor([0.2, 0.2, DISC_BLUE])
    return rearrange((picture.clamp(0, 1) * 255).round().byte(), "h w c -> c h w")


def toy_clip(motion: ToyMotion, frames: int, hw: HW = (256, 256), name: str = "toy") -> Clip:
    """A clip of the moving plane."""
    return Clip(torch.stack([toy_frame(motion, frame, hw) for frame in range(frames)]), name)


def toy_truth(motion: ToyMotion, queries: Queries, frames: int, hw: HW) -> Tracks:
    """Exact tracks of points of the plane; hidden behind the disc and outside the frame."""
    xy = torch.full((len(queries), frames, 2), torch.nan)
    for row, (point, start) in enumerate(zip(queries.xy, queries.frame.tolist(), strict=True)):
        plane = apply(inverse(motion.matrix(start)), centered(point, hw))
        for frame in range(start, frames):
            xy[row, frame] = uncentered(apply(motion.matrix(frame), plane), hw)
    return Tracks(xy, inside(xy, hw) & ~behind_disc(motion, xy, hw))


SINGULAR = 1e-9
"""Determinant of a fitted pose below which the colors do not change over the frame."""


@dataclass(frozen=True, slots=True)
class ToyFrame:
    """Map from pixels to plane coordinates, and the pixels that the disc covers."""

    plane: Float[Tensor, "2 3"]
    covered: Bool[Tensor, "h w"]


@dataclass(frozen=True, slots=True)
class ToyScene:
    """For each target pixel the source point it shows, and whether the disc covers it."""

    origin: Float[Tensor, "h w 2"]
    covered: Bool[Tensor, "h w"]


@dataclass(frozen=True, slots=True)
class ToyFactual:
    """Per mask: the assumed source point of each target pixel, and where the response may be non-zero."""

    origin: Float[Tensor, "m h w 2"]
    responsive: Bool[Tensor, "m h w"]


@dataclass(frozen=True, slots=True)
class ToyWorld:
    """A world model whose error depends on the mask alone."""

    error: float = 0.0
    """Displacement of wrong candidates in pixels."""
    wrong: float = 0.5
    """Fraction of masks whose candidates are wrong."""
    sigma: float = 3.0
    amplitude: float = 0.5
    """Width and height of the bump that is added to all three channels."""
    size: int = 256
    patch: int = 8
    defaults: TrackerConfig = field(default_factory=TrackerConfig)

    @property
    def response_sigma(self) -> float:
        """Standard deviation of a response in pixels, which the training of LPA needs."""
        return self.sigma

    def describe(self, frame: Float[Tensor, "3 h w"]) -> ToyFrame:
        """Fit the pose of the plane to the colors."""
        return ToyFrame(fit_plane(frame), frame[2] > (DISC_BLUE + TEXTURE_BLUE) / 2)

    def observe(self, source: ToyFrame, target: ToyFrame) -> ToyScene:
        """The motion between two poses of the plane."""
        if source.plane[:, :2].det().abs() < SINGULAR:
            raise InputError(
                "The toy world reads positions from the colors of its own clip, which this one lacks; choose another "
                "world model."
            )
        centers = pixel_centers((self.size, self.size)).double()
        back = apply(inverse(source.plane), apply(target.plane, centers))
        return ToyScene(back.float(), target.covered)

    def imagine(self, scene: ToyScene, hidden: Bool[Tensor, "m p"]) -> ToyFactual:
        """Displace the origins under wrong masks; responses are zero on visible patches and on the disc."""
        offsets = torch.stack([self.offset(mask) for mask in hidden])
        pixels = mask_pixels(hidden, self.size // self.patch, self.patch)
        return ToyFactual(scene.origin - offsets[:, None, None], pixels & ~scene.covered)

    def intervene(self, scene: ToyScene, factual: ToyFactual, xy: Float[Tensor, "n 2"]) -> Float[Tensor, "n m 3 h w"]:
        """The bump carried along; the prediction is linear in the source, so the difference is the bump's image."""
        distance = (factual.origin[None] - xy[:, None, None, None]).square().sum(-1)
        bump = torch.zeros_like(distance)
        # Beyond seven sigma the bump is below a single precision step of its height.
        near = factual.responsive & (distance < (7 * self.sigma) ** 2)
        bump[near] = self.amplitude * (-distance[near] / (2 * self.sigma**2)).exp()
        return repeat(bump, "n m h w -> n m c h w", c=3).contiguous()

    def offset(self, mask: Bool[Tensor, "p"]) -> Float[Tensor, "2"]:
        """The error of a mask, a function of the patches it hides."""
        draw = torch.rand(2, generator=generator("toy", mask.nonzero().flatten().cpu().numpy().tobytes().hex()))
        angle = 2 * torch.pi * draw[1]
        return self.error * float(draw[0] < self.wrong) * torch.stack((angle.cos(), angle.sin())).to(mask.device)


def fit_plane(frame: Float[Tensor, "3 h w"]) -> Float[Tensor, "2 3"]:
    """Least-squares map from pixels to plane coordinates, from all pixels well inside the plane."""
    clear = F.max_pool2d(frame[2][None, None], 7, 1, 3)[0, 0] < (DISC_BLUE + TEXTURE_BLUE) / 2
    # Clipped colors are no coordinates.
    clear &= ((frame[:2] > 0.02) & (frame[:2] < 0.98)).all(0)
    xy = pixel_centers((frame.shape[1], frame.shape[2]), frame.device)[clear].double()
    plane = ((rearrange(frame[:2], "c h w -> h w c")[clear] - FLAT) / SLOPE).double()
    design = torch.cat((xy, torch.ones_like(xy[:, :1])), dim=1)
    return torch.linalg.lstsq(design, plane).solution.T
