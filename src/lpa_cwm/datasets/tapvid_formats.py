"""Annotated videos as published by TAP-Vid: records of a pickle, and the csv of Kinetics; all fields are checked.

Of Kinetics only tracks are published; users download the clips themselves.
"""

import csv
import warnings
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, UInt8
from numpy import ndarray
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.files import data_files
from lpa_cwm.io.video import VideoFile, read_rgb
from lpa_cwm.validation import MOST_PIXELS, check_name, file_size, reading

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
        if not 0 < video.shape[1] * video.shape[2] <= MOST_PIXELS:
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
