"""Where things are and how they are turned; the simulator's pinhole camera.

Many points are one row per coordinate, [3 n] in space and [2 n] in the frame: arithmetic on whole rows is several
times faster than on rows of three.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Int

FOCAL, SENSOR = 35.0, 32.0
"""Of MOVi's camera, in millimetres."""
NEAR = 0.05
"""What is less than this in front of the camera is not seen."""

Points = Float32[np.ndarray, "3 n"]
FramePoints = Float32[np.ndarray, "2 n"]
Numbers = Float32[np.ndarray, "n"]
Rows = Int[np.ndarray, "m"]

FLIP = np.array([[1], [-1]], dtype=np.float32)
"""The frame's y points down, the camera's up."""


def rotations(quaternion: Float[np.ndarray, "*b 4"]) -> Float[np.ndarray, "*b 3 3"]:
    """Matrices of unit quaternions (w, x, y, z)."""
    w, x, y, z = np.moveaxis(quaternion, -1, 0)
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def quaternions(rotation: Float[np.ndarray, "*b 3 3"]) -> Float[np.ndarray, "*b 4"]:
    """Unit quaternions (w, x, y, z) of matrices: the eigenvector of the largest eigenvalue of Bar-Itzhack's matrix."""
    r = rotation
    k = np.zeros((*r.shape[:-2], 4, 4))
    k[..., 0, 0] = np.trace(r, axis1=-2, axis2=-1)
    vector = np.stack((r[..., 2, 1] - r[..., 1, 2], r[..., 0, 2] - r[..., 2, 0], r[..., 1, 0] - r[..., 0, 1]), axis=-1)
    k[..., 0, 1:] = k[..., 1:, 0] = vector
    k[..., 1:, 1:] = r + np.swapaxes(r, -1, -2) - np.eye(3) * k[..., :1, :1]
    return np.linalg.eigh(k)[1][..., -1]


@dataclass(frozen=True)
class Poses:
    """Places and rotations from own to world coordinates; the leading axes are moments, then bodies."""

    position: Float[np.ndarray, "*b 3"]
    rotation: Float[np.ndarray, "*b 3 3"]

    def __getitem__(self, index: int | tuple[int, ...]) -> "Poses":
        return Poses(self.position[index], self.rotation[index])

    def outside(self, own: Points, scale: float = 1.0) -> Points:
        """From own coordinates, of which one is `scale` long, to the world's (of a single pose)."""
        return (scale * self.rotation).astype(np.float32) @ own + self.position.astype(np.float32)[:, None]

    def inside(self, world: Points) -> Points:
        """From the world's coordinates to own ones (of a single pose)."""
        return self.rotation.T.astype(np.float32) @ (world - self.position.astype(np.float32)[:, None])


def looking(
    position: Float[np.ndarray, "s 3"], target: Float[np.ndarray, "s 3"], roll: Float[np.ndarray, "s"]
) -> Poses:
    """Cameras at places, looking at points along their -z with y up, then turned about that axis."""
    back = position - target
    back = back / np.linalg.norm(back, axis=-1, keepdims=True)
    right = np.cross(np.array([0.0, 0.0, 1.0]), back)
    right = right / np.linalg.norm(right, axis=-1, keepdims=True)
    up = np.cross(back, right)
    cos, sin = np.cos(roll)[:, None], np.sin(roll)[:, None]
    return Poses(position, np.stack((cos * right + sin * up, cos * up - sin * right, back), axis=-1))


def dot(one: Points, other: Points) -> Numbers:
    """Inner products."""
    return np.einsum("in,in->n", one, other)


def put(table: Float32[np.ndarray, "d n"], rows: Rows, values: Float32[np.ndarray, "d m"]) -> None:
    """Replace some columns (one coordinate at a time, which is faster than all at once)."""
    for coordinate, value in zip(table, values, strict=True):
        coordinate[rows] = value


def focal_of(size: int) -> float:
    """Focal length in pixels of a frame of `size` x `size`."""
    return size * FOCAL / SENSOR


def outwards(xy: FramePoints, size: int) -> Points:
    """Unit directions, in camera coordinates, through points of the frame."""
    direction = np.full((3, xy.shape[1]), -1, dtype=np.float32)
    direction[:2] = (xy - np.float32(size / 2)) * (FLIP / np.float32(focal_of(size)))
    return direction / np.sqrt(dot(direction, direction))


def onto_frame(point: Points, size: int) -> FramePoints:
    """Where points in camera coordinates appear; what is not in front of the camera appears nowhere (NaN)."""
    scale = np.full(point.shape[1], np.nan, dtype=np.float32)
    np.divide(np.float32(-focal_of(size)), point[2], out=scale, where=point[2] < -NEAR)
    return point[:2] * scale * FLIP + np.float32(size / 2)
