"""Photographs to cut scenes from: a folder of them, split by file name, and procedural pictures beside or instead."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.files import data_files
from lpa_cwm.synth import textures as procedural
from lpa_cwm.synth.pairs import Split, draws, split_of

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}


@lru_cache(maxsize=512)
def opened(path: Path) -> Image.Image:
    """A decoded photograph; 512 of 320 x 480 pixels take 240 MB."""
    with Image.open(path) as picture:
        return picture.convert("RGB")


@lru_cache(maxsize=256)
def invented(split: Split, number: int) -> Image.Image:
    """The procedural picture of this number; no number of one split is in the other."""
    return Image.fromarray(procedural.photo(draws("procedural", split, number), 320))


@dataclass(frozen=True)
class Photographs:
    """A collection to draw from; `train` and `val` share no photograph."""

    files: tuple[Path, ...]
    split: Split
    invented: float
    """Share of draws that are procedural pictures."""

    @classmethod
    def of(cls, folder: Path | None, split: Split, invented: float = 0.1) -> "Photographs":
        """The photographs of a folder on one side of the split; procedural pictures alone without a folder."""
        if folder is None:
            return cls((), split, 1.0)
        every = [path for path in data_files(folder) if path.suffix.lower() in SUFFIXES]
        files = tuple(path for path in every if split_of(path.name) == split)
        if not files:
            raise InputError(
                f"{folder} holds {len(every)} photographs, none of them for the split '{split}'; give a folder with at "
                "least some tens of .jpg or .png files, or none at all for procedural pictures."
            )
        return cls(files, split, invented)

    def draw(self, rng: np.random.Generator) -> Image.Image:
        """One picture of the collection."""
        if rng.random() < self.invented:
            return invented(self.split, int(rng.integers(256)))
        return opened(self.files[int(rng.integers(len(self.files)))])


def cut(picture: Image.Image, rng: np.random.Generator, side: int) -> Float[Tensor, "3 side side"]:
    """A random square of a picture, possibly mirrored, resized with antialiasing and hardly ever enlarged."""
    short = min(picture.size)
    span = short * rng.uniform(min(1.0, side / short), 1.0)
    x, y = (rng.uniform(0, length - span) for length in picture.size)
    piece = picture.resize((side, side), Image.Resampling.BILINEAR, box=(x, y, x + span, y + span))
    pixels = np.asarray(piece)
    if rng.random() < 0.5:
        pixels = pixels[:, ::-1]
    planes = rearrange(torch.from_numpy(pixels.copy()), "h w c -> c h w")
    return planes.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
