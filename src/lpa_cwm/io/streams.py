"""Frames that arrive while they are used: a video on standard input, or a camera."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import av
import torch
from av.container import InputContainer
from av.video.stream import VideoStream
from einops import rearrange
from jaxtyping import UInt8
from torch import Tensor

from lpa_cwm.errors import InputError, require
from lpa_cwm.io.video import check_pixels, reader_options
from lpa_cwm.types import Clip
from lpa_cwm.validation import reason

STDIN = "-"
CAMERA = re.compile(r"camera:(\d{1,3})", re.ASCII)
ENDLESS = 10**9
"""Length of a stream as far as points are checked."""


@dataclass(frozen=True, slots=True)
class RepeatedFrame:
    """One frame many times: a stream of unknown length, for checking points against its size."""

    frame: UInt8[Tensor, "3 h w"]

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> UInt8[Tensor, "3 h w"]:
        return self.frame


@dataclass(frozen=True, slots=True)
class FrameStream:
    """Frames in the order in which they arrive."""

    name: str
    frames: Iterator[UInt8[Tensor, "3 h w"]]
    first: UInt8[Tensor, "3 h w"]
    """The first frame, which `frames` gives too."""
    fps: float | None = None

    @classmethod
    def of(cls, name: str, frames: Iterator[UInt8[Tensor, "3 h w"]], fps: float | None = None) -> "FrameStream":
        """A stream that has at least one frame."""
        first = next(frames, None)
        if first is None:
            raise InputError(f"{name} gave no frame; expected a video.")
        return cls(name, chain([first], frames), first, fps)

    def stand_in(self) -> Clip:
        """A clip of the stream's size, for checking points."""
        return Clip(RepeatedFrame(self.first), self.name, self.fps or 24.0)


def is_stream(name: str) -> bool:
    """Whether this is standard input or a camera, and not a path."""
    return name == STDIN or CAMERA.fullmatch(name) is not None


def open_stream(name: str) -> FrameStream:
    """Standard input for `-`, a camera for `camera:0` and so on."""
    match = CAMERA.fullmatch(name)
    return FrameStream.of(name, read_camera(int(match[1]))) if match else open_stdin()


def open_stdin() -> FrameStream:
    """A video on standard input, in a container that can be read without seeking, such as Matroska or MPEG-TS."""
    with decoding():
        container = av.open(sys.stdin.buffer, "r", options=reader_options())
        stream = container.streams.best("video")
        if not isinstance(stream, VideoStream):
            raise InputError("Standard input has no video stream; expected a video.")
        check_pixels("Standard input", stream)
        return FrameStream.of("stdin", _decode(container, stream), float(stream.average_rate or 0) or None)


@contextmanager
def decoding() -> Iterator[None]:
    """Say in one sentence that standard input cannot be read on."""
    try:
        yield
    except (av.FFmpegError, ValueError, OverflowError, ZeroDivisionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"Standard input is not a video that FFmpeg can read ({reason(error)}); pipe .mkv, .ts or .y4m into it."
        ) from error


def _decode(container: InputContainer, stream: VideoStream) -> Iterator[UInt8[Tensor, "3 h w"]]:
    first: tuple[int, int] | None = None
    with decoding():
        for frame in container.decode(stream):
            first = first or (frame.height, frame.width)
            if (frame.height, frame.width) != first:
                raise InputError(f"Standard input changes its size to {frame.width}x{frame.height}; expected one size.")
            yield rearrange(torch.from_numpy(frame.to_ndarray(format="rgb24")), "h w c -> c h w").contiguous()


def read_camera(index: int) -> Iterator[UInt8[Tensor, "3 h w"]]:
    """Frames of a camera by OpenCV, until it ends."""
    cv2 = require("cv2", extra="flow")
    # OpenCV writes to the terminal when a camera is missing.
    cv2.setLogLevel(0)
    capture = cv2.VideoCapture(index)
    if not capture.isOpened():
        raise InputError(f"There is no camera {index}; give another number, as in camera:1, or a video file.")
    try:
        while True:
            here, picture = capture.read()
            if not here:
                return
            yield rearrange(torch.from_numpy(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)), "h w c -> c h w").contiguous()
    finally:
        capture.release()
