"""Reading and writing video: any file FFmpeg understands, folders of pictures, standard input, cameras.

Nothing is decoded before it is asked for and only the last few frames are kept, so memory does not grow with length.
"""

import io
import os
import re
import sys
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, dropwhile
from pathlib import Path

import av
import numpy as np
import torch
from av.container import InputContainer, OutputContainer
from av.sidedata.sidedata import Type as SideData
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from einops import rearrange
from jaxtyping import UInt8
from numpy import ndarray
from PIL import ExifTags, Image, ImageOps
from torch import Tensor

from lpa_cwm.errors import InputError, require
from lpa_cwm.files import atomic_write, data_files
from lpa_cwm.types import Clip
from lpa_cwm.validation import MAX_PIXELS, file_size, reason

PICTURES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
NAME = re.compile(r"\d+|\D+")
# VP8 stores frames that are never shown as packets of their own, so its packets do not count frames.
HIDDEN_FRAME_CODECS = frozenset({"vp8"})
REFERENCING_FORMATS = frozenset(
    {"alsa", "concat", "dash", "fbdev", "hds", "hls", "image2", "imf", "kmsgrab", "lavfi", "oss", "rtp", "rtp_mpegts"}
    | {"rtsp", "sap", "sdp", "tty", "video4linux2,v4l2", "vobsub", "webm_dash_manifest", "x11grab"}
)
"""Formats of FFmpeg that lead to other files, addresses or devices, or take any text for a picture."""


ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/+")
"""Start of a URL; pathlib joins its two slashes."""


def refuse_address(path: Path | str) -> None:
    """Refuse URLs."""
    if match := ADDRESS.match(str(path)):
        address = f"{match[0].rstrip('/')}//{str(path)[match.end() :]}"
        raise InputError(f"{address} is an address; download it first and give the file.")


def read(path: Path | str) -> Clip:
    """A video file, or a folder of pictures in the natural order of their names, as a clip decoded on demand.

    Args:
        path: The file or folder.

    Examples:
        >>> from lpa_cwm.registry import DEMO_CLIP
        >>> clip = read(DEMO_CLIP)
        >>> clip.name, len(clip), clip.hw, clip.fps
        ('bodies', 16, (256, 256), 12.0)
    """
    refuse_address(path)
    path = Path(path)
    if not path.exists():
        raise InputError(f"There is no {path}; expected a video file or a folder of pictures; check the path.")
    if path.is_dir():
        pictures = _pictures(path)
        # Of `.` too.
        name = Path(os.path.abspath(path)).name
        return Clip(LazyFrames(len(pictures), lambda index: _picture(pictures[index])), name)
    video = VideoFile(path)
    return Clip(LazyFrames(len(video), video.decode), path.stem, video.fps)


def write(path: Path | str, frames: Iterable[Tensor], fps: float) -> None:
    """Write uint8 frames [3 h w] as H.264; an odd size grows by a repeated row or column.

    Args:
        path: The file; its suffix names the container: `.mp4`, `.mkv`, `.mov`.
        frames: Frames [3 h w], for example from `Tracks.overlay`.
        fps: Frames per second.

    Examples:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/gray.mp4"
        >>> write(path, torch.full((5, 3, 32, 48), 128, dtype=torch.uint8), fps=12.0)
        >>> len(read(path)), read(path).hw
        (5, (32, 48))
    """
    frames = iter(frames)
    first = next(frames, None)
    if first is None:
        raise InputError(f"There is no frame to write to {path}; expected at least one.")
    with atomic_write(path) as temporary, _create(temporary) as container:
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(100_000))
        assert isinstance(stream, VideoStream)
        stream.height, stream.width = (size + size % 2 for size in first.shape[-2:])
        stream.pix_fmt = "yuv420p"
        stream.options = {"crf": "18"}
        for number, frame in enumerate(chain([first], frames)):
            if frame.shape != first.shape:
                raise InputError(
                    f"Frame {number} is {list(frame.shape)} and frame 0 {list(first.shape)}; make them equal."
                )
            container.mux(stream.encode(even_frame(frame)))
        container.mux(stream.encode())


class LazyFrames:
    """Frames by index, decoded when they are read; the last `kept` frames are cached."""

    def __init__(self, count: int, decode: Callable[[int], Tensor], kept: int = 8) -> None:
        self._count = count
        self._decode = decode
        self._kept = kept
        self._recent: OrderedDict[int, Tensor] = OrderedDict()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> UInt8[Tensor, "3 h w"]:
        """Frame `index`, counted from the end if negative; must not be modified."""
        if not -self._count <= index < self._count:
            raise IndexError(f"frame {index} of a clip of {self._count} frames")
        index %= self._count
        if index not in self._recent:
            self._recent[index] = self._decode(index)
        self._recent.move_to_end(index)
        if len(self._recent) > self._kept:
            self._recent.popitem(last=False)
        return self._recent[index]


@dataclass(frozen=True, slots=True)
class FrameTable:
    """Presentation times of the frames of a file, and its key frames."""

    count: int
    times: list[int]
    """Presentation time of each frame in units of the stream; empty if unknown."""
    keys: list[int]
    """Indices of the key frames; the first is 0."""
    seeks: list[int]
    """Seek time of each key frame."""


class VideoFile:
    """A video file with random access to frames: decodes forward, and seeks to key frames."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._container, self._stream = _open(path)
        try:
            self.fps = float(self._stream.average_rate or self._stream.guessed_rate or 24)
            self._table = _frame_table(self._container, self._stream, path)
        except (av.FFmpegError, ValueError, OverflowError, ZeroDivisionError) as error:
            if isinstance(error, InputError):
                raise
            raise self._damaged("it cannot be read to its end") from error
        if not self._table.count:
            raise self._damaged("it holds no frame")
        self._size: tuple[int, int] | None = None
        self._restart()

    def __len__(self) -> int:
        return self._table.count

    @property
    def seconds(self) -> list[Fraction]:
        """Presentation time of each frame, starting at 0; at a constant rate if unknown."""
        if not self._table.times or not self._stream.time_base:
            return [number / Fraction(self.fps) for number in range(len(self))]
        return [(time - self._table.times[0]) * self._stream.time_base for time in self._table.times]

    def decode(self, index: int) -> UInt8[Tensor, "3 h w"]:
        """Decode one frame; fast for the next few frames after the last decoded one."""
        nearest = bisect_right(self._table.keys, index) - 1
        try:
            if not self._table.keys[nearest] <= self._next <= index:
                self._go_to(nearest)
            self._next = index + 1
            frame = next(frame for number, frame in self._numbered if number == index)
            return self._pixels(frame, index)
        except (av.FFmpegError, StopIteration, ValueError, OverflowError, IndexError) as error:
            if isinstance(error, InputError):
                raise
            raise self._damaged(f"its frame {index} cannot be decoded") from error

    def _restart(self) -> None:
        """Decode from the first frame."""
        self._container.close()
        self._container, self._stream = _open(self._path)
        self._follow(0, self._frames_from(0))

    def _go_to(self, nearest: int) -> None:
        """Decode from a key frame, or from the first frame if seeking overshoots (files without an index)."""
        if nearest == 0:
            return self._restart()
        number = self._table.keys[nearest]
        self._container.seek(self._table.seeks[nearest], stream=self._stream)
        frames = self._frames_from(number)
        key = next(frames, None)
        if key is None or key.pts != self._table.times[number]:
            return self._restart()
        return self._follow(number, chain([key], frames))

    def _frames_from(self, number: int) -> Iterator[VideoFrame]:
        """Decode and skip the frames before `number`, whose references may be missing after a seek."""
        frames = self._container.decode(self._stream)
        if not self._table.times:
            return frames
        start = self._table.times[number]
        return dropwhile(lambda frame: frame.pts is None or frame.pts < start, frames)

    def _follow(self, number: int, frames: Iterator[VideoFrame]) -> None:
        self._next = number
        self._numbered = enumerate(frames, number)

    def _pixels(self, frame: VideoFrame, index: int) -> UInt8[Tensor, "3 h w"]:
        """RGB, upright; the presentation time is checked, because a lost frame would shift all later indices."""
        if self._table.times and frame.pts != self._table.times[index]:
            raise self._damaged(f"a frame at or before number {index} is lost")
        self._size = self._size or (frame.width, frame.height)
        if self._size != (frame.width, frame.height):
            raise self._damaged(f"its frame {index} has another size than the first")
        pixels = _upright(frame.to_ndarray(format="rgb24"), frame)
        return rearrange(torch.from_numpy(pixels), "h w c -> c h w").contiguous()

    def _damaged(self, what: str) -> InputError:
        return InputError(f"{self._path} is damaged: {what}; expected a complete video; copy or encode it again.")


def open_input(path: Path) -> InputContainer:
    """Open a file for reading with any PyAV from version 14 on; `metadata_errors` is gone in version 19."""
    # With the prefix, a name such as `concat:x.mp4` is not taken for a protocol and its address.
    name = f"file:{path.absolute()}"
    options = reader_options()
    try:
        return av.open(name, options=options, metadata_errors="replace")
    except TypeError:
        return av.open(name, options=options)


def reader_options() -> dict[str, str]:
    """Options of FFmpeg under which the content of a file cannot name other files or addresses, as playlists do."""
    return {"protocol_whitelist": "file", "format_whitelist": ",".join(av.formats_available - REFERENCING_FORMATS)}


def check_pixels(name: str, stream: VideoStream) -> None:
    """Refuse frames that are too large, by the header now, by their content when they are decoded."""
    # PyAV makes no context for a codec that it does not know.
    if stream.codec_context is None:
        raise InputError(f"{name} is in a format that FFmpeg cannot decode here; encode it again, as H.264 or VP9.")
    if stream.width * stream.height > MAX_PIXELS:
        raise InputError(
            f"{name} has frames of {stream.width}x{stream.height} pixels; at most {MAX_PIXELS // 10**6} million are "
            "decoded; make it smaller."
        )
    # The frames may be larger than the header says.
    stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}


def _open(path: Path) -> tuple[InputContainer, VideoStream]:
    try:
        file_size(path)
        container = open_input(path)
    except (av.FFmpegError, ValueError) as error:
        raise InputError(
            f"{path} is not a video that FFmpeg can open ({reason(error)}); give a complete one."
        ) from error
    stream = container.streams.best("video")
    if not isinstance(stream, VideoStream) or stream.disposition & Disposition.attached_pic:
        raise InputError(f"{path} has no video stream; expected one; check that it is complete and not sound alone.")
    check_pixels(str(path), stream)
    return container, stream


def _frame_table(container: InputContainer, stream: VideoStream, path: Path) -> FrameTable:
    """List the frames by demuxing; count them by decoding if the packets have no times."""
    packets = 0
    shown: set[int] = set()
    keys: list[tuple[int, int]] = []
    for packet in container.demux(stream):
        if packet.size == 0 or packet.is_discard:
            continue
        packets += 1
        if packet.pts is not None:
            shown.add(packet.pts)
            if packet.is_keyframe:
                keys.append((packet.pts, packet.pts if packet.dts is None else packet.dts))
    if stream.codec.name in HIDDEN_FRAME_CODECS or len(shown) < packets:
        container, stream = _open(path)
        return FrameTable(sum(1 for _ in container.decode(stream)), [], [0], [0])
    keys.sort()
    # What precedes the first key frame, as in a recording cut at random, cannot be decoded.
    times = sorted(time for time in shown if keys and time >= keys[0][0])
    numbers = {time: number for number, time in enumerate(times)}
    return FrameTable(len(times), times, [numbers[time] for time, _ in keys], [seek for _, seek in keys])


def _upright(pixels: UInt8[ndarray, "h w 3"], frame: VideoFrame) -> UInt8[ndarray, "h2 w2 3"]:
    """Rotate and flip by the display matrix: (x, y) is shown at (a x + c y, b x + d y)."""
    matrix = frame.side_data.get(SideData.DISPLAYMATRIX)  # type: ignore[call-overload]
    if matrix is None:
        return pixels
    a, b, _, c, d = np.frombuffer(bytes(matrix), np.int32)[:5]
    if abs(b) > abs(a):
        pixels, a, d = pixels.swapaxes(0, 1), c, b
    # A copy, because torch has no negative strides.
    return pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1].copy()


def _create(path: Path) -> OutputContainer:
    try:
        return av.open(str(path.absolute()), "w")
    except ValueError as error:
        raise InputError(f"FFmpeg knows no container for {path.suffix!r}; expected a name ending in .mp4.") from error


def even_frame(frame: UInt8[Tensor, "3 h w"]) -> VideoFrame:
    """A frame padded to even sizes, which 4:2:0 chroma subsampling needs."""
    height, width = frame.shape[-2:]
    pixels = rearrange(frame, "c h w -> h w c").cpu().numpy()
    return VideoFrame.from_ndarray(np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), "edge"), format="rgb24")


def _pictures(folder: Path) -> list[Path]:
    """The pictures of a folder, `frame2` before `frame10`, all of one size."""
    pictures = [path for path in data_files(folder) if path.suffix.lower() in PICTURES]
    if not pictures:
        raise InputError(f"{folder} holds no pictures; expected files such as 0001.jpg or 0001.png.")
    pictures.sort(key=lambda path: [part.zfill(20) if part.isdigit() else part for part in NAME.findall(path.name)])
    shown = [shown_size(path, str(path)) for path in pictures]
    for path, size in zip(pictures, shown, strict=True):
        if size != shown[0]:
            raise InputError(f"{path} is {size} and {pictures[0].name} {shown[0]}; expected one size; resize them.")
    return pictures


def _picture(path: Path) -> UInt8[Tensor, "3 h w"]:
    """Decode one picture, upright."""
    pixels = read_rgb(path, str(path), upright=True)
    return rearrange(torch.from_numpy(pixels), "h w c -> c h w").contiguous()


FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Others, such as PostScript, need programs to be read."""
DEEP_MODES = frozenset({"I", "I;16", "I;16B", "I;16L", "F"})


@contextmanager
def open_image(source: Path | bytes, name: str) -> Iterator[Image.Image]:
    """A picture whose header was read and whose number of pixels is admissible; `name` is for the error sentence."""
    try:
        if isinstance(source, Path):
            file_size(source)
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as picture:
            width, height = picture.size
            if width * height > MAX_PIXELS:
                raise ValueError(f"it has {width}x{height} pixels, at most {MAX_PIXELS // 10**6} million are read")
            yield picture
    except InputError:
        raise
    except Exception as error:  # Damaged bytes make Pillow raise any exception.
        raise InputError(
            f"{name} is not a picture that can be read ({reason(error)}); expected JPEG, PNG or the like; replace it."
        ) from error


def read_rgb(source: Path | bytes, name: str, upright: bool = False) -> UInt8[ndarray, "h w 3"]:
    """Pixels of a picture, turned as its EXIF orientation says if asked."""
    with open_image(source, name) as picture:
        if picture.mode in DEEP_MODES:
            raise InputError(f"{name} has more than 8 bits per channel; convert it to 8.")
        return np.array((ImageOps.exif_transpose(picture) if upright else picture).convert("RGB"))


def shown_size(source: Path, name: str) -> str:
    """Width and height of a picture as displayed, from its header."""
    with open_image(source, name) as picture:
        width, height = picture.size
        turned = picture.getexif().get(ExifTags.Base.Orientation, 1) > 4
    return f"{height}x{width}" if turned else f"{width}x{height}"


STDIN = "-"
CAMERA = re.compile(r"camera:(\d{1,3})", re.ASCII)
STREAM_LENGTH = 10**9
"""Length of a stream as far as points are checked."""


@dataclass(frozen=True, slots=True)
class RepeatedFrame:
    """One frame many times: a stream of unknown length, for checking points against its size."""

    frame: UInt8[Tensor, "3 h w"]

    def __len__(self) -> int:
        return STREAM_LENGTH

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
    # OpenCV writes to the terminal when a camera is missing; version 5 has no cv2.setLogLevel.
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
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
