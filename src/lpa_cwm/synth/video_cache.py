"""Decoded video on disk: each clip once as raw frames that processes share by memory map, and its shots.

Decoding a compressed clip for every pair costs ten times what cropping two frames does.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
from einops import rearrange
from jaxtyping import Bool, Float, UInt8
from PIL import Image

from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write, data_files
from lpa_cwm.io import video
from lpa_cwm.progress import progress
from lpa_cwm.rng import seed_of
from lpa_cwm.types import Clip

SUFFIXES = frozenset({".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpg", ".ogv", ".webm"})
SHORT_SIDE = 256
"""Larger frames are reduced to this; smaller ones are kept as they are."""
THUMBNAIL = 32


@dataclass(frozen=True, slots=True)
class Shot:
    """Frames `start` up to `stop` of a decoded clip, without a cut between them."""

    frames: Path
    clip: str
    start: int
    stop: int


@lru_cache(maxsize=512)
def mapped(path: Path) -> UInt8[np.ndarray, "t h w 3"]:
    """The frames of a decoded clip; nothing is read before it is looked at."""
    return np.load(path, mmap_mode="r")


def standing_out(change: Float[np.ndarray, "u"], floor: float) -> Float[np.ndarray, "u"]:
    """Each value divided by what is usual among the five before and after it, plus a floor."""
    padded = np.pad(change, 5, mode="reflect" if len(change) > 5 else "edge")
    around = np.delete(np.lib.stride_tricks.sliding_window_view(padded, 11), 5, axis=1)
    return change / (np.quantile(around, 0.75, axis=1) + floor)


def cuts(thumbnails: Float[np.ndarray, "t k k 3"]) -> Bool[np.ndarray, "u"]:
    """Whether a cut lies between each frame and the next: the picture changes and so do its colors, both suddenly.

    On 16 clips that had no part in choosing the thresholds it finds 233 of the 240 joints and nothing inside a clip.
    """
    if len(thumbnails) < 2:
        return np.zeros(0, dtype=bool)
    picture = np.abs(np.diff(thumbnails, axis=0)).mean(axis=(1, 2, 3))
    shades = (thumbnails // 64).astype(int) @ (16, 4, 1)
    histograms = np.stack([np.bincount(frame.ravel(), minlength=64) for frame in shades]) / shades[0].size
    colors = np.abs(np.diff(histograms, axis=0)).sum(axis=1) / 2
    return (picture > 8) & (standing_out(picture, 1.0) * standing_out(colors, 0.02) > 10)


def shots_of(thumbnails: Float[np.ndarray, "t k k 3"]) -> list[tuple[int, int]]:
    """First and past-last frames between the cuts."""
    edges = [0, *(np.flatnonzero(cuts(thumbnails)) + 1).tolist(), len(thumbnails)]
    return list(pairwise(edges))


def reduced(clip: Clip) -> Iterator[Image.Image]:
    """The frames one after another, at most `SHORT_SIDE` high and wide on their short side."""
    height, width = clip.hw
    ratio = min(1.0, SHORT_SIDE / min(height, width))
    wh = (round(width * ratio), round(height * ratio))
    for frame in map(clip.__getitem__, range(len(clip))):
        picture = Image.fromarray(rearrange(frame, "c h w -> h w c").numpy())
        yield picture if picture.size == wh else picture.resize(wh, Image.Resampling.BOX)


def decode(path: Path, store: Path) -> None:
    """Write a clip's frames to `store` and its shots beside them; the latter come last and so mean completeness."""
    clip = video.read(path)
    thumbnails: list[np.ndarray] = []
    with atomic_write(store) as aside:
        raw = None
        for number, picture in enumerate(reduced(clip)):
            if raw is None:
                shape = (len(clip), picture.height, picture.width, 3)
                raw = np.lib.format.open_memmap(aside, mode="w+", dtype=np.uint8, shape=shape)
            raw[number] = np.asarray(picture)
            small = picture.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
            thumbnails.append(np.asarray(small, dtype=np.float32))
        if raw is None:
            raise InputError(f"{path} has no frames; remove it from the folder.")
        raw.flush()
    with atomic_write(store.with_suffix(".json")) as aside:
        aside.write_text(json.dumps(shots_of(np.stack(thumbnails))))


def gather(folder: Path, cache: Path, quiet: bool = False) -> list[Shot]:
    """The shots of every video in a folder, decoding into the cache what is not there yet."""
    paths = [path for path in data_files(folder) if path.suffix.lower() in SUFFIXES]
    if not paths:
        raise InputError(f"{folder} holds no videos; give a folder with files such as {', '.join(sorted(SUFFIXES))}.")
    shots = []
    for path in progress(paths, len(paths), "decoding", quiet):
        state = path.stat()
        store = cache / f"{path.stem}-{seed_of(path.name, state.st_size, state.st_mtime_ns, SHORT_SIDE):016x}.npy"
        if not store.with_suffix(".json").exists():
            decode(path, store)
        spans = json.loads(store.with_suffix(".json").read_text())
        shots += [Shot(store, path.stem, start, stop) for start, stop in spans]
    return shots
