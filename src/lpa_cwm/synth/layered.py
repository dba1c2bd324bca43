"""Layered 2-D scenes with exact flow and visibility: image cut-outs that move in front of a background image.

Similar to FlyingChairs (Dosovitskiy et al. 2015, arXiv 1504.06852) and AutoFlow (Sun et al. 2021, arXiv 2104.14544).
A layer is a textured plane with a free-form outline. Both frames sample the same texture through a motion, an affine
map after sinusoidal shears, that is inverted in closed form, so the flow is exact up to rounding. Points are `xy` with
the coordinate axis first, [2 ...], which is several times faster here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor

from lpa_cwm.geometry import inside, pixel_centers
from lpa_cwm.rng import numpy_rng
from lpa_cwm.synth.images import Field, ImagePool, PhotometricJitter, capsule, outline, random_crop
from lpa_cwm.synth.pairs import Example, Split

Moment = Literal["source", "target"]
MOMENTS: tuple[Moment, Moment] = ("source", "target")
Box = tuple[slice, slice]
Points = Float[Tensor, "2 h w"]
PlanarPoints = Float[Tensor, "2 *b"]
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

    def __call__(self, xy: PlanarPoints) -> PlanarPoints:
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

    def shear(self, xy: PlanarPoints, sign: int) -> PlanarPoints:
        """Apply the shear (+1) or its inverse (-1)."""
        flat = xy.flatten(1)
        swing = torch.sin(self.across @ flat + self.phase)
        return torch.addr(flat, self.along, swing, alpha=sign).view(xy.shape)


@dataclass(frozen=True, slots=True)
class PlanarMotion:
    """Motion from source to target: shears, then an affine map."""

    waves: tuple[SinusoidalShear, ...]
    affine: Affine

    def forward(self, xy: PlanarPoints) -> PlanarPoints:
        """Source points to target points."""
        for wave in self.waves:
            xy = wave.shear(xy, 1)
        return self.affine(xy)

    def backward(self, xy: PlanarPoints) -> PlanarPoints:
        """Target points to source points."""
        xy = self.affine.inverse()(xy)
        for wave in reversed(self.waves):
            xy = wave.shear(xy, -1)
        return xy


@dataclass(frozen=True, slots=True)
class Layer:
    """A textured plane; `place` maps source pixels to texture coordinates in [-1, 1]."""

    texture: Float[Tensor, "4 k k"]
    """RGB and the signed distance to the outline in pixels, positive inside."""
    place: Affine
    motion: PlanarMotion
    light: float
    """Brightness in the target relative to the source."""
    padding: Literal["border", "reflection"] = "border"

    def look_up(self, xy: Points, moment: Moment, channels: slice) -> Float[Tensor, "c h w"]:
        """Sample texture channels at points of one frame."""
        own = self.place(xy if moment == "source" else self.motion.backward(xy))
        texture = self.texture[None, channels]
        grid = rearrange(own, "d h w -> 1 h w d")
        return F.grid_sample(texture, grid, padding_mode=self.padding, align_corners=False).squeeze(0)

    def box(self, moment: Moment, size: int) -> Box:
        """Bounding box of the layer in a frame, as rows and columns."""
        if self.padding == "reflection":
            return slice(0, size), slice(0, size)
        border = self.place.inverse()(border_of_square())
        if moment == "target":
            border = self.motion.forward(border)
        left, top = (border.amin(1) - 1).floor().clamp(0, size).int().tolist()
        right, bottom = (border.amax(1) + 1).ceil().clamp(0, size).int().tolist()
        return slice(top, bottom), slice(left, right)


@lru_cache(maxsize=1)
def border_of_square() -> Float[Tensor, "2 32"]:
    """Points on the border of the square [-1, 1]."""
    ticks, ones = torch.linspace(-1, 1, 8), torch.ones(8)
    sides = ((ticks, -ones), (ticks, ones), (-ones, ticks), (ones, ticks))
    return torch.cat([torch.stack(side) for side in sides], dim=1)


@dataclass(frozen=True, eq=False)
class LayerStack:
    """Layers from back to front, rendered into square frames."""

    layers: Sequence[Layer]
    size: int

    @cached_property
    def centers(self) -> Points:
        """All pixel centers."""
        return rearrange(pixel_centers((self.size, self.size)), "h w d -> d h w").contiguous()

    @cached_property
    def boxes(self) -> dict[Moment, list[Box]]:
        """Bounding box of each layer in each frame."""
        return {moment: [layer.box(moment, self.size) for layer in self.layers] for moment in MOMENTS}

    def draw(self, moment: Moment) -> tuple[Float[Tensor, "3 s s"], Int[Tensor, "s s"]]:
        """Render one frame; returns the image and, per pixel, the index of the front layer."""
        picture = torch.zeros(3, self.size, self.size)
        owner = torch.zeros(self.size, self.size, dtype=torch.int32)
        for number, (layer, (rows, columns)) in enumerate(zip(self.layers, self.boxes[moment], strict=True)):
            if rows.start >= rows.stop or columns.start >= columns.stop:
                continue
            sample = layer.look_up(self.centers[:, rows, columns], moment, slice(None))
            color, distance = sample[:3], sample[3]
            if moment == "target":
                color = color * layer.light
            picture[:, rows, columns].lerp_(color, (distance + 0.5).clamp(0, 1).expand_as(color))
            owner[rows, columns].masked_fill_(distance > 0, number)
        return picture, owner

    def target_positions(self, owner: Int[Tensor, "s s"]) -> Points:
        """Position of each source pixel center in the target, by the motion of its layer."""
        target_xy = torch.empty_like(self.centers)
        for number, (layer, (rows, columns)) in enumerate(zip(self.layers, self.boxes["source"], strict=True)):
            mine = owner[rows, columns] == number
            part = target_xy[:, rows, columns]
            part.copy_(torch.where(mine, layer.motion.forward(self.centers[:, rows, columns]), part))
        return target_xy

    def visible_mask(self, target_xy: Points, owner: Int[Tensor, "s s"]) -> Bool[Tensor, "s s"]:
        """Whether the target position of each source pixel is inside the frame and not covered by a layer in front."""
        visible = inside(rearrange(target_xy, "d h w -> h w d"), (self.size, self.size))
        columns_off, rows_off = (target_xy - self.centers).abs().amax(dim=(1, 2)).ceil().int().tolist()
        for number, (layer, (rows, columns)) in enumerate(zip(self.layers, self.boxes["target"], strict=True)):
            # Only pixels that the fastest motion could bring to this layer are tested.
            window = widened(rows, rows_off), widened(columns, columns_off)
            x, y = target_xy[:, *window]
            near = (x >= columns.start) & (x < columns.stop) & (y >= rows.start) & (y < rows.stop)
            asked = (near & visible[window] & (owner[window] < number)).nonzero(as_tuple=True)
            if len(asked[0]):
                distance = layer.look_up(torch.stack((x[asked], y[asked])).unsqueeze(1), "target", slice(3, 4))
                visible[window][asked] = distance.flatten() <= 0
        return visible

    def source_positions(self, xy: Points) -> tuple[Points, Bool[Tensor, "h w"]]:
        """Exact backward motion: where target points come from, and whether the source shows them."""
        owner = torch.zeros(xy.shape[1:], dtype=torch.long)
        for number, layer in enumerate(self.layers[1:], 1):
            owner.masked_fill_(layer.look_up(xy, "target", slice(3, 4))[0] > 0, number)
        origin = torch.empty_like(xy)
        for number in owner.unique().tolist():
            origin = torch.where(owner == number, self.layers[number].motion.backward(xy), origin)
        visible = inside(rearrange(origin, "d h w -> h w d"), (self.size, self.size))
        for number, layer in enumerate(self.layers[1:], 1):
            visible &= (owner >= number) | (layer.look_up(origin, "source", slice(3, 4))[0] <= 0)
        return origin, visible


def widened(span: slice, by: int) -> slice:
    """A range of rows or columns, extended on both sides."""
    return slice(max(0, span.start - by), span.stop + by)


@dataclass(frozen=True)
class LayeredConfig:
    """Distribution of layered scenes; lengths are relative to the side of the frame."""

    sprites: tuple[int, int] = (2, 8)
    """Minimum and maximum number of cut-outs in front of the background."""
    radius: tuple[float, float] = (0.09, 0.4)
    """Minimum and maximum half side of a cut-out, log-uniform."""
    travel: float = 0.017
    """Median length of a translation."""
    travel_sigma: float = 0.9
    """Standard deviation of the logarithm of this length."""
    max_travel: float = 0.25
    """Maximum length of a translation."""
    zoom: float = 0.05
    """Scale of the logarithm of a zoom."""
    turn: float = 0.08
    """Scale of a rotation in radians."""
    ripple: float = 0.008
    """Standard deviation of the amplitude of the non-rigid part."""
    still: float = 0.2
    """Probability that the camera does not move; the same for each cut-out relative to the camera."""
    bodies: float = 0.0
    """Mean number of articulated bodies: a torso with limbs that turn about their joints."""
    bend: float = 0.35
    """Standard deviation of the rotation of a limb about its joint, in radians."""
    waves: int = 1
    """Maximum number of pairs of shears in a motion; the shears of a pair are perpendicular."""
    jitter: PhotometricJitter = field(default_factory=PhotometricJitter)
    """Photometric differences between the frames."""

    @classmethod
    def hard(cls) -> "LayeredConfig":
        """Larger motion, stronger deformation, articulated bodies and strong photometric differences."""
        return cls(
            travel=0.025,
            travel_sigma=1.0,
            max_travel=0.35,
            zoom=0.08,
            turn=0.14,
            ripple=0.016,
            bodies=0.8,
            waves=2,
            jitter=PhotometricJitter.strong(),
        )

    def translation(self, rng: np.random.Generator, size: int) -> Vector:
        """A translation in pixels: uniform direction, log-normal length."""
        length = size * min(self.travel * rng.lognormal(0, self.travel_sigma), self.max_travel)
        return rotation(rng.uniform(0, 2 * np.pi)) @ torch.tensor([length, 0.0])

    def motion(self, rng: np.random.Generator, pivot: Vector, size: int, length: float, share: float) -> PlanarMotion:
        """A random motion about a point; `share` scales zoom and rotation, `length` is the shortest wavelength."""
        if rng.random() < self.still:
            return PlanarMotion((), Affine.identity())
        # Student's t with four degrees of freedom has heavy tails.
        zoom, turn = (share * rng.standard_t(4, 2).clip(-4, 4) * (self.zoom, self.turn)).tolist()
        affine = Affine.around(pivot, float(np.exp(zoom)) * rotation(turn), self.translation(rng, size))
        angles: tuple[float, ...] = ()
        for _ in range(self.waves):
            start = rng.uniform(0, np.pi)
            angles += (start, start + np.pi / 2) if rng.random() < 0.5 else ()
        return PlanarMotion(tuple(self.wave(rng, angle, size, length) for angle in angles), affine)

    def wave(self, rng: np.random.Generator, angle: float, size: int, length: float) -> SinusoidalShear:
        """A sinusoidal shear along a direction, with a wavelength of at least `length` pixels."""
        frequency = 2 * np.pi / (length * rng.uniform(1, 3))
        # Steeper waves would fold thin shapes.
        amplitude = np.clip(size * self.ripple * rng.normal(), -0.25 / frequency, 0.25 / frequency)
        along, across = rotation(angle).T
        return SinusoidalShear(float(amplitude) * along, float(frequency) * across, float(rng.uniform(0, 2 * np.pi)))


@dataclass(frozen=True)
class SceneSampler:
    """Samples the layers of one scene."""

    photographs: ImagePool
    config: LayeredConfig
    rng: np.random.Generator
    size: int

    def background(self) -> Layer:
        """The background layer: an image slightly larger than the frame, reflected beyond its border."""
        middle, radius = torch.full((2,), self.size / 2), 0.62 * self.size
        rgb = random_crop(self.photographs.draw(self.rng), self.rng, round(2 * radius))
        everywhere = torch.full_like(rgb[:1], float(self.size))
        place = Affine(radius * rotation(self.rng.normal(0, 0.06)), middle).inverse()
        motion = self.config.motion(self.rng, middle, self.size, 2 * radius, share=0.4)
        return Layer(torch.cat((rgb, everywhere)), place, motion, self.light(), "reflection")

    def sprite(self, camera: Affine) -> Layer:
        """A cut-out at a random position that moves with the camera and by itself."""
        low, high = np.log(self.config.radius)
        radius = self.size * float(np.exp(self.rng.uniform(low, high)))
        center = torch.from_numpy(self.rng.uniform(-0.05, 1.05, 2) * self.size).float()
        side = max(8, round(2 * radius))
        rgb = random_crop(self.photographs.draw(self.rng), self.rng, side)
        # The outermost texels must lie outside the shape, because they are repeated beyond the border.
        distance = resized(outline(self.rng, margin=2.5 / side) * radius, side)
        place = Affine(radius * rotation(self.rng.uniform(0, 2 * np.pi)), center).inverse()
        own = self.config.motion(self.rng, center, self.size, 2 * radius, share=1.0)
        motion = PlanarMotion(own.waves, camera.after(own.affine))
        return Layer(torch.cat((rgb, distance)), place, motion, self.light())

    def body(self, camera: Affine) -> list[Layer]:
        """A torso and two to five limbs of one image; a limb has one or two parts, each turns about its joint."""
        image, rng = self.photographs.draw(self.rng), self.rng
        radius = self.size * float(np.exp(rng.uniform(*np.log((0.06, 0.18)))))
        center = torch.from_numpy(rng.uniform(0.1, 0.9, 2) * self.size).float()
        own = self.config.motion(rng, center, self.size, 2 * radius, share=1.0)
        motion = PlanarMotion(own.waves, camera.after(own.affine))
        limbs: list[Layer] = []
        for angle in rng.uniform(0, 2 * np.pi, int(rng.integers(2, 6))).tolist():
            joint = center + 0.7 * radius * rotation(angle)[:, 0]
            limbs += self.limb(image, joint, angle, radius, motion.affine)
        side = max(8, round(2 * radius))
        shape = outline(rng, margin=2.5 / side) * radius
        pose = Affine(radius * rotation(rng.uniform(0, 2 * np.pi)), center)
        torso = self.cut_out(image, shape, pose, motion, side)
        # Limbs are behind the torso or in front of it.
        behind = int(rng.integers(len(limbs) + 1))
        return [*limbs[:behind], torso, *limbs[behind:]]

    def limb(self, image: Image.Image, joint: Vector, angle: float, radius: float, carrier: Affine) -> list[Layer]:
        """A chain of one or two capsules; each moves with the part before it and turns about the joint between them."""
        parts, rng = [], self.rng
        for number in range(int(rng.integers(1, 3))):
            half_length = radius * float(rng.uniform(0.6, 1.1)) * 0.8**number
            angle += float(rng.normal(0, 0.5))
            turn = rotation(float(rng.normal(0, self.config.bend)))
            carrier = carrier.after(Affine.around(joint, turn, torch.zeros(2)))
            direction = rotation(angle)[:, 0]
            pose = Affine(half_length * rotation(angle), joint + 0.8 * half_length * direction)
            shape = capsule(rng, 48) * half_length
            parts.append(self.cut_out(image, shape, pose, PlanarMotion((), carrier), max(8, round(2 * half_length))))
            joint = joint + 1.6 * half_length * direction
        return parts

    def cut_out(self, image: Image.Image, shape: Field, pose: Affine, motion: PlanarMotion, side: int) -> Layer:
        """A layer of a crop of an image inside an outline; `pose` maps the square [-1, 1] to source pixels."""
        rgb = random_crop(image, self.rng, side)
        return Layer(torch.cat((rgb, resized(shape, side))), pose.inverse(), motion, self.light())

    def light(self) -> float:
        """Brightness of a layer in the target relative to the source."""
        return self.config.jitter.layer_gain(self.rng)

    def scene(self) -> LayerStack:
        """A background, cut-outs, and articulated bodies in the place of some cut-outs."""
        back = self.background()
        low, high = self.config.sprites
        count = int(self.rng.integers(low, high + 1))
        groups = [[self.sprite(back.motion.affine)] for _ in range(count)]
        if self.config.bodies:
            bodies = min(3, int(self.rng.poisson(self.config.bodies)))
            groups[:bodies] = [self.body(back.motion.affine) for _ in range(bodies)]
            self.rng.shuffle(groups)
        return LayerStack([back, *chain.from_iterable(groups)], self.size)


def resized(shape: Field, side: int) -> Float[Tensor, "1 side side"]:
    """An outline at the resolution of a texture."""
    return F.interpolate(torch.from_numpy(shape)[None, None], (side, side), mode="bilinear", align_corners=False)[0]


@dataclass(frozen=True)
class LayeredPairs:
    """Layered scenes as a source of pairs."""

    photographs: ImagePool
    config: LayeredConfig = field(default_factory=LayeredConfig)
    seed: int = 0

    @classmethod
    def of(cls, folder: Path | None, split: Split, seed: int = 0) -> "LayeredPairs":
        """Scenes made of the photographs of a folder, or of procedural images without a folder."""
        return cls(ImagePool.of(folder, split), seed=seed)

    @property
    def name(self) -> str:
        """`layered_train` or `layered_val`."""
        return f"layered_{self.photographs.split}"

    def scene(self, index: int, size: int) -> tuple[LayerStack, np.random.Generator]:
        """Scene `index`, and the random generator for its photometric jitter."""
        rng = numpy_rng(self.name, self.seed, index)
        return SceneSampler(self.photographs, self.config, rng, size).scene(), rng

    def pair(self, index: int, size: int) -> Example:
        """Pair `index`."""
        scene, rng = self.scene(index, size)
        first, owner = scene.draw("source")
        second, _ = scene.draw("target")
        target_xy = scene.target_positions(owner)
        source, target = self.config.jitter.apply((first, second), rng)
        return Example(source, target, target_xy - scene.centers, scene.visible_mask(target_xy, owner))
