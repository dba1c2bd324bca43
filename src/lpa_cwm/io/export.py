"""Overlays as video files: H.264 with the sound of the source, WebM, or GIF, by suffix."""

import heapq
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import av
from av.video.stream import VideoStream
from einops import rearrange
from PIL import Image
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write
from lpa_cwm.io.video import even_frame, open_input, write

VIDEO_SUFFIXES = (".mp4", ".mkv", ".mov", ".webm", ".gif")


def write_video(
    path: Path, frames: Iterable[Tensor], fps: float, sound: Path | None = None, start: float = 0.0
) -> None:
    """Write uint8 frames [3 h w]; an .mp4, .mkv or .mov gets the sound of a file, from `start` seconds on."""
    suffix = path.suffix.lower()
    if suffix == ".gif":
        write_gif(path, frames, fps)
    elif suffix == ".webm":
        write_webm(path, frames, fps)
    else:
        write(path, frames, fps)
        if sound is not None and sound.is_file():
            # A sound that the container does not take is left out.
            with suppress(av.FFmpegError, ValueError, NotImplementedError):
                add_sound(path, sound, start)


def write_gif(path: Path, frames: Iterable[Tensor], fps: float) -> None:
    """An endless GIF; its clock has hundredths of a second."""
    pictures = (Image.fromarray(rearrange(frame, "c h w -> h w c").cpu().numpy()) for frame in frames)
    first = next(pictures, None)
    if first is None:
        raise InputError(f"There is no frame to write to {path}; expected at least one.")
    with atomic_write(path) as aside:
        first.save(aside, save_all=True, append_images=pictures, duration=max(20, round(1000 / fps)), loop=0)


def write_webm(path: Path, frames: Iterable[Tensor], fps: float) -> None:
    """VP9."""
    frames = iter(frames)
    first = next(frames, None)
    if first is None:
        raise InputError(f"There is no frame to write to {path}; expected at least one.")
    with atomic_write(path) as aside, av.open(f"file:{aside.absolute()}", "w") as container:
        stream = container.add_stream("libvpx-vp9", rate=Fraction(fps).limit_denominator(1000))
        assert isinstance(stream, VideoStream)
        stream.height, stream.width = (size + size % 2 for size in first.shape[-2:])
        stream.pix_fmt = "yuv420p"
        stream.options = {"crf": "24", "b": "0", "deadline": "good", "cpu-used": "4"}
        for frame in chain([first], frames):
            container.mux(stream.encode(even_frame(frame)))
        container.mux(stream.encode())


def add_sound(path: Path, sound: Path, start: float) -> None:
    """Copy the sound of a file into a video, without encoding either again."""
    with open_input(path.resolve()) as video, open_input(sound.resolve()) as source:
        if not source.streams.audio:
            return
        streams = video.streams.video[0], source.streams.audio[0]
        length = float((video.duration or 0) / 1_000_000)
        with atomic_write(path) as aside, av.open(f"file:{aside.absolute()}", "w") as container:
            copies = [container.add_stream_from_template(stream) for stream in streams]
            parts = (
                _packets(video, streams[0], copies[0], 0.0, length + 1),
                _packets(source, streams[1], copies[1], start, length),
            )
            for _, _, packet in heapq.merge(*parts, key=lambda part: part[:2]):
                container.mux(packet)


def _packets(container: Any, stream: Any, copy: Any, start: float, length: float) -> Iterator[tuple[float, int, Any]]:
    """Packets between two times, moved so that they begin at 0, with their time and stream."""
    offset = round(start / stream.time_base)
    for packet in container.demux(stream):
        if packet.dts is None or packet.pts is None:
            continue
        time = float((packet.pts - offset) * stream.time_base)
        if 0 <= time <= length or (start == 0 and time < 0):
            packet.pts, packet.dts, packet.stream = packet.pts - offset, packet.dts - offset, copy
            yield time, copy.index, packet
