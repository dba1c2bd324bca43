"""A simulated clip: frames taken when asked for, and the exact motion between any two of them."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float32, Int16, UInt8

from lpa_cwm.rng import KeyPart, numpy_rng
from lpa_cwm.simulator.assets import Assets
from lpa_cwm.simulator.poses import Points
from lpa_cwm.simulator.rays import Eye, Hits
from lpa_cwm.simulator.recipe import Recipe, recipe_named
from lpa_cwm.simulator.render import Film, Renderer, normals, raster_centers
from lpa_cwm.simulator.scene import Scene, draw_scene

GLANCES = 8
"""Frames in which the points of tracks are chosen."""


@dataclass(frozen=True)
class Flow:
    """Where each pixel of one frame goes in another."""

    offset: Float32[np.ndarray, "h w 2"]
    """(dx, dy); NaN where the point is not in front of the camera any more."""
    visible: Bool[np.ndarray, "h w"]
    """Whether it is inside the other frame and nothing is in front of it."""


@dataclass(frozen=True)
class PointTracks:
    """Material points followed through a clip."""

    xy: Float32[np.ndarray, "n t 2"]
    visible: Bool[np.ndarray, "n t"]
    body: Int16[np.ndarray, "n"]


@dataclass(frozen=True, eq=False)
class SimClip:
    """One scene on film; nothing is computed before it is asked for, and nothing twice."""

    name: str
    scene: Scene
    film: Film
    _hits: dict[int, Hits] = field(default_factory=dict, repr=False)
    _pictures: dict[int, UInt8[np.ndarray, "h w 3"]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return self.scene.recipe.frames

    @cached_property
    def _eye(self) -> Eye:
        return Eye(self.scene, self.film.size)

    @cached_property
    def _renderer(self) -> Renderer:
        return Renderer(self._eye, self.film)

    def hits(self, frame: int) -> Hits:
        """What the center of each pixel of a frame shows."""
        if frame not in self._hits:
            self._hits[frame] = self._eye.cast(self.scene.moment(frame), raster_centers(self.film.size))
        return self._hits[frame]

    def picture(self, frame: int) -> UInt8[np.ndarray, "h w 3"]:
        """A frame."""
        if frame not in self._pictures:
            self._pictures[frame] = self._renderer.picture(frame, self.hits(frame))
        return self._pictures[frame]

    def body(self, frame: int) -> Int16[np.ndarray, "h w"]:
        """What each pixel shows: 0 the surroundings, k the body k - 1."""
        return self.hits(frame).body.reshape(self.film.size, self.film.size)

    def distance(self, frame: int) -> Float32[np.ndarray, "h w"]:
        """From the camera's center to what each pixel shows."""
        return self.hits(frame).distance.reshape(self.film.size, self.film.size)

    def normal(self, frame: int) -> Float32[np.ndarray, "h w 3"]:
        """Of what each pixel shows, in the world."""
        normal = normals(self.scene, self.scene.moment(frame), self.hits(frame))
        return normal.T.reshape(self.film.size, self.film.size, 3)

    def flow(self, source: int, target: int) -> Flow:
        """The motion from one frame to another; the target may lie one frame outside the clip."""
        size, hits = self.film.size, self.hits(source)
        moment = self.scene.moment(target)
        xy, seen = self._eye.see(moment, self.scene.place(hits.local, hits.body, moment))
        offset = np.ascontiguousarray((xy - raster_centers(size)).T)
        return Flow(offset.reshape(size, size, 2), seen.reshape(size, size))

    def tracks(self, count: int) -> PointTracks:
        """Points at random places of random frames, a third each on moving bodies, resting bodies and the rest."""
        local, body = self._points(count)
        xy = np.empty((count, len(self), 2), dtype=np.float32)
        seen = np.empty((count, len(self)), dtype=bool)
        for frame in range(len(self)):
            moment = self.scene.moment(frame)
            place, seen[:, frame] = self._eye.see(moment, self.scene.place(local, body, moment))
            xy[:, frame] = place.T
        return PointTracks(xy, seen, body)

    def _points(self, count: int) -> tuple[Points, Int16[np.ndarray, "n"]]:
        """Material points that at least one frame shows."""
        rng = numpy_rng("tracks", self.name)
        frames = rng.permutation(len(self))[:GLANCES].tolist()
        each = -(-8 * count // len(frames))
        found = []
        for frame in frames:
            xy = rng.uniform(0, self.film.size, (2, each)).astype(np.float32)
            found.append(self._eye.cast(self.scene.moment(frame), xy))
        local = np.concatenate([hits.local for hits in found], axis=1)
        body = np.concatenate([hits.body for hits in found])
        kind = np.concatenate(([0], 1 + self.scene.moving))[body]
        share = (1 / np.bincount(kind, minlength=3).clip(1))[kind]
        chosen = rng.choice(len(body), count, replace=False, p=share / share.sum())
        return local[:, chosen], body[chosen]


def simulate_clip(
    identity: tuple[KeyPart, ...], recipe: Recipe | str, assets: Assets, film: Film | None = None
) -> SimClip:
    """The clip of an identity; the same whatever else is simulated, and the same scene at every size."""
    known = recipe_named(recipe) if isinstance(recipe, str) else recipe
    name = "-".join([known.name, assets.split, *map(str, identity)])
    return SimClip(name, draw_scene(known, assets, identity), film or Film())
