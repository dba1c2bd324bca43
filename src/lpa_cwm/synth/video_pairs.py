"""Pairs from real video, without labels: frames a random time apart, cropped where something moves."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.synth.pairs import Example, Split, draws, split_of
from lpa_cwm.synth.video_cache import Shot, gather, mapped

ATTEMPTS = 10
NUMBERED = re.compile(r"(?P<source>.*?)[-_ ]?(?P<number>\d+)")

Crop = UInt8[np.ndarray, "h w 3"]


def group_of(clip: str) -> str:
    """What is held out together: clips of one source whose numbers share all but the last digit.

    Neighboring numbers often show the same scene.
    """
    match = NUMBERED.fullmatch(clip)
    return f"{match['source']} {int(match['number']) // 10}" if match else clip


def difference(first: Crop, second: Crop) -> float:
    """Mean difference in gray levels, from every fourth pixel."""
    return float(np.abs(first[::4, ::4].astype(np.int16) - second[::4, ::4]).mean())


def resized(crop: Crop, size: int) -> UInt8[Tensor, "3 size size"]:
    """A square crop at the wanted size, antialiased."""
    picture = Image.fromarray(crop).resize((size, size), Image.Resampling.BILINEAR)
    return rearrange(torch.from_numpy(np.array(picture)), "h w c -> c h w").contiguous()


@dataclass(frozen=True)
class NaturalVideo:
    """The moving parts of real clips as a source of pairs; `train` and `val` share no group of clips."""

    shots: tuple[Shot, ...]
    split: Split
    gaps: tuple[int, int] = (1, 6)
    """Fewest and most frames between source and target."""
    motion: float = 2.5
    """Smallest mean difference between the two crops, in gray levels."""
    seed: int = 0

    @classmethod
    def of(cls, folder: Path, cache: Path, split: Split, seed: int = 0) -> "NaturalVideo":
        """The videos of a folder on one side of the split, decoded once into the cache."""
        found = gather(folder, cache)
        kept = tuple(s for s in found if split_of(group_of(s.clip)) == split and s.stop - s.start >= 2)
        if not kept:
            raise InputError(
                f"{folder} holds {len(found)} shots, none of them for the split '{split}'; give more videos."
            )
        return cls(kept, split, seed=seed)

    @property
    def name(self) -> str:
        """`natural_train` or `natural_val`."""
        return f"natural_{self.split}"

    def frames(self, rng: np.random.Generator) -> tuple[Crop, Crop]:
        """Two frames of one shot, every frame being as likely as any other, in either order."""
        lengths = np.cumsum([shot.stop - shot.start for shot in self.shots])
        shot = self.shots[int(np.searchsorted(lengths, rng.integers(lengths[-1]), side="right"))]
        low, high = self.gaps
        gap = min(int(rng.integers(low, high + 1)), shot.stop - shot.start - 1)
        first = int(rng.integers(shot.start, shot.stop - gap))
        clip = mapped(shot.frames)
        pair = clip[first], clip[first + gap]
        return pair if rng.random() < 0.5 else pair[::-1]

    def crops(self, rng: np.random.Generator, size: int) -> tuple[Crop, Crop]:
        """The same random square of two frames, not enlarged unless the frames are smaller than `size`."""
        frames = self.frames(rng)
        height, width = frames[0].shape[:2]
        short = min(height, width)
        span = int(rng.integers(min(size, short), short + 1))
        y, x = int(rng.integers(height - span + 1)), int(rng.integers(width - span + 1))
        mirror = slice(None, None, -1 if rng.random() < 0.5 else 1)
        first, second = (np.ascontiguousarray(f[y : y + span, x : x + span][:, mirror]) for f in frames)
        return first, second

    def pair(self, index: int, size: int) -> Example:
        """The pair of this number: the first draw in which enough moves, or the last of several."""
        rng = draws(self.name, self.seed, index)
        crops = self.crops(rng, size)
        for _ in range(ATTEMPTS - 1):
            if difference(*crops) >= self.motion:
                break
            crops = self.crops(rng, size)
        first, second = (resized(crop, size) for crop in crops)
        return Example(first, second)
