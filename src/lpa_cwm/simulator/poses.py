"""Rigid poses and the pinhole camera model.

Points have the coordinate axis first, [3 n] in space and [2 n] in the frame, which is several times faster.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Int

FOCAL, SENSOR = 35.0, 32.0
"""Focal length and sensor width of the MOVi camera, in millimeters."""
NEAR = 0.05
"""Near clipping distance."""

Points = Float32[np.ndarray, "3 n"]
FramePoints = Float32[np.ndarray, "2 n"]
Numbers = Float32[np.ndarray, "n"]
Rows = Int[np.ndarray, "m"]

FLIP = np.array([[1], [-1]], dtype=np.float32)
"""y points down in the frame and up in the camera."""


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


def dot(one: Points, other: Points) -> Numbers:
    """Inner products of columns."""
    return np.einsum("in,in->n", one, other)


def scatter_columns(table: Float32[np.ndarray, "d n"], rows: Rows, values: Float32[np.ndarray, "d m"]) -> None:
    """Write values into columns; one coordinate at a time is faster."""
    for coordinate, value in zip(table, values, strict=True):
        coordinate[rows] = value


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
    np.divide(np.float32(-focal_of(size)), point[2], out=scale, where=point[2] < -NEAR)
    return point[:2] * scale * FLIP + np.float32(size / 2)
