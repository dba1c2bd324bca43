"""Point-tracking benchmarks in the formats of TAP-Vid (Doersch et al. 2022, arXiv 2211.03726): pickles, csv files."""

import csv
import warnings
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int, UInt8
from numpy import ndarray
from torch import Tensor

from lpa_cwm.config import Selection, evenly_spaced
from lpa_cwm.errors import InputError
from lpa_cwm.files import data_files
from lpa_cwm.geometry import HW
from lpa_cwm.io import safe_load
from lpa_cwm.io.video import LazyFrames, VideoFile, read_rgb
from lpa_cwm.types import Clip, Queries, Sample, Tracks
from lpa_cwm.validation import MAX_PIXELS, check_name, file_size, reading

MARGIN = 0.01
"""Tolerance outside [0, 1]: annotators click slightly outside, and TAP-Vid Kinetics shifts points by half a pixel."""


@runtime_checkable
class FrameStore(Protocol):
    """The frames of a video at their own size."""

    def __len__(self) -> int: ...

    def decode(self, index: int) -> Tensor:
        """One frame, uint8 [3 h w]."""
        ...

    def digest(self, frames: int) -> str:
        """Hash of the first frames."""
        ...


@dataclass(frozen=True, slots=True)
class AnnotatedVideo:
    """A video and its tracks; a point may have any value where it is not visible."""

    name: str
    frames: FrameStore
    points: Float[ndarray, "n t 2"]
    visible: Bool[ndarray, "n t"]

    def __post_init__(self) -> None:
        tracks, frames = self.visible.shape
        if tracks == 0:
            raise self.error("has no tracks; expected at least one; leave it out with --videos")
        if frames != len(self.frames):
            raise self.error(f"has {len(self.frames)} frames but tracks of {frames}; expected equal numbers")
        shown = self.points[self.visible]
        if not np.isfinite(shown).all():
            count = np.count_nonzero(~np.isfinite(shown).all(axis=-1))
            raise self.error(f"has {count} visible points that are not finite; expected numbers in [0, 1]")
        outside = np.abs(shown - 0.5).max(axis=-1) > 0.5 + MARGIN
        if outside.any():
            x, y = shown[outside][0]
            some = f"{np.count_nonzero(outside)} visible points outside [0, 1], such as ({x:g}, {y:g})"
            raise self.error(f"has {some}; expected points divided by the frame's size")

    def error(self, what: str) -> InputError:
        """An error about this video."""
        return InputError(f"The video {self.name} {what}.")


@dataclass(frozen=True, slots=True)
class RawFrames:
    """Frames in one array."""

    pixels: UInt8[ndarray, "t h w 3"]

    def __len__(self) -> int:
        return len(self.pixels)

    def decode(self, index: int) -> UInt8[Tensor, "3 h w"]:
        """Copy one frame."""
        return rearrange(torch.tensor(self.pixels[index]), "h w c -> c h w").contiguous()

    def digest(self, frames: int) -> str:
        """Hash of shape and pixels."""
        part = np.ascontiguousarray(self.pixels[:frames])
        whole = blake2b(repr(part.shape).encode(), digest_size=16)
        whole.update(part.data)
        return whole.hexdigest()


@dataclass(frozen=True, slots=True)
class EncodedFrames:
    """JPEG or PNG frames in memory."""

    name: str
    files: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.files)

    def decode(self, index: int) -> UInt8[Tensor, "3 h w"]:
        """Decode one frame."""
        pixels = read_rgb(self.files[index], f"Frame {index} of the video {self.name}")
        return rearrange(torch.from_numpy(pixels), "h w c -> c h w").contiguous()

    def digest(self, frames: int) -> str:
        """Hash of the encoded frames."""
        whole = blake2b(digest_size=16)
        for file in self.files[:frames]:
            whole.update(blake2b(file).digest())
        return whole.hexdigest()


def annotated_video(name: str, entry: Any) -> AnnotatedVideo:
    """Check an entry of a TAP-Vid pickle: `video`, `points` and `occluded`."""
    check_name(name, "A video")
    if not isinstance(entry, dict) or not {"video", "points", "occluded"} <= entry.keys():
        given = ", ".join(map(repr, entry))[:100] if isinstance(entry, dict) else type(entry).__name__
        raise InputError(f"The video {name} is given as {given}; expected video, points and occluded.")
    points = _array(name, entry, "points", np.floating, "[n t 2] of floats")
    occluded = _array(name, entry, "occluded", np.bool_, "[n t] of booleans")
    if points.ndim != 3 or points.shape[2] != 2 or points.shape[:2] != occluded.shape:
        shapes = f"points {list(points.shape)} and occluded {list(occluded.shape)}"
        raise InputError(f"The video {name} has {shapes}; expected [n t 2] and [n t].")
    return AnnotatedVideo(name, _frame_store(name, entry["video"]), points.astype(np.float32), ~occluded)


def _array(name: str, entry: dict[str, Any], field: str, kind: type, expected: str) -> Any:
    array = entry[field]
    if not isinstance(array, ndarray) or not np.issubdtype(array.dtype, kind):
        given = f"an array of {array.dtype}" if isinstance(array, ndarray) else type(array).__name__
        raise InputError(f"The {field} of the video {name} are {given}; expected an array {expected}.")
    return array.view(ndarray)


def _frame_store(name: str, video: Any) -> FrameStore:
    if isinstance(video, ndarray) and video.dtype == np.uint8 and video.ndim == 4 and video.shape[3] == 3:
        if not 0 < video.shape[1] * video.shape[2] <= MAX_PIXELS:
            raise InputError(f"The frames of the video {name} are {list(video.shape[1:3])}; expected some pixels.")
        return RawFrames(video.view(ndarray))
    if isinstance(video, ndarray) and video.ndim == 1:
        video = video.tolist()
    if isinstance(video, list | tuple) and all(isinstance(file, bytes) for file in video):
        return EncodedFrames(name, video)
    given = f"{list(video.shape)} of {video.dtype}" if isinstance(video, ndarray) else type(video).__name__
    raise InputError(f"The frames of the video {name} are {given}; expected [t h w 3] of uint8, or JPEG files.")


FPS = 25
SUFFIXES = frozenset({".avi", ".mkv", ".mov", ".mp4", ".webm"})
TrackTable = Float[ndarray, "n t 3"]
"""x, y in [0, 1] and occluded, per track and frame."""


def read_tracks(path: Path) -> dict[str, TrackTable]:
    """Tracks by clip name, `id_start_end` as in Kinetics."""
    rows: dict[str, list[Float[ndarray, "t 3"]]] = {}
    with reading(path, "a csv file", "expected TAP-Vid's table of tracks"):
        file_size(path)
        with path.open(newline="") as file:
            for line, row in enumerate(csv.reader(file), start=1):
                name, track = _track(row, f"{path}, line {line},")
                rows.setdefault(check_name(name, f"{path}, line {line}, is of a video that"), []).append(track)
        return {name: np.stack(tracks) for name, tracks in rows.items()}


def is_track_table(path: Path) -> bool:
    """Whether a csv file begins like TAP-Vid's table of tracks; folders of data have other tables, too."""
    try:
        with path.open(newline="", errors="replace") as file:
            # A line of the table has 10 s of points; any longer one is something else.
            _track(next(csv.reader([file.readline(1 << 20)]), []), str(path))
    except (InputError, OSError, csv.Error):
        return False
    return True


def track_tables(folder: Path) -> list[Path]:
    """The csv files of a folder that are tables of tracks."""
    return list(filter(is_track_table, data_files(folder, "*.csv")))


def has_track_data(folder: Path) -> bool:
    """Whether a folder has pickles or tables of tracks."""
    return bool(data_files(folder, "*.pkl") or track_tables(folder))


def _track(row: list[str], where: str) -> tuple[str, Float[ndarray, "t 3"]]:
    """Parse one row: YouTube id, start and end second, then x, y, occluded of each frame."""
    if len(row) < 6 or len(row) % 3:
        raise InputError(f"{where} has {len(row)} columns; expected id, start, end, then x, y, occluded of each frame.")
    identity, start, end, *numbers = row
    try:
        # Numbers that are too large become infinite, and are refused where the point is visible.
        with np.errstate(over="ignore"):
            track = np.array(numbers, dtype=np.float32).reshape(-1, 3)
        name = f"{identity}_{int(start):06}_{int(end):06}"
    except ValueError as error:
        raise InputError(f"{where} is malformed ({error}); expected numbers after the identity.") from error
    if not np.isin(track[:, 2], (0, 1)).all():
        raise InputError(f"{where} has an occlusion other than 0 and 1.")
    return name, track


def find_clips(folder: Path) -> dict[str, Path]:
    """All video files of a folder and its subfolders, by name without suffix."""
    return {path.stem: path for path in data_files(folder, "**/*") if path.suffix.lower() in SUFFIXES}


def has_clips(table: Path) -> bool:
    """Whether a clip of a csv lies in its folder or below; TAP-Vid publishes the csv of Kinetics without clips."""
    return not read_tracks(table).keys().isdisjoint(find_clips(table.parent))


def match_clips(path: Path) -> dict[str, tuple[Path, TrackTable]]:
    """Clips of a csv that exist in its folder or below; one warning lists the missing clips."""
    tracks, clips = read_tracks(path), find_clips(path.parent)
    missing = [name for name in tracks if name not in clips]
    if len(missing) == len(tracks):
        few = ", ".join(f"{name}.mp4" for name in missing[:2])
        raise InputError(f"No clip of {path} lies in its folder or below; expected files such as {few}.")
    if missing:
        few = ", ".join(missing[:5])
        warnings.warn(f"{len(missing)} of {len(tracks)} clips of {path} are missing, left out: {few}", stacklevel=2)
    return {name: (clips[name], track) for name, track in tracks.items() if name in clips}


@dataclass(frozen=True, slots=True)
class ResampledFrames:
    """Frames of a video file at another frame rate."""

    path: Path
    video: VideoFile
    frames: list[int]

    def __len__(self) -> int:
        return len(self.frames)

    def decode(self, index: int) -> UInt8[Tensor, "3 h w"]:
        """Decode one frame of the new rate."""
        return self.video.decode(self.frames[index])

    def digest(self, frames: int) -> str:
        """Hash of the file, and the number of frames."""
        with self.path.open("rb") as file:
            return f"{file_digest(file, 'blake2b').hexdigest()[:32]}-{frames}"


def frames_at_rate(video: VideoFile, fps: int) -> list[int]:
    """Index of the frame shown at each tick of a new rate, rounded as in FFmpeg's `fps` filter."""
    ticks = [_half_up(second * fps) for second in video.seconds]
    end = _half_up((video.seconds[-1] + 1 / Fraction(video.fps)) * fps)
    return [bisect_right(ticks, tick) - 1 for tick in range(end)]


def _half_up(value: Fraction) -> int:
    return int(value + Fraction(1, 2))


def annotated_clip(name: str, path: Path, tracks: TrackTable) -> AnnotatedVideo:
    """A clip at 25 frames per second with its tracks; the longer of both is cut.

    Points are shifted by half a pixel, as in the pickles made by TAP-Vid's own script.
    """
    video = VideoFile(path)
    frames = frames_at_rate(video, FPS)[: tracks.shape[1]]
    tracks = tracks[:, : len(frames)]
    height, width = video.decode(0).shape[-2:]
    points = tracks[..., :2] - np.array([0.5 / width, 0.5 / height], dtype=np.float32)
    return AnnotatedVideo(name, ResampledFrames(path, video, frames), points, tracks[..., 2] == 0)


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
    given = clamp_to_border(xy[track, frame], clip.hw)
    return Sample(clip, Queries(given, frame), Tracks(xy[track], visible[rows][track]))


def clamp_to_border(xy: Float[Tensor, "q 2"], hw: HW) -> Float[Tensor, "q 2"]:
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
        # Other tables may lie beside that of the tracks; if none looks like tracks, the first says what is wrong.
        files = data_files(path, "*.pkl") or track_tables(path) or data_files(path, "*.csv")[:1]
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
