"""Bodies and images of scenes: scanned objects, photographs and panoramas of a folder, or procedural ones.

Bodies are textured triangle meshes for rendering and physics. Points have the coordinate axis first, [3 n] in space and
[2 n] in the frame, which is several times faster.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Int, Int32, Integer
from PIL import Image

from lpa_cwm.errors import InputError, require
from lpa_cwm.files import data_files
from lpa_cwm.io.video import read_rgb
from lpa_cwm.rng import numpy_rng, seed_of
from lpa_cwm.simulator import texture
from lpa_cwm.simulator.texture import Picture, Texture, to_linear
from lpa_cwm.synth.images import ImagePool
from lpa_cwm.synth.pairs import Split
from lpa_cwm.validation import check_array, read_npz, reading

Points = Float32[np.ndarray, "3 n"]
FramePoints = Float32[np.ndarray, "2 n"]
Numbers = Float32[np.ndarray, "n"]
Rows = Int[np.ndarray, "m"]

TURN_SEGMENTS = 40
"""Segments of a full turn."""


@dataclass(frozen=True)
class Solid:
    """Surface of a body."""

    vertices: Float[np.ndarray, "v 3"]
    """z points up."""
    faces: Int[np.ndarray, "f 3"]
    uv: Float[np.ndarray, "v 2"]
    """Texture coordinates in [0, 1], v up."""


def grid_mesh(points: Float[np.ndarray, "rows columns 3"], uv: Float[np.ndarray, "rows columns 2"]) -> Solid:
    """Triangulate a grid of points."""
    rows, columns = points.shape[:2]
    corner = (np.arange(rows - 1)[:, None] * columns + np.arange(columns - 1)).ravel()
    first = np.stack((corner, corner + 1, corner + columns + 1), axis=-1)
    second = np.stack((corner, corner + columns + 1, corner + columns), axis=-1)
    return Solid(points.reshape(-1, 3), np.concatenate((first, second)), uv.reshape(-1, 2))


def concat_solids(*parts: Solid) -> Solid:
    """Concatenate several surfaces."""
    offsets = np.cumsum([0] + [len(part.vertices) for part in parts[:-1]])
    faces = [part.faces + offset for part, offset in zip(parts, offsets, strict=True)]
    vertices, uv = (np.concatenate([getattr(part, name) for part in parts]) for name in ("vertices", "uv"))
    return Solid(vertices, np.concatenate(faces), uv)


def unit_grid(rows: int, columns: int) -> tuple[Float[np.ndarray, "r c"], Float[np.ndarray, "r c"]]:
    """Coordinates in [0, 1] along rows and columns."""
    down, along = np.meshgrid(np.linspace(0, 1, rows), np.linspace(0, 1, columns), indexing="ij")
    return down, along


def box(rng: np.random.Generator) -> Solid:
    """A cuboid; each side has a sixth of the texture."""
    extent = rng.uniform(0.35, 1, 3)
    down, along = unit_grid(2, 2)
    parts = []
    for side in range(6):
        axis, sign = side % 3, 1 - 2 * (side // 3)
        flat = np.stack((np.full_like(down, sign), 2 * along - 1, 2 * down - 1), axis=-1)
        points = np.roll(flat, axis, axis=-1) * extent / 2
        uv = np.stack((side % 3 + 0.02 + 0.96 * along, side // 3 + 0.02 + 0.96 * down), axis=-1) / (3, 2)
        parts.append(grid_mesh(points, uv))
    return concat_solids(*parts)


def lathe(rng: np.random.Generator) -> Solid:
    """A surface of revolution with a random profile."""
    knots = int(rng.integers(2, 7))
    radius = np.interp(np.linspace(0, 1, 24), np.linspace(0, 1, knots), rng.uniform(0.15, 0.5, knots))
    height = rng.uniform(0.4, 1.6)
    profile = np.concatenate(([0.0], radius, [0.0]))
    level = height * np.concatenate(([0.0], np.linspace(0, 1, 24), [1.0]))
    way = np.concatenate(([0.0], np.cumsum(np.hypot(np.diff(profile), np.diff(level)))))
    _, along = unit_grid(len(profile), TURN_SEGMENTS + 1)
    angle = 2 * np.pi * along
    radial = profile[:, None] * np.stack((np.cos(angle), np.sin(angle)))
    points = np.stack((radial[0], radial[1], np.broadcast_to(level[:, None], angle.shape)), axis=-1)
    uv = np.stack((along, np.broadcast_to((way / way[-1])[:, None], along.shape)), axis=-1)
    return grid_mesh(points, uv)


def ring(rng: np.random.Generator) -> Solid:
    """A torus with a round or squarish section."""
    thick, photo_crop = rng.uniform(0.1, 0.22), rng.uniform(1, 3)
    down, along = unit_grid(17, TURN_SEGMENTS + 1)
    section, angle = 2 * np.pi * down, 2 * np.pi * along
    # Rounding removes the noise of values that should be zero, which the root would amplify.
    waves = (np.cos(section).round(9), np.sin(section).round(9))
    out, up = (np.sign(wave) * np.abs(wave) ** (1 / photo_crop) for wave in waves)
    radius = 0.5 - thick + thick * out
    points = np.stack((radius * np.cos(angle), radius * np.sin(angle), thick * up), axis=-1)
    return grid_mesh(points, np.stack((along, down), axis=-1))


def extruded(rng: np.random.Generator) -> Solid:
    """An extruded star, gear, flower or prism."""
    teeth, depth = int(rng.integers(3, 9)), rng.uniform(0, 0.35)
    angle = np.linspace(0, 2 * np.pi, 8 * teeth + 1)
    wave = np.cos(teeth * angle)
    wave = np.sign(wave) * np.abs(wave) ** rng.uniform(0.2, 1.2)
    outline = 0.5 * (1 - depth + depth * wave)[:, None] * np.stack((np.cos(angle), np.sin(angle)), axis=-1)
    half = rng.uniform(0.08, 0.4)
    along = np.linspace(0, 1, len(angle))
    lower = np.concatenate((outline, np.full((len(angle), 1), -half)), axis=1)
    upper = lower * (1, 1, -1)
    band = np.stack([np.stack((along, np.full_like(along, v)), axis=-1) for v in (0.0, 0.48)])
    parts = [grid_mesh(np.stack((lower, upper)), band)]
    for side, rim in enumerate((upper, lower[::-1])):
        hub = np.broadcast_to(rim.mean(0) * (0, 0, 1), rim.shape)
        disc = np.stack((np.full_like(rim[:, :2], 0), rim[:, :2])) * 0.48 + (0.25 + 0.5 * side, 0.75)
        parts.append(grid_mesh(np.stack((hub, rim)), disc))
    return concat_solids(*parts)


def pebble(rng: np.random.Generator) -> Solid:
    """A superellipsoid with bumps."""
    down, along = unit_grid(25, TURN_SEGMENTS + 1)
    tilt, angle = np.pi * (down - 0.5), 2 * np.pi * along
    ball = np.stack((np.cos(tilt) * np.cos(angle), np.cos(tilt) * np.sin(angle), np.sin(tilt)), axis=-1)
    power = rng.uniform(2, 6)
    shape = ball / (np.abs(ball) ** power).sum(-1, keepdims=True) ** (1 / power)
    for _ in range(int(rng.integers(0, 7))):
        towards = rng.normal(size=3)
        towards /= np.linalg.norm(towards)
        shape *= (1 + rng.uniform(-0.25, 0.25) * np.exp(4 * (ball @ towards - 1)))[..., None]
    return grid_mesh(shape * rng.uniform(0.55, 1, 3), np.stack((along, down), axis=-1))


FORMS: tuple[Callable[[np.random.Generator], Solid], ...] = (box, lathe, lathe, ring, extruded, pebble)


def random_solid(rng: np.random.Generator) -> Solid:
    """A random procedural shape."""
    return FORMS[int(rng.integers(len(FORMS)))](rng)


CREASE = np.cos(np.deg2rad(42))
HULL_DIRECTIONS = 128
"""Number of directions in which the hull has the extent of the body."""


def sphere_directions(count: int) -> Float[np.ndarray, "count 3"]:
    """Fibonacci sphere: evenly distributed unit vectors."""
    height = 1 - (2 * np.arange(count) + 1) / count
    angle = np.pi * (3 - np.sqrt(5)) * np.arange(count)
    radius = np.sqrt(1 - height**2)
    return np.stack((radius * np.cos(angle), radius * np.sin(angle), height), axis=-1)


def hull_of(vertices: Float[np.ndarray, "v 3"]) -> Float[np.ndarray, "h 3"]:
    """Vertices of an approximate convex hull: the farthest vertex in each direction."""
    return vertices[np.unique((vertices @ sphere_directions(HULL_DIRECTIONS).T).argmax(0))]


def corner_normals(
    vertices: Float[np.ndarray, "v 3"], faces: Int32[np.ndarray, "f 3"]
) -> tuple[Float32[np.ndarray, "f 3 3"], Float[np.ndarray, "f"]]:
    """Angle-weighted vertex normals (Thürmer and Wüthrich 1998), flat across creases; and triangle areas."""
    corners = vertices[faces].astype(np.float64)
    edges = np.roll(corners, -1, axis=1) - corners
    across = np.cross(edges[:, 0], edges[:, 1])
    length = np.linalg.norm(across, axis=1)
    flat = across / np.maximum(length, 1e-12)[:, None]
    unit = edges / np.maximum(np.linalg.norm(edges, axis=-1, keepdims=True), 1e-12)
    angles = np.arccos(np.clip(-(unit * np.roll(unit, 1, axis=1)).sum(-1), -1, 1))
    # Vertices are duplicated along texture seams; merge them by position.
    _, place = np.unique(np.round(vertices * 1e5).astype(np.int64), axis=0, return_inverse=True)
    place = place.reshape(-1)[faces]
    total = np.zeros((place.max() + 1, 3))
    # Angle weights make the result independent of the triangulation of flat sides.
    np.add.at(total, place, angles[..., None] * flat[:, None])
    smooth = total / np.maximum(np.linalg.norm(total, axis=1), 1e-12)[:, None]
    smooth = smooth[place]
    creased = (smooth * flat[:, None]).sum(-1) < CREASE
    return np.where(creased[..., None], flat[:, None], smooth).astype(np.float32), length / 2


@dataclass(frozen=True, eq=False)
class Mesh:
    """A textured triangle mesh of unit size (longest side 1)."""

    name: str
    vertices: Float32[np.ndarray, "v 3"]
    faces: Int32[np.ndarray, "f 3"]
    uv: Float32[np.ndarray, "f 3 2"]
    """Texture coordinates at the corners of each triangle, v down."""
    normals: Float32[np.ndarray, "f 3 3"]
    texels: Float32[np.ndarray, "f"]
    """Texels per unit of length, per triangle."""
    hull: Float[np.ndarray, "h 3"]
    texture: Texture = field(repr=False)

    @classmethod
    def of(cls, name: str, solid: Solid, texture: Texture, hull: Float[np.ndarray, "h 3"] | None = None) -> "Mesh":
        """Scale a solid (v up) to unit size; the hull is computed if not given."""
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
        """Corners of the bounding box."""
        bounds = np.stack((self.vertices.min(0), self.vertices.max(0)))
        return np.stack(np.meshgrid(*bounds.T, indexing="ij"), axis=-1).reshape(8, 3)

    @cached_property
    def corners(self) -> Points:
        """Vertices, coordinate axis first."""
        return np.ascontiguousarray(self.vertices.T)

    @cached_property
    def radius(self) -> float:
        """Radius of the bounding sphere around the origin."""
        return float(np.linalg.norm(self.vertices, axis=1).max())

    @cached_property
    def rays(self) -> Any:
        """Embree scene for ray casting, in local coordinates."""
        scene = require("embreex.rtcore_scene", "sim").EmbreeScene()
        require("embreex.mesh_construction", "sim").TriangleMesh(scene, self.vertices, self.faces)
        return scene


TEXTURE_SIDE = 256
SCAN = "expected an .npz archive with vertices, faces, uv, texture (JPEG bytes) and hull: remove it or replace it"
MAX_SCAN = 64 << 20
"""Bytes of the arrays of a scanned object."""
MAX_FACES, MAX_HULL = 300_000, 10_000
PROCEDURAL = 32
"""Number of procedural skies, floors and ground textures per split."""


@lru_cache(maxsize=256)
def load_scan(path: Path) -> Mesh:
    """Load a scanned object; 256 objects take about 400 MB."""
    with reading(path, "a scanned object", SCAN):
        store = read_npz(path, ("vertices", "faces", "uv", "texture", "hull"), MAX_SCAN)
        check_array(store["vertices"], (None, 3), "f", "`vertices`")
        check_array(store["faces"], (None, 3), "iu", "`faces`")
        check_array(store["uv"], (len(store["vertices"]), 2), "f", "`uv`")
        check_array(store["texture"], (None,), "u", "`texture`")
        check_array(store["hull"], (None, 3), "f", "`hull`")
        check_surface(store["vertices"], store["faces"], store["uv"], store["hull"])
        picture = Image.fromarray(read_rgb(store["texture"].tobytes(), f"The texture of {path}")).resize(
            (TEXTURE_SIDE, TEXTURE_SIDE)
        )
        solid = Solid(store["vertices"], store["faces"], store["uv"])
        return Mesh.of(path.stem, solid, Texture.of(to_linear(np.asarray(picture))), store["hull"])


def check_surface(
    vertices: Float[np.ndarray, "v 3"],
    faces: Integer[np.ndarray, "f 3"],
    uv: Float[np.ndarray, "v 2"],
    hull: Float[np.ndarray, "h 3"],
) -> None:
    """Refuse a surface of unusual size, with corners that do not exist, or with a hull that is flat."""
    if not 1 <= len(faces) <= MAX_FACES or not faces.min() >= 0 or not faces.max() < len(vertices):
        raise ValueError(f"`faces` are {len(faces)}, from {faces.min(initial=0)} to {faces.max(initial=0)}")
    if not 1e-6 < np.ptp(vertices, axis=0).max() < 1e6 or not np.abs(vertices).max() < 1e6 or np.abs(uv).max() > 1e3:
        raise ValueError("`vertices` or `uv` are too large or too small")
    # MuJoCo refuses a hull without volume.
    max_extent = 2 * np.ptp(vertices, axis=0).max()
    if not 4 <= len(hull) <= MAX_HULL or not np.abs(hull - vertices.mean(0)).max() < max_extent:
        raise ValueError(f"`hull` has {len(hull)} points or lies elsewhere")
    spread = np.linalg.svd(hull - hull.mean(0), compute_uv=False)
    if not spread[2] > 1e-4 * spread[0]:
        raise ValueError("`hull` is flat")


@lru_cache(maxsize=16)
def panorama(path: Path) -> Texture:
    """Load an equirectangular panorama as linear RGB, [512, 1024]."""
    small = Image.fromarray(read_rgb(path, str(path))).resize((1024, 512), Image.Resampling.LANCZOS)
    return Texture.of(to_linear(np.asarray(small)), "across")


@lru_cache(maxsize=PROCEDURAL)
def procedural_sky(split: Split, number: int) -> Texture:
    """Procedural sky `number`."""
    return Texture.of(texture.sky(numpy_rng("sky", split, number)), "across")


@lru_cache(maxsize=PROCEDURAL)
def procedural_relief(split: Split, number: int) -> Texture:
    """Procedural ground texture `number`."""
    return Texture.of(texture.relief(numpy_rng("relief", split, number)), "both")


@lru_cache(maxsize=PROCEDURAL)
def procedural_floor(split: Split, number: int) -> Texture:
    """Procedural floor `number`."""
    rng = numpy_rng("floor", split, number)
    return Texture.of(texture.FLOORS[number % len(texture.FLOORS)](rng), "both")


def photo_crop(picture: Image.Image, rng: np.random.Generator, side: int) -> Picture:
    """A random square crop of a photograph, as linear RGB."""
    span = min(picture.size) * rng.uniform(0.6, 1.0)
    x, y = (rng.uniform(0, length - span) for length in picture.size)
    return to_linear(np.asarray(picture.resize((side, side), Image.Resampling.LANCZOS, box=(x, y, x + span, y + span))))


@dataclass(frozen=True)
class Assets:
    """The assets of one split; all are procedural without a folder."""

    split: Split
    objects: tuple[Path, ...]
    panoramas: tuple[Path, ...]
    photographs: ImagePool
    shapes: float = 0.2
    """Share of procedural bodies if there are scanned objects."""

    @classmethod
    def of(cls, folder: Path | None, split: Split) -> "Assets":
        """The assets of a folder (objects/*.npz, textures/*.jpg, textures/panoramas/*.jpg) in this split."""
        if folder is None:
            return cls(split, (), (), ImagePool.of(None, split))
        objects = files_of_split(folder / "objects", "*.npz", split)
        panoramas = files_of_split(folder / "textures" / "panoramas", "*.jpg", split)
        return cls(split, objects, panoramas, ImagePool.of(folder / "textures", split))

    def body(self, rng: np.random.Generator) -> Mesh:
        """A scanned object, or a procedural shape textured with a photograph."""
        if self.objects and rng.random() >= self.shapes:
            return load_scan(self.objects[int(rng.integers(len(self.objects)))])
        skin = photo_crop(self.photographs.draw(rng), rng, TEXTURE_SIDE)
        return Mesh.of("invented", random_solid(rng), Texture.of(skin))

    def sky(self, rng: np.random.Generator) -> Texture:
        """A panorama of the sky."""
        if self.panoramas:
            return panorama(self.panoramas[int(rng.integers(len(self.panoramas)))])
        return procedural_sky(self.split, int(rng.integers(PROCEDURAL)))

    def relief(self, rng: np.random.Generator) -> Texture:
        """Detail texture of the ground."""
        return procedural_relief(self.split, int(rng.integers(PROCEDURAL)))

    def floor(self, rng: np.random.Generator) -> Texture:
        """A procedural floor, sometimes a photograph."""
        if rng.random() < 0.85:
            return procedural_floor(self.split, int(rng.integers(PROCEDURAL)))
        return Texture.of(texture.mirrored(photo_crop(self.photographs.draw(rng), rng, 256)), "both")

    def walls(self, rng: np.random.Generator) -> Texture:
        """Textures of the four walls."""
        bare = texture.plaster(rng)
        posters = [[self.photographs.draw(rng) for _ in range(int(rng.integers(1, 4)))] for _ in range(4)]
        return Texture.stack([Texture.of(texture.with_posters(rng, bare, some)) for some in posters])


def files_of_split(folder: Path, pattern: str, split: Split) -> tuple[Path, ...]:
    """The files of a folder in this split; `val` has a seventh of all files, at least two."""
    every = sorted(data_files(folder, pattern), key=lambda path: seed_of("split", path.stem))
    count = max(2, len(every) // 7)
    files = tuple(sorted(every[:count] if split == "val" else every[count:]))
    if not files:
        raise InputError(
            f"{folder} holds {len(every)} files {pattern}, none of them for the split '{split}'; give a folder with "
            "objects/*.npz, textures/*.jpg and textures/panoramas/*.jpg, or no folder for procedural scenes."
        )
    return files


def dot(one: Points, other: Points) -> Numbers:
    """Inner products of columns."""
    return np.einsum("in,in->n", one, other)


def scatter_columns(table: Float32[np.ndarray, "d n"], rows: Rows, values: Float32[np.ndarray, "d m"]) -> None:
    """Write values into columns; one coordinate at a time is faster."""
    for coordinate, value in zip(table, values, strict=True):
        coordinate[rows] = value
