"""The sound of a video, added to another one."""

import heapq
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import av

from lpa_cwm.files import atomic_write
from lpa_cwm.io.video import open_input

ENCODERS = {".webm": ("libopus", 48_000)}
"""Codec and rate by container where AAC of the source's own rate is not possible."""
COPIED = {".webm": frozenset({"opus", "vorbis"})}
"""Codecs that a container takes; those of the others are found by trial."""

TimedPacket = tuple[float, int, Any]
"""Time in seconds, number of the stream, packet."""


def add_sound(path: Path, sound: Path, start: float) -> None:
    """Add the sound of a file to a video, from `start` seconds on; a sound that cannot be decoded is left out.

    The sound is copied where the container takes its codec, otherwise encoded as AAC, or as Opus in .webm.
    """
    for encode in (False, True):
        # Which codecs a container takes is known when its header is written.
        with suppress(av.FFmpegError, ValueError, NotImplementedError):
            _join(path, sound, start, encode)
            return


def _join(path: Path, sound: Path, start: float, encode: bool) -> None:
    """Write the video again with the sound; the video is copied."""
    with open_input(path.resolve()) as video, open_input(sound.resolve()) as source:
        if not source.streams.audio:
            return
        picture, wave = video.streams.video[0], source.streams.audio[0]
        suffix = path.suffix.lower()
        if not encode and suffix in COPIED and wave.codec_context.name not in COPIED[suffix]:
            raise ValueError(f"{suffix} does not take {wave.codec_context.name}.")
        length = float((video.duration or 0) / 1_000_000)
        with atomic_write(path) as aside, av.open(f"file:{aside.absolute()}", "w") as container:
            copy = container.add_stream_from_template(picture)
            if encode:
                codec, rate = ENCODERS.get(suffix, ("aac", wave.rate))
                layout = "mono" if wave.channels == 1 else "stereo"
                parts = _encoded(source, wave, container.add_stream(codec, rate=rate, layout=layout), start, length)
            else:
                parts = _copied(source, wave, container.add_stream_from_template(wave), start, length)
            for _, _, packet in heapq.merge(_pictures(video, picture, copy), parts, key=lambda part: part[:2]):
                container.mux(packet)


def _pictures(container: Any, stream: Any, copy: Any) -> Iterator[TimedPacket]:
    """All packets of a video that was just written."""
    waiting: list[Any] = []
    for packet in container.demux(stream):
        if packet.pts is None:
            continue
        packet.stream = copy
        waiting.append(packet)
        if packet.dts is not None:
            yield from _dated(waiting)
            waiting = []
    yield from _dated(waiting)


def _dated(packets: list[Any]) -> Iterator[TimedPacket]:
    """Packets of which at most the last has a decoding time; the others get times just before it.

    Matroska holds no decoding times, and FFmpeg cannot tell those of the first packets.
    """
    known = [packet.dts for packet in packets if packet.dts is not None]
    begin = known[0] if known else min((packet.pts for packet in packets), default=0)
    for number, packet in enumerate(packets):
        if packet.dts is None:
            packet.dts = begin - len(packets) + number
        yield float(packet.dts * packet.time_base), packet.stream.index, packet


def _copied(container: Any, stream: Any, copy: Any, start: float, length: float) -> Iterator[TimedPacket]:
    """Packets of a sound between two times, moved so that they begin at 0."""
    offset = round(start / stream.time_base)
    for packet in container.demux(stream):
        if packet.dts is None or packet.pts is None:
            continue
        time = float((packet.pts - offset) * stream.time_base)
        if 0 <= time <= length or (start == 0 and time < 0):
            packet.pts, packet.dts, packet.stream = packet.pts - offset, packet.dts - offset, copy
            yield time, copy.index, packet


def _encoded(container: Any, stream: Any, made: Any, start: float, length: float) -> Iterator[TimedPacket]:
    """Packets of a sound between two times, in another codec."""
    for frame in container.decode(stream):
        if frame.time is None or not start <= frame.time <= start + length:
            continue
        frame.pts -= round(start / frame.time_base)
        for packet in made.encode(frame):
            yield float(packet.pts * packet.time_base), made.index, packet
    for packet in made.encode():
        yield float(packet.pts * packet.time_base), made.index, packet
