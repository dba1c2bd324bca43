"""Videos from strangers: checked before they are decoded, kept in a folder of their tab."""

import shutil
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from threading import Lock

import av
from av.video.stream import VideoStream
from jaxtyping import UInt8
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.geometry import HW
from lpa_cwm.io.video import open_input, read
from lpa_cwm.types import Clip, Frames


@dataclass(frozen=True, slots=True)
class Limits:
    """What the page takes; `lpa-cwm track` has no such limits."""

    megabytes: int = 200
    frames: int = 600
    pixels: int = 3840 * 2160
    """Of one frame."""
    decoded: int = 600 * 1920 * 1080
    """Pixels of all frames together."""
    uploads: int = 40
    """Of all tabs in ten minutes, the time for which Gradio keeps a file."""
    uploads_of_tab: int = 20


class Guarded:
    """The first frames of a clip, decoded for one thread at a time: a file has one position."""

    def __init__(self, frames: Frames, count: int, lock: AbstractContextManager | None = None) -> None:
        self._frames = frames
        self._count = count
        self._lock = lock or Lock()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> UInt8[Tensor, "3 h w"]:
        if not 0 <= index < self._count:
            raise IndexError(f"frame {index} of a clip of {self._count} frames")
        with self._lock:
            return self._frames[index]

    def until(self, count: int) -> "Guarded":
        """Fewer frames behind the same lock."""
        return Guarded(self._frames, min(count, self._count), self._lock)


def guarded(clip: Clip) -> Clip:
    """A clip that several threads may read."""
    return Clip(Guarded(clip.frames, len(clip)), clip.name, clip.fps)


def shortened(clip: Clip, count: int) -> Clip:
    """The first frames of a guarded clip; what is drawn at random for them stays the same."""
    assert isinstance(clip.frames, Guarded)
    return Clip(clip.frames.until(count), clip.name, clip.fps)


def inside(folder: Path, path: Path) -> Path:
    """Return a path that lies below a folder, links followed; refuse every other and the folder itself."""
    if folder.resolve() not in path.resolve().parents:
        raise InputError(f"{path.name!r} does not lie in the page's own folder; reload the page in the browser.")
    return path


def admitted(upload: Path, folder: Path, limits: Limits) -> Clip:
    """Move an uploaded file into the tab's folder and open it; what cannot be used is removed."""
    place = inside(folder, folder / upload.name)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        shutil.move(upload, place)
        return checked(place, limits)
    except InputError as error:
        place.unlink(missing_ok=True)
        # The user knows the name of the file, not where the page keeps it.
        raise InputError(str(error).replace(str(place), place.name)) from error
    except OSError as error:
        raise InputError(f"{upload.name} could not be kept ({error.strerror}); choose it again.") from error


def checked(path: Path, limits: Limits) -> Clip:
    """A clip within the limits; size and length are read from the headers before anything is decoded."""
    megabytes = path.stat().st_size / 1e6
    if megabytes > limits.megabytes:
        raise InputError(
            f"{path.name} has {megabytes:.0f} MB; the page takes up to {limits.megabytes}; "
            "cut it, or use `lpa-cwm track`."
        )
    check_size(path.name, *announced(path), limits)
    clip = read(path)
    check_size(path.name, clip.hw, len(clip), limits)
    if len(clip) < 2:
        raise InputError(f"{path.name} has one frame; following a point needs at least two; choose a video.")
    return guarded(clip)


def check_size(name: str, hw: HW, frames: int, limits: Limits) -> None:
    """Refuse what would take too long or too much memory."""
    height, width = hw
    if width * height > limits.pixels:
        raise InputError(
            f"The frames of {name} are {width}x{height}; the page takes up to {limits.pixels / 1e6:.1f} megapixels; "
            "make it smaller."
        )
    if frames > limits.frames:
        raise InputError(
            f"{name} has {frames} frames; the page takes up to {limits.frames}; cut it, or use `lpa-cwm track`."
        )
    if width * height * frames > limits.decoded:
        raise InputError(
            f"{name} has {frames} frames of {width}x{height}; together they are more than the page takes; "
            "cut it or make it smaller."
        )


def announced(path: Path) -> tuple[HW, int]:
    """Size and number of frames by the headers; zeros where they do not tell."""
    try:
        with open_input(path) as container:
            stream = container.streams.best("video")
            if not isinstance(stream, VideoStream):
                return (0, 0), 0
            length = Fraction(stream.duration or 0) * (stream.time_base or 0) * (stream.average_rate or 0)
            return (stream.height, stream.width), stream.frames or round(length)
    except av.FFmpegError:
        # The reader says what is wrong with the file.
        return (0, 0), 0
