"""Bodies dropped, left to settle, then hit by the tossed ones: MuJoCo."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from lpa_cwm.errors import need
from lpa_cwm.simulator.mesh import Mesh
from lpa_cwm.simulator.poses import Poses, rotations
from lpa_cwm.simulator.recipe import Recipe

SUBSTEPS = 20
"""Steps of the simulation per frame."""
GRAVITY = 10.0
DROP = 3.0
"""Largest height from which resting bodies are dropped."""
STILL = 0.015
"""Way and turn (in radians, about) that make no visible difference to a shadow."""
AWAY = 1e4
"""Height at which the tossed bodies wait for their turn."""


@dataclass(frozen=True)
class Motion:
    """The bodies at every step from one frame before the clip to one frame after it."""

    poses: Poses
    quaternion: Float[np.ndarray, "s n 4"]
    velocity: Float[np.ndarray, "s n 3"]
    spin: Float[np.ndarray, "s n 3"]
    mass: Float[np.ndarray, "n"]
    tossed: Bool[np.ndarray, "n"]

    @cached_property
    def stands(self) -> Int[np.ndarray, "s n"]:
        """For each moment an earlier one since which the body went and turned by less than `STILL`."""
        way = np.linalg.norm(np.diff(self.poses.position, axis=0), axis=-1)
        way += np.linalg.norm(np.diff(self.poses.rotation, axis=0), axis=(-2, -1))
        total = np.concatenate((np.zeros_like(way[:1]), np.cumsum(way, axis=0)))
        section = np.floor(total / STILL)
        begins = np.concatenate((np.ones_like(section[:1]), np.diff(section, axis=0))) > 0
        return np.maximum.accumulate(np.where(begins, np.arange(len(section))[:, None], 0), axis=0)


@dataclass(frozen=True)
class Actors:
    """Who takes part: the bodies, the last `tossed` of which are thrown, and where upright walls stand, if any."""

    meshes: list[Mesh]
    scale: Float[np.ndarray, "n"]
    tossed: int
    walls: float | None

    @property
    def resting(self) -> int:
        """How many bodies are not thrown."""
        return len(self.meshes) - self.tossed

    @property
    def radius(self) -> Float[np.ndarray, "n"]:
        """Of the balls that hold the bodies."""
        return self.scale * [mesh.radius for mesh in self.meshes]


def collide(recipe: Recipe, actors: Actors, rng: np.random.Generator) -> Motion:
    """Drop the resting bodies, let them settle, throw the others among them and record what happens."""
    mujoco = need("mujoco", "sim")
    model = modelled(mujoco, recipe, actors)
    data = mujoco.MjData(model)
    place, turn = data.qpos.reshape(-1, 7), data.qvel.reshape(-1, 6)
    place[:, 3:] = random_quaternions(rng, len(place))
    place[actors.resting :, :3] = np.arange(actors.tossed)[:, None] * [0, 0, 50.0] + [0, 0, AWAY]
    for number in range(actors.resting):
        place[number, :3] = free_place(rng, actors.radius, number, place, recipe.resting_within, (0.0, DROP))
    settle(mujoco, model, data, recipe)
    turn[:] = 0
    for number in range(actors.resting, len(place)):
        place[number, :3] = free_place(rng, actors.radius, number, place, recipe.tossed_within, recipe.tossed_height)
        turn[number, :2] = rng.uniform(-recipe.speed, recipe.speed, 2) - recipe.push * place[number, :2]
        turn[number, 3:] = rng.uniform(-recipe.spin, recipe.spin, 3)
    return recorded(mujoco, model, data, recipe, np.arange(len(place)) >= actors.resting)


def modelled(mujoco: Any, recipe: Recipe, actors: Actors) -> Any:
    """The MuJoCo model: a floor, walls, and one free body per mesh with its hull as shape."""
    spec = mujoco.MjSpec()
    spec.option.gravity = [0, 0, -GRAVITY]
    flat = {"type": mujoco.mjtGeom.mjGEOM_PLANE, "size": [50, 50, 1]}
    spec.worldbody.add_geom(**flat, friction=[recipe.friction, 0.005, 0.001])
    if actors.walls is not None:
        for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            spec.worldbody.add_geom(**flat, pos=[-x * actors.walls, -y * actors.walls, 0], zaxis=[x, y, 0])
    solid = {"type": mujoco.mjtGeom.mjGEOM_MESH, "density": 200, "condim": 4}
    for number, (mesh, size) in enumerate(zip(actors.meshes, actors.scale, strict=True)):
        spec.add_mesh(name=str(number), uservert=(mesh.hull * size).astype(float).ravel())
        body = spec.worldbody.add_body(name=str(number))
        body.add_freejoint()
        body.add_geom(**solid, meshname=str(number), friction=[recipe.friction, 0.005, 0.001])
    model = spec.compile()
    # Bodies at rest fall asleep and cost nothing until they are hit.
    model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_SLEEP
    return model


def random_quaternions(rng: np.random.Generator, number: int) -> Float[np.ndarray, "n 4"]:
    """Rotations, all equally likely."""
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
    """A place above the ground where a body's ball touches none of those before it; the higher the harder it is."""
    low = np.array([-within, -within, max(height[0], radius[number])])
    high = np.array([within, within, max(height[1], radius[number])])
    lift = np.array([0, 0, 0.1])
    while True:
        point = rng.uniform(low, high)
        gap = np.linalg.norm(place[:number, :3] - point, axis=1) - radius[:number]
        if (gap > radius[number]).all():
            return point
        low, high = low + lift, high + lift


def settle(mujoco: Any, model: Any, data: Any, recipe: Recipe) -> None:
    """Let the bodies come to rest, without bounces and in longer steps."""
    model.opt.timestep = 1 / 120
    model.geom_solref[:] = (0.02, 1.0)
    mujoco.mj_step(model, data, round(recipe.settling * 120))


def recorded(mujoco: Any, model: Any, data: Any, recipe: Recipe, tossed: Bool[np.ndarray, "n"]) -> Motion:
    """Step through the clip and keep every step."""
    model.opt.timestep = 1 / (recipe.fps * SUBSTEPS)
    # The damping of a spring that gives back this share of the speed.
    damping = -np.log(recipe.bounce) / np.hypot(np.pi, np.log(recipe.bounce))
    model.geom_solref[:] = (0.03, damping)
    states = np.empty(((recipe.frames + 1) * SUBSTEPS + 1, len(tossed), 13))
    for state in states:
        state[:, :7] = data.qpos.reshape(-1, 7)
        state[:, 7:] = data.qvel.reshape(-1, 6)
        mujoco.mj_step(model, data)
    quaternion = states[..., 3:7]
    poses = Poses(states[..., :3], rotations(quaternion))
    # MuJoCo gives the spin of a free body in the body's own axes.
    spin = np.einsum("snij,snj->sni", poses.rotation, states[..., 10:])
    return Motion(poses, quaternion, states[..., 7:10], spin, model.body_mass[1:].copy(), tossed)
