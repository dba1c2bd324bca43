"""Figures of the report page as SVG: radar charts, line charts, and video frames with points drawn on them."""

import base64
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from jaxtyping import Bool, Float
from PIL import Image

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#444444")
"""Distinct for color-blind readers too (Okabe and Ito 2008)."""
GRAYS = ("#9aa0a6", "#c3c7cc")
RULE = "#e3e6ea"
TRUTH, PREDICTED = "#2ecc71", "#ff5722"
RADIUS = 6.0


@dataclass(frozen=True)
class Line:
    """A named sequence of points; a reference is dashed and gray."""

    name: str
    points: Sequence[tuple[float, float]]
    reference: bool = False
    marked: tuple[float, float] | None = None
    """One highlighted point, such as the method's own setting."""


def line_colors(lines: Sequence[Line]) -> list[str]:
    """A color for each method, a gray for each reference."""
    places = [sum(other.reference == line.reference for other in lines[:place]) for place, line in enumerate(lines)]
    palettes = [GRAYS if line.reference else COLORS for line in lines]
    return [palette[place % len(palette)] for palette, place in zip(palettes, places, strict=True)]


def figure(width: int, height: int, content: str, lines: Sequence[Line], title: str) -> str:
    """Drawing, title and legend as one figure."""
    keys = ""
    for line, color in zip(lines, line_colors(lines), strict=True):
        stroke = "dashed" if line.reference else "solid"
        keys += f'<span><i style="border-top:3px {stroke} {color}"></i>{escape(line.name)}</span>'
    drawing = f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">{content}</svg>'
    return f"<figure><figcaption>{escape(title)}</figcaption>{drawing}<div class=legend>{keys}</div></figure>"


def svg_text(x: float, y: float, text: str, anchor: str = "middle", vertical: bool = False) -> str:
    """Text at a point."""
    rotation = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if vertical else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{rotation}>{escape(text)}</text>'


@dataclass(frozen=True)
class RadarAxes:
    """Axes from a center, at which the value is 0, to a rim, at which it is 1."""

    axes: int
    width: int = 360
    height: int = 290
    rim: float = 84

    def at(self, axis: int, value: float) -> tuple[float, float]:
        """Position of a value on an axis; undefined values are at the center."""
        angle = math.pi * (2 * axis / self.axes - 0.5)
        reach = 0 if value != value else value * self.rim
        return self.width / 2 + reach * math.cos(angle), self.height / 2 + reach * math.sin(angle)

    def polygon(self, values: Iterable[float], style: str) -> str:
        """A closed line through one value of each axis."""
        corners = " ".join("{:.1f},{:.1f}".format(*self.at(axis, value)) for axis, value in enumerate(values))
        return f'<polygon points="{corners}" {style}/>'

    def name(self, axis: int, label: str, below: str) -> str:
        """The axis' two names, one below the other, outside the rim."""
        x, y = self.at(axis, 1.08)
        across, down = x - self.width / 2, y - self.height / 2
        anchor = "middle" if abs(across) < 1 else ("start" if across > 0 else "end")
        top = y if abs(across) >= 1 else y + (-14 if down < 0 else 10)
        return svg_text(x, top, label, anchor) + svg_text(x, top + 14, below, anchor)


def radar(title: str, axes: Sequence[tuple[str, str]], lines: Sequence[Line]) -> str:
    """Each line's values, fractions in the order of the axes, as a polygon."""
    drawing = RadarAxes(len(axes))
    parts = [drawing.polygon([ring] * len(axes), f'fill="none" stroke="{RULE}"') for ring in (0.25, 0.5, 0.75, 1.0)]
    parts += [drawing.name(axis, *names) for axis, names in enumerate(axes)]
    for line, color in zip(lines, line_colors(lines), strict=True):
        look = 'fill="none" stroke-dasharray="5 4"' if line.reference else f'fill="{color}" fill-opacity="0.08"'
        parts.append(drawing.polygon([value for _, value in line.points], f'{look} stroke="{color}" stroke-width="2"'))
    return figure(drawing.width, drawing.height, "".join(parts), lines, title)


@dataclass(frozen=True)
class LineAxes:
    """Two axes with ticks, mapped to pixels."""

    xs: Sequence[float]
    ys: Sequence[float]
    width: int = 360
    height: int = 290
    left: int = 56
    right: int = 16
    top: int = 10
    bottom: int = 44

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of a point."""
        across = (x - self.xs[0]) / (self.xs[-1] - self.xs[0])
        up = (y - self.ys[0]) / (self.ys[-1] - self.ys[0])
        wide, high = self.width - self.left - self.right, self.height - self.top - self.bottom
        return self.left + across * wide, self.height - self.bottom - up * high

    def scales(self, x_label: str, y_label: str) -> str:
        """Rules, ticks and names of the axes."""
        middle = (self.left + self.width - self.right) / 2, (self.top + self.height - self.bottom) / 2
        parts = [svg_text(middle[0], self.height - 8.0, x_label), svg_text(16.0, middle[1], y_label, vertical=True)]
        for x in self.xs:
            place, foot = self.at(x, self.ys[0])
            parts.append(svg_text(place, foot + 17, f"{x:g}"))
        for y in self.ys:
            left, place = self.at(self.xs[0], y)
            parts.append(f'<path d="M{left:.1f},{place:.1f} H{self.width - self.right}" stroke="{RULE}"/>')
            parts.append(svg_text(left - 7, place + 4, f"{y:g}", "end"))
        return "".join(parts)

    def line(self, line: Line, color: str) -> str:
        """A line with a dot at each point and a ring around the marked one."""
        places = [self.at(x, y) for x, y in line.points if x == x and y == y]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dash = ' stroke-dasharray="5 4"' if line.reference else ""
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{color}"/>' for x, y in places)
        if line.marked and line.marked[1] == line.marked[1]:
            x, y = self.at(*line.marked)
            dots += f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="#fff" stroke="{color}" stroke-width="2.5"/>'
        return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dash}/>{dots}'


def chart(title: str, x_label: str, y_label: str, lines: Sequence[Line], xs: Sequence[float] = ()) -> str:
    """Lines over common axes, in the units of the labels; empty if no point is defined."""
    points = [point for line in lines for point in (*line.points, *filter(None, [line.marked]))]
    known = [(x, y) for x, y in points if x == x and y == y]
    if not known:
        return ""
    drawing = LineAxes(xs or ticks([x for x, _ in known]), ticks([y for _, y in known]))
    drawn = "".join(drawing.line(line, color) for line, color in zip(lines, line_colors(lines), strict=True))
    return figure(drawing.width, drawing.height, drawing.scales(x_label, y_label) + drawn, lines, title)


def ticks(values: Sequence[float], about: int = 5) -> list[float]:
    """Round numbers at equal distances around the values."""
    low, high = min(values), max(values)
    rough = max(high - low, abs(high) * 0.01, 1e-9) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * unit for unit in (1, 2, 5, 10) if power * unit >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(place * step, 10) for place in range(first, max(last, first + 1) + 1)]


def frame_with_points(
    frame: Image.Image,
    truth: Float[np.ndarray, "n 2"],
    predicted: Float[np.ndarray, "n 2"],
    visible: Bool[np.ndarray, "n"],
    title: str,
) -> str:
    """A video frame with true points, predictions (hollow where predicted occluded) and lines between them.

    Points are in pixels of the frame.
    """
    parts = [f'<image href="{jpeg_url(frame)}" width="{frame.width}" height="{frame.height}"></image>']
    for (x, y), (u, v), shown in zip(truth.tolist(), predicted.tolist(), visible.tolist(), strict=True):
        if math.isfinite(u) and math.isfinite(v):
            line = f"M{x:.1f},{y:.1f} L{u:.1f},{v:.1f}"
            parts.append(f'<path d="{line}" stroke="{PREDICTED}" stroke-opacity="0.7" stroke-width="2"></path>')
            fill = PREDICTED if shown else "none"
            parts.append(_ring(u, v, f'fill="{fill}" fill-opacity="0.8" stroke="{PREDICTED}" stroke-width="2"'))
        parts.append(_ring(x, y, f'fill="none" stroke="{TRUTH}" stroke-width="3"'))
    box = f'viewBox="0 0 {frame.width} {frame.height}" width="{frame.width}" height="{frame.height}"'
    return f'<svg {box} role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'


def _ring(x: float, y: float, style: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}" {style}></circle>'


def jpeg_url(picture: Image.Image) -> str:
    """A picture as a data URL, for a page without files beside it."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=82)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
