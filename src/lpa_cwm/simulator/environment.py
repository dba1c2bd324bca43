"""What surrounds the bodies: ground under a sky, or a room."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from lpa_cwm.simulator.assets import Assets
from lpa_cwm.simulator.light import Light, light_of
from lpa_cwm.simulator.poses import FramePoints, Numbers, Points, Rows, dot, put
from lpa_cwm.simulator.texture import Color, Texture

UP = np.array([[0], [0], [1]], dtype=np.float32)
ON_PLANE = 3e-3
TURNED = np.array([[0.6, -0.8], [0.8, 0.6]], dtype=np.float32)
COARSER = 0.37
SLANT, LENS = 0.75, 0.25


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

    def __getitem__(self, rows: Rows) -> "Look":
        return Look(*(values.take(rows) for values in (self.footprint, self.slant, self.sunlit, self.open)))

    def level(self, texels: float | Numbers) -> Numbers:
        """Level of a texture's pyramid for its number of texels per unit.

        On a slanted surface a pixel covers more along the slant than across it; the level suits neither quite, but the
        former better. It is a little coarser than that, as a lens is.
        """
        covered = self.footprint / np.maximum(self.slant, np.float32(0.02)) ** np.float32(SLANT)
        return np.log2(covered * np.asarray(texels, dtype=np.float32) + np.float32(1e-6)) + np.float32(LENS)


@runtime_checkable
class Environment(Protocol):
    """Everything that does not move."""

    @property
    def light(self) -> Light: ...

    @property
    def walls(self) -> float | None: ...

    def distance(self, origin: Float[np.ndarray, "3"], direction: Points) -> Numbers:
        """How far rays from inside go."""
        ...

    def normal(self, point: Points) -> Points:
        """Of the surface, on the side from which it is seen."""
        ...

    def radiance(self, point: Points, normal: Points, look: Look) -> Color:
        """The light that comes from points of the surfaces."""
        ...


def tiled(point: FramePoints) -> FramePoints:
    """The place inside a tile of unit side."""
    return point - np.floor(point)


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

    def distance(self, origin: Float[np.ndarray, "3"], direction: Points) -> Numbers:
        """To the ground or to the dome, whichever is nearer."""
        along = origin.astype(np.float32) @ direction
        dome = np.sqrt(along**2 + np.float32(self.radius**2 - origin @ origin)) - along
        ground = np.full_like(dome, np.inf)
        np.divide(np.float32(-origin[2]), direction[2], out=ground, where=direction[2] < 0)
        return np.minimum(dome, ground)

    def normal(self, point: Points) -> Points:
        """Up on the ground, inwards on the dome."""
        return np.where(point[2] < ON_PLANE, UP, point * np.float32(-1 / self.radius))

    def radiance(self, point: Points, normal: Points, look: Look) -> Color:
        """The panorama's own light, dimmed on the ground where bodies take it away."""
        towards = point - UP * np.float32(self.eye)
        away = np.sqrt(dot(towards, towards))
        across = np.float32(0.5) - np.arctan2(towards[1], towards[0]) * np.float32(0.5 / np.pi)
        down = np.arccos(towards[2] / away) * np.float32(1 / np.pi)
        texels = np.float32(self.sky.size[0, 0] / (2 * np.pi)) / away
        color = self.sky.read(np.stack((across, down)), look.level(texels))
        ground = np.flatnonzero(point[2] < ON_PLANE)
        put(color, ground, color.take(ground, axis=1) * self._lit(point[:2].take(ground, axis=1), look[ground]))
        return color

    def _lit(self, point: FramePoints, look: Look) -> Color:
        """Fine detail of the ground, and light that falls on it over what falls on open ground.

        The detail has two layers of relief at unlike scales, so that the repetition is not seen.
        """
        first = point * np.float32(1 / self.tile)
        level = look.level(self.relief.texels / self.tile)
        fine = self.relief.read(tiled(first), level)
        coarse = self.relief.read(tiled((COARSER * TURNED) @ first), level + np.float32(np.log2(COARSER)))
        sun, around = self.light.sun * self.light.towards[2], self.light.around(UP)
        return fine * coarse * (sun / (sun + around) * look.sunlit + around / (sun + around) * look.open)


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
        light = Light.of(towards, white * share / towards[2] * tint, mean, np.outer(mean, [0, 0, 0.2]))
        return cls(assets.floor(rng), assets.walls(rng), light, rng.uniform(12.5, 16), rng.uniform(4, 8))

    def distance(self, origin: Float[np.ndarray, "3"], direction: Points) -> Numbers:
        """To the nearest of the six planes."""
        high = np.array([self.walls, self.walls, self.height]) - origin
        low = np.array([-self.walls, -self.walls, 0]) - origin
        reach = np.full(direction.shape[1], np.inf, dtype=np.float32)
        for slope, ahead, behind in zip(direction, high.astype(np.float32), low.astype(np.float32), strict=True):
            own = np.full_like(reach, np.inf)
            np.divide(ahead, slope, out=own, where=slope > 0)
            np.divide(behind, slope, out=own, where=slope < 0)
            np.minimum(reach, own, out=reach)
        return reach

    def normal(self, point: Points) -> Points:
        """Towards the inside of the room."""
        unit = np.abs(point[:2]) * np.float32(1 / self.walls)
        level = point[2] * np.float32(2 / self.height) - 1
        flat = np.abs(level) >= np.maximum(unit[0], unit[1])
        first = ~flat & (unit[0] >= unit[1])
        return -np.sign(np.stack((point[0] * first, point[1] * ~(flat | first), level * flat)))

    def radiance(self, point: Points, normal: Points, look: Look) -> Color:
        """Textures under the room's light; the ceiling is plain."""
        albedo = np.full_like(point, 0.7)
        floor = np.flatnonzero(normal[2] > 0)
        place = point[:2].take(floor, axis=1) * np.float32(1 / self.tile)
        put(albedo, floor, self.floor.read(tiled(place), look[floor].level(self.floor.texels / self.tile)))
        sides = np.flatnonzero(normal[2] == 0)
        put(albedo, sides, self._wall(point.take(sides, axis=1), normal.take(sides, axis=1), look[sides]))
        return albedo * self.light.on(normal, look.sunlit, look.open)

    def _wall(self, point: Points, normal: Points, look: Look) -> Color:
        """Each wall has its page; from left to right as seen from inside."""
        along = point[1] * normal[0] - point[0] * normal[1]
        page = 2 * (normal[1] != 0) + (normal[0] + normal[1] > 0)
        uv = np.stack((along * np.float32(0.5 / self.walls) + np.float32(0.5), 1 - point[2] / np.float32(self.height)))
        return self.paint.read(uv, look.level(self.paint.size[0, 0] / (2 * self.walls)), page)
