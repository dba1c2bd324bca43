"""A textured triangle mesh with what rendering and physics ask of it: normals, a hull, a ray index."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Int32

from lpa_cwm.errors import need
from lpa_cwm.simulator.poses import Points
from lpa_cwm.simulator.shapes import Solid
from lpa_cwm.simulator.texture import Texture

CREASE = np.cos(np.deg2rad(42))
HULL_DIRECTIONS = 128
"""In each of them a hull reaches as far as its body."""


def sphere_directions(count: int) -> Float[np.ndarray, "count 3"]:
    """Unit vectors spread evenly (a golden-angle spiral)."""
    height = 1 - (2 * np.arange(count) + 1) / count
    angle = np.pi * (3 - np.sqrt(5)) * np.arange(count)
    radius = np.sqrt(1 - height**2)
    return np.stack((radius * np.cos(angle), radius * np.sin(angle), height), axis=-1)


def hull_of(vertices: Float[np.ndarray, "v 3"]) -> Float[np.ndarray, "h 3"]:
    """The vertices that lie farthest out in some direction."""
    return vertices[np.unique((vertices @ sphere_directions(HULL_DIRECTIONS).T).argmax(0))]


def corner_normals(
    vertices: Float[np.ndarray, "v 3"], faces: Int32[np.ndarray, "f 3"]
) -> tuple[Float32[np.ndarray, "f 3 3"], Float[np.ndarray, "f"]]:
    """Unit normals at the corners of each triangle, smooth except across creases; and the triangles' areas."""
    corners = vertices[faces].astype(np.float64)
    edges = np.roll(corners, -1, axis=1) - corners
    across = np.cross(edges[:, 0], edges[:, 1])
    length = np.linalg.norm(across, axis=1)
    flat = across / np.maximum(length, 1e-12)[:, None]
    unit = edges / np.maximum(np.linalg.norm(edges, axis=-1, keepdims=True), 1e-12)
    angles = np.arccos(np.clip(-(unit * np.roll(unit, 1, axis=1)).sum(-1), -1, 1))
    # Vertices are doubled along texture seams; the surface is not.
    _, place = np.unique(np.round(vertices * 1e5).astype(np.int64), axis=0, return_inverse=True)
    place = place.reshape(-1)[faces]
    total = np.zeros((place.max() + 1, 3))
    # Weights by angle, so that it does not matter how a flat side is cut into triangles.
    np.add.at(total, place, angles[..., None] * flat[:, None])
    smooth = total / np.maximum(np.linalg.norm(total, axis=1), 1e-12)[:, None]
    smooth = smooth[place]
    creased = (smooth * flat[:, None]).sum(-1) < CREASE
    return np.where(creased[..., None], flat[:, None], smooth).astype(np.float32), length / 2


@dataclass(frozen=True, eq=False)
class Mesh:
    """A body at unit size (longest side 1), its origin inside it."""

    name: str
    vertices: Float32[np.ndarray, "v 3"]
    faces: Int32[np.ndarray, "f 3"]
    uv: Float32[np.ndarray, "f 3 2"]
    """At the corners of each triangle, v downwards."""
    normals: Float32[np.ndarray, "f 3 3"]
    texels: Float32[np.ndarray, "f"]
    """Texels per unit of length on each triangle."""
    hull: Float[np.ndarray, "h 3"]
    texture: Texture = field(repr=False)

    @classmethod
    def of(cls, name: str, solid: Solid, texture: Texture, hull: Float[np.ndarray, "h 3"] | None = None) -> "Mesh":
        """The mesh of a solid with v upwards, brought to unit size; its hull is found if not given."""
        hull = hull_of(solid.vertices) if hull is None else hull
        low, high = solid.vertices.min(0), solid.vertices.max(0)
        center, side = (low + high) / 2, (high - low).max()
        vertices = ((solid.vertices - center) / side).astype(np.float32)
        faces = np.ascontiguousarray(solid.faces, dtype=np.int32)
        normals, areas = corner_normals(vertices, faces)
        corners = (solid.uv * (1, -1) + (0, 1)).astype(np.float32)[faces]
        edge, other = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
        share = np.abs(edge[:, 0] * other[:, 1] - edge[:, 1] * other[:, 0]) / 2
        texels = texture.texels * np.sqrt(share / np.maximum(areas, 1e-10))
        return cls(name, vertices, faces, corners, normals, texels.astype(np.float32), (hull - center) / side, texture)

    @cached_property
    def box(self) -> Float32[np.ndarray, "8 3"]:
        """The corners of the bounding box, the last coordinate changing fastest."""
        bounds = np.stack((self.vertices.min(0), self.vertices.max(0)))
        return np.stack(np.meshgrid(*bounds.T, indexing="ij"), axis=-1).reshape(8, 3)

    @cached_property
    def corners(self) -> Points:
        """The vertices, one row per coordinate."""
        return np.ascontiguousarray(self.vertices.T)

    @cached_property
    def radius(self) -> float:
        """Of the ball around the origin that holds the body."""
        return float(np.linalg.norm(self.vertices, axis=1).max())

    @cached_property
    def rays(self) -> Any:
        """The ray index, an embree scene in the mesh's own coordinates."""
        scene = need("embreex.rtcore_scene", "sim").EmbreeScene()
        need("embreex.mesh_construction", "sim").TriangleMesh(scene, self.vertices, self.faces)
        return scene
