"""Tracks drawn on frames: a dot where a point is seen, a ring where it is hidden, a tail where it was."""

import colorsys

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, UInt8
from PIL import Image, ImageDraw
from torch import Tensor

SHORT_SIDE = 480
"""Small frames are enlarged to this, so that dots do not cover what they mark."""
SMOOTH = 2
"""Drawn this many times larger and reduced, because Pillow's lines have hard edges."""

Color = tuple[int, int, int]


def color(index: int, count: int) -> Color:
    """Distinct hues for neighboring points."""
    red, green, blue = colorsys.hsv_to_rgb((index / max(count, 1)) % 1, 0.85, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)


def enlargement(hw: tuple[int, int]) -> int:
    """How many times larger a frame of this size is drawn."""
    return max(1, round(SHORT_SIDE / min(hw)))


def draw_tracks(
    frame: UInt8[Tensor, "3 h w"],
    xy: Float[Tensor, "n t 2"],
    visible: Bool[Tensor, "n t"],
    colors: list[Color] | None = None,
    tail: int = 12,
) -> UInt8[Tensor, "3 h2 w2"]:
    """One frame with the tracks up to it; the last time is this frame's."""
    enlarge = enlargement((frame.shape[1], frame.shape[2]))
    scale = enlarge * SMOOTH
    picture = Image.fromarray(rearrange(frame, "c h w -> h w c").cpu().numpy())
    size = picture.width * enlarge, picture.height * enlarge
    picture = picture.resize((size[0] * SMOOTH, size[1] * SMOOTH), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(picture, "RGBA")
    colors = colors or [color(index, len(xy)) for index in range(len(xy))]
    radius = max(3.0, min(size) / 130) * SMOOTH
    for points, seen, ink in zip((xy * scale).tolist(), visible.tolist(), colors, strict=True):
        draw_tail(pen, points[-tail:], seen[-tail:], ink, radius / 2)
        draw_head(pen, points[-1], seen[-1], ink, radius)
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
    """The present place; nothing before the query."""
    x, y = point
    if x != x:
        return
    box = (x - radius, y - radius, x + radius, y + radius)
    if seen:
        pen.ellipse(box, fill=(*ink, 255), outline=(0, 0, 0, 200), width=max(1, round(radius / 4)))
    else:
        pen.ellipse(box, outline=(*ink, 150), width=max(1, round(radius / 3)))
