"""From hits to colours: textures, light, smooth edges and the camera's open shutter."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float32, UInt8

from lpa_cwm.data.sim.environment import Look
from lpa_cwm.data.sim.poses import focal_of
from lpa_cwm.data.sim.rays import Hits, cast
from lpa_cwm.data.sim.scene import Scene
from lpa_cwm.data.sim.shadow import Shadows
from lpa_cwm.data.sim.texture import Colour, encoded

STEP = 0.02
"""Relative jump of the distance between neighbours from which there is an edge between them."""


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


def pixel_centres(size: int) -> Float32[np.ndarray, "n 2"]:
    """The centre of every pixel in raster order."""
    rows, columns = np.mgrid[:size, :size]
    return np.stack((columns.ravel(), rows.ravel()), axis=-1).astype(np.float32) + np.float32(0.5)


def normals(scene: Scene, moment: int, hits: Hits) -> Float32[np.ndarray, "n 3"]:
    """Unit normals in the world, on the side of the camera."""
    normal = np.empty_like(hits.local)
    ground = np.flatnonzero(hits.body == 0)
    normal[ground] = scene.environment.normal(hits.local[ground])
    own = np.flatnonzero(hits.body)
    corners = scene.surface.normals[hits.face[own]]
    mixed = mix(corners, hits.weight[own])
    turn = scene.motion.poses.rotation[moment].astype(np.float32)[hits.body[own] - 1]
    world = np.einsum("nij,nj->ni", turn, mixed)
    world /= np.sqrt((world**2).sum(-1, keepdims=True)) + np.float32(1e-9)
    away = (world * hits.direction[own]).sum(-1, keepdims=True) > 0
    normal[own] = np.where(away, -world, world)
    return normal


def mix(corners: Float32[np.ndarray, "n 3 d"], weight: Float32[np.ndarray, "n 2"]) -> Float32[np.ndarray, "n d"]:
    """Values at points of triangles, from those at the corners."""
    first, second, third = corners[:, 0], corners[:, 1], corners[:, 2]
    return first + weight[:, :1] * (second - first) + weight[:, 1:] * (third - first)


@dataclass
class Renderer:
    """Takes frames of a scene; keeps the shadows of bodies that do not move."""

    scene: Scene
    film: Film

    def __post_init__(self) -> None:
        self._shadows = Shadows(self.scene, 2 * self.film.size)
        self.centres = pixel_centres(self.film.size)

    def hits(self, frame: int) -> Hits:
        """What the centre of each pixel shows."""
        return cast(self.scene, self.scene.moment(frame), self.centres, self.film.size)

    def picture(self, frame: int, hits: Hits) -> UInt8[np.ndarray, "h w 3"]:
        """The frame, given what the centres of its pixels show."""
        film = self.film
        if not film.shutter:
            light = self._exposed(self.scene.moment(frame), hits)
        else:
            offsets = film.shutter * ((np.arange(film.exposures) + 0.5) / film.exposures - 0.5)
            moments = [self.scene.moment(frame + offset) for offset in offsets]
            instants = [self._exposed(moment, cast(self.scene, moment, self.centres, film.size)) for moment in moments]
            light = np.mean(instants, axis=0)
        return encoded(light).reshape(film.size, film.size, 3)

    def _exposed(self, moment: int, hits: Hits) -> Colour:
        light = self.radiance(moment, hits)
        if self.film.samples > 1:
            edge = np.flatnonzero(edges(hits, self.film.size))
            light[edge] = self._averaged(moment, edge)
        return light

    def _averaged(self, moment: int, pixels: Float[np.ndarray, "n"]) -> Colour:
        """The mean colour of pixels, by rays on a grid inside each."""
        count = self.film.samples
        ticks = (np.arange(count, dtype=np.float32) + 0.5) / count - 0.5
        offsets = np.stack(np.meshgrid(ticks, ticks), axis=-1).reshape(-1, 2)
        xy = (self.centres[pixels, None] + offsets).reshape(-1, 2)
        light = self.radiance(moment, cast(self.scene, moment, xy, self.film.size))
        return np.clip(light, 0, 1).reshape(len(pixels), -1, 3).mean(1)

    def radiance(self, moment: int, hits: Hits) -> Colour:
        """The light along rays."""
        scene = self.scene
        point = scene.camera.position[moment].astype(np.float32) + hits.distance[:, None] * hits.direction
        normal = normals(scene, moment, hits)
        slant = -(normal * hits.direction).sum(-1)
        look = Look(hits.distance / np.float32(focal_of(self.film.size)), slant, *self._shadows.of(moment, point))
        light = np.empty_like(point)
        ground, own = np.flatnonzero(hits.body == 0), np.flatnonzero(hits.body)
        light[ground] = scene.environment.radiance(point[ground], normal[ground], look[ground])
        surface, face = scene.surface, hits.face[own]
        uv = mix(surface.uv[face], hits.weight[own])
        skin = surface.texture.read(uv, look[own].level(surface.texels[face]), hits.body[own] - 1)
        light[own] = skin * scene.environment.light.on(normal[own], look.sunlit[own], look.open[own])
        return light


def edges(hits: Hits, size: int) -> Bool[np.ndarray, "n"]:
    """Pixels with a neighbour that shows another body, or the same one much nearer or farther."""
    body, distance = hits.body.reshape(size, size), hits.distance.reshape(size, size)
    found = np.zeros((size, size), dtype=bool)
    for axis in (0, 1):
        one, other = np.s_[:-1], np.s_[1:]
        if axis:
            one, other = np.s_[:, :-1], np.s_[:, 1:]
        jump = body[one] != body[other]
        jump |= (np.abs(distance[one] - distance[other]) > STEP * distance[one]) & (body[one] > 0)
        found[one] |= jump
        found[other] |= jump
    return found.ravel()
