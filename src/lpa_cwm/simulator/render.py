"""Rendering: ray casting by embree (Wald et al. 2014), visible points, shadow maps, shading, antialiased edges."""

from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float32, Int16, Int64, UInt8
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.geometry import HALF_PIXEL, axis_centers
from lpa_cwm.simulator.assets import FramePoints, Numbers, Points, Rows, dot, scatter_columns
from lpa_cwm.simulator.environment import ShadingPoint
from lpa_cwm.simulator.scene import NEAR_PLANE, SimulatedScene, focal_of, pixel_rays, project
from lpa_cwm.simulator.texture import Color, to_srgb

DEPTH_TOLERANCE = 1e-4
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
            if own[2].max() < -NEAR_PLANE:
                frame = project(own, size)
                low[number], high[number] = frame.min(1) - HALF_PIXEL, frame.max(1) + HALF_PIXEL
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
        distance = length * np.float32(self.scene.scale[number])
        nearer = np.flatnonzero((face >= 0) & (distance < hits.distance[rows]))
        won = rows[nearer]
        hits.body[won] = number + 1
        hits.distance[won] = distance[nearer]
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
        limit = distance * np.float32(1 - DEPTH_TOLERANCE)
        clear = (xy[0] >= 0) & (xy[0] < self.size) & (xy[1] >= 0) & (xy[1] < self.size)
        clear &= scene.environment.distance(camera.position, direction) >= limit
        projection = self.projection(moment)
        for number in projection.bodies(self.size):
            rows = np.flatnonzero(projection.within(number, xy) & clear)
            if len(rows):
                origin, own = projection.rays(number, direction.take(rows, axis=1))
                max_distance = limit[rows] / np.float32(scene.scale[number])
                blocked = scene.meshes[number].rays.run(origin, own.T, dists=max_distance, query="OCCLUDED") >= 0
                clear[rows[blocked]] = False
        return xy, clear


MAP_HALF_SIDE = 12.0
"""Half side of the ground area that the maps cover."""
MAP_DISTANCE = 40.0
SHADOW_BIAS, SHADOW_RANGE = 0.05, 0.12
"""Shadow bias, and the depth range over which a shadow becomes full."""
PENUMBRA = 0.09
OCCLUSION_HEIGHT = 0.4
"""Height over which the ambient occlusion of the ground fades."""
TAPS = np.array([(0.0, 0.0)] + [(np.cos(a), np.sin(a)) for a in np.arange(5) * 2 * np.pi / 5], dtype=np.float32)

Map = Float32[np.ndarray, "h w"]


@dataclass
class ShadowMap:
    """Depth map of the bodies along one direction, over the ground (Williams 1978).

    The map of a body is computed again after the body has moved; this depends on the motion only.
    """

    scene: SimulatedScene
    direction: Float[np.ndarray, "3"]
    empty: float
    """Value where there is no body."""
    texels: int
    _known: dict[int, tuple[int, tuple[slice, slice], Map]] = field(default_factory=dict)

    def at(self, moment: int) -> Map:
        """The map at a step."""
        whole = np.full((self.texels, self.texels), self.empty, dtype=np.float32)
        for number in range(len(self.scene.meshes)):
            window, part = self._body(number, moment)
            whole[window] = np.minimum(whole[window], part)
        return whole

    def _body(self, number: int, moment: int) -> tuple[tuple[slice, slice], Map]:
        stand = int(self.scene.motion.last_moved[moment, number])
        if number not in self._known or self._known[number][0] != stand:
            self._known[number] = (stand, *self._depth(number, stand))
        return self._known[number][1:]

    def _depth(self, number: int, moment: int) -> tuple[tuple[slice, slice], Map]:
        mesh, size = self.scene.meshes[number], self.scene.scale[number]
        pose = self.scene.motion.poses[moment, number]
        corners = size * mesh.box @ pose.rotation.T + pose.position
        shadow = corners[:, :2] - corners[:, 2:] * self.direction[:2] / self.direction[2]
        texel = 2 * MAP_HALF_SIDE / self.texels
        low = np.clip(np.floor((shadow.min(0) + MAP_HALF_SIDE) / texel), 0, self.texels).astype(int)
        high = np.clip(np.ceil((shadow.max(0) + MAP_HALF_SIDE) / texel), 0, self.texels).astype(int)
        x, y = (
            texel * axis_centers(first, last) - MAP_HALF_SIDE
            for first, last in zip(low.tolist(), high.tolist(), strict=True)
        )
        window = (slice(low[1], high[1]), slice(low[0], high[0]))
        # Rays from far away through every texel, in local coordinates of the body.
        origin = (-MAP_DISTANCE * self.direction - pose.position) @ pose.rotation / size
        across, along = (
            np.outer(ticks, pose.rotation[axis] / size).astype(np.float32) for axis, ticks in enumerate((x, y))
        )
        start = (across + (along + origin.astype(np.float32))[:, None]).reshape(-1, 3)
        towards = np.broadcast_to((self.direction @ pose.rotation).astype(np.float32), start.shape)
        depth = mesh.rays.run(start, towards, query="DISTANCE") * np.float32(size) - np.float32(MAP_DISTANCE)
        return window, np.minimum(depth, np.float32(self.empty)).reshape(len(y), len(x))


@dataclass
class LightOcclusion:
    """Visible share of the lamp and of the ambient light at points: shadow maps and ambient occlusion."""

    scene: SimulatedScene
    texels: int

    def __post_init__(self) -> None:
        towards = self.scene.environment.light.towards[:, 0]
        self._lamp = ShadowMap(self.scene, -towards, 0.0, self.texels)
        self._below = ShadowMap(self.scene, np.array([0.0, 0.0, 1.0]), MAP_DISTANCE, self.texels // 6)
        self._moment, self._maps = -1, (torch.empty(0, 0),) * 3

    def of(self, moment: int, point: Points) -> tuple[Numbers, Numbers]:
        """Share of the lamp and share of the ambient light."""
        if moment != self._moment:
            lamp = torch.from_numpy(self._lamp.at(moment))
            self._moment, self._maps = (
                moment,
                (lamp, conservative_minimum(lamp), ambient_occlusion(self._below.at(moment))),
            )
        return self._sunlit(point), self._open(point)

    def _sunlit(self, point: Points) -> Numbers:
        towards = self.scene.environment.light.towards
        foot = point[:2] - point[2] * (towards[:2] / towards[2])
        own = point[2] * np.float32(-1 / towards[2, 0]) - np.float32(SHADOW_BIAS)
        lit = np.ones_like(own)
        near = np.flatnonzero(own > read_map(self._maps[1], foot))
        foot, own = foot.take(near, axis=1), own[near]
        hidden = np.zeros_like(own)
        for offset in TAPS * np.float32(PENUMBRA):
            above = own - read_map(self._maps[0], foot + offset[:, None])
            hidden += np.clip(above * np.float32(1 / SHADOW_RANGE), 0, 1)
        lit[near] -= hidden * np.float32(1 / len(TAPS))
        return lit

    def _open(self, point: Points) -> Numbers:
        near = np.exp(np.maximum(point[2], 0) * np.float32(-1 / OCCLUSION_HEIGHT))
        return 1 - near * read_map(self._maps[2], point[:2])


def read_map(values: Float[Tensor, "m m"], ground: FramePoints) -> Numbers:
    """Bilinear values of a map at points of the ground; the border is repeated."""
    grid = torch.from_numpy(ground * np.float32(1 / MAP_HALF_SIDE)).T[None, None]
    return F.grid_sample(values[None, None], grid, padding_mode="border", align_corners=False)[0, 0, 0].numpy()


def conservative_minimum(heights: Float[Tensor, "m m"]) -> Float[Tensor, "k k"]:
    """Conservative coarse map: the minimum within the radius of a penumbra."""
    wide = F.max_pool2d(-heights[None], (1, 9), stride=(1, 3), padding=(0, 4))
    return -F.max_pool2d(wide, (9, 1), stride=(3, 1), padding=(4, 0))[0]


def ambient_occlusion(height: Map) -> Float[Tensor, "m m"]:
    """Ambient occlusion of the ground from the height of the bodies above it."""
    cover = 0.85 * torch.exp(-torch.from_numpy(height).clamp(min=0) / OCCLUSION_HEIGHT)[None]
    return F.avg_pool2d(cover, 3, stride=1, padding=1)[0]


EDGE_STEP = 0.02
"""Relative depth jump between neighboring pixels that makes an edge."""


@dataclass(frozen=True)
class RenderSettings:
    """Size and antialiasing of the frames."""

    size: int = 256
    """Pixels of a side."""
    samples: int = 2
    """Rays per side of a pixel on an edge; 1 turns antialiasing off."""

    def __post_init__(self) -> None:
        if self.size < 16 or self.samples < 1:
            raise InputError(
                f"The render settings have size {self.size} and samples {self.samples}; give at least 16 pixels and 1."
            )


@lru_cache(maxsize=4)
def raster_centers(size: int) -> FramePoints:
    """The center of every pixel in raster order; not to be written to."""
    axis = axis_centers(0, size).astype(np.float32)
    columns, rows = np.meshgrid(axis, axis)
    centers = np.stack((columns.ravel(), rows.ravel()))
    centers.setflags(write=False)
    return centers


def interpolate_corners(
    corners: Float32[np.ndarray, "k n"], weight: Float32[np.ndarray, "2 n"]
) -> Float32[np.ndarray, "d n"]:
    """Barycentric interpolation of values at the three corners of triangles."""
    first, second, third = np.split(corners, 3)
    return first + weight[0] * (second - first) + weight[1] * (third - first)


def normals(scene: SimulatedScene, moment: int, hits: RayHits) -> Points:
    """Unit normals in world coordinates, facing the camera."""
    normal = np.empty_like(hits.local)
    scatter_columns(normal, hits.around, scene.environment.normal(hits.local.take(hits.around, axis=1)))
    own = hits.on_bodies
    local = interpolate_corners(scene.surface.normals.take(hits.face[own], axis=1), hits.weight.take(own, axis=1))
    world = scene.turn(local, hits.body[own], moment)
    side = -np.sign(dot(world, hits.direction.take(own, axis=1)))
    scatter_columns(normal, own, world * (side / (np.sqrt(dot(world, world)) + np.float32(1e-9))))
    return normal


@dataclass
class FrameRenderer:
    """Renders frames of a scene; keeps the shadows of bodies that do not move."""

    camera: Camera
    settings: RenderSettings

    def __post_init__(self) -> None:
        self._scene = self.camera.scene
        self._shadows = LightOcclusion(self._scene, 3 * self.settings.size // 2)
        self._centers = raster_centers(self.settings.size)

    def picture(self, frame: int, hits: RayHits) -> UInt8[np.ndarray, "h w 3"]:
        """Render a frame from the hits of its pixel centers."""
        light = self._render(self._scene.moment(frame), hits)
        return np.ascontiguousarray(to_srgb(light).T).reshape(self.settings.size, self.settings.size, 3)

    def _render(self, moment: int, hits: RayHits) -> Color:
        """Linear RGB per pixel; the mean over several rays on edges."""
        if self.settings.samples == 1:
            return self._radiance(moment, hits)
        edge = edge_pixels(hits, self.settings.size)
        plain, mixed = np.flatnonzero(~edge), np.flatnonzero(edge)
        rays = self.camera.cast(moment, self._inside(mixed))
        # One call for all rays, because calls dominate the cost at small sizes.
        found = self._radiance(moment, hits.take(plain).joined(rays))
        light = np.empty_like(hits.direction)
        scatter_columns(light, plain, found[:, : len(plain)])
        scatter_columns(light, mixed, np.clip(found[:, len(plain) :], 0, 1).reshape(3, len(mixed), -1).mean(-1))
        return light

    def _inside(self, pixels: Rows) -> FramePoints:
        """A grid of points inside each pixel."""
        count = self.settings.samples
        ticks = (np.arange(count, dtype=np.float32) + np.float32(0.5)) / np.float32(count) - np.float32(0.5)
        offsets = np.stack(np.meshgrid(ticks, ticks)).reshape(2, 1, -1)
        return (self._centers.take(pixels, axis=1)[..., None] + offsets).reshape(2, -1)

    def _radiance(self, moment: int, hits: RayHits) -> Color:
        """Radiance along rays."""
        point = self._scene.camera.position[moment].astype(np.float32)[:, None] + hits.distance * hits.direction
        normal = normals(self._scene, moment, hits)
        slant = -dot(normal, hits.direction)
        footprint = hits.distance * np.float32(1 / focal_of(self.settings.size))
        shading = ShadingPoint(footprint, slant, *self._shadows.of(moment, point))
        light, around, own = np.empty_like(point), hits.around, hits.on_bodies
        surroundings = self._scene.environment.radiance(
            point.take(around, axis=1), normal.take(around, axis=1), shading[around]
        )
        scatter_columns(light, around, surroundings)
        scatter_columns(light, own, self._body_radiance(hits, shading[own], normal.take(own, axis=1)))
        return light

    def _body_radiance(self, hits: RayHits, shading: ShadingPoint, normal: Points) -> Color:
        """Radiance of the bodies."""
        surface, own = self._scene.surface, hits.on_bodies
        face = hits.face[own]
        uv = interpolate_corners(surface.uv.take(face, axis=1), hits.weight.take(own, axis=1))
        skin = surface.texture.read(uv, shading.level(surface.texels[face]), hits.body[own] - 1)
        return skin * self._scene.environment.light.on(normal, shading.sunlit, shading.open)


def edge_pixels(hits: RayHits, size: int) -> Bool[np.ndarray, "n"]:
    """Pixels with a neighbor on another body or at a different depth."""
    body, distance = hits.body.reshape(size, size), hits.distance.reshape(size, size)
    found = np.zeros((size, size), dtype=bool)
    for one, other in ((np.s_[:-1], np.s_[1:]), (np.s_[:, :-1], np.s_[:, 1:])):
        jump = body[one] != body[other]
        jump |= (np.abs(distance[one] - distance[other]) > np.float32(EDGE_STEP) * distance[one]) & (body[one] > 0)
        found[one] |= jump
        found[other] |= jump
    return found.ravel()
