"""Rigid-body physics by MuJoCo (Todorov et al. 2012): bodies settle, then other bodies are thrown at them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from lpa_cwm.errors import require
from lpa_cwm.simulator.config import SceneConfig
from lpa_cwm.simulator.mesh import Mesh
from lpa_cwm.simulator.poses import Poses, rotations

SUBSTEPS = 20
"""Steps of the simulation per frame."""
GRAVITY = 10.0
DROP = 3.0
"""Maximum height from which resting bodies are dropped."""
STILL = 0.015
"""Translation plus rotation (about radians) that does not change a shadow visibly."""
AWAY = 1e4
"""Height at which bodies are kept before they are thrown."""


@dataclass(frozen=True)
class BodyMotion:
    """Poses of the bodies at every step, from one frame before the clip to one frame after it."""

    poses: Poses
    velocity: Float[np.ndarray, "s n 3"]
    tossed: Bool[np.ndarray, "n"]

    @cached_property
    def last_moved(self) -> Int[np.ndarray, "s n"]:
        """For each step an earlier step since which the body moved by less than `STILL`."""
        way = np.linalg.norm(np.diff(self.poses.position, axis=0), axis=-1)
        way += np.linalg.norm(np.diff(self.poses.rotation, axis=0), axis=(-2, -1))
        total = np.concatenate((np.zeros_like(way[:1]), np.cumsum(way, axis=0)))
        section = np.floor(total / STILL)
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
    place[bodies.resting :, :3] = np.arange(bodies.tossed)[:, None] * [0, 0, 50.0] + [0, 0, AWAY]
    for number in range(bodies.resting):
        place[number, :3] = free_place(rng, bodies.radius, number, place, config.resting_within, (0.0, DROP))
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
