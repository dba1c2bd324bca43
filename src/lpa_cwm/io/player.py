"""Tracks as a small player for notebooks: a canvas with a slider, in one piece of HTML without other files."""

import base64
import io
import json
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from einops import rearrange
from PIL import Image

from lpa_cwm.io.overlay import color
from lpa_cwm.types import Clip, Tracks

MOST_TRACKS, MOST_FRAMES = 256, 240
"""More are left out, at even distances, so that a notebook stays small."""
WIDTH = 420
"""Of the player, in pixels."""
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
    frames = _even(tracks.visible.shape[1], MOST_FRAMES)
    rows = _even(len(tracks), MOST_TRACKS)
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
    return f"""<div id="{held["id"]}" style="width: {WIDTH}px; font: 13px system-ui, sans-serif">
<canvas width="{WIDTH}" height="{round(WIDTH * height / width)}" style="border-radius: 8px"></canvas>
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


def _picture(clip: Clip, frame: int) -> str:
    """A frame as a small JPEG in the page itself."""
    picture = Image.fromarray(rearrange(clip[frame], "c h w -> h w c").cpu().numpy())
    picture.thumbnail((WIDTH, WIDTH * 4))
    held = io.BytesIO()
    picture.save(held, "JPEG", quality=70)
    return "data:image/jpeg;base64," + base64.b64encode(held.getvalue()).decode()
