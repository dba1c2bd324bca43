"""Visualization of tracks: drawn on frames, as video files, as a player in notebooks, as a recording for rerun."""

import base64
import colorsys
import heapq
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
import torch
from av.video.stream import VideoStream
from einops import rearrange
from jaxtyping import Bool, Float, UInt8
from PIL import Image, ImageDraw
from torch import Tensor

from lpa_cwm.errors import InputError, require
from lpa_cwm.files import atomic_write
from lpa_cwm.io.video import even_frame, open_input, write
from lpa_cwm.types import Clip, Tracks

SHORT_SIDE = 480
"""Small frames are enlarged to this on the page, so that dots do not cover what they mark."""
SUPERSAMPLING = 2
"""Drawn this many times larger and reduced, because Pillow's lines have hard edges."""
GREEN_HUE = 1 / 3
"""Hue of full confidence; red, at 0, is none."""

Color = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class OverlayStyle:
    """How tracks are drawn."""

    dot_size: float | None = None
    """Diameter of a dot in pixels of the clip; by default from the frame's size."""
    tail: int = 12
    """Frames that a tail reaches back."""
    numbers: bool = False
    """Write each track's number beside its dot."""
    color_by: Literal["track", "confidence"] = "track"
    side_by_side: bool = False
    """Show the clip itself to the left."""
    scale: int | None = 1
    """Enlargement; None enlarges small frames."""


def hue_color(hue: float) -> Color:
    """A saturated color."""
    red, green, blue = colorsys.hsv_to_rgb(hue % 1, 0.85, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)


def color(index: int, count: int) -> Color:
    """Distinct hues for neighboring points."""
    return hue_color(index / max(count, 1))


def confidence_of(tracks: Tracks) -> Float[Tensor, "n t"]:
    """Confidence in [0, 1] for drawing: the tracks' own if they have one.

    Else strength between the weakest visible point (0.5) and the strongest (1); hidden points have less than 0.5. The
    strength of a baseline may be negative, such as a forward-backward error with a minus. Without strength, visible
    points have 1 and hidden points 0.
    """
    if "confidence" in tracks.known():
        return tracks.known()["confidence"].nan_to_num(1.0)
    visible, strength = tracks.visible, tracks.strength
    if strength is None or not visible.any():
        return visible.float()
    finite = strength.where(strength.isfinite(), torch.nan)
    shown = finite[visible & finite.isfinite()]
    if len(shown) == 0:
        return visible.float()
    low, high = float(shown.min()), float(shown.max())
    share = ((finite - low) / max(high - low, 1e-9)).clamp(-1, 1)
    # Queries have no response; they are certain.
    return torch.where(visible, 0.5 + 0.5 * share.clamp(min=0).nan_to_num(1.0), 0.25 * (1 + share.nan_to_num(-1.0)))


def confidence_colors(confidence: Float[Tensor, "n"]) -> list[Color]:
    """From red for 0 to green for 1."""
    return [hue_color(GREEN_HUE * value) for value in confidence.tolist()]


def enlargement(hw: tuple[int, int]) -> int:
    """How many times larger the page draws a frame of this size."""
    return max(1, round(SHORT_SIDE / min(hw)))


def overlay(
    tracks: Tracks, clip: Clip, style: OverlayStyle | None = None, ids: Sequence[int] | None = None
) -> Iterator[UInt8[Tensor, "3 h2 w2"]]:
    """The clip's frames with the tracks drawn on them; `ids` are the numbers to write beside the tracks."""
    style = style or OverlayStyle()
    confidence = confidence_of(tracks) if style.color_by == "confidence" else None
    for index in range(len(clip)):
        frame, past = clip[index], slice(0, index + 1)
        colors = None if confidence is None else confidence_colors(confidence[:, index])
        drawn = draw_tracks(frame, tracks.xy[:, past], tracks.visible[:, past], colors, style=style, ids=ids)
        if style.side_by_side:
            plain = draw_tracks(frame, tracks.xy[:0, past], tracks.visible[:0, past], style=style)
            drawn = torch.cat([plain, drawn], dim=2)
        yield drawn


def draw_tracks(
    frame: UInt8[Tensor, "3 h w"],
    xy: Float[Tensor, "n t 2"],
    visible: Bool[Tensor, "n t"],
    colors: list[Color] | None = None,
    tail: int = 12,
    style: OverlayStyle | None = None,
    ids: Sequence[int] | None = None,
) -> UInt8[Tensor, "3 h2 w2"]:
    """One frame with the tracks up to it; the last time is this frame's. `ids` are the numbers of the tracks."""
    style = style or OverlayStyle(tail=tail, scale=None)
    enlarge = style.scale or enlargement((frame.shape[1], frame.shape[2]))
    scale = enlarge * SUPERSAMPLING
    picture = Image.fromarray(rearrange(frame, "c h w -> h w c").cpu().numpy())
    size = picture.width * enlarge, picture.height * enlarge
    picture = picture.resize((size[0] * SUPERSAMPLING, size[1] * SUPERSAMPLING), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(picture, "RGBA")
    colors = colors or [color(index, len(xy)) for index in range(len(xy))]
    radius = style.dot_size * scale / 2 if style.dot_size else max(3.0, min(size) / 100) * SUPERSAMPLING
    recent = slice(max(0, xy.shape[1] - style.tail - 1), None)
    for number, (points, seen, ink) in enumerate(zip((xy * scale).tolist(), visible.tolist(), colors, strict=True)):
        draw_tail(pen, points[recent], seen[recent], ink, radius / 2)
        draw_head(pen, points[-1], seen[-1], ink, radius)
        if style.numbers and points[-1][0] == points[-1][0]:
            corner = points[-1][0] + 1.2 * radius, points[-1][1] - 2.2 * radius
            label, size_of_text = str(ids[number] if ids else number), max(11 * SUPERSAMPLING, 2 * radius)
            pen.text(corner, label, (*ink, 255), font_size=size_of_text, stroke_width=1, stroke_fill=(0, 0, 0, 255))
    small = np.asarray(picture.resize(size, Image.Resampling.BOX))
    return rearrange(torch.from_numpy(small.copy()), "h w c -> c h w")


def draw_tail(pen: ImageDraw.ImageDraw, points: list, seen: list[bool], ink: Color, width: float) -> None:
    """Segments between successive visible positions, fading into the past."""
    for age in range(1, len(points)):
        (x0, y0), (x1, y1) = points[-age - 1], points[-age]
        if seen[-age] and seen[-age - 1]:
            alpha = round(230 * (1 - (age - 1) / len(points)))
            pen.line((x0, y0, x1, y1), fill=(*ink, alpha), width=max(1, round(width)))


def draw_head(pen: ImageDraw.ImageDraw, point: list[float], seen: bool, ink: Color, radius: float) -> None:
    """The current position: a filled dot, or a hollow ring with a dark rim; nothing before the query."""
    x, y = point
    if x != x:
        return
    box = (x - radius, y - radius, x + radius, y + radius)
    if seen:
        pen.ellipse(box, fill=(*ink, 255), outline=(0, 0, 0, 200), width=max(1, round(radius / 4)))
    else:
        pen.ellipse(box, outline=(0, 0, 0, 160), width=max(2, round(radius / 1.8)))
        pen.ellipse(box, outline=(*ink, 255), width=max(1, round(radius / 3)))


VIDEO_SUFFIXES = (".mp4", ".mkv", ".mov", ".webm", ".gif")


def write_video(
    path: Path, frames: Iterable[Tensor], fps: float, sound: Path | None = None, start: float = 0.0
) -> None:
    """Write uint8 frames [3 h w]; all but a .gif get the sound of a file, from `start` seconds on."""
    suffix = path.suffix.lower()
    if suffix == ".gif":
        write_gif(path, frames, fps)
        return
    (write_webm if suffix == ".webm" else write)(path, frames, fps)
    if sound is not None and sound.is_file():
        add_sound(path, sound, start)


def write_gif(path: Path, frames: Iterable[Tensor], fps: float) -> None:
    """An endless GIF; its clock has hundredths of a second."""
    pictures = (Image.fromarray(rearrange(frame, "c h w -> h w c").cpu().numpy()) for frame in frames)
    first = next(pictures, None)
    if first is None:
        raise InputError(f"There is no frame to write to {path}; expected at least one.")
    with atomic_write(path) as temporary:
        first.save(temporary, save_all=True, append_images=pictures, duration=max(20, round(1000 / fps)), loop=0)


def write_webm(path: Path, frames: Iterable[Tensor], fps: float) -> None:
    """VP9."""
    frames = iter(frames)
    first = next(frames, None)
    if first is None:
        raise InputError(f"There is no frame to write to {path}; expected at least one.")
    with atomic_write(path) as temporary, av.open(f"file:{temporary.absolute()}", "w") as container:
        stream = container.add_stream("libvpx-vp9", rate=Fraction(fps).limit_denominator(1000))
        assert isinstance(stream, VideoStream)
        stream.height, stream.width = (size + size % 2 for size in first.shape[-2:])
        stream.pix_fmt = "yuv420p"
        stream.options = {"crf": "24", "b": "0", "deadline": "good", "cpu-used": "4"}
        for frame in chain([first], frames):
            container.mux(stream.encode(even_frame(frame)))
        container.mux(stream.encode())


MAX_TRACKS, MAX_FRAMES = 256, 240
"""More are left out, at even distances, so that a notebook stays small."""
PLAYER_WIDTH = 420
"""Width of the player, in pixels."""
_NUMBER = count()

SCRIPT = """(() => {
const data = %s, root = document.getElementById(data.id);
const canvas = root.querySelector("canvas"), slider = root.querySelector("input"), label = root.querySelector("span");
const pen = canvas.getContext("2d"), scale = canvas.width / data.size[0];
const pictures = data.pictures.map(url => Object.assign(new Image(), {src: url, onload: draw}));
function draw() {
  const now = Number(slider.value);
  pen.fillStyle = "#10121a"; pen.fillRect(0, 0, canvas.width, canvas.height);
  if (pictures[now]) pen.drawImage(pictures[now], 0, 0, canvas.width, canvas.height);
  data.tracks.forEach(track => {
    pen.strokeStyle = pen.fillStyle = track.color; pen.lineWidth = 2; pen.beginPath();
    for (let t = Math.max(0, now - 12); t <= now; t++) {
      const p = track.points[t]; if (p && p[2]) pen.lineTo(p[0] * scale, p[1] * scale); }
    pen.stroke();
    const p = track.points[now]; if (!p) return;
    pen.beginPath(); pen.arc(p[0] * scale, p[1] * scale, 4, 0, 7); p[2] ? pen.fill() : pen.stroke(); });
  label.textContent = "frame " + data.frames[now];
}
let timer = null;
root.querySelector("button").onclick = () => {
  if (timer) { clearInterval(timer); timer = null; return; }
  timer = setInterval(() => { slider.value = (Number(slider.value) + 1) %% data.frames.length; draw(); }, 80); };
slider.oninput = draw; draw();
})();"""


@dataclass(frozen=True)
class TrackPlayer:
    """Tracks over the frames of their clip."""

    tracks: Tracks
    clip: Clip = field(repr=False)

    def _repr_html_(self) -> str:
        return player_html(self.tracks, self.clip)


def player_html(tracks: Tracks, clip: Clip | None = None) -> str:
    """The player; a dot is a visible point, a ring a hidden one. Without a clip the background is dark."""
    frames = _even(tracks.visible.shape[1], MAX_FRAMES)
    rows = _even(len(tracks), MAX_TRACKS)
    known = tracks.xy[~tracks.xy.isnan().any(-1)]
    height, width = clip.hw if clip else (known.amax(0).flip(0).ceil().int() + 8).tolist() if len(known) else (1, 1)
    held: dict[str, Any] = {
        "id": f"lpa-cwm-tracks-{next(_NUMBER)}",
        "size": [width, height],
        "frames": frames,
        "pictures": [_picture(clip, frame) for frame in frames] if clip else [],
        "tracks": [
            {"color": "#{:02x}{:02x}{:02x}".format(*color(row, len(tracks))), "points": _points(tracks, row, frames)}
            for row in rows
        ],
    }
    shown = f"{tracks!r}" + ("" if len(rows) == len(tracks) else f", {len(rows)} of them shown")
    # A closing tag inside the data would end the script.
    script = SCRIPT % json.dumps(held).replace("</", "<\\/")
    return f"""<div id="{held["id"]}" style="width: {PLAYER_WIDTH}px; font: 13px system-ui, sans-serif">
<canvas width="{PLAYER_WIDTH}" height="{round(PLAYER_WIDTH * height / width)}" style="border-radius: 8px"></canvas>
<div style="display: flex; gap: 8px; align-items: center"><button>&#9654;</button>
<input type="range" min="0" max="{len(frames) - 1}" value="0" style="flex: 1"><span></span></div>
<small>{shown}</small><script>{script}</script></div>"""


def _even(length: int, most: int) -> list[int]:
    """At most `most` numbers below `length`, evenly spaced."""
    number = min(length, most)
    return [index * length // number for index in range(number)]


def _points(tracks: Tracks, row: int, frames: list[int]) -> list[list[float | int] | None]:
    """x, y and visibility in each frame; None where the track is not known."""
    places = zip(tracks.xy[row, frames].tolist(), tracks.visible[row, frames].tolist(), strict=True)
    return [[round(x, 1), round(y, 1), int(seen)] if x == x else None for (x, y), seen in places]


def jpeg_url(picture: Image.Image, quality: int) -> str:
    """A picture as a data URL, for a page without files beside it."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def _picture(clip: Clip, frame: int) -> str:
    """A frame as a small JPEG in the page itself."""
    picture = Image.fromarray(rearrange(clip[frame], "c h w -> h w c").cpu().numpy())
    picture.thumbnail((PLAYER_WIDTH, PLAYER_WIDTH * 4))
    return jpeg_url(picture, quality=70)


TAIL = 12
"""Length of a tail in frames."""
HIDDEN_ALPHA = 70


def save_rerun(path: Path | str, clip: Clip, tracks: Tracks) -> None:
    """Write an .rrd file; open it with `rerun FILE`.

    Args:
        path: The file to write.
        clip: The clip that was tracked.
        tracks: Its tracks.
    """
    rr = require("rerun", extra="rerun")
    with atomic_write(path) as temporary:
        recording = rr.RecordingStream("lpa-cwm", recording_id=clip.name)
        recording.save(str(temporary))
        for frame in range(len(clip)):
            recording.set_time("frame", sequence=frame)
            recording.log("clip", picture(rr, clip, frame))
            for name, shown in marks(rr, tracks, frame).items():
                recording.log(f"clip/{name}", shown)
            for name, values in confidences(tracks, frame).items():
                recording.log(f"confidence/{name}", rr.Scalars(values))
        recording.flush()
        recording.disconnect()


def picture(rr: Any, clip: Clip, frame: int) -> Any:
    """A compressed frame."""
    return rr.Image(rearrange(clip[frame], "c h w -> h w c").cpu().numpy()).compress(jpeg_quality=90)


def marks(rr: Any, tracks: Tracks, frame: int) -> dict[str, Any]:
    """Points, with hidden points faint, and tails of the visible points."""
    count = len(tracks.xy)
    known = (~tracks.xy[:, frame, 0].isnan()).nonzero()[:, 0].tolist()
    seen = [row for row in known if tracks.visible[row, frame]]
    inks = [(*color(row, count), 255 if row in seen else HIDDEN_ALPHA) for row in known]
    tails = [tracks.xy[row, max(0, frame - TAIL) : frame + 1] for row in seen]
    return {
        "points": rr.Points2D(tracks.xy[known, frame].cpu().numpy(), colors=inks, radii=2.5),
        "tails": rr.LineStrips2D(
            [tail[~tail[:, 0].isnan()].cpu().numpy() for tail in tails], colors=[color(row, count) for row in seen]
        ),
    }


def confidences(tracks: Tracks, frame: int) -> dict[str, Float[np.ndarray, "n"]]:
    """Strength, support and spread of each point in one frame; NaN is a gap."""
    extras = {name: values for name, values in tracks.known().items() if name not in ("xy", "visible")}
    return {name: values[:, frame].cpu().numpy() for name, values in extras.items()}


SOUND_ENCODERS = {".webm": ("libopus", 48_000)}
"""Codec and rate by container where AAC of the source's own rate is not possible."""
COPIED_CODECS = {".webm": frozenset({"opus", "vorbis"})}
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
        if not encode and suffix in COPIED_CODECS and wave.codec_context.name not in COPIED_CODECS[suffix]:
            raise ValueError(f"{suffix} does not take {wave.codec_context.name}.")
        length = float((video.duration or 0) / 1_000_000)
        with atomic_write(path) as temporary, av.open(f"file:{temporary.absolute()}", "w") as container:
            copy = container.add_stream_from_template(picture)
            if encode:
                codec, rate = SOUND_ENCODERS.get(suffix, ("aac", wave.rate))
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
