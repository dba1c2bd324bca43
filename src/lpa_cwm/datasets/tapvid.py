"""Point-tracking benchmarks in the formats of TAP-Vid (Doersch et al. 2022, arXiv 2211.03726).

A data set is a path: a pickle (DAVIS, RGB-Stacking), a folder of pickles (the splits of RoboTAP, the shards of
Kinetics), or the csv of Kinetics with its clips in the same folder. Frames, queries and tracks have the video's own
size: a tracker chooses its working size, and the metrics have their own raster (`evaluation`). One file is in memory
at a time, because a pickle cannot be read in parts. Frames are decoded when they are read.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lpa_cwm.config import Selection, evenly_spaced
from lpa_cwm.datasets.tapvid_formats import AnnotatedVideo, annotated_clip, annotated_video, match_clips
from lpa_cwm.errors import InputError
from lpa_cwm.files import data_files
from lpa_cwm.geometry import HW
from lpa_cwm.io import safe_load
from lpa_cwm.io.video import LazyFrames
from lpa_cwm.types import Clip, Queries, Sample, Tracks

STRIDE = 5
BORDER = 0.5
"""Pixels outside the frame up to which a query is moved to the border."""
Contents = dict[Any, Callable[[str], AnnotatedVideo]]
"""Videos of one file by name, or by number if they have no names; each is opened with the name to give it."""
LoadFile = Callable[[], Contents]


def load_dataset(path: Path | str, selection: Selection | None = None) -> "TapVidDataset":
    """Open a benchmark or the selected part of it."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"There is no {path}; expected a TAP-Vid pickle, a folder of them, or Kinetics' csv.")
    return TapVidDataset(path, selection or Selection())


class TapVidDataset:
    """The videos of a benchmark at their own size, in the order of its files; can be sent to another process."""

    def __init__(self, path: Path, selection: Selection) -> None:
        self.path = path
        self.name = path.name if path.is_dir() else path.stem
        self.selection = selection
        self._shards = _shards(path)
        self._loaded: tuple[int, Contents] = (-1, {})
        places = self._index()
        self.names = selection.of_names(list(places))
        self._places = [places[name] for name in self.names]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Sample:
        """One video with its queries and truth; each frame is decoded once, when it is first read."""
        return _sample(self._video(index), self.selection)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the loaded file; workers read it again."""
        return vars(self) | {"_loaded": (-1, {})}

    def fingerprint(self, index: int) -> str:
        """Hash of the selected frames of a video."""
        frames = self._video(index).frames
        return frames.digest(min(len(frames), self.selection.frames or len(frames)))

    def _index(self) -> dict[str, tuple[int, str | int]]:
        """File and key of each video; videos of lists are numbered across all files."""
        places: dict[str, tuple[int, str | int]] = {}
        for number in range(len(self._shards)):
            for key in self._load(number):
                name = f"{len(places):04}" if isinstance(key, int) else key
                if name in places:
                    raise InputError(f"Two videos of {self.name} are called {name}; names must differ; rename one.")
                places[name] = number, key
        if not places:
            raise InputError(f"{self.name} holds no videos; expected at least one.")
        return places

    def _load(self, number: int) -> Contents:
        if self._loaded[0] != number:
            self._loaded = (-1, {})  # Freed before the next is read, or two would be in memory.
            self._loaded = (number, self._shards[number]())
        return self._loaded[1]

    def _video(self, index: int) -> AnnotatedVideo:
        number, key = self._places[index]
        return self._load(number)[key](self.names[index])


def _sample(source: AnnotatedVideo, selection: Selection) -> Sample:
    frames = min(len(source.frames), selection.frames or len(source.frames))
    visible = torch.from_numpy(source.visible[:, :frames])
    rows = visible.any(dim=1).nonzero()[:, 0].tolist()
    if not rows:
        raise source.error(f"has no track that is visible in its {frames} frames; leave it out with --videos")
    rows = evenly_spaced(rows, selection.max_tracks or len(rows))
    clip = Clip(LazyFrames(frames, source.frames.decode, kept=frames), source.name)
    height, width = clip.hw
    xy = torch.from_numpy(source.points[rows, :frames]) * torch.tensor([width, height], dtype=torch.float32)
    track, frame = QUERIES[selection.queries](visible[rows])
    if not len(frame):
        raise source.error(f"has no track visible at frames 0, {STRIDE}, ...; leave it out with --videos")
    given = move_inside(xy[track, frame], clip.hw)
    return Sample(clip, Queries(given, frame), Tracks(xy[track], visible[rows][track]))


def move_inside(xy: Float[Tensor, "q 2"], hw: HW) -> Float[Tensor, "q 2"]:
    """Move queries that are up to half a pixel outside the frame to its border; others are left as they are.

    TAP-Vid's script subtracts half a pixel from the points of Kinetics, so that points at the border leave the frame.
    """
    size = torch.tensor([hw[1], hw[0]]).to(xy)
    near = (xy >= -BORDER) & (xy <= size + BORDER)
    return torch.where(near, xy.clamp_min(0).minimum(size * (1 - 1e-6)), xy)


def first_queries(visible: Bool[Tensor, "n t"]) -> tuple[Int[Tensor, "q"], Int[Tensor, "q"]]:
    """Track and frame of each query: each track once, where it is first visible."""
    return torch.arange(len(visible)), visible.int().argmax(dim=1)


def strided_queries(visible: Bool[Tensor, "n t"]) -> tuple[Int[Tensor, "q"], Int[Tensor, "q"]]:
    """Track and frame of each query: frames 0, 5, 10, ... and in each the tracks visible there."""
    step, track = visible[:, ::STRIDE].T.nonzero(as_tuple=True)
    return track, step * STRIDE


QUERIES = {"first": first_queries, "strided": strided_queries}


def _shards(path: Path) -> list[LoadFile]:
    """Loaders of the files of a data set."""
    if path.is_dir():
        files = data_files(path, "*.pkl") or data_files(path, "*.csv")
        if not files:
            raise InputError(f"{path} holds neither .pkl nor .csv; expected the files of a TAP-Vid data set.")
        return [shard for file in files for shard in _shards(file)]
    if path.suffix == ".csv":
        return [partial(_kinetics, path)]
    return [partial(_pickle, path)]


def _kinetics(path: Path) -> Contents:
    files = match_clips(path)
    return {name: partial(annotated_clip, path=clip, tracks=tracks) for name, (clip, tracks) in files.items()}


def _pickle(path: Path) -> Contents:
    content = safe_load.load_pickle(path)
    if isinstance(content, dict) and all(isinstance(name, str) for name in content):
        return {name: partial(annotated_video, entry=entry) for name, entry in content.items()}
    if isinstance(content, list):
        return {number: partial(annotated_video, entry=entry) for number, entry in enumerate(content)}
    given = type(content).__name__
    raise InputError(f"{path} holds a {given}; expected a dictionary from name to video, or a list of videos.")
