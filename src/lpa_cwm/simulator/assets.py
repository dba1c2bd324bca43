"""What scenes are made of: scanned objects, photographs and panoramas of a folder, or invented ones."""

import io
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from lpa_cwm.errors import InputError
from lpa_cwm.files import data_files
from lpa_cwm.rng import numpy_rng, seed_of
from lpa_cwm.simulator import patterns, shapes
from lpa_cwm.simulator.mesh import Mesh
from lpa_cwm.simulator.texture import Picture, Texture, linear
from lpa_cwm.synth.images import ImagePool
from lpa_cwm.synth.pairs import Split

SKIN = 256
INVENTED = 32
"""How many invented skies, grounds and the like there are on each side of the split."""


@lru_cache(maxsize=256)
def scanned(path: Path) -> Mesh:
    """A scanned object; 256 of them take some 400 MB."""
    try:
        with np.load(path) as store:
            solid = shapes.Solid(store["vertices"], store["faces"], store["uv"])
            picture = Image.open(io.BytesIO(store["texture"].tobytes())).convert("RGB").resize((SKIN, SKIN))
            return Mesh.of(path.stem, solid, Texture.of(linear(np.asarray(picture))), store["hull"])
    except (KeyError, OSError, ValueError) as error:
        raise InputError(
            f"{path} is not a scanned object ({error}); expected an .npz archive with vertices, faces, uv, texture "
            "(JPEG bytes) and hull; remove it or replace it."
        ) from error


@lru_cache(maxsize=16)
def panorama(path: Path) -> Texture:
    """An equirectangular photograph as light, [512, 1024]."""
    with Image.open(path) as picture:
        small = picture.convert("RGB").resize((1024, 512), Image.Resampling.LANCZOS)
        return Texture.of(linear(np.asarray(small)), "across")


@lru_cache(maxsize=INVENTED)
def invented_sky(split: Split, number: int) -> Texture:
    """The sky of this number."""
    return Texture.of(patterns.sky(numpy_rng("sky", split, number)), "across")


@lru_cache(maxsize=INVENTED)
def relief(split: Split, number: int) -> Texture:
    """The ground detail of this number."""
    return Texture.of(patterns.relief(numpy_rng("relief", split, number)), "both")


@lru_cache(maxsize=INVENTED)
def invented_floor(split: Split, number: int) -> Texture:
    """The floor of this number."""
    rng = numpy_rng("floor", split, number)
    return Texture.of(patterns.FLOORS[number % len(patterns.FLOORS)](rng), "both")


def square(picture: Image.Image, rng: np.random.Generator, side: int) -> Picture:
    """A random square of a photograph, as light."""
    span = min(picture.size) * rng.uniform(0.6, 1.0)
    x, y = (rng.uniform(0, length - span) for length in picture.size)
    return linear(np.asarray(picture.resize((side, side), Image.Resampling.LANCZOS, box=(x, y, x + span, y + span))))


@dataclass(frozen=True)
class Assets:
    """One side of the split of everything; without a folder all of it is invented."""

    split: Split
    objects: tuple[Path, ...]
    panoramas: tuple[Path, ...]
    photographs: ImagePool
    shapes: float = 0.2
    """Share of bodies that are invented forms though there are scanned ones."""

    @classmethod
    def of(cls, folder: Path | None, split: Split) -> "Assets":
        """The assets under a folder (objects/*.npz, textures/*.jpg, textures/panoramas/*.jpg) that are in the split."""
        if folder is None:
            return cls(split, (), (), ImagePool.of(None, split))
        objects = held(folder / "objects", "*.npz", split)
        panoramas = held(folder / "textures" / "panoramas", "*.jpg", split)
        return cls(split, objects, panoramas, ImagePool.of(folder / "textures", split))

    def body(self, rng: np.random.Generator) -> Mesh:
        """A scanned object, or an invented form with a photograph on it."""
        if self.objects and rng.random() >= self.shapes:
            return scanned(self.objects[int(rng.integers(len(self.objects)))])
        skin = square(self.photographs.draw(rng), rng, SKIN)
        return Mesh.of("invented", shapes.invented(rng), Texture.of(skin))

    def sky(self, rng: np.random.Generator) -> Texture:
        """A panorama."""
        if self.panoramas:
            return panorama(self.panoramas[int(rng.integers(len(self.panoramas)))])
        return invented_sky(self.split, int(rng.integers(INVENTED)))

    def relief(self, rng: np.random.Generator) -> Texture:
        """Detail for a coarse ground."""
        return relief(self.split, int(rng.integers(INVENTED)))

    def floor(self, rng: np.random.Generator) -> Texture:
        """Something to stand on indoors, now and then a printed photograph."""
        if rng.random() < 0.85:
            return invented_floor(self.split, int(rng.integers(INVENTED)))
        return Texture.of(patterns.mirrored(square(self.photographs.draw(rng), rng, 256)), "both")

    def walls(self, rng: np.random.Generator) -> Texture:
        """Four walls as pages."""
        bare = patterns.plaster(rng)
        posters = [[self.photographs.draw(rng) for _ in range(int(rng.integers(1, 4)))] for _ in range(4)]
        return Texture.stack([Texture.of(patterns.hung(rng, bare, some)) for some in posters])


def held(folder: Path, pattern: str, split: Split) -> tuple[Path, ...]:
    """The files of a folder on one side of the split; the other has a seventh of them, two at least."""
    every = sorted(data_files(folder, pattern), key=lambda path: seed_of("split", path.stem))
    count = max(2, len(every) // 7)
    files = tuple(sorted(every[:count] if split == "val" else every[count:]))
    if not files:
        raise InputError(
            f"{folder} holds {len(every)} files {pattern}, none of them for the split '{split}'; give a folder with "
            "objects/*.npz, textures/*.jpg and textures/panoramas/*.jpg, or none at all for invented scenes."
        )
    return files
