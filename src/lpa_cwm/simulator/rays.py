"""What the camera sees along rays, and what hides a point from it."""

from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float32, Int16, Int64

from lpa_cwm.simulator.poses import NEAR, FramePoints, Numbers, Points, Rows, dot, onto_frame, outwards, put
from lpa_cwm.simulator.scene import Scene

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

    def take(self, rows: Rows) -> "Hits":
        """Some of the rays."""
        return Hits(**{own.name: getattr(self, own.name).take(rows, axis=-1) for own in fields(self)})

    def joined(self, other: "Hits") -> "Hits":
        """These rays and others."""
        pairs = ((own.name, (getattr(self, own.name), getattr(other, own.name))) for own in fields(self))
        return Hits(**{name: np.concatenate(pair, axis=-1) for name, pair in pairs})

    @cached_property
    def around(self) -> Rows:
        """The rays that end on the surroundings."""
        return np.flatnonzero(self.body == 0)

    @cached_property
    def on_bodies(self) -> Rows:
        """The rays that end on bodies."""
        return np.flatnonzero(self.body)


@dataclass(frozen=True)
class Sight:
    """The bodies from the camera's point of view at a moment."""

    place: Float32[np.ndarray, "n 3"]
    """Of the camera, in each body's own coordinates, where the body's scale is the unit of length."""
    turn: Float32[np.ndarray, "n 3 3"]
    """From directions in the world to those coordinates."""
    low: Float32[np.ndarray, "n 2"]
    high: Float32[np.ndarray, "n 2"]
    """The rectangle of the frame in which a body may be seen; empty if it is behind the camera."""

    @classmethod
    def of(cls, scene: Scene, moment: int, size: int) -> "Sight":
        """Rectangles are around all vertices, or the whole frame for a body that is beside the camera."""
        bodies, camera = scene.motion.poses[moment], scene.camera[moment]
        turn = bodies.rotation.swapaxes(-1, -2)
        place = np.einsum("nij,nj->ni", turn, camera.position - bodies.position) / scene.scale[:, None]
        low, high = np.full((2, len(scene.meshes), 2), -np.inf, dtype=np.float32)
        for number, mesh in enumerate(scene.meshes):
            own = camera.inside(bodies[number].outside(mesh.corners, float(scene.scale[number])))
            if own[2].max() < -NEAR:
                frame = onto_frame(own, size)
                low[number], high[number] = frame.min(1) - 0.5, frame.max(1) + 0.5
            elif own[2].min() < 0:
                high[number] = np.inf
        return cls(place.astype(np.float32), turn.astype(np.float32), low, high)

    def bodies(self, size: int) -> list[int]:
        """The bodies of which something may be in the frame."""
        return np.flatnonzero((self.high > 0).all(1) & (self.low < size).all(1)).tolist()

    def within(self, number: int, xy: FramePoints) -> Bool[np.ndarray, "n"]:
        """Which points lie in a body's rectangle."""
        (left, top), (right, bottom) = self.low[number], self.high[number]
        inside = xy[0] > left
        inside &= xy[0] < right
        inside &= xy[1] > top
        inside &= xy[1] < bottom
        return inside

    def rays(self, number: int, direction: Points) -> tuple[Float32[np.ndarray, "n 3"], Points]:
        """Origins and directions in a body's own coordinates."""
        origin = np.empty((direction.shape[1], 3), dtype=np.float32)
        origin[:] = self.place[number]
        return origin, self.turn[number] @ direction


@dataclass(frozen=True, eq=False)
class Eye:
    """The camera of a scene, with frames of `size` x `size` pixels."""

    scene: Scene
    size: int
    _sights: dict[int, Sight] = field(default_factory=dict, repr=False)

    def sight(self, moment: int) -> Sight:
        """Where the bodies are."""
        if moment not in self._sights:
            self._sights[moment] = Sight.of(self.scene, moment, self.size)
        return self._sights[moment]

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
        sight = self.sight(moment)
        for number in sight.bodies(self.size):
            rows = np.flatnonzero(sight.within(number, xy))
            if len(rows):
                self._hit(hits, sight, number, rows)
        return hits

    def _hit(self, hits: Hits, sight: Sight, number: int, rows: Rows) -> None:
        """Let some rays end on a body where it is nearer than what they hit so far (in place)."""
        origin, towards = sight.rays(number, hits.direction.take(rows, axis=1))
        found = self.scene.meshes[number].rays.run(origin, towards.T, output=1)
        length, face = found["tfar"], found["primID"]
        reach = length * np.float32(self.scene.scale[number])
        nearer = np.flatnonzero((face >= 0) & (reach < hits.distance[rows]))
        won = rows[nearer]
        hits.body[won] = number + 1
        hits.distance[won] = reach[nearer]
        hits.face[won] = face[nearer] + self.scene.surface.first[number]
        put(hits.local, won, sight.place[number][:, None] + length[nearer] * towards.take(nearer, axis=1))
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
        sight = self.sight(moment)
        for number in sight.bodies(self.size):
            rows = np.flatnonzero(sight.within(number, xy) & clear)
            if len(rows):
                origin, own = sight.rays(number, direction.take(rows, axis=1))
                reach = limit[rows] / np.float32(scene.scale[number])
                blocked = scene.meshes[number].rays.run(origin, own.T, dists=reach, query="OCCLUDED") >= 0
                clear[rows[blocked]] = False
        return xy, clear
