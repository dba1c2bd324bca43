"""What the camera sees along rays, and what hides a point from it."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float32, Int16, Int64

from lpa_cwm.data.sim.poses import NEAR, FramePoints, Numbers, Points, Rows, dot, onto_frame, outwards, put
from lpa_cwm.data.sim.scene import Scene

TOUCHING = 1e-4
"""Share of a distance below which two hits count as one."""


@dataclass(frozen=True)
class Hits:
    """Where rays end."""

    body: Int16[np.ndarray, "n"]
    """0 is the surroundings, k the body k - 1."""
    distance: Numbers
    local: Points
    """In the body's own coordinates, so that it names the same material point at every moment."""
    face: Int64[np.ndarray, "n"]
    """Column of the scene's table of triangles; meaningless on the surroundings."""
    weight: Float32[np.ndarray, "2 n"]
    """Barycentric coordinates of the triangle's second and third corner."""
    direction: Points

    @cached_property
    def around(self) -> Rows:
        """The rays that end on the surroundings."""
        return np.flatnonzero(self.body == 0)

    @cached_property
    def on_bodies(self) -> Rows:
        """The rays that end on bodies."""
        return np.flatnonzero(self.body)


@dataclass(frozen=True)
class Bounds:
    """The rectangle of the frame in which each body may be seen at a moment; empty if it is behind the camera."""

    low: Float32[np.ndarray, "n 2"]
    high: Float32[np.ndarray, "n 2"]

    @classmethod
    def at(cls, scene: Scene, moment: int, size: int) -> "Bounds":
        """Around all vertices; the whole frame for a body that is beside the camera."""
        low, high = np.full((2, len(scene.meshes), 2), -np.inf, dtype=np.float32)
        for number, mesh in enumerate(scene.meshes):
            world = scene.motion.poses[moment, number].outside(mesh.corners, float(scene.scale[number]))
            own = scene.camera[moment].inside(world)
            if own[2].max() < -NEAR:
                frame = onto_frame(own, size)
                low[number], high[number] = frame.min(1) - 0.5, frame.max(1) + 0.5
            elif own[2].min() < 0:
                high[number] = np.inf
        return cls(low, high)

    def bodies(self, size: int) -> list[int]:
        """The bodies of which something may be in the frame."""
        return np.flatnonzero((self.high > 0).all(1) & (self.low < size).all(1)).tolist()

    def within(
        self, number: int, xy: FramePoints, among: Bool[np.ndarray, "n"] | None = None
    ) -> Int64[np.ndarray, "m"]:
        """Which points (of those `among` which are asked for) lie in a body's rectangle."""
        (left, top), (right, bottom) = self.low[number], self.high[number]
        inside = xy[0] > left
        inside &= xy[0] < right
        inside &= xy[1] > top
        inside &= xy[1] < bottom
        if among is not None:
            inside &= among
        return np.flatnonzero(inside)


@dataclass(frozen=True, eq=False)
class Eye:
    """The camera of a scene, with frames of `size` x `size` pixels."""

    scene: Scene
    size: int
    _bounds: dict[int, Bounds] = field(default_factory=dict, repr=False)

    def bounds(self, moment: int) -> Bounds:
        """Where the bodies are in the frame."""
        if moment not in self._bounds:
            self._bounds[moment] = Bounds.at(self.scene, moment, self.size)
        return self._bounds[moment]

    def _in_body(self, moment: int, number: int, direction: Points) -> tuple[Points, Points]:
        """The camera's place (once per ray) and directions in a body's coordinates, where its scale is the unit."""
        pose, scale = self.scene.motion.poses[moment, number], self.scene.scale[number]
        place = (self.scene.camera.position[moment] - pose.position) @ pose.rotation / scale
        towards = pose.rotation.T.astype(np.float32) @ direction
        return np.broadcast_to(place.astype(np.float32)[:, None], towards.shape), towards

    def cast(self, moment: int, xy: FramePoints) -> Hits:
        """The first hit of the ray through each point of the frame."""
        scene, camera = self.scene, self.scene.camera[moment]
        direction = camera.rotation.astype(np.float32) @ outwards(xy, self.size)
        distance = scene.environment.distance(camera.position, direction)
        local = camera.position.astype(np.float32)[:, None] + distance * direction
        hits = Hits(
            body=np.zeros(len(distance), dtype=np.int16),
            distance=distance,
            local=local,
            face=np.zeros(len(distance), dtype=np.int64),
            weight=np.zeros_like(xy),
            direction=direction,
        )
        for number in self.bounds(moment).bodies(self.size):
            self._hit(hits, moment, number, self.bounds(moment).within(number, xy))
        return hits

    def _hit(self, hits: Hits, moment: int, number: int, rows: Rows) -> None:
        """Let some rays end on a body where it is nearer than what they hit so far (in place)."""
        place, towards = self._in_body(moment, number, hits.direction.take(rows, axis=1))
        found = self.scene.meshes[number].rays.run(place.T, towards.T, output=1)
        reach = found["tfar"] * np.float32(self.scene.scale[number])
        nearer = np.flatnonzero((found["primID"] >= 0) & (reach < hits.distance[rows]))
        won = rows[nearer]
        hits.body[won] = number + 1
        hits.distance[won] = reach[nearer]
        hits.face[won] = found["primID"][nearer] + self.scene.surface.first[number]
        put(hits.local, won, place[:, :1] + found["tfar"][nearer] * towards.take(nearer, axis=1))
        put(hits.weight, won, np.stack((found["u"][nearer], found["v"][nearer])))

    def see(self, moment: int, point: Points) -> tuple[FramePoints, Bool[np.ndarray, "n"]]:
        """Where points of the world appear at a moment, and whether they do: inside the frame, nothing in front."""
        scene, camera = self.scene, self.scene.camera[moment]
        towards = point - camera.position.astype(np.float32)[:, None]
        distance = np.sqrt(dot(towards, towards))
        direction = towards / distance
        xy = onto_frame(camera.rotation.T.astype(np.float32) @ towards, self.size)
        limit = distance * np.float32(1 - TOUCHING)
        clear = (xy[0] >= 0) & (xy[0] < self.size) & (xy[1] >= 0) & (xy[1] < self.size)
        clear &= scene.environment.distance(camera.position, direction) >= limit
        for number in self.bounds(moment).bodies(self.size):
            rows = self.bounds(moment).within(number, xy, clear)
            place, own = self._in_body(moment, number, direction.take(rows, axis=1))
            reach = limit[rows] / np.float32(scene.scale[number])
            blocked = scene.meshes[number].rays.run(place.T, own.T, dists=reach, query="OCCLUDED") >= 0
            clear[rows[blocked]] = False
        return xy, clear
