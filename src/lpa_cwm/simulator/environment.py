"""Light and static environment: ground under a sky, or a room."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float32

from lpa_cwm.geometry import axis_centers
from lpa_cwm.simulator.assets import Assets, FramePoints, Numbers, Points, Rows, dot, scatter_columns
from lpa_cwm.simulator.texture import Color, Texture

LUMINANCE = np.array([0.2126, 0.7152, 0.0722], dtype=np.float32)
SUN_TINT = np.array([1.06, 1.0, 0.9], dtype=np.float32)


@dataclass(frozen=True)
class Light:
    """A directional lamp and ambient light of first order; 1 makes a white surface white."""

    towards: Float32[np.ndarray, "3 1"]
    """Unit vector to the lamp."""
    sun: Float32[np.ndarray, "3 1"]
    """Irradiance of the lamp on a surface that faces it."""
    mean: Float32[np.ndarray, "3 1"]
    """Ambient irradiance, mean over all normals."""
    slope: Float32[np.ndarray, "3 3"]
    """Linear dependence of the ambient irradiance on the unit normal."""

    @classmethod
    def of(
        cls,
        towards: Float[np.ndarray, "3"],
        sun: Float[np.ndarray, "3"],
        mean: Float[np.ndarray, "3"],
        slope: Float[np.ndarray, "3 3"],
    ) -> "Light":
        """Convert vectors of any precision."""
        place, lamp, rest = (vector.astype(np.float32)[:, None] for vector in (towards, sun, mean))
        return cls(place, lamp, rest, slope.astype(np.float32))

    def around(self, normal: Points) -> Color:
        """Ambient irradiance on surfaces with these normals."""
        return np.maximum(self.mean + self.slope @ normal, np.float32(0.05) * self.mean)

    def on(self, normal: Points, sunlit: Numbers, open_: Numbers) -> Color:
        """Irradiance on surfaces, with the visible shares of lamp and ambient light."""
        facing = np.maximum(self.towards.T @ normal, 0) * sunlit
        return self.around(normal) * open_ + facing * self.sun


def directions_of(height: int, width: int) -> Float[np.ndarray, "h w 3"]:
    """Unit direction of each pixel of a panorama; the middle column looks along x."""
    tilt = np.pi * (0.5 - axis_centers(0, height) / height)
    angle = np.pi * (1 - 2 * axis_centers(0, width) / width)
    flat = np.cos(tilt)[:, None] * np.stack((np.cos(angle), np.sin(angle)))[:, None]
    return np.stack((flat[0], flat[1], np.broadcast_to(np.sin(tilt)[:, None], (height, width))), axis=-1)


def light_of(panorama: Texture, brightness: float) -> Light:
    """Fit a lamp at the brightest part of the sky and ambient light to a panorama.

    `brightness` is the value of a white surface that faces up in full light.
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


UP = np.array([[0], [0], [1]], dtype=np.float32)
GROUND_TOLERANCE = 3e-3
TILE_ROTATION = np.array([[0.6, -0.8], [0.8, 0.6]], dtype=np.float32)
TILE_SCALE = 0.37
SLANT_EXPONENT, LEVEL_BIAS = 0.75, 0.25


@dataclass(frozen=True)
class ShadingPoint:
    """How points of a surface are viewed and lit."""

    footprint: Numbers
    """Side of the area that a pixel covers, perpendicular to the ray."""
    slant: Numbers
    """Cosine between ray and normal."""
    sunlit: Numbers
    """Visible share of the lamp."""
    open: Numbers
    """Visible share of the ambient light."""

    def __getitem__(self, rows: Rows) -> "ShadingPoint":
        return ShadingPoint(*(values.take(rows) for values in (self.footprint, self.slant, self.sunlit, self.open)))

    def level(self, texels: float | Numbers) -> Numbers:
        """Mipmap level for a number of texels per unit.

        On a slanted surface a pixel covers more texels along the slant than across it; the level is in between.
        """
        covered = self.footprint / np.maximum(self.slant, np.float32(0.02)) ** np.float32(SLANT_EXPONENT)
        return np.log2(covered * np.asarray(texels, dtype=np.float32) + np.float32(1e-6)) + np.float32(LEVEL_BIAS)


@runtime_checkable
class Environment(Protocol):
    """The static part of a scene."""

    @property
    def light(self) -> Light: ...

    @property
    def walls(self) -> float | None: ...

    def distance(self, origin: Float[np.ndarray, "3"], direction: Points) -> Numbers:
        """Distance of rays to the surfaces."""
        ...

    def normal(self, point: Points) -> Points:
        """Normal of the surface, facing the camera."""
        ...

    def radiance(self, point: Points, normal: Points, shading: ShadingPoint) -> Color:
        """Radiance of points of the surfaces."""
        ...


def tiled(point: FramePoints) -> FramePoints:
    """Position inside a tile of unit side."""
    return point - np.floor(point)


@dataclass(frozen=True)
class Outdoors:
    """A panorama projected on a dome and on flat ground, which has shadows and a detail texture."""

    sky: Texture
    relief: Texture
    light: Light
    eye: float
    """Height of the center of projection of the panorama."""
    tile: float
    """Side of a tile of the detail texture."""
    walls: None = None
    radius: float = 60.0

    @classmethod
    def sample(cls, assets: Assets, rng: np.random.Generator) -> "Outdoors":
        """A random outdoor environment."""
        sky = assets.sky(rng)
        light = light_of(sky, rng.uniform(0.85, 1.05))
        return cls(sky, assets.relief(rng), light, rng.uniform(3, 5), rng.uniform(3, 7))

    def distance(self, origin: Float[np.ndarray, "3"], direction: Points) -> Numbers:
        """Distance to the ground or the dome."""
        along = origin.astype(np.float32) @ direction
        dome = np.sqrt(along**2 + np.float32(self.radius**2 - origin @ origin)) - along
        ground = np.full_like(dome, np.inf)
        np.divide(np.float32(-origin[2]), direction[2], out=ground, where=direction[2] < 0)
        return np.minimum(dome, ground)

    def normal(self, point: Points) -> Points:
        """Up on the ground, inwards on the dome."""
        return np.where(point[2] < GROUND_TOLERANCE, UP, point * np.float32(-1 / self.radius))

    def radiance(self, point: Points, normal: Points, shading: ShadingPoint) -> Color:
        """Color of the panorama; on the ground with detail and shadows."""
        towards = point - UP * np.float32(self.eye)
        away = np.sqrt(dot(towards, towards))
        across = np.float32(0.5) - np.arctan2(towards[1], towards[0]) * np.float32(0.5 / np.pi)
        down = np.arccos(towards[2] / away) * np.float32(1 / np.pi)
        texels = np.float32(self.sky.size[0, 0] / (2 * np.pi)) / away
        color = self.sky.read(np.stack((across, down)), shading.level(texels))
        ground = np.flatnonzero(point[2] < GROUND_TOLERANCE)
        scatter_columns(
            color, ground, color.take(ground, axis=1) * self._lit(point[:2].take(ground, axis=1), shading[ground])
        )
        return color

    def _lit(self, point: FramePoints, shading: ShadingPoint) -> Color:
        """Detail texture at two scales times the ratio of shadowed to open light; two scales hide the repetition."""
        first = point * np.float32(1 / self.tile)
        level = shading.level(self.relief.texels / self.tile)
        fine = self.relief.read(tiled(first), level)
        coarse = self.relief.read(tiled((TILE_SCALE * TILE_ROTATION) @ first), level + np.float32(np.log2(TILE_SCALE)))
        sun, around = self.light.sun * self.light.towards[2], self.light.around(UP)
        return fine * coarse * (sun / (sun + around) * shading.sunlit + around / (sun + around) * shading.open)


@dataclass(frozen=True)
class Indoors:
    """A square room with a floor and four walls with posters."""

    floor: Texture
    paint: Texture
    light: Light
    walls: float
    """Distance of the walls from the center."""
    tile: float
    """Side of a tile of the floor."""
    height: float = 15.0

    @classmethod
    def sample(cls, assets: Assets, rng: np.random.Generator) -> "Indoors":
        """A random room, lit from above by a wide lamp."""
        tilt, angle = rng.uniform(0.2, 0.8), rng.uniform(0, 2 * np.pi)
        towards = np.array([np.sin(tilt) * np.cos(angle), np.sin(tilt) * np.sin(angle), np.cos(tilt)])
        share, white = rng.uniform(0.35, 0.6), rng.uniform(0.85, 1.05)
        tint = 1 + rng.uniform(-0.08, 0.12) * np.array([1, 0, -1])
        mean = white * (1 - share) / 1.2 * tint
        light = Light.of(towards, white * share / towards[2] * tint, mean, np.outer(mean, [0, 0, 0.2]))
        return cls(assets.floor(rng), assets.walls(rng), light, rng.uniform(12.5, 16), rng.uniform(4, 8))

    def distance(self, origin: Float[np.ndarray, "3"], direction: Points) -> Numbers:
        """Distance to the nearest of the six planes."""
        high = np.array([self.walls, self.walls, self.height]) - origin
        low = np.array([-self.walls, -self.walls, 0]) - origin
        distance = np.full(direction.shape[1], np.inf, dtype=np.float32)
        for slope, ahead, behind in zip(direction, high.astype(np.float32), low.astype(np.float32), strict=True):
            own = np.full_like(distance, np.inf)
            np.divide(ahead, slope, out=own, where=slope > 0)
            np.divide(behind, slope, out=own, where=slope < 0)
            np.minimum(distance, own, out=distance)
        return distance

    def normal(self, point: Points) -> Points:
        """Towards the inside of the room."""
        unit = np.abs(point[:2]) * np.float32(1 / self.walls)
        level = point[2] * np.float32(2 / self.height) - 1
        flat = np.abs(level) >= np.maximum(unit[0], unit[1])
        first = ~flat & (unit[0] >= unit[1])
        return -np.sign(np.stack((point[0] * first, point[1] * ~(flat | first), level * flat)))

    def radiance(self, point: Points, normal: Points, shading: ShadingPoint) -> Color:
        """Textures under the light of the room; the ceiling is plain."""
        albedo = np.full_like(point, 0.7)
        floor = np.flatnonzero(normal[2] > 0)
        place = point[:2].take(floor, axis=1) * np.float32(1 / self.tile)
        scatter_columns(
            albedo, floor, self.floor.read(tiled(place), shading[floor].level(self.floor.texels / self.tile))
        )
        sides = np.flatnonzero(normal[2] == 0)
        scatter_columns(
            albedo, sides, self._wall(point.take(sides, axis=1), normal.take(sides, axis=1), shading[sides])
        )
        return albedo * self.light.on(normal, shading.sunlit, shading.open)

    def _wall(self, point: Points, normal: Points, shading: ShadingPoint) -> Color:
        """Color of the walls; each wall has its own texture page."""
        along = point[1] * normal[0] - point[0] * normal[1]
        page = 2 * (normal[1] != 0) + (normal[0] + normal[1] > 0)
        uv = np.stack((along * np.float32(0.5 / self.walls) + np.float32(0.5), 1 - point[2] / np.float32(self.height)))
        return self.paint.read(uv, shading.level(self.paint.size[0, 0] / (2 * self.walls)), page)
