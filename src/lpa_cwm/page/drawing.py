"""Pictures of the page: frames with numbered points, tracks, panels side by side, heat maps."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from lpa_cwm.bundled import GALLERY
from lpa_cwm.io.video import read
from lpa_cwm.io.visualization import Color, confidence_of, draw_tracks
from lpa_cwm.page.session import Point, Results, track_colors, track_points
from lpa_cwm.types import Clip, Tracks

PALETTE: tuple[Color, ...] = (
    (255, 107, 53), (46, 196, 255), (255, 214, 10), (255, 77, 151), (57, 217, 138),
    (167, 119, 255), (255, 159, 243), (120, 245, 245), (255, 179, 71), (190, 235, 60),
)  # fmt: skip
"""Colors that stay apart on most footage."""
RAMP = (
    (0.0, (40, 12, 92)),
    (0.35, (151, 38, 128)),
    (0.65, (238, 92, 66)),
    (0.85, (252, 177, 53)),
    (1.0, (252, 253, 191)),
)
"""Colors of a heat map, from zero to the maximum."""
DIMMED = 0.6
"""Brightness of the frame under a heat map."""
SPOT = 5
"""Side in pixels of the smallest spot in a heat map."""
CONFIDENCE: tuple[Color, Color, Color] = ((239, 68, 68), (250, 204, 21), (34, 197, 94))
"""Colors of confidence 0, 0.5 and 1."""
MAX_WIDTH = 1920
"""Largest width of a video with several panels, in pixels."""
TITLE_HEIGHT, GAP = 34, 8
"""Height of a panel's title and gap between panels, in pixels."""


def point_color(point: Point) -> Color:
    """RGB color of a point."""
    return PALETTE[point.color % len(PALETTE)]


def web_color(point: Point) -> str:
    """Color of a point for a style sheet."""
    return "#{:02x}{:02x}{:02x}".format(*point_color(point))


def draw_frame(
    clip: Clip, frame: int, points: Sequence[Point], view: tuple[int, int, int, int] | None = None
) -> Image.Image:
    """A frame, or a part of it (left, top, right, bottom), with the points that were clicked in it."""
    left, top, right, bottom = view or (0, 0, clip.hw[1], clip.hw[0])
    colors = track_colors(tuple(points))
    here = [(colors.index(point.color), point) for point in points if point.frame == frame]
    here = [(number, point) for number, point in here if left <= point.x < right and top <= point.y < bottom]
    xy = torch.tensor([(point.x - left, point.y - top) for _, point in here], dtype=torch.float32).reshape(-1, 1, 2)
    return mark_points(
        clip[frame][:, top:bottom, left:right], xy, torch.ones(len(here), 1, dtype=torch.bool), dict(here)
    )


@lru_cache
def posters() -> dict[str, Image.Image]:
    """A frame of each clip of the gallery."""
    clips = {name: read(path) for name, path in GALLERY.items()}
    return {name: draw_frame(clip, len(clip) // 2, ()).resize((160, 160)) for name, clip in clips.items()}


def mark_points(
    frame: UInt8[Tensor, "3 h w"],
    xy: Float[Tensor, "n t 2"],
    visible: Bool[Tensor, "n t"],
    points: Mapping[int, Point],
    colors: list[Color] | None = None,
) -> Image.Image:
    """A frame with the tracks up to it, with the number of each point; in the points' own colors unless given."""
    colors = colors or [point_color(point) for point in points.values()]
    drawn = draw_tracks(frame, xy, visible, colors)
    picture = Image.fromarray(rearrange(drawn, "c h w -> h w c").numpy())
    scale = picture.width / frame.shape[2]
    pen = ImageDraw.Draw(picture)
    size = max(15, min(picture.size) // 28)
    font = ImageFont.load_default(size)
    for number, (x, y) in zip(points, (xy[:, -1] * scale).tolist(), strict=True):
        if x == x:
            place = (x + 0.55 * size, y - 1.35 * size)
            pen.text(place, str(number), fill=(255, 255, 255), font=font, stroke_width=2, stroke_fill=(20, 20, 28))
    return picture


def draw_results(results: Results, method: str, frame: int, by_confidence: bool) -> Image.Image:
    """A frame of a run with the tracks of one method up to it, colored by track or by confidence."""
    found = results.tracks[method]
    xy, visible = found.xy[:, : frame + 1], found.visible[:, : frame + 1]
    colors = [confidence_color(value) for value in confidence_of(found)[:, frame].tolist()] if by_confidence else None
    return mark_points(results.clip[frame], xy, visible, dict(enumerate(track_points(results.points))), colors)


def confidence_color(value: float) -> Color:
    """Red at 0, yellow at 0.5, green at 1."""
    low, middle, high = CONFIDENCE
    first, second, share = (low, middle, 2 * value) if value < 0.5 else (middle, high, 2 * value - 1)
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return red, green, blue


def side_by_side(
    clip: Clip, tracks: Mapping[str, Tracks], points: Sequence[Point], max_width: int = MAX_WIDTH
) -> Iterator[UInt8[Tensor, "3 h w"]]:
    """Frames of a video with one title_panel panel for each set of tracks."""
    shown = dict(enumerate(track_points(tuple(points))))
    for frame in range(len(clip)):
        panels = [
            title_panel(
                mark_points(clip[frame], found.xy[:, : frame + 1], found.visible[:, : frame + 1], shown),
                title,
                (max_width - GAP * (len(tracks) - 1)) // len(tracks),
            )
            for title, found in tracks.items()
        ]
        yield rearrange(torch.from_numpy(np.asarray(join_panels(panels)).copy()), "h w c -> c h w")


def title_panel(picture: Image.Image, title: str, max_width: int) -> Image.Image:
    """A picture of limited width below its title."""
    shrink = min(1.0, max_width / picture.width)
    picture = picture.resize((round(picture.width * shrink), round(picture.height * shrink)))
    panel = Image.new("RGB", (picture.width, picture.height + TITLE_HEIGHT), "white")
    ImageDraw.Draw(panel).text(
        (4, TITLE_HEIGHT / 2), title, fill=(40, 44, 60), font=ImageFont.load_default(19), anchor="lm"
    )
    panel.paste(picture, (0, TITLE_HEIGHT))
    return panel


def join_panels(panels: Sequence[Image.Image]) -> Image.Image:
    """Pictures of one size next to each other."""
    width, height = panels[0].size
    whole = Image.new("RGB", (len(panels) * (width + GAP) - GAP, height), "white")
    for number, panel in enumerate(panels):
        whole.paste(panel, (number * (width + GAP), 0))
    return whole


def heat_map(share: Float[Tensor, "h w"], under: Float[Tensor, "3 h w"]) -> Image.Image:
    """Values in [0, 1] over a dimmed gray frame; spots are dilated to at least `SPOT` pixels."""
    values = F.max_pool2d(share.clamp(0, 1)[None, None], SPOT, 1, SPOT // 2)[0, 0].cpu().numpy()
    levels = [level for level, _ in RAMP]
    color = np.stack([np.interp(values, levels, [shade[c] for _, shade in RAMP]) for c in range(3)], axis=-1)
    gray = 255 * DIMMED * under.mean(0).clamp(0, 1).cpu().numpy()[..., None]
    opaque = np.clip(values * 2.2, 0, 1)[..., None]
    return Image.fromarray((opaque * color + (1 - opaque) * gray).astype(np.uint8))


def sqrt_scale(values: Float[Tensor, "h w"], most: float) -> Float[Tensor, "h w"]:
    """Square root of the share of the largest value, which makes weak values visible."""
    return (values / max(most, 1e-12)).sqrt()


def log_scale(probability: Float[Tensor, "h w"], depth: float = 12.0) -> Float[Tensor, "h w"]:
    """Logarithmic scale: 1 at the maximum, 0 at the median or at e^-depth of the maximum."""
    below = (probability / probability.max()).clamp(min=1e-30).log()
    return 1 + below / float((-below.median()).clamp(1e-6, depth))


def draw_ring(picture: Image.Image, xy: tuple[float, float], color: Color, radius: float = 13) -> Image.Image:
    """A copy with a dark-edged ring around a place."""
    picture = picture.copy()
    pen = ImageDraw.Draw(picture)
    x, y = xy
    for size, width, shade in ((radius, 4, (15, 15, 20)), (radius - 1, 2, color)):
        pen.ellipse((x - size, y - size, x + size, y + size), outline=shade, width=width)
    return picture
