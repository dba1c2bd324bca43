"""Tracks drawn on frames: a dot where a point is visible, a ring where it is hidden, a tail where it was."""

import colorsys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, UInt8
from PIL import Image, ImageDraw
from torch import Tensor

from lpa_cwm.types import Clip, Tracks

SHORT_SIDE = 480
"""Small frames are enlarged to this on the page, so that dots do not cover what they mark."""
SMOOTH = 2
"""Drawn this many times larger and reduced, because Pillow's lines have hard edges."""
GREEN = 1 / 3
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


def enlargement(hw: tuple[int, int]) -> int:
    """How many times larger the page draws a frame of this size."""
    return max(1, round(SHORT_SIDE / min(hw)))


def overlay(tracks: Tracks, clip: Clip, style: OverlayStyle | None = None) -> Iterator[UInt8[Tensor, "3 h2 w2"]]:
    """The clip's frames with the tracks drawn on them."""
    style = style or OverlayStyle()
    confidence = confidence_of(tracks) if style.color_by == "confidence" else None
    for index in range(len(clip)):
        frame, past = clip[index], slice(0, index + 1)
        colors = None
        if confidence is not None:
            colors = [hue_color(GREEN * value) for value in confidence[:, index].tolist()]
        drawn = draw_tracks(frame, tracks.xy[:, past], tracks.visible[:, past], colors, style=style)
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
) -> UInt8[Tensor, "3 h2 w2"]:
    """One frame with the tracks up to it; the last time is this frame's."""
    style = style or OverlayStyle(tail=tail, scale=None)
    enlarge = style.scale or enlargement((frame.shape[1], frame.shape[2]))
    scale = enlarge * SMOOTH
    picture = Image.fromarray(rearrange(frame, "c h w -> h w c").cpu().numpy())
    size = picture.width * enlarge, picture.height * enlarge
    picture = picture.resize((size[0] * SMOOTH, size[1] * SMOOTH), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(picture, "RGBA")
    colors = colors or [color(index, len(xy)) for index in range(len(xy))]
    radius = style.dot_size * scale / 2 if style.dot_size else max(3.0, min(size) / 100) * SMOOTH
    reach = slice(max(0, xy.shape[1] - style.tail - 1), None)
    for number, (points, seen, ink) in enumerate(zip((xy * scale).tolist(), visible.tolist(), colors, strict=True)):
        draw_tail(pen, points[reach], seen[reach], ink, radius / 2)
        draw_head(pen, points[-1], seen[-1], ink, radius)
        if style.numbers and points[-1][0] == points[-1][0]:
            corner = points[-1][0] + 1.2 * radius, points[-1][1] - 2.2 * radius
            pen.text(corner, str(number), fill=(*ink, 255), font_size=max(8 * SMOOTH, 2 * radius), stroke_width=1,
                     stroke_fill=(0, 0, 0, 255))  # fmt: skip
    small = np.asarray(picture.resize(size, Image.Resampling.BOX))
    return rearrange(torch.from_numpy(small.copy()), "h w c -> c h w")


def draw_tail(pen: ImageDraw.ImageDraw, points: list, seen: list[bool], ink: Color, width: float) -> None:
    """Segments between successive visible places, fading into the past."""
    for age in range(1, len(points)):
        (x0, y0), (x1, y1) = points[-age - 1], points[-age]
        if seen[-age] and seen[-age - 1]:
            alpha = round(230 * (1 - (age - 1) / len(points)))
            pen.line((x0, y0, x1, y1), fill=(*ink, alpha), width=max(1, round(width)))


def draw_head(pen: ImageDraw.ImageDraw, point: list[float], seen: bool, ink: Color, radius: float) -> None:
    """The present place: a filled dot, or a hollow ring with a dark rim; nothing before the query."""
    x, y = point
    if x != x:
        return
    box = (x - radius, y - radius, x + radius, y + radius)
    if seen:
        pen.ellipse(box, fill=(*ink, 255), outline=(0, 0, 0, 200), width=max(1, round(radius / 4)))
    else:
        pen.ellipse(box, outline=(0, 0, 0, 160), width=max(2, round(radius / 1.8)))
        pen.ellipse(box, outline=(*ink, 255), width=max(1, round(radius / 3)))
