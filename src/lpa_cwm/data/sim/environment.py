"""What surrounds the bodies: ground under a sky, or a room."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Float, Float32, Int

from lpa_cwm.data.sim.assets import Assets
from lpa_cwm.data.sim.light import Light, light_of
from lpa_cwm.data.sim.texture import Colour, Texture

Points = Float32[np.ndarray, "n 3"]
Numbers = Float[np.ndarray, "n"]
UP = np.array([0, 0, 1], dtype=np.float32)
ON_PLANE = 3e-3


@dataclass(frozen=True)
class Look:
    """How points of a surface are seen and lit."""

    footprint: Numbers
    """Side of what one pixel covers, across the line of sight."""
    slant: Numbers
    """Cosine between the line of sight and the normal."""
    sunlit: Numbers
    """Share of the lamp that is not hidden."""
    open: Numbers
    """Share of the surroundings that is not hidden."""

    def __getitem__(self, index: Int[np.ndarray, "m"]) -> "Look":
        return Look(self.footprint[index], self.slant[index], self.sunlit[index], self.open[index])

    def level(self, texels: float | Numbers) -> Numbers:
        """Level of a texture's pyramid for its number of texels per unit; slanted surfaces get a compromise."""
        return np.log2(texels * self.footprint / np.sqrt(np.maximum(self.slant, 0.02)) + 1e-6)


class Environment(Protocol):
    """Everything that does not move."""

    @property
    def light(self) -> Light: ...

    @property
    def walls(self) -> float | None: ...

    def distance(self, origin: Float[np.ndarray, "3"], direction: Points) -> Float32[np.ndarray, "n"]:
        """How far rays from inside go."""
        ...

    def normal(self, point: Points) -> Points:
        """Of the surface, on the side from which it is seen."""
        ...

    def radiance(self, point: Points, normal: Points, look: Look) -> Colour:
        """The light that comes from points of the surfaces."""
        ...


@dataclass(frozen=True)
class Outdoors:
    """A panorama on a dome and on the flat ground inside it, which takes shadows and finer detail."""

    sky: Texture
    relief: Texture
    light: Light
    eye: float
    """Height over the origin from which the panorama looks right."""
    tile: float
    """Side of the ground detail's tile."""
    walls: None = None
    radius: float = 60.0

    @classmethod
    def drawn(cls, assets: Assets, rng: np.random.Generator) -> "Outdoors":
        """A random place in the open."""
        sky = assets.sky(rng)
        light = light_of(sky, rng.uniform(0.85, 1.05))
        return cls(sky, assets.relief(rng), light, rng.uniform(3, 5), rng.uniform(3, 7))

    def distance(self, origin: Float[np.ndarray, "3"], direction: Points) -> Float32[np.ndarray, "n"]:
        """To the ground or to the dome, whichever is nearer."""
        along = direction @ origin.astype(np.float32)
        dome = np.sqrt(along**2 + np.float32(self.radius**2 - origin @ origin)) - along
        ground = np.full_like(dome, np.inf)
        np.divide(np.float32(-origin[2]), direction[:, 2], out=ground, where=direction[:, 2] < 0)
        return np.minimum(dome, ground)

    def normal(self, point: Points) -> Points:
        """Up on the ground, inwards on the dome."""
        return np.where(point[:, 2:] < ON_PLANE, UP, point / np.float32(-self.radius))

    def radiance(self, point: Points, normal: Points, look: Look) -> Colour:
        """The panorama's own light, dimmed on the ground where bodies take it away."""
        towards = point - UP * np.float32(self.eye)
        away = np.sqrt((towards**2).sum(-1))
        across = 0.5 - np.arctan2(towards[:, 1], towards[:, 0]) / np.float32(2 * np.pi)
        down = np.arccos(towards[:, 2] / away) / np.float32(np.pi)
        texels = self.sky.size[0, 0] / np.float32(2 * np.pi) / away
        colour = self.sky.read(np.stack((across, down), axis=-1), look.level(texels))
        ground = np.flatnonzero(point[:, 2] < ON_PLANE)
        colour[ground] *= self._detail(point[ground], look[ground]) * self._dimmed(normal[ground], look[ground])
        return colour

    def _detail(self, point: Points, look: Look) -> Colour:
        """Two layers of relief at unlike scales, so that the repetition is not seen."""
        first = point[:, :2] / np.float32(self.tile)
        turned = (
            np.stack((first[:, 0] * 0.6 - first[:, 1] * 0.8, first[:, 0] * 0.8 + first[:, 1] * 0.6), axis=-1) * 0.37
        )
        level = look.level(self.relief.texels / self.tile)
        return self.relief.read(first % 1, level) * self.relief.read(turned % 1, level - 1.43)

    def _dimmed(self, normal: Points, look: Look) -> Colour:
        """Light that falls on the ground over what falls on open ground."""
        whole = np.ones(1)
        return self.light.on(normal, look.sunlit, look.open) / self.light.on(UP[None], whole, whole)


@dataclass(frozen=True)
class Indoors:
    """A square room: a floor and four walls with pictures."""

    floor: Texture
    paint: Texture
    light: Light
    walls: float
    """Distance of the walls from the middle."""
    tile: float
    """Side of the floor's tile."""
    height: float = 15.0

    @classmethod
    def drawn(cls, assets: Assets, rng: np.random.Generator) -> "Indoors":
        """A random room, lit from above by a wide lamp."""
        tilt, angle = rng.uniform(0.2, 0.8), rng.uniform(0, 2 * np.pi)
        towards = np.array([np.sin(tilt) * np.cos(angle), np.sin(tilt) * np.sin(angle), np.cos(tilt)])
        share, white = rng.uniform(0.35, 0.6), rng.uniform(0.85, 1.05)
        tint = 1 + rng.uniform(-0.08, 0.12) * np.array([1, 0, -1])
        mean = white * (1 - share) / 1.2 * tint
        slope = np.outer([0, 0, 0.2], mean)
        parts = (towards, white * share / towards[2] * tint, mean, slope)
        light = Light(*(part.astype(np.float32) for part in parts))
        return cls(assets.floor(rng), assets.walls(rng), light, rng.uniform(12.5, 16), rng.uniform(4, 8))

    def distance(self, origin: Float[np.ndarray, "3"], direction: Points) -> Float32[np.ndarray, "n"]:
        """To the nearest of the six planes."""
        low = np.array([-self.walls, -self.walls, 0])
        high = np.array([self.walls, self.walls, self.height])
        ahead = np.where(direction > 0, high - origin, low - origin).astype(np.float32)
        reach = np.full_like(direction, np.inf)
        np.divide(ahead, direction, out=reach, where=direction != 0)
        return reach.min(-1)

    def normal(self, point: Points) -> Points:
        """Towards the inside of the room."""
        middle = np.array([0, 0, self.height / 2], dtype=np.float32)
        half = np.array([self.walls, self.walls, self.height / 2], dtype=np.float32)
        unit = (point - middle) / half
        axis = np.abs(unit).argmax(-1)
        normal = np.zeros_like(point)
        row = np.arange(len(point))
        normal[row, axis] = -np.sign(unit[row, axis])
        return normal

    def radiance(self, point: Points, normal: Points, look: Look) -> Colour:
        """Textures under the room's light; the ceiling is plain."""
        albedo = np.full_like(point, 0.7)
        floor = np.flatnonzero(normal[:, 2] > 0.5)
        level = look[floor].level(self.floor.texels / self.tile)
        albedo[floor] = self.floor.read(point[floor, :2] / np.float32(self.tile) % 1, level)
        sides = np.flatnonzero(normal[:, 2] == 0)
        albedo[sides] = self._wall(point[sides], normal[sides], look[sides])
        return albedo * self.light.on(normal, look.sunlit, look.open)

    def _wall(self, point: Points, normal: Points, look: Look) -> Colour:
        """Each wall has its page; from left to right as seen from inside."""
        facing_x = normal[:, 0] != 0
        along = np.where(facing_x, point[:, 1] * normal[:, 0], -point[:, 0] * normal[:, 1])
        page = np.where(facing_x, 0, 2) + (normal.sum(-1) > 0)
        uv = np.stack((along / np.float32(2 * self.walls) + 0.5, 1 - point[:, 2] / np.float32(self.height)), axis=-1)
        return self.paint.read(uv, look.level(self.paint.size[0, 0] / (2 * self.walls)), page)
