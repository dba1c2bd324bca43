"""A scene: bodies with their motion, the camera path, environment and light; a function of its identity."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from lpa_cwm.rng import KeyPart, numpy_rng
from lpa_cwm.simulator.assets import Assets
from lpa_cwm.simulator.config import SceneConfig
from lpa_cwm.simulator.environment import Environment, Indoors, Outdoors
from lpa_cwm.simulator.mesh import Mesh
from lpa_cwm.simulator.physics import SUBSTEPS, Bodies, BodyMotion, simulate
from lpa_cwm.simulator.poses import Points, Poses, Rows, look_at, scatter_columns
from lpa_cwm.simulator.texture import Texture


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
    while attempts < 50 and not clears(position, bodies, radius, 0.5 * config.lowest):
        start, end = line_in_shell(config, rng)
        position = start + time[:, None] * (end - start)
        attempts += 1
    gaze = config.gaze * rng.uniform(-0.5, 0.5, (2, 3))
    target = gaze[0] + time[:, None] * (gaze[1] - gaze[0])
    wobble = config.shake * shaking(time, rng)
    away = np.linalg.norm(position - target, axis=-1, keepdims=True)
    return look_at(position, target + away * wobble[:, :3], wobble[:, 3])


def clears(position: Float[np.ndarray, "s 3"], bodies: Poses, radius: Float[np.ndarray, "n"], lowest: float) -> bool:
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


def shaking(time: Float[np.ndarray, "s"], rng: np.random.Generator) -> Float[np.ndarray, "s 4"]:
    """Four smooth random functions of time, of order one."""
    rate, phase = rng.uniform(2, 12, (4, 3)), rng.uniform(0, 2 * np.pi, (4, 3))
    return np.sin(time[:, None, None] * rate + phase).mean(-1)
