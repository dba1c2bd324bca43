"""A scene: its distribution, physics, bodies with their poses, pinhole camera and its path, environment and light.

MuJoCo (Todorov et al. 2012) moves the bodies: some settle, then others are thrown at them. A scene is a function of its
identity. Lengths are in scene units.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from lpa_cwm.errors import InputError, require
from lpa_cwm.rng import KeyPart, numpy_rng
from lpa_cwm.simulator.assets import Assets, FramePoints, Mesh, Points, Rows, dot, scatter_columns
from lpa_cwm.simulator.environment import Environment, Indoors, Outdoors
from lpa_cwm.simulator.texture import Texture

Range = tuple[float, float]
FOCAL, SENSOR = 35.0, 32.0
"""Focal length and sensor width of the MOVi camera, in millimeters."""
NEAR_PLANE = 0.05
"""Near clipping distance."""
FLIP = np.array([[1], [-1]], dtype=np.float32)
"""y points down in the frame and up in the camera."""


@dataclass(frozen=True)
class SceneConfig:
    """Ranges from which a scene is sampled uniformly; the defaults are those of MOVi-F (Greff et al. 2022)."""

    name: str = "movi"
    resting: tuple[int, int] = (10, 20)
    """Number of bodies at rest when the clip begins."""
    tossed: tuple[int, int] = (1, 3)
    """Number of bodies thrown when the clip begins."""
    resting_within: float = 7.0
    """Half side of the square over which resting bodies are dropped."""
    tossed_within: float = 5.0
    tossed_height: Range = (1.0, 5.0)
    speed: float = 4.0
    """Maximum speed of a throw along x and y, added to `push`."""
    push: float = 1.0
    """Speed towards the center, per unit of distance."""
    spin: float = 0.0
    """Maximum angular velocity about each axis, in radians per second."""
    scale: Range = (0.75, 3.0)
    """Longest side of a body."""
    friction: float = 0.5
    bounce: float = 0.5
    """Coefficient of restitution."""
    shell: Range = (8.0, 12.0)
    """Minimum and maximum distance of the camera from the origin."""
    lowest: float = 0.6
    """Minimum height of the camera."""
    travel: Range = (0.0, 4.0)
    """Length of the straight camera path."""
    gaze: float = 0.0
    """Radius of the ball around the origin in which the point of gaze moves."""
    shake: float = 0.0
    """Amplitude of camera shake in radians."""
    outdoors: float = 0.6
    """Share of outdoor scenes; the others are in a room."""
    frames: int = 24
    fps: int = 12
    settling: float = 5.0
    """Seconds in which the resting bodies settle."""


SCENE_CONFIGS: dict[str, SceneConfig] = {
    "movi": SceneConfig(),
    "hard": SceneConfig(
        name="hard",
        resting=(2, 6),
        tossed=(3, 6),
        resting_within=4.0,
        tossed_within=4.0,
        speed=5.0,
        push=1.2,
        spin=5.0,
        scale=(1.5, 3.5),
        shell=(7.0, 11.0),
        travel=(2.0, 6.0),
        gaze=1.5,
        shake=0.03,
    ),
}


def scene_config(name: str) -> SceneConfig:
    """The scene configuration of this name."""
    if name not in SCENE_CONFIGS:
        raise InputError(f"There is no scene configuration '{name}'; choose one of {', '.join(SCENE_CONFIGS)}.")
    return SCENE_CONFIGS[name]


def rotations(quaternion: Float[np.ndarray, "*b 4"]) -> Float[np.ndarray, "*b 3 3"]:
    """Rotation matrices of unit quaternions (w, x, y, z)."""
    w, x, y, z = np.moveaxis(quaternion, -1, 0)
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


@dataclass(frozen=True)
class Poses:
    """Positions and rotations from local to world coordinates; the leading axes are steps, then bodies."""

    position: Float[np.ndarray, "*b 3"]
    rotation: Float[np.ndarray, "*b 3 3"]

    def __getitem__(self, index: int | tuple[int, ...]) -> "Poses":
        return Poses(self.position[index], self.rotation[index])

    def to_world(self, own: Points, scale: float = 1.0) -> Points:
        """Local to world coordinates of a single pose; `scale` is the length of a local unit."""
        return (scale * self.rotation).astype(np.float32) @ own + self.position.astype(np.float32)[:, None]

    def to_local(self, world: Points) -> Points:
        """World to local coordinates of a single pose."""
        return self.rotation.T.astype(np.float32) @ (world - self.position.astype(np.float32)[:, None])


def look_at(
    position: Float[np.ndarray, "s 3"], target: Float[np.ndarray, "s 3"], roll: Float[np.ndarray, "s"]
) -> Poses:
    """Camera poses that look at targets along -z with y up, then roll about that axis."""
    back = position - target
    back = back / np.linalg.norm(back, axis=-1, keepdims=True)
    right = np.cross(np.array([0.0, 0.0, 1.0]), back)
    right = right / np.linalg.norm(right, axis=-1, keepdims=True)
    up = np.cross(back, right)
    cos, sin = np.cos(roll)[:, None], np.sin(roll)[:, None]
    return Poses(position, np.stack((cos * right + sin * up, cos * up - sin * right, back), axis=-1))


def focal_of(size: int) -> float:
    """Focal length in pixels of a frame of `size` x `size`."""
    return size * FOCAL / SENSOR


def pixel_rays(xy: FramePoints, size: int) -> Points:
    """Unit ray directions, in camera coordinates, through points of the frame."""
    direction = np.full((3, xy.shape[1]), -1, dtype=np.float32)
    direction[:2] = (xy - np.float32(size / 2)) * (FLIP / np.float32(focal_of(size)))
    return direction / np.sqrt(dot(direction, direction))


def project(point: Points, size: int) -> FramePoints:
    """Pinhole projection of points in camera coordinates; NaN for points behind the near plane."""
    scale = np.full(point.shape[1], np.nan, dtype=np.float32)
    np.divide(np.float32(-focal_of(size)), point[2], out=scale, where=point[2] < -NEAR_PLANE)
    return point[:2] * scale * FLIP + np.float32(size / 2)


SUBSTEPS = 20
"""Steps of the simulation per frame."""
GRAVITY = 10.0
MAX_DROP = 3.0
"""Maximum height from which resting bodies are dropped."""
SHADOW_TOLERANCE = 0.015
"""Translation plus rotation (about radians) that does not change a shadow visibly."""
PARKED_HEIGHT = 1e4
"""Height at which bodies are kept before they are thrown."""


@dataclass(frozen=True)
class BodyMotion:
    """Poses of the bodies at every step, from one frame before the clip to one frame after it."""

    poses: Poses
    velocity: Float[np.ndarray, "s n 3"]
    tossed: Bool[np.ndarray, "n"]

    @cached_property
    def last_moved(self) -> Int[np.ndarray, "s n"]:
        """For each step an earlier step since which the body moved by less than `SHADOW_TOLERANCE`."""
        way = np.linalg.norm(np.diff(self.poses.position, axis=0), axis=-1)
        way += np.linalg.norm(np.diff(self.poses.rotation, axis=0), axis=(-2, -1))
        total = np.concatenate((np.zeros_like(way[:1]), np.cumsum(way, axis=0)))
        section = np.floor(total / SHADOW_TOLERANCE)
        begins = np.concatenate((np.ones_like(section[:1]), np.diff(section, axis=0))) > 0
        return np.maximum.accumulate(np.where(begins, np.arange(len(section))[:, None], 0), axis=0)


@dataclass(frozen=True)
class Bodies:
    """The bodies of a scene, of which the last `tossed` are thrown, and the distance of the walls, if any."""

    meshes: list[Mesh]
    scale: Float[np.ndarray, "n"]
    tossed: int
    walls: float | None

    @property
    def resting(self) -> int:
        """Number of bodies that are not thrown."""
        return len(self.meshes) - self.tossed

    @property
    def radius(self) -> Float[np.ndarray, "n"]:
        """Radius of the bounding sphere of each body."""
        return self.scale * [mesh.radius for mesh in self.meshes]


def simulate(config: SceneConfig, bodies: Bodies, rng: np.random.Generator) -> BodyMotion:
    """Drop the resting bodies, let them settle, throw the other bodies and record the motion."""
    mujoco = require("mujoco", "sim")
    model = build_model(mujoco, config, bodies)
    data = mujoco.MjData(model)
    place, turn = data.qpos.reshape(-1, 7), data.qvel.reshape(-1, 6)
    place[:, 3:] = random_quaternions(rng, len(place))
    place[bodies.resting :, :3] = np.arange(bodies.tossed)[:, None] * [0, 0, 50.0] + [0, 0, PARKED_HEIGHT]
    for number in range(bodies.resting):
        place[number, :3] = free_place(rng, bodies.radius, number, place, config.resting_within, (0.0, MAX_DROP))
    settle(mujoco, model, data, config)
    turn[:] = 0
    for number in range(bodies.resting, len(place)):
        place[number, :3] = free_place(rng, bodies.radius, number, place, config.tossed_within, config.tossed_height)
        turn[number, :2] = rng.uniform(-config.speed, config.speed, 2) - config.push * place[number, :2]
        turn[number, 3:] = rng.uniform(-config.spin, config.spin, 3)
    return record(mujoco, model, data, config, np.arange(len(place)) >= bodies.resting)


def build_model(mujoco: Any, config: SceneConfig, bodies: Bodies) -> Any:
    """The MuJoCo model: a floor, walls, and one free body per mesh with its convex hull as geometry."""
    spec = mujoco.MjSpec()
    spec.option.gravity = [0, 0, -GRAVITY]
    flat = {"type": mujoco.mjtGeom.mjGEOM_PLANE, "size": [50, 50, 1]}
    spec.worldbody.add_geom(**flat, friction=[config.friction, 0.005, 0.001])
    if bodies.walls is not None:
        for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            spec.worldbody.add_geom(**flat, pos=[-x * bodies.walls, -y * bodies.walls, 0], zaxis=[x, y, 0])
    solid = {"type": mujoco.mjtGeom.mjGEOM_MESH, "density": 200, "condim": 4}
    for number, (mesh, size) in enumerate(zip(bodies.meshes, bodies.scale, strict=True)):
        spec.add_mesh(name=str(number), uservert=(mesh.hull * size).astype(float).ravel())
        body = spec.worldbody.add_body(name=str(number))
        body.add_freejoint()
        body.add_geom(**solid, meshname=str(number), friction=[config.friction, 0.005, 0.001])
    model = spec.compile()
    # Bodies at rest sleep and cost nothing until they are hit.
    model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_SLEEP
    return model


def random_quaternions(rng: np.random.Generator, number: int) -> Float[np.ndarray, "n 4"]:
    """Uniform random rotations."""
    free = rng.normal(size=(number, 4))
    return free / np.linalg.norm(free, axis=1, keepdims=True)


def free_place(
    rng: np.random.Generator,
    radius: Float[np.ndarray, "n"],
    number: int,
    place: Float[np.ndarray, "n 7"],
    within: float,
    height: tuple[float, float],
) -> Float[np.ndarray, "3"]:
    """Rejection sampling of a position without overlap of bounding spheres; the height grows with each rejection."""
    low = np.array([-within, -within, max(height[0], radius[number])])
    high = np.array([within, within, max(height[1], radius[number])])
    lift = np.array([0, 0, 0.1])
    while True:
        point = rng.uniform(low, high)
        gap = np.linalg.norm(place[:number, :3] - point, axis=1) - radius[:number]
        if (gap > radius[number]).all():
            return point
        low, high = low + lift, high + lift


def settle(mujoco: Any, model: Any, data: Any, config: SceneConfig) -> None:
    """Let the bodies come to rest, without bounces and with longer time steps."""
    model.opt.timestep = 1 / 120
    model.geom_solref[:] = (0.02, 1.0)
    mujoco.mj_step(model, data, round(config.settling * 120))


def record(mujoco: Any, model: Any, data: Any, config: SceneConfig, tossed: Bool[np.ndarray, "n"]) -> BodyMotion:
    """Step through the clip and keep every step."""
    model.opt.timestep = 1 / (config.fps * SUBSTEPS)
    # Damping ratio of a spring with this coefficient of restitution.
    damping = -np.log(config.bounce) / np.hypot(np.pi, np.log(config.bounce))
    model.geom_solref[:] = (0.03, damping)
    states = np.empty(((config.frames + 1) * SUBSTEPS + 1, len(tossed), 13))
    for state in states:
        state[:, :7] = data.qpos.reshape(-1, 7)
        state[:, 7:] = data.qvel.reshape(-1, 6)
        mujoco.mj_step(model, data)
    poses = Poses(states[..., :3], rotations(states[..., 3:7]))
    return BodyMotion(poses, states[..., 7:10], tossed)


@dataclass(frozen=True)
class TriangleTable:
    """Triangles of all bodies in one table."""

    first: Int[np.ndarray, "n"]
    """Column of the first triangle of each body."""
    uv: Float32[np.ndarray, "6 f"]
    """Texture coordinates of the three corners."""
    normals: Float32[np.ndarray, "9 f"]
    texels: Float32[np.ndarray, "f"]
    texture: Texture


@dataclass(frozen=True, eq=False)
class SimulatedScene:
    """A scene at every moment; a moment is a step of the physics, `SUBSTEPS` per frame."""

    config: SceneConfig
    meshes: list[Mesh]
    scale: Float[np.ndarray, "n"]
    motion: BodyMotion
    camera: Poses
    environment: Environment

    def moment(self, frame: float | int) -> int:
        """The step of a frame; valid from one frame before the clip to one frame after it."""
        return round((frame + 1) * SUBSTEPS)

    @cached_property
    def moving(self) -> Bool[np.ndarray, "n"]:
        """Bodies that move by more than 0.05 units during the clip."""
        way = self.motion.poses.position - self.motion.poses.position[:1]
        return np.linalg.norm(way, axis=-1).max(0) > 0.05

    @cached_property
    def surface(self) -> TriangleTable:
        """Triangle table of the bodies."""
        counts = [len(mesh.faces) for mesh in self.meshes]
        return TriangleTable(
            first=np.concatenate(([0], np.cumsum(counts[:-1]))).astype(np.int64),
            uv=np.concatenate([mesh.uv.reshape(-1, 6).T for mesh in self.meshes], axis=1),
            normals=np.concatenate([mesh.normals.reshape(-1, 9).T for mesh in self.meshes], axis=1),
            texels=np.concatenate(
                [mesh.texels / np.float32(size) for mesh, size in zip(self.meshes, self.scale, strict=True)]
            ),
            texture=Texture.stack([mesh.texture for mesh in self.meshes]),
        )

    def place(self, local: Points, body: Int[np.ndarray, "n"], moment: int) -> Points:
        """World coordinates of local points at a moment; body 0 is the environment."""
        world = local.copy()
        for number, own in by_body(body):
            pose = self.motion.poses[moment, number]
            scatter_columns(world, own, pose.to_world(local.take(own, axis=1), float(self.scale[number])))
        return world

    def turn(self, local: Points, body: Int[np.ndarray, "n"], moment: int) -> Points:
        """World directions of local directions at a moment."""
        world = local.copy()
        for number, own in by_body(body):
            rotation = self.motion.poses.rotation[moment, number].astype(np.float32)
            scatter_columns(world, own, rotation @ local.take(own, axis=1))
        return world


def by_body(body: Int[np.ndarray, "n"]) -> Iterator[tuple[int, Rows]]:
    """Rows of each body, without the environment."""
    order = np.argsort(body, kind="stable")
    count = np.bincount(body)
    end = np.cumsum(count)
    for number in np.flatnonzero(count[1:]):
        yield int(number), order[end[number] : end[number + 1]]


def sample_scene(config: SceneConfig, assets: Assets, identity: tuple[KeyPart, ...]) -> SimulatedScene:
    """Sample the scene of an identity; the physics do not depend on the camera."""
    rng = numpy_rng("scene", config.name, assets.split, *identity)
    resting, tossed = (int(rng.integers(low, high + 1)) for low, high in (config.resting, config.tossed))
    meshes = [assets.body(rng) for _ in range(resting + tossed)]
    scale = rng.uniform(*config.scale, len(meshes))
    environment = (Outdoors if rng.random() < config.outdoors else Indoors).sample(assets, rng)
    actors = Bodies(meshes, scale, tossed, environment.walls)
    motion = simulate(config, actors, rng)
    return SimulatedScene(
        config, meshes, scale, motion, camera_path(config, motion.poses, actors.radius, rng), environment
    )


def camera_path(config: SceneConfig, bodies: Poses, radius: Float[np.ndarray, "n"], rng: np.random.Generator) -> Poses:
    """A camera path that stays clear of the bodies."""
    time = (np.arange(len(bodies.position)) / SUBSTEPS - 1) / (config.frames - 1)
    position, attempts = np.zeros((len(time), 3)), 0
    while attempts < 50 and not is_clear(position, bodies, radius, 0.5 * config.lowest):
        start, end = line_in_shell(config, rng)
        position = start + time[:, None] * (end - start)
        attempts += 1
    gaze = config.gaze * rng.uniform(-0.5, 0.5, (2, 3))
    target = gaze[0] + time[:, None] * (gaze[1] - gaze[0])
    wobble = config.shake * camera_shake(time, rng)
    away = np.linalg.norm(position - target, axis=-1, keepdims=True)
    return look_at(position, target + away * wobble[:, :3], wobble[:, 3])


def is_clear(position: Float[np.ndarray, "s 3"], bodies: Poses, radius: Float[np.ndarray, "n"], lowest: float) -> bool:
    """Whether a path stays above the ground and outside the bounding spheres."""
    gap = np.linalg.norm(bodies.position - position[:, None], axis=-1) - radius
    return bool(gap.min() > 1.0 and position[:, 2].min() > lowest)


def line_in_shell(
    config: SceneConfig, rng: np.random.Generator
) -> tuple[Float[np.ndarray, "3"], Float[np.ndarray, "3"]]:
    """Two points of the shell above the ground, at a distance sampled from `travel`."""
    while True:
        start = point_in_shell(config, rng)
        step = rng.normal(size=3)
        end = start + step * rng.uniform(*config.travel) / np.linalg.norm(step)
        if config.shell[0] <= np.linalg.norm(end) <= config.shell[1] and end[2] >= config.lowest:
            return start, end


def point_in_shell(config: SceneConfig, rng: np.random.Generator) -> Float[np.ndarray, "3"]:
    """A uniform point of the shell above the ground."""
    while True:
        point = rng.uniform(-config.shell[1], config.shell[1], 3)
        if config.shell[0] <= np.linalg.norm(point) <= config.shell[1] and point[2] >= config.lowest:
            return point


def camera_shake(time: Float[np.ndarray, "s"], rng: np.random.Generator) -> Float[np.ndarray, "s 4"]:
    """Four smooth random functions of time, of order one."""
    rate, phase = rng.uniform(2, 12, (4, 3)), rng.uniform(0, 2 * np.pi, (4, 3))
    return np.sin(time[:, None, None] * rate + phase).mean(-1)
