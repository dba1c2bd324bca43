"""Where things are and how they are turned; the simulator's pinhole camera."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32

FOCAL, SENSOR = 35.0, 32.0
"""Of MOVi's camera, in millimetres."""


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


def focal_of(size: int) -> float:
    """Focal length in pixels of a frame of `size` x `size`."""
    return size * FOCAL / SENSOR


def outwards(xy: Float[np.ndarray, "n 2"], size: int) -> Float32[np.ndarray, "n 3"]:
    """Unit directions, in camera coordinates, through points of the frame."""
    flat = (xy - size / 2) / focal_of(size)
    length = np.sqrt(1 + (flat**2).sum(-1))
    return (np.stack((flat[:, 0], -flat[:, 1], -np.ones(len(flat))), axis=-1) / length[:, None]).astype(np.float32)


NEAR = 0.05


def onto_frame(point: Float[np.ndarray, "n 3"], size: int) -> Float[np.ndarray, "n 2"]:
    """Where points in camera coordinates appear; what is not in front of the camera appears nowhere (NaN)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(point[:, 2] < -NEAR, -focal_of(size) / point[:, 2], np.nan)
    return np.stack((point[:, 0] * scale, -point[:, 1] * scale), axis=-1).astype(np.float32) + np.float32(size / 2)
