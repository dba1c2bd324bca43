"""From hits to colors: textures, light, smooth edges and the camera's open shutter."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Float32, UInt8

from lpa_cwm.errors import InputError
from lpa_cwm.geometry import axis_centers
from lpa_cwm.simulator.environment import Look
from lpa_cwm.simulator.poses import FramePoints, Points, Rows, dot, focal_of, put
from lpa_cwm.simulator.rays import Eye, Hits
from lpa_cwm.simulator.scene import Scene
from lpa_cwm.simulator.shadow import Shadows
from lpa_cwm.simulator.texture import Color, encoded

STEP = 0.02
"""Relative jump of the distance between neighbors from which there is an edge between them."""


@dataclass(frozen=True)
class Film:
    """How frames are taken."""

    size: int = 256
    """Pixels of a side."""
    samples: int = 2
    """Rays per side of a pixel where an edge passes through it; 1 turns smoothing off."""
    shutter: float = 0.0
    """Share of the time between frames during which the shutter is open: motion blur."""
    exposures: int = 5
    """Instants that stand for the open shutter."""

    def __post_init__(self) -> None:
        if self.size < 16 or self.samples < 1 or not 0 <= self.shutter <= 1:
            raise InputError(
                f"The film has size {self.size}, samples {self.samples} and shutter {self.shutter}; expected at least "
                "16 pixels, at least one sample and a shutter between 0 and 1."
            )


@lru_cache(maxsize=4)
def raster_centers(size: int) -> FramePoints:
    """The center of every pixel in raster order; not to be written to."""
    axis = axis_centers(0, size).astype(np.float32)
    columns, rows = np.meshgrid(axis, axis)
    centers = np.stack((columns.ravel(), rows.ravel()))
    centers.setflags(write=False)
    return centers


def mix(corners: Float32[np.ndarray, "k n"], weight: Float32[np.ndarray, "2 n"]) -> Float32[np.ndarray, "d n"]:
    """Values at points of triangles, from those at the first, second and third corner."""
    first, second, third = np.split(corners, 3)
    return first + weight[0] * (second - first) + weight[1] * (third - first)


def normals(scene: Scene, moment: int, hits: Hits) -> Points:
    """Unit normals in the world, on the side of the camera."""
    normal = np.empty_like(hits.local)
    put(normal, hits.around, scene.environment.normal(hits.local.take(hits.around, axis=1)))
    own = hits.on_bodies
    local = mix(scene.surface.normals.take(hits.face[own], axis=1), hits.weight.take(own, axis=1))
    world = scene.turn(local, hits.body[own], moment)
    side = -np.sign(dot(world, hits.direction.take(own, axis=1)))
    put(normal, own, world * (side / (np.sqrt(dot(world, world)) + np.float32(1e-9))))
    return normal


@dataclass
class Renderer:
    """Takes frames of a scene; keeps the shadows of bodies that do not move."""

    eye: Eye
    film: Film

    def __post_init__(self) -> None:
        self._scene = self.eye.scene
        self._shadows = Shadows(self._scene, 3 * self.film.size // 2)
        self._centers = raster_centers(self.film.size)

    def picture(self, frame: int, hits: Hits) -> UInt8[np.ndarray, "h w 3"]:
        """The frame, given what the centers of its pixels show."""
        film, moment = self.film, self._scene.moment
        if not film.shutter:
            light = self._exposed(moment(frame), hits)
        else:
            offsets = film.shutter * ((np.arange(film.exposures) + 0.5) / film.exposures - 0.5)
            instants = [moment(frame + offset) for offset in offsets]
            lights = [self._exposed(instant, self.eye.cast(instant, self._centers)) for instant in instants]
            light = np.mean(lights, axis=0)
        return np.ascontiguousarray(encoded(light).T).reshape(film.size, film.size, 3)

    def _exposed(self, moment: int, hits: Hits) -> Color:
        """The light that falls into each pixel at an instant; where an edge passes, the mean over rays."""
        if self.film.samples == 1:
            return self._radiance(moment, hits)
        edge = edges(hits, self.film.size)
        plain, mixed = np.flatnonzero(~edge), np.flatnonzero(edge)
        rays = self.eye.cast(moment, self._inside(mixed))
        # All at once: at small sizes the number of calls is what costs.
        found = self._radiance(moment, hits.take(plain).joined(rays))
        light = np.empty_like(hits.direction)
        put(light, plain, found[:, : len(plain)])
        put(light, mixed, np.clip(found[:, len(plain) :], 0, 1).reshape(3, len(mixed), -1).mean(-1))
        return light

    def _inside(self, pixels: Rows) -> FramePoints:
        """Points on a grid inside each pixel."""
        count = self.film.samples
        ticks = (np.arange(count, dtype=np.float32) + np.float32(0.5)) / np.float32(count) - np.float32(0.5)
        offsets = np.stack(np.meshgrid(ticks, ticks)).reshape(2, 1, -1)
        return (self._centers.take(pixels, axis=1)[..., None] + offsets).reshape(2, -1)

    def _radiance(self, moment: int, hits: Hits) -> Color:
        """The light along rays."""
        point = self._scene.camera.position[moment].astype(np.float32)[:, None] + hits.distance * hits.direction
        normal = normals(self._scene, moment, hits)
        slant = -dot(normal, hits.direction)
        footprint = hits.distance * np.float32(1 / focal_of(self.film.size))
        look = Look(footprint, slant, *self._shadows.of(moment, point))
        light, around, own = np.empty_like(point), hits.around, hits.on_bodies
        surroundings = self._scene.environment.radiance(
            point.take(around, axis=1), normal.take(around, axis=1), look[around]
        )
        put(light, around, surroundings)
        put(light, own, self._skin(hits, look[own], normal.take(own, axis=1)))
        return light

    def _skin(self, hits: Hits, look: Look, normal: Points) -> Color:
        """The light that comes from the bodies."""
        surface, own = self._scene.surface, hits.on_bodies
        face = hits.face[own]
        uv = mix(surface.uv.take(face, axis=1), hits.weight.take(own, axis=1))
        skin = surface.texture.read(uv, look.level(surface.texels[face]), hits.body[own] - 1)
        return skin * self._scene.environment.light.on(normal, look.sunlit, look.open)


def edges(hits: Hits, size: int) -> Bool[np.ndarray, "n"]:
    """Pixels with a neighbor that shows another body, or the same one much nearer or farther."""
    body, distance = hits.body.reshape(size, size), hits.distance.reshape(size, size)
    found = np.zeros((size, size), dtype=bool)
    for one, other in ((np.s_[:-1], np.s_[1:]), (np.s_[:, :-1], np.s_[:, 1:])):
        jump = body[one] != body[other]
        jump |= (np.abs(distance[one] - distance[other]) > np.float32(STEP) * distance[one]) & (body[one] > 0)
        found[one] |= jump
        found[other] |= jump
    return found.ravel()
