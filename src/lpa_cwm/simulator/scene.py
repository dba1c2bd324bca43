"""A scene: bodies with their motion, the camera's way, surroundings and light, all functions of an identity."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from lpa_cwm.rng import KeyPart, numpy_rng
from lpa_cwm.simulator.assets import Assets
from lpa_cwm.simulator.environment import Environment, Indoors, Outdoors
from lpa_cwm.simulator.mesh import Mesh
from lpa_cwm.simulator.physics import SUBSTEPS, Actors, Motion, collide
from lpa_cwm.simulator.poses import Points, Poses, Rows, looking, put
from lpa_cwm.simulator.recipe import Recipe
from lpa_cwm.simulator.texture import Texture


@dataclass(frozen=True)
class Surface:
    """The triangles of all bodies in one table."""

    first: Int[np.ndarray, "n"]
    """Column of each body's first triangle."""
    uv: Float32[np.ndarray, "6 f"]
    """Of the first, second and third corner."""
    normals: Float32[np.ndarray, "9 f"]
    texels: Float32[np.ndarray, "f"]
    texture: Texture


@dataclass(frozen=True, eq=False)
class Scene:
    """Everything there is to see, at every moment: a moment is a step of the simulation, `SUBSTEPS` of them a frame."""

    recipe: Recipe
    meshes: list[Mesh]
    scale: Float[np.ndarray, "n"]
    motion: Motion
    camera: Poses
    environment: Environment

    def moment(self, frame: float | int) -> int:
        """The step nearest to a frame; frames from -1 to one past the last are known."""
        return round((frame + 1) * SUBSTEPS)

    @cached_property
    def moving(self) -> Bool[np.ndarray, "n"]:
        """Which bodies move by more than a twentieth of a unit during the clip."""
        way = self.motion.poses.position - self.motion.poses.position[:1]
        return np.linalg.norm(way, axis=-1).max(0) > 0.05

    @cached_property
    def surface(self) -> Surface:
        """The bodies' triangles."""
        counts = [len(mesh.faces) for mesh in self.meshes]
        return Surface(
            first=np.concatenate(([0], np.cumsum(counts[:-1]))).astype(np.int64),
            uv=np.concatenate([mesh.uv.reshape(-1, 6).T for mesh in self.meshes], axis=1),
            normals=np.concatenate([mesh.normals.reshape(-1, 9).T for mesh in self.meshes], axis=1),
            texels=np.concatenate(
                [mesh.texels / np.float32(size) for mesh, size in zip(self.meshes, self.scale, strict=True)]
            ),
            texture=Texture.stack([mesh.texture for mesh in self.meshes]),
        )

    def place(self, local: Points, body: Int[np.ndarray, "n"], moment: int) -> Points:
        """World coordinates, at a moment, of points that belong to bodies; body 0 is the surroundings."""
        world = local.copy()
        for number, own in by_body(body):
            pose = self.motion.poses[moment, number]
            put(world, own, pose.outside(local.take(own, axis=1), float(self.scale[number])))
        return world

    def turn(self, local: Points, body: Int[np.ndarray, "n"], moment: int) -> Points:
        """Directions in the world, at a moment, of those in bodies' own coordinates."""
        world = local.copy()
        for number, own in by_body(body):
            rotation = self.motion.poses.rotation[moment, number].astype(np.float32)
            put(world, own, rotation @ local.take(own, axis=1))
        return world


def by_body(body: Int[np.ndarray, "n"]) -> Iterator[tuple[int, Rows]]:
    """The rows that belong to each body (but not to the surroundings)."""
    order = np.argsort(body, kind="stable")
    count = np.bincount(body)
    end = np.cumsum(count)
    for number in np.flatnonzero(count[1:]):
        yield int(number), order[end[number] : end[number + 1]]


def draw_scene(recipe: Recipe, assets: Assets, identity: tuple[KeyPart, ...]) -> Scene:
    """The scene of an identity; its physics do not depend on how it is filmed."""
    rng = numpy_rng("scene", recipe.name, assets.split, *identity)
    resting, tossed = (int(rng.integers(low, high + 1)) for low, high in (recipe.resting, recipe.tossed))
    meshes = [assets.body(rng) for _ in range(resting + tossed)]
    scale = rng.uniform(*recipe.scale, len(meshes))
    environment = (Outdoors if rng.random() < recipe.outdoors else Indoors).drawn(assets, rng)
    actors = Actors(meshes, scale, tossed, environment.walls)
    motion = collide(recipe, actors, rng)
    return Scene(recipe, meshes, scale, motion, filmed(recipe, motion.poses, actors.radius, rng), environment)


def filmed(recipe: Recipe, bodies: Poses, radius: Float[np.ndarray, "n"], rng: np.random.Generator) -> Poses:
    """A camera's way that does not run into any body."""
    time = (np.arange(len(bodies.position)) / SUBSTEPS - 1) / (recipe.frames - 1)
    position, attempts = np.zeros((len(time), 3)), 0
    while attempts < 50 and not clears(position, bodies, radius, 0.5 * recipe.lowest):
        start, end = line_in_shell(recipe, rng)
        position = start + time[:, None] * (end - start)
        attempts += 1
    gaze = recipe.gaze * rng.uniform(-0.5, 0.5, (2, 3))
    target = gaze[0] + time[:, None] * (gaze[1] - gaze[0])
    wobble = recipe.shake * shaking(time, rng)
    away = np.linalg.norm(position - target, axis=-1, keepdims=True)
    return looking(position, target + away * wobble[:, :3], wobble[:, 3])


def clears(position: Float[np.ndarray, "s 3"], bodies: Poses, radius: Float[np.ndarray, "n"], lowest: float) -> bool:
    """Whether a way stays above the ground and outside the balls that hold the bodies."""
    gap = np.linalg.norm(bodies.position - position[:, None], axis=-1) - radius
    return bool(gap.min() > 1.0 and position[:, 2].min() > lowest)


def line_in_shell(recipe: Recipe, rng: np.random.Generator) -> tuple[Float[np.ndarray, "3"], Float[np.ndarray, "3"]]:
    """Two points of the shell above the ground, as far apart as the recipe says."""
    while True:
        start = point_in_shell(recipe, rng)
        step = rng.normal(size=3)
        end = start + step * rng.uniform(*recipe.travel) / np.linalg.norm(step)
        if recipe.shell[0] <= np.linalg.norm(end) <= recipe.shell[1] and end[2] >= recipe.lowest:
            return start, end


def point_in_shell(recipe: Recipe, rng: np.random.Generator) -> Float[np.ndarray, "3"]:
    """A point between the two distances, above the ground."""
    while True:
        point = rng.uniform(-recipe.shell[1], recipe.shell[1], 3)
        if recipe.shell[0] <= np.linalg.norm(point) <= recipe.shell[1] and point[2] >= recipe.lowest:
            return point


def shaking(time: Float[np.ndarray, "s"], rng: np.random.Generator) -> Float[np.ndarray, "s 4"]:
    """Four smooth random functions of time, of order one."""
    rate, phase = rng.uniform(2, 12, (4, 3)), rng.uniform(0, 2 * np.pi, (4, 3))
    return np.sin(time[:, None, None] * rate + phase).mean(-1)
