"""Ray casting from the camera, and visibility of points, by embree (Wald et al. 2014)."""

from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float32, Int16, Int64

from lpa_cwm.simulator.poses import NEAR, FramePoints, Numbers, Points, Rows, dot, pixel_rays, project, scatter_columns
from lpa_cwm.simulator.scene import SimulatedScene

TOUCHING = 1e-4
"""Relative distance below which two hits count as one."""


@dataclass(frozen=True)
class RayHits:
    """First hits of rays."""

    body: Int16[np.ndarray, "n"]
    """0 is the environment, k is body k - 1."""
    distance: Numbers
    local: Points
    """Position in local coordinates of the body: the same material point at every step."""
    face: Int64[np.ndarray, "n"]
    """Column of the triangle table of the scene; undefined on the environment."""
    weight: Float32[np.ndarray, "2 n"]
    """Barycentric coordinates of the second and third corner."""
    direction: Points

    def take(self, rows: Rows) -> "RayHits":
        """The hits of the given rays."""
        return RayHits(**{own.name: getattr(self, own.name).take(rows, axis=-1) for own in fields(self)})

    def joined(self, other: "RayHits") -> "RayHits":
        """Concatenate two sets of rays."""
        pairs = ((own.name, (getattr(self, own.name), getattr(other, own.name))) for own in fields(self))
        return RayHits(**{name: np.concatenate(pair, axis=-1) for name, pair in pairs})

    @cached_property
    def around(self) -> Rows:
        """Rays that end on the environment."""
        return np.flatnonzero(self.body == 0)

    @cached_property
    def on_bodies(self) -> Rows:
        """Rays that end on bodies."""
        return np.flatnonzero(self.body)


@dataclass(frozen=True)
class BodyProjection:
    """Bodies relative to the camera at a step, with their bounding rectangles in the frame."""

    place: Float32[np.ndarray, "n 3"]
    """Camera position in local coordinates of each body, in units of its scale."""
    turn: Float32[np.ndarray, "n 3 3"]
    """Rotation from world to local coordinates."""
    low: Float32[np.ndarray, "n 2"]
    high: Float32[np.ndarray, "n 2"]
    """Bounding rectangle in the frame; empty for a body behind the camera."""

    @classmethod
    def of(cls, scene: SimulatedScene, moment: int, size: int) -> "BodyProjection":
        """Rectangles contain all vertices; the whole frame for a body beside the camera."""
        bodies, camera = scene.motion.poses[moment], scene.camera[moment]
        turn = bodies.rotation.swapaxes(-1, -2)
        place = np.einsum("nij,nj->ni", turn, camera.position - bodies.position) / scene.scale[:, None]
        low, high = np.full((2, len(scene.meshes), 2), -np.inf, dtype=np.float32)
        for number, mesh in enumerate(scene.meshes):
            own = camera.to_local(bodies[number].to_world(mesh.corners, float(scene.scale[number])))
            if own[2].max() < -NEAR:
                frame = project(own, size)
                low[number], high[number] = frame.min(1) - 0.5, frame.max(1) + 0.5
            elif own[2].min() < 0:
                high[number] = np.inf
        return cls(place.astype(np.float32), turn.astype(np.float32), low, high)

    def bodies(self, size: int) -> list[int]:
        """Bodies whose rectangle overlaps the frame."""
        return np.flatnonzero((self.high > 0).all(1) & (self.low < size).all(1)).tolist()

    def within(self, number: int, xy: FramePoints) -> Bool[np.ndarray, "n"]:
        """Whether points are inside the rectangle of a body."""
        (left, top), (right, bottom) = self.low[number], self.high[number]
        inside = xy[0] > left
        inside &= xy[0] < right
        inside &= xy[1] > top
        inside &= xy[1] < bottom
        return inside

    def rays(self, number: int, direction: Points) -> tuple[Float32[np.ndarray, "n 3"], Points]:
        """Ray origins and directions in local coordinates of a body."""
        origin = np.empty((direction.shape[1], 3), dtype=np.float32)
        origin[:] = self.place[number]
        return origin, self.turn[number] @ direction


@dataclass(frozen=True, eq=False)
class Camera:
    """Pinhole camera of a scene with frames of `size` x `size` pixels."""

    scene: SimulatedScene
    size: int
    _projections: dict[int, BodyProjection] = field(default_factory=dict, repr=False)

    def projection(self, moment: int) -> BodyProjection:
        """Projections of the bodies at a step."""
        if moment not in self._projections:
            self._projections[moment] = BodyProjection.of(self.scene, moment, self.size)
        return self._projections[moment]

    def cast(self, moment: int, xy: FramePoints) -> RayHits:
        """First hits of the rays through points of the frame."""
        scene, camera = self.scene, self.scene.camera[moment]
        direction = camera.rotation.astype(np.float32) @ pixel_rays(xy, self.size)
        distance = scene.environment.distance(camera.position, direction)
        local = camera.position.astype(np.float32)[:, None] + distance * direction
        hits = RayHits(
            body=np.zeros(len(distance), dtype=np.int16),
            distance=distance,
            local=local,
            face=np.zeros(len(distance), dtype=np.int64),
            weight=np.zeros_like(xy),
            direction=direction,
        )
        projection = self.projection(moment)
        for number in projection.bodies(self.size):
            rows = np.flatnonzero(projection.within(number, xy))
            if len(rows):
                self._hit(hits, projection, number, rows)
        return hits

    def _hit(self, hits: RayHits, projection: BodyProjection, number: int, rows: Rows) -> None:
        """Update the hits of rays that meet a body before their present hit (in place)."""
        origin, towards = projection.rays(number, hits.direction.take(rows, axis=1))
        found = self.scene.meshes[number].rays.run(origin, towards.T, output=1)
        length, face = found["tfar"], found["primID"]
        reach = length * np.float32(self.scene.scale[number])
        nearer = np.flatnonzero((face >= 0) & (reach < hits.distance[rows]))
        won = rows[nearer]
        hits.body[won] = number + 1
        hits.distance[won] = reach[nearer]
        hits.face[won] = face[nearer] + self.scene.surface.first[number]
        scatter_columns(
            hits.local, won, projection.place[number][:, None] + length[nearer] * towards.take(nearer, axis=1)
        )
        scatter_columns(hits.weight, won, np.stack((found["u"][nearer], found["v"][nearer])))

    def project_visible(self, moment: int, point: Points) -> tuple[FramePoints, Bool[np.ndarray, "n"]]:
        """Project world points at a step; visible points are inside the frame and not occluded."""
        scene, camera = self.scene, self.scene.camera[moment]
        towards = point - camera.position.astype(np.float32)[:, None]
        distance = np.sqrt(dot(towards, towards))
        direction = towards / distance
        xy = project(camera.rotation.T.astype(np.float32) @ towards, self.size)
        limit = distance * np.float32(1 - TOUCHING)
        clear = (xy[0] >= 0) & (xy[0] < self.size) & (xy[1] >= 0) & (xy[1] < self.size)
        clear &= scene.environment.distance(camera.position, direction) >= limit
        projection = self.projection(moment)
        for number in projection.bodies(self.size):
            rows = np.flatnonzero(projection.within(number, xy) & clear)
            if len(rows):
                origin, own = projection.rays(number, direction.take(rows, axis=1))
                reach = limit[rows] / np.float32(scene.scale[number])
                blocked = scene.meshes[number].rays.run(origin, own.T, dists=reach, query="OCCLUDED") >= 0
                clear[rows[blocked]] = False
        return xy, clear
