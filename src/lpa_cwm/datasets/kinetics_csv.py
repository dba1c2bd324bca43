"""TAP-Vid Kinetics as published: a csv of tracks; users download the clips themselves."""

import csv
import warnings
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from hashlib import file_digest
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8
from numpy import ndarray
from torch import Tensor

from lpa_cwm.datasets.tapvid_record import AnnotatedVideo
from lpa_cwm.errors import InputError
from lpa_cwm.files import data_files
from lpa_cwm.io.video import VideoFile
from lpa_cwm.validation import check_name, file_size, reading

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
