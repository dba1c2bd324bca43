"""Assets of scenes: scanned objects, photographs and panoramas of a folder, or procedural ones."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Float, Integer
from PIL import Image

from lpa_cwm.errors import InputError
from lpa_cwm.files import data_files
from lpa_cwm.io.images import read_rgb
from lpa_cwm.rng import numpy_rng, seed_of
from lpa_cwm.simulator import texture
from lpa_cwm.simulator.mesh import Mesh, Solid, random_solid
from lpa_cwm.simulator.texture import Picture, Texture, to_linear
from lpa_cwm.synth.images import ImagePool
from lpa_cwm.synth.pairs import Split
from lpa_cwm.validation import check_array, read_npz, reading

SKIN = 256
SCAN = "expected an .npz archive with vertices, faces, uv, texture (JPEG bytes) and hull: remove it or replace it"
MOST_SCAN = 64 << 20
"""Bytes of the arrays of a scanned object."""
MOST_FACES, MOST_HULL = 300_000, 10_000
PROCEDURAL = 32
"""Number of procedural skies, floors and ground textures per split."""


@lru_cache(maxsize=256)
def load_scan(path: Path) -> Mesh:
    """Load a scanned object; 256 objects take about 400 MB."""
    with reading(path, "a scanned object", SCAN):
        store = read_npz(path, ("vertices", "faces", "uv", "texture", "hull"), MOST_SCAN)
        check_array(store["vertices"], (None, 3), "f", "`vertices`")
        check_array(store["faces"], (None, 3), "iu", "`faces`")
        check_array(store["uv"], (len(store["vertices"]), 2), "f", "`uv`")
        check_array(store["texture"], (None,), "u", "`texture`")
        check_array(store["hull"], (None, 3), "f", "`hull`")
        check_surface(store["vertices"], store["faces"], store["uv"], store["hull"])
        picture = Image.fromarray(read_rgb(store["texture"].tobytes(), f"The texture of {path}")).resize((SKIN, SKIN))
        solid = Solid(store["vertices"], store["faces"], store["uv"])
        return Mesh.of(path.stem, solid, Texture.of(to_linear(np.asarray(picture))), store["hull"])


def check_surface(
    vertices: Float[np.ndarray, "v 3"],
    faces: Integer[np.ndarray, "f 3"],
    uv: Float[np.ndarray, "v 2"],
    hull: Float[np.ndarray, "h 3"],
) -> None:
    """Refuse a surface of unusual size, with corners that do not exist, or with a hull that is flat."""
    if not 1 <= len(faces) <= MOST_FACES or not faces.min() >= 0 or not faces.max() < len(vertices):
        raise ValueError(f"`faces` are {len(faces)}, from {faces.min(initial=0)} to {faces.max(initial=0)}")
    if not 1e-6 < np.ptp(vertices, axis=0).max() < 1e6 or not np.abs(vertices).max() < 1e6 or np.abs(uv).max() > 1e3:
        raise ValueError("`vertices` or `uv` are too large or too small")
    # MuJoCo refuses a hull without volume.
    reach = 2 * np.ptp(vertices, axis=0).max()
    if not 4 <= len(hull) <= MOST_HULL or not np.abs(hull - vertices.mean(0)).max() < reach:
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
def relief(split: Split, number: int) -> Texture:
    """Procedural ground texture `number`."""
    return Texture.of(texture.relief(numpy_rng("relief", split, number)), "both")


@lru_cache(maxsize=PROCEDURAL)
def procedural_floor(split: Split, number: int) -> Texture:
    """Procedural floor `number`."""
    rng = numpy_rng("floor", split, number)
    return Texture.of(texture.FLOORS[number % len(texture.FLOORS)](rng), "both")


def square(picture: Image.Image, rng: np.random.Generator, side: int) -> Picture:
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
        skin = square(self.photographs.draw(rng), rng, SKIN)
        return Mesh.of("invented", random_solid(rng), Texture.of(skin))

    def sky(self, rng: np.random.Generator) -> Texture:
        """A panorama of the sky."""
        if self.panoramas:
            return panorama(self.panoramas[int(rng.integers(len(self.panoramas)))])
        return procedural_sky(self.split, int(rng.integers(PROCEDURAL)))

    def relief(self, rng: np.random.Generator) -> Texture:
        """Detail texture of the ground."""
        return relief(self.split, int(rng.integers(PROCEDURAL)))

    def floor(self, rng: np.random.Generator) -> Texture:
        """A procedural floor, sometimes a photograph."""
        if rng.random() < 0.85:
            return procedural_floor(self.split, int(rng.integers(PROCEDURAL)))
        return Texture.of(texture.mirrored(square(self.photographs.draw(rng), rng, 256)), "both")

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
