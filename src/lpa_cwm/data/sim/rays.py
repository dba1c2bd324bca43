"""What the camera sees along rays, and what hides a point from it."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float32, Int16, Int64

from lpa_cwm.data.sim.poses import Poses, onto_frame, outwards
from lpa_cwm.data.sim.scene import Scene

TOUCHING = 1e-4
"""Share of a distance below which two hits count as one."""


@dataclass(frozen=True)
class Hits:
    """Where rays end."""

    body: Int16[np.ndarray, "n"]
    """0 is the surroundings, k the body k - 1."""
    distance: Float32[np.ndarray, "n"]
    local: Float32[np.ndarray, "n 3"]
    """In the body's own coordinates, so that it names the same material point at every moment."""
    face: Int64[np.ndarray, "n"]
    """Row in the scene's table of triangles; meaningless on the surroundings."""
    weight: Float32[np.ndarray, "n 2"]
    """Barycentric coordinates of the triangle's second and third corner."""
    direction: Float32[np.ndarray, "n 3"]


def into_camera(camera: Poses, point: Float32[np.ndarray, "n 3"]) -> Float32[np.ndarray, "n 3"]:
    """World to camera coordinates."""
    return (point - camera.position.astype(np.float32)) @ camera.rotation.astype(np.float32)


def seen_within(
    scene: Scene, moment: int, xy: Float[np.ndarray, "n 2"], size: int, number: int
) -> Int64[np.ndarray, "m"]:
    """Which points of the frame lie in the rectangle that holds a body."""
    pose = scene.motion.poses[moment, number]
    corners = scene.scale[number] * scene.meshes[number].box @ pose.rotation.T + pose.position
    frame = onto_frame(into_camera(scene.camera[moment], corners.astype(np.float32)), size)
    if np.isnan(frame).any():
        return np.arange(len(xy))
    low, high = frame.min(0) - 0.5, frame.max(0) + 0.5
    x, y = xy[:, 0], xy[:, 1]
    return np.flatnonzero((x > low[0]) & (x < high[0]) & (y > low[1]) & (y < high[1]))


def in_body(
    scene: Scene, moment: int, number: int, direction: Float32[np.ndarray, "n 3"]
) -> tuple[Float32[np.ndarray, "3"], Float32[np.ndarray, "n 3"]]:
    """The camera's place and directions in a body's own coordinates, where lengths are in units of its scale."""
    pose = scene.motion.poses[moment, number]
    place = (scene.camera.position[moment] - pose.position) @ pose.rotation / scene.scale[number]
    return place.astype(np.float32), direction @ pose.rotation.astype(np.float32)


def cast(scene: Scene, moment: int, xy: Float[np.ndarray, "n 2"], size: int) -> Hits:
    """The first hit of the ray through each point of a frame of `size` x `size` pixels."""
    camera = scene.camera[moment]
    direction = outwards(xy, size) @ camera.rotation.T.astype(np.float32)
    distance = scene.environment.distance(camera.position, direction)
    local = camera.position.astype(np.float32) + distance[:, None] * direction
    body = np.zeros(len(xy), dtype=np.int16)
    face = np.zeros(len(xy), dtype=np.int64)
    weight = np.zeros((len(xy), 2), dtype=np.float32)
    for number, mesh in enumerate(scene.meshes):
        rows = seen_within(scene, moment, xy, size, number)
        if not len(rows):
            continue
        place, towards = in_body(scene, moment, number, direction[rows])
        found = mesh.rays.run(np.broadcast_to(place, towards.shape), towards, output=1)
        reach = found["tfar"] * np.float32(scene.scale[number])
        nearer = np.flatnonzero((found["primID"] >= 0) & (reach < distance[rows]))
        won = rows[nearer]
        distance[won] = reach[nearer]
        local[won] = place + found["tfar"][nearer, None] * towards[nearer]
        body[won] = number + 1
        face[won] = found["primID"][nearer] + scene.surface.first[number]
        weight[won] = np.stack((found["u"][nearer], found["v"][nearer]), axis=-1)
    return Hits(body, distance, local, face, weight, direction)


def visible(
    scene: Scene, moment: int, point: Float32[np.ndarray, "n 3"], size: int
) -> tuple[Float32[np.ndarray, "n 2"], Bool[np.ndarray, "n"]]:
    """Where points of the world appear at a moment, and whether they do: inside the frame with nothing in front."""
    camera = scene.camera[moment]
    towards = point - camera.position.astype(np.float32)
    distance = np.sqrt((towards**2).sum(-1))
    direction = towards / distance[:, None]
    xy = onto_frame(towards @ camera.rotation.astype(np.float32), size)
    limit = distance * np.float32(1 - TOUCHING)
    clear = ((xy >= 0) & (xy < size)).all(-1)
    clear &= scene.environment.distance(camera.position, direction) >= limit
    for number, mesh in enumerate(scene.meshes):
        rows = seen_within(scene, moment, xy, size, number)
        rows = rows[clear[rows]]
        if len(rows):
            place, own = in_body(scene, moment, number, direction[rows])
            within = limit[rows] / np.float32(scene.scale[number])
            blocked = mesh.rays.run(np.broadcast_to(place, own.shape), own, dists=within, query="OCCLUDED") >= 0
            clear[rows[blocked]] = False
    return xy, clear
