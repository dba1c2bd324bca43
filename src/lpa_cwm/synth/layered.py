"""Endless cheap scenes: photographs cut out and moved over one another, with exact flow and visibility.

Each layer is a plane of texture with a free-form outline, drawn in both frames from the same texture by a motion that
is inverted in closed form; so the flow between the frames is exact to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lpa_cwm.geometry import inside, pixel_centers
from lpa_cwm.synth.images import Photographs, cut
from lpa_cwm.synth.motion import Affine, Motion, Vector, Wave, rotation
from lpa_cwm.synth.pairs import Example, Split, draws
from lpa_cwm.synth.photometric import Weather
from lpa_cwm.synth.shapes import outline

Moment = Literal["source", "target"]
MOMENTS: tuple[Moment, Moment] = ("source", "target")
Box = tuple[slice, slice]
Points = Float[Tensor, "2 h w"]


@dataclass(frozen=True, slots=True)
class Layer:
    """A textured plane: `place` takes source pixels to its own coordinates, in which it spans -1 to 1."""

    texture: Float[Tensor, "4 k k"]
    """RGB, and the signed distance to the outline in pixels, positive inside."""
    place: Affine
    motion: Motion
    light: float
    """Brightness in the target relative to the source."""
    padding: Literal["border", "reflection"] = "border"

    def look_up(self, xy: Points, moment: Moment, channels: slice) -> Float[Tensor, "c h w"]:
        """Texture channels at points of one of the frames."""
        own = self.place(xy if moment == "source" else self.motion.backward(xy))
        texture = self.texture[None, channels]
        grid = rearrange(own, "d h w -> 1 h w d")
        return F.grid_sample(texture, grid, padding_mode=self.padding, align_corners=False).squeeze(0)

    def box(self, moment: Moment, size: int) -> Box:
        """Rows and columns outside which the layer cannot show in a frame."""
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
    """Points all around the square from -1 to 1."""
    ticks, ones = torch.linspace(-1, 1, 8), torch.ones(8)
    sides = ((ticks, -ones), (ticks, ones), (-ones, ticks), (ones, ticks))
    return torch.cat([torch.stack(side) for side in sides], dim=1)


@dataclass(frozen=True, eq=False)
class Scene:
    """Layers from back to front, and what they show and cover in a square frame."""

    layers: Sequence[Layer]
    size: int

    @cached_property
    def centers(self) -> Points:
        """The center of every pixel."""
        return rearrange(pixel_centers((self.size, self.size)), "h w d -> d h w").contiguous()

    @cached_property
    def boxes(self) -> dict[Moment, list[Box]]:
        """Where each layer can show at each moment."""
        return {moment: [layer.box(moment, self.size) for layer in self.layers] for moment in MOMENTS}

    def draw(self, moment: Moment) -> tuple[Float[Tensor, "3 s s"], Int[Tensor, "s s"]]:
        """The picture at one moment, and for each pixel the number of the layer that holds its center."""
        picture = torch.zeros(3, self.size, self.size)
        owner = torch.zeros(self.size, self.size, dtype=torch.int32)
        for number, (layer, (rows, columns)) in enumerate(zip(self.layers, self.boxes[moment], strict=True)):
            if rows.start >= rows.stop or columns.start >= columns.stop:
                continue
            seen = layer.look_up(self.centers[:, rows, columns], moment, slice(None))
            color, distance = seen[:3], seen[3]
            if moment == "target":
                color = color * layer.light
            picture[:, rows, columns].lerp_(color, (distance + 0.5).clamp(0, 1).expand_as(color))
            owner[rows, columns].masked_fill_(distance > 0, number)
        return picture, owner

    def goals(self, owner: Int[Tensor, "s s"]) -> Points:
        """Where each source pixel's center goes with the layer that holds it."""
        goal = torch.empty_like(self.centers)
        for number, (layer, (rows, columns)) in enumerate(zip(self.layers, self.boxes["source"], strict=True)):
            mine = owner[rows, columns] == number
            part = goal[:, rows, columns]
            part.copy_(torch.where(mine, layer.motion.forward(self.centers[:, rows, columns]), part))
        return goal

    def seen(self, goal: Points, owner: Int[Tensor, "s s"]) -> Bool[Tensor, "s s"]:
        """Whether each source pixel's goal lies inside the target and outside every layer in front of its own."""
        visible = inside(rearrange(goal, "d h w -> h w d"), (self.size, self.size))
        columns_off, rows_off = (goal - self.centers).abs().amax(dim=(1, 2)).ceil().int().tolist()
        for number, (layer, (rows, columns)) in enumerate(zip(self.layers, self.boxes["target"], strict=True)):
            # Only pixels from which the fastest motion could reach the layer are asked.
            window = widened(rows, rows_off), widened(columns, columns_off)
            x, y = goal[:, *window]
            near = (x >= columns.start) & (x < columns.stop) & (y >= rows.start) & (y < rows.stop)
            asked = (near & visible[window] & (owner[window] < number)).nonzero(as_tuple=True)
            if len(asked[0]):
                distance = layer.look_up(torch.stack((x[asked], y[asked])).unsqueeze(1), "target", slice(3, 4))
                visible[window][asked] = distance.flatten() <= 0
        return visible


def widened(span: slice, by: int) -> slice:
    """A range of rows or columns with so many more on both sides."""
    return slice(max(0, span.start - by), span.stop + by)


@dataclass(frozen=True)
class Recipe:
    """What layered scenes contain and how they move; lengths are shares of the frame's side."""

    sprites: tuple[int, int] = (2, 8)
    """Fewest and most cut-outs in front of the background."""
    radius: tuple[float, float] = (0.09, 0.4)
    """Smallest and largest half side of a cut-out; its logarithm is uniform."""
    travel: float = 0.017
    """Median length of a translation."""
    tail: float = 0.9
    """Standard deviation of that length's logarithm."""
    reach: float = 0.25
    """No single translation is longer."""
    zoom: float = 0.05
    """Typical logarithm of a scale change."""
    turn: float = 0.08
    """Typical rotation in radians."""
    ripple: float = 0.008
    """Typical amplitude of the non-rigid part."""
    still: float = 0.2
    """Probability that the camera, and that each cut-out relative to it, does not move."""
    weather: Weather = field(default_factory=Weather)
    """What light and camera do to the frames."""

    def translation(self, rng: np.random.Generator, size: int) -> Vector:
        """A shift in pixels: any direction, a length with a heavy tail."""
        length = size * min(self.travel * rng.lognormal(0, self.tail), self.reach)
        return rotation(rng.uniform(0, 2 * np.pi)) @ torch.tensor([length, 0.0])

    def motion(self, rng: np.random.Generator, pivot: Vector, size: int, length: float, share: float) -> Motion:
        """A random motion about a point, with a share of the recipe's zoom and turn, rippled over `length` pixels."""
        if rng.random() < self.still:
            return Motion((), Affine.identity())
        # Student's t with four degrees of freedom: mostly small, sometimes large.
        zoom, turn = (share * rng.standard_t(4, 2).clip(-4, 4) * (self.zoom, self.turn)).tolist()
        affine = Affine.around(pivot, float(np.exp(zoom)) * rotation(turn), self.translation(rng, size))
        start = rng.uniform(0, np.pi)
        angles = (start, start + np.pi / 2) if rng.random() < 0.5 else ()
        return Motion(tuple(self.wave(rng, angle, size, length) for angle in angles), affine)

    def wave(self, rng: np.random.Generator, angle: float, size: int, length: float) -> Wave:
        """A wave at least `length` pixels long that slides points in a given direction."""
        frequency = 2 * np.pi / (length * rng.uniform(1, 3))
        # Steeper waves would fold thin shapes rather than bend them.
        amplitude = np.clip(size * self.ripple * rng.normal(), -0.25 / frequency, 0.25 / frequency)
        along, across = rotation(angle).T
        return Wave(float(amplitude) * along, float(frequency) * across, float(rng.uniform(0, 2 * np.pi)))


@dataclass(frozen=True)
class Studio:
    """Makes the layers of one scene from photographs and a recipe."""

    photographs: Photographs
    recipe: Recipe
    rng: np.random.Generator
    size: int

    def background(self) -> Layer:
        """The layer behind all others: a picture a little larger than the frame, mirrored beyond its edges."""
        middle, radius = torch.full((2,), self.size / 2), 0.62 * self.size
        rgb = cut(self.photographs.draw(self.rng), self.rng, round(2 * radius))
        everywhere = torch.full_like(rgb[:1], float(self.size))
        place = Affine(radius * rotation(self.rng.normal(0, 0.06)), middle).inverse()
        motion = self.recipe.motion(self.rng, middle, self.size, 2 * radius, share=0.4)
        return Layer(torch.cat((rgb, everywhere)), place, motion, self.light(), "reflection")

    def sprite(self, camera: Affine) -> Layer:
        """A cut-out anywhere in the frame, carried along by the camera's motion and moving by itself."""
        low, high = np.log(self.recipe.radius)
        radius = self.size * float(np.exp(self.rng.uniform(low, high)))
        center = torch.from_numpy(self.rng.uniform(-0.05, 1.05, 2) * self.size).float()
        side = max(8, round(2 * radius))
        rgb = cut(self.photographs.draw(self.rng), self.rng, side)
        # The texture's outermost ring must lie outside, because it is repeated beyond the edge.
        shape = torch.from_numpy(outline(self.rng, margin=2.5 / side)) * radius
        distance = F.interpolate(shape[None, None], (side, side), mode="bilinear", align_corners=False)[0]
        place = Affine(radius * rotation(self.rng.uniform(0, 2 * np.pi)), center).inverse()
        own = self.recipe.motion(self.rng, center, self.size, 2 * radius, share=1.0)
        motion = Motion(own.waves, camera.after(own.affine))
        return Layer(torch.cat((rgb, distance)), place, motion, self.light())

    def light(self) -> float:
        """A layer's change of brightness."""
        return self.recipe.weather.shading(self.rng)

    def scene(self) -> Scene:
        """A background and some cut-outs."""
        back = self.background()
        low, high = self.recipe.sprites
        count = int(self.rng.integers(low, high + 1))
        return Scene([back, *(self.sprite(back.motion.affine) for _ in range(count))], self.size)


@dataclass(frozen=True)
class Layered:
    """The layered scenes of a collection of photographs as a source of pairs."""

    photographs: Photographs
    recipe: Recipe = field(default_factory=Recipe)
    seed: int = 0

    @classmethod
    def of(cls, folder: Path | None, split: Split, seed: int = 0) -> "Layered":
        """Scenes of the photographs in a folder, or of procedural pictures without one."""
        return cls(Photographs.of(folder, split), seed=seed)

    @property
    def name(self) -> str:
        """`layered_train` or `layered_val`."""
        return f"layered_{self.photographs.split}"

    def pair(self, index: int, size: int) -> Example:
        """The scene of this number."""
        rng = draws(self.name, self.seed, index)
        scene = Studio(self.photographs, self.recipe, rng, size).scene()
        first, owner = scene.draw("source")
        second, _ = scene.draw("target")
        goal = scene.goals(owner)
        source, target = self.recipe.weather.exposed((first, second), rng)
        return Example(source, target, goal - scene.centers, scene.seen(goal, owner))
