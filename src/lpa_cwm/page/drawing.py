"""Pictures of the page: frames with points and tracks, heat maps, and the panel *Why there?* of one point."""

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from html import escape
from threading import Lock

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.explain import Explanation, explain
from lpa_cwm.geometry import inside
from lpa_cwm.io.video import read
from lpa_cwm.io.visualization import Color, confidence_of, draw_tracks, enlargement, jpeg_url
from lpa_cwm.page.session import ColorBy, Point, queries, track_colors, track_points
from lpa_cwm.probe import ObservedPair
from lpa_cwm.registry import GALLERY
from lpa_cwm.responses import dense_magnitude
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.types import Clip, Frames, Tracks

PALETTE: tuple[Color, ...] = (
    (255, 107, 53), (46, 196, 255), (255, 214, 10), (255, 77, 151), (57, 217, 138),
    (167, 119, 255), (255, 159, 243), (120, 245, 245), (255, 179, 71), (190, 235, 60),
)  # fmt: skip
"""Colors that stay apart on most footage."""
HEAT_COLORS = (
    (0.0, (40, 12, 92)),
    (0.35, (151, 38, 128)),
    (0.65, (238, 92, 66)),
    (0.85, (252, 177, 53)),
    (1.0, (252, 253, 191)),
)
"""Colors of a heat map, from zero to the maximum."""
DIMMED = 0.6
"""Brightness of the frame under a heat map."""
MIN_SPOT = 5
"""Side in pixels of the smallest spot in a heat map."""
CONFIDENCE_COLORS: tuple[Color, Color, Color] = ((239, 68, 68), (250, 204, 21), (34, 197, 94))
"""Colors of confidence 0, 0.5 and 1."""
MAX_SIDE = 1920
"""Largest width and height of a video with several panels, in pixels."""
TITLE_HEIGHT, GAP = 34, 8
"""Height of a panel's title and gap between panels, in pixels."""
PANEL_BACKGROUND: Color = (27, 30, 41)
"""Color of titles' background and of gaps: quiet on a light and on a dark page."""


def point_color(point: Point) -> Color:
    """RGB color of a point."""
    return PALETTE[point.color % len(PALETTE)]


def web_color(point: Point) -> str:
    """Color of a point for a style sheet."""
    return "#{:02x}{:02x}{:02x}".format(*point_color(point))


def draw_clicks(
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
    return {name: draw_clicks(clip, len(clip) // 2, ()).resize((160, 160)) for name, clip in clips.items()}


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
    size = max(18, min(picture.size) // 26)
    font = ImageFont.load_default(size)
    for number, (x, y) in zip(points, (xy[:, -1] * scale).tolist(), strict=True):
        if x == x:
            place = (x + 0.55 * size, y - 1.35 * size)
            pen.text(place, str(number), fill=(255, 255, 255), font=font, stroke_width=2, stroke_fill=(20, 20, 28))
    return picture


def draw_results(clip: Clip, tracks: Tracks, points: Sequence[Point], frame: int, color_by: ColorBy) -> Image.Image:
    """A frame with the tracks of one method up to it."""
    xy, visible = tracks.xy[:, : frame + 1], tracks.visible[:, : frame + 1]
    colors = None
    if color_by == "confidence":
        colors = [confidence_color(value) for value in confidence_of(tracks)[:, frame].tolist()]
    return mark_points(clip[frame], xy, visible, dict(enumerate(track_points(tuple(points)))), colors)


def confidence_color(value: float) -> Color:
    """Red at 0, yellow at 0.5, green at 1."""
    low, middle, high = CONFIDENCE_COLORS
    first, second, share = (low, middle, 2 * value) if value < 0.5 else (middle, high, 2 * value - 1)
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return red, green, blue


def side_by_side(
    clip: Clip,
    tracks: Mapping[str, Tracks],
    points: Sequence[Point],
    color_by: ColorBy = "track",
    max_side: int = MAX_SIDE,
) -> Iterator[UInt8[Tensor, "3 h w"]]:
    """Frames of a video with a titled panel for each set of tracks."""
    scale = enlargement(clip.hw)
    height, width = (scale * side for side in clip.hw)
    columns = panel_columns(len(tracks), width, height)
    rows = math.ceil(len(tracks) / columns)
    widest, highest = ((max_side - GAP * (count - 1)) / count for count in (columns, rows))
    shrink = min(1.0, widest / width, (highest - TITLE_HEIGHT) / height)
    size = (round(width * shrink), round(height * shrink))
    for frame in range(len(clip)):
        panels = [
            title_panel(draw_results(clip, found, points, frame, color_by), title, size)
            for title, found in tracks.items()
        ]
        yield rearrange(torch.from_numpy(np.asarray(join_panels(panels, columns)).copy()), "h w c -> c h w")


def panel_columns(count: int, width: float, height: float) -> int:
    """Columns in which panels of a size are largest in a square."""
    return min(range(count, 0, -1), key=lambda columns: max(columns * width, math.ceil(count / columns) * height))


def title_panel(picture: Image.Image, title: str, size: tuple[int, int]) -> Image.Image:
    """A picture of some size below its title."""
    panel = Image.new("RGB", (size[0], size[1] + TITLE_HEIGHT), PANEL_BACKGROUND)
    ImageDraw.Draw(panel).text((8, TITLE_HEIGHT / 2), title, fill=WHITE, font=ImageFont.load_default(22), anchor="lm")
    panel.paste(picture.resize(size), (0, TITLE_HEIGHT))
    return panel


def join_panels(panels: Sequence[Image.Image], columns: int) -> Image.Image:
    """Pictures of one size in rows."""
    width, height = panels[0].size
    rows = math.ceil(len(panels) / columns)
    whole = Image.new("RGB", (columns * (width + GAP) - GAP, rows * (height + GAP) - GAP), PANEL_BACKGROUND)
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        whole.paste(panel, (column * (width + GAP), row * (height + GAP)))
    return whole


def heat_map(share: Float[Tensor, "h w"], under: Float[Tensor, "3 h w"]) -> Image.Image:
    """Values in [0, 1] over a dimmed gray frame; spots are dilated to at least `MIN_SPOT` pixels."""
    values = F.max_pool2d(share.clamp(0, 1)[None, None], MIN_SPOT, 1, MIN_SPOT // 2)[0, 0].cpu().numpy()
    levels = [level for level, _ in HEAT_COLORS]
    color = np.stack([np.interp(values, levels, [shade[c] for _, shade in HEAT_COLORS]) for c in range(3)], axis=-1)
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


WHITE = (255, 255, 255)


@dataclass(frozen=True)
class ObservedPairs:
    """The last observed frame pairs (an LRU cache): another point or method on the same frames then costs little.

    An entry holds its frames, so that the identity of a clip in the key cannot be taken by another clip.
    """

    limit: int = 8
    entries: OrderedDict[Hashable, tuple[Frames, ObservedPair]] = field(default_factory=OrderedDict)
    lock: Lock = field(default_factory=Lock, repr=False)

    def get(self, tracker: CwmTracker, clip: Clip, source: int, target: int) -> ObservedPair:
        """The pair as an earlier question left it, or a new one."""
        key = id(clip.frames), id(tracker.world), source, target
        with self.lock:
            known = self.entries.get(key)
        observed = known[1] if known else tracker.observe(clip, source, target)
        with self.lock:
            self.entries[key] = clip.frames, observed
            self.entries.move_to_end(key)
            while len(self.entries) > self.limit:
                self.entries.popitem(last=False)
        return replace(observed, config=tracker.config) if observed.config != tracker.config else observed

    def forget(self, frames: Frames) -> None:
        """Drop all pairs of a clip."""
        with self.lock:
            for key in [key for key, (held, _) in self.entries.items() if held is frames]:
                del self.entries[key]


@dataclass(frozen=True, slots=True)
class Question:
    """Where did this point go in the target frame?"""

    clip: Clip
    points: tuple[Point, ...]
    number: int
    target: int
    title: str
    """Name of the adjudicator."""

    @property
    def point(self) -> Point:
        """The point in question."""
        return self.points[self.number]


def explain_point(question: Question, tracker: CwmTracker, pairs: ObservedPairs) -> Explanation:
    """Track the point to the target frame and keep every step."""
    if not question.point.frame < question.target < len(question.clip):
        raise InputError(
            f"Point {question.number} was clicked in frame {question.point.frame}; choose a target frame after it."
        )
    direct = not tracker.config.gaps
    observed = pairs.get(tracker, question.clip, question.point.frame, question.target) if direct else None
    point = queries((question.point,))
    return explain(tracker, question.clip, point, question.target, observed, predictions=False)


def render_panel(question: Question, explained: Explanation, final: bool) -> str:
    """The whole panel as HTML; `final` unless only the first pass of the direct path is shown."""
    height, width = question.clip.hw
    sources = len(explained.frame.unique())
    origin = "one source frame" if sources == 1 else f"{sources} source frames"
    note = (
        ""
        if final
        else f'<p class="pending">First pass from frame {question.point.frame} alone; the result follows …</p>'
    )
    return f"""<div class="why" style="--shape: {width} / {height}; --ink: {web_color(question.point)}">
<div class="why-top">{frames(question, explained)}{result_facts(question, explained, final)}</div>{note}
<h3>{len(explained.weights)} candidates from {origin} \
<small>each response over the target frame, \
sorted by the weight that {escape(question.title)} gives it; the ring is its peak</small></h3>
<div class="why-candidates">{candidates(explained)}</div>
<h3>From candidates to a point <small>their weighted sum, then the distribution of the endpoint</small></h3>
<div class="why-steps">{steps(question, explained)}</div></div>"""


def captioned(picture: Image.Image, caption: str, title: str = "") -> str:
    """A picture with a caption."""
    return (
        f'<figure><img src="{jpeg_url(picture, quality=82)}" alt="{escape(title or caption)}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def frames(question: Question, explained: Explanation) -> str:
    """The point in its own frame and in the target frame."""
    point, start = question.point, torch.tensor([[question.point.x, question.point.y]])
    source = mark_one(question, point.frame, start, True)
    target = mark_one(question, question.target, explained.result.xy.cpu(), explained.visible)
    return captioned(source, f"point {question.number} in frame {point.frame}") + captioned(
        target, f"found in frame {question.target}"
    )


def mark_one(question: Question, frame: int, xy: Float[Tensor, "1 2"], visible: bool) -> Image.Image:
    """A frame with the point in a ring."""
    shown = {question.number: question.point}
    picture = mark_points(question.clip[frame], xy[:, None], torch.tensor([[visible]]), shown)
    scale = picture.width / question.clip.hw[1]
    return draw_ring(picture, pair_of(xy[0] * scale), point_color(question.point), radius=min(picture.size) / 32)


def result_facts(question: Question, explained: Explanation, final: bool) -> str:
    """The result and its confidence."""
    result, count = explained.result, len(explained.weights)
    x, y = result.xy[0].tolist()
    within = inside(result.xy[0], question.clip.hw)
    known, rule = not result.confidence.isnan().any(), f" <small>{explained.rule}</small>"
    confident = {"Confidence": f"{result.confidence[0]:.0%}{rule}"} if known else {}
    rows = {
        "Position": f"{x:.1f}, {y:.1f} px" + ("" if within else " (outside)"),
        "Motion": f"{x - question.point.x:+.1f}, {y - question.point.y:+.1f} px",
        **confident,
        "Strength": f"{result.strength[0]:.3f}" + ("" if known else rule),
        "Visibility": f"× {explained.visibility:.2f} <small>factor of the strength</small>",
        "Spread": f"{result.spread[0]:.1f} px",
        "Support": f"{result.support[0]:.1f} <small>of {count} candidates</small>",
    }
    seen = "visible" if explained.visible else "hidden"
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows.items())
    state = "settled" if final else "waiting"
    return f'<div class="why-facts {state}"><span class="seen {seen}">{seen}</span><dl>{listed}</dl></div>'


def candidates(explained: Explanation) -> str:
    """Every response, the largest weight first."""
    strengths = dense_magnitude(explained.response)
    largest = float(strengths.max())
    shown = []
    for mask in explained.weights.argsort(descending=True, stable=True).tolist():
        weight = float(explained.weights[mask])
        heat = heat_map(sqrt_scale(strengths[mask], largest), explained.target)
        picture = draw_ring(heat, pair_of(explained.peak[mask]), WHITE)
        share = 100 * weight / float(explained.weights.max())
        bar = f'<span class="bar"><i style="width: {share:.0f}%"></i></span>'
        name = explained.name(mask)
        shown.append(captioned(picture, f"{bar}<b>{weight:.1%}</b><small>{name}</small>", name))
    return "".join(shown)


def steps(question: Question, explained: Explanation) -> str:
    """The weighted response, the distribution before and after each window, and the endpoint."""
    total = heat_map(sqrt_scale(explained.localization, float(explained.localization.max())), explained.target)
    shown = [captioned(total, "weighted sum")]
    names = ["distribution", *(f"window {number}" for number in range(1, len(explained.distributions)))]
    for number, (name, probability) in enumerate(zip(names, explained.distributions, strict=True)):
        picture = heat_map(log_scale(probability), explained.target)
        if number == len(names) - 1:
            picture = draw_ring(picture, pair_of(explained.first), point_color(question.point))
        shown.append(captioned(picture, name))
    return "".join(shown)


def pair_of(xy: Float[Tensor, "2"]) -> tuple[float, float]:
    """A point as two numbers."""
    x, y = xy.tolist()
    return x, y
