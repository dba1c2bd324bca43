"""Pictures of the page: frames with numbered points, overlays side by side, heat maps over a frame."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from lpa_cwm.io.overlay import Color, draw_tracks
from lpa_cwm.page.session import Point
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
"""Heat, from nothing to the maximum."""
DIMMED = 0.6
"""Brightness of the frame under a heat map."""
SWELL = 5
"""Side in pixels of the smallest spot in a heat map."""
WIDEST = 1920
"""Most pixels across in a video with several panels."""
BAND, GAP = 34, 8
"""Height of a panel's title and distance of panels, in pixels."""


def ink(point: Point) -> Color:
    """The color of a point."""
    return PALETTE[point.color % len(PALETTE)]


def web_color(point: Point) -> str:
    """The same for a style sheet."""
    return "#{:02x}{:02x}{:02x}".format(*ink(point))


def numbered(clip: Clip, frame: int, points: Sequence[Point]) -> Image.Image:
    """A frame with those of the points that were clicked in it."""
    here = [(number, point) for number, point in enumerate(points) if point.frame == frame]
    xy = torch.tensor([(point.x, point.y) for _, point in here], dtype=torch.float32).reshape(-1, 1, 2)
    return marked(clip[frame], xy, torch.ones(len(here), 1, dtype=torch.bool), dict(here))


def marked(frame: UInt8[Tensor, "3 h w"], xy: Tensor, visible: Tensor, points: Mapping[int, Point]) -> Image.Image:
    """A frame with tracks up to it, each with its point's color and number."""
    colors = [ink(point) for point in points.values()]
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


def side_by_side(
    clip: Clip, tracks: Mapping[str, Tracks], points: Sequence[Point], widest: int = WIDEST
) -> Iterator[UInt8[Tensor, "3 h w"]]:
    """Frames of a video with one titled panel for each set of tracks."""
    for frame in range(len(clip)):
        panels = [
            titled(
                marked(clip[frame], found.xy[:, : frame + 1], found.visible[:, : frame + 1], dict(enumerate(points))),
                title,
                (widest - GAP * (len(tracks) - 1)) // len(tracks),
            )
            for title, found in tracks.items()
        ]
        yield rearrange(torch.from_numpy(np.asarray(row(panels)).copy()), "h w c -> c h w")


def titled(picture: Image.Image, title: str, widest: int) -> Image.Image:
    """A picture no wider than allowed under a band with its title."""
    shrink = min(1.0, widest / picture.width)
    picture = picture.resize((round(picture.width * shrink), round(picture.height * shrink)))
    panel = Image.new("RGB", (picture.width, picture.height + BAND), "white")
    ImageDraw.Draw(panel).text((4, BAND / 2), title, fill=(40, 44, 60), font=ImageFont.load_default(19), anchor="lm")
    panel.paste(picture, (0, BAND))
    return panel


def row(panels: Sequence[Image.Image]) -> Image.Image:
    """Pictures of one size beside each other."""
    width, height = panels[0].size
    whole = Image.new("RGB", (len(panels) * (width + GAP) - GAP, height), "white")
    for number, panel in enumerate(panels):
        whole.paste(panel, (number * (width + GAP), 0))
    return whole


def heat(share: Float[Tensor, "h w"], under: Float[Tensor, "3 h w"]) -> Image.Image:
    """A map of values in [0, 1] over a dimmed frame; peaks of a pixel or two grow until they can be seen."""
    values = F.max_pool2d(share.clamp(0, 1)[None, None], SWELL, 1, SWELL // 2)[0, 0].cpu().numpy()
    levels = [level for level, _ in RAMP]
    color = np.stack([np.interp(values, levels, [shade[c] for _, shade in RAMP]) for c in range(3)], axis=-1)
    gray = 255 * DIMMED * under.mean(0).clamp(0, 1).cpu().numpy()[..., None]
    opaque = np.clip(values * 2.2, 0, 1)[..., None]
    return Image.fromarray((opaque * color + (1 - opaque) * gray).astype(np.uint8))


def root(values: Float[Tensor, "h w"], most: float) -> Float[Tensor, "h w"]:
    """Shares of the largest value under a root, so that weak places can be seen."""
    return (values / max(most, 1e-12)).sqrt()


def logarithmic(probability: Float[Tensor, "h w"], depth: float = 12.0) -> Float[Tensor, "h w"]:
    """Shares on a logarithmic scale from the maximum down to the median, or to e^-depth of the maximum."""
    below = (probability / probability.max()).clamp(min=1e-30).log()
    return 1 + below / float((-below.median()).clamp(1e-6, depth))


def ringed(picture: Image.Image, xy: tuple[float, float], color: Color, radius: float = 13) -> Image.Image:
    """A copy with a ring around a place, dark-edged to be seen on anything."""
    picture = picture.copy()
    pen = ImageDraw.Draw(picture)
    x, y = xy
    for size, width, shade in ((radius, 4, (15, 15, 20)), (radius - 1, 2, color)):
        pen.ellipse((x - size, y - size, x + size, y + size), outline=shade, width=width)
    return picture
