"""The panel *Why there?*: one point, one target frame, every candidate by weight, and the way to the endpoint."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from html import escape
from threading import Lock

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.explain import Explanation, explain
from lpa_cwm.geometry import inside
from lpa_cwm.page.drawing import draw_ring, heat_map, log_scale, mark_points, point_color, sqrt_scale, web_color
from lpa_cwm.page.session import Point, queries
from lpa_cwm.probe import ObservedPair
from lpa_cwm.report.svg import jpeg_url
from lpa_cwm.responses import dense_magnitude
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.types import Clip, Frames

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
    return explain(tracker, question.clip, queries((question.point,)), question.target, observed)


def render_panel(question: Question, explained: Explanation, final: bool) -> str:
    """The whole panel as HTML; `final` once the re-evaluation is included."""
    height, width = question.clip.hw
    sources = len(explained.frame.unique())
    origin = "one source frame" if sources == 1 else f"{sources} source frames"
    note = "" if final else '<p class="pending">First pass; re-evaluating around the endpoint …</p>'
    return f"""<div class="why" style="--shape: {width} / {height}; --ink: {web_color(question.point)}">
<div class="why-top">{frames(question, explained)}{facts(question, explained, final)}</div>{note}
<h3>{len(explained.weights)} candidates from {origin} \
<small>each response over the target frame, \
sorted by the weight that {escape(question.title)} gives it; the ring is its peak</small></h3>
<div class="why-candidates">{candidates(explained)}</div>
<h3>From candidates to a point <small>their weighted sum, then the distribution of the endpoint</small></h3>
<div class="why-steps">{steps(question, explained)}</div></div>"""


def figure(picture: Image.Image, caption: str, title: str = "") -> str:
    """A picture with a caption."""
    return (
        f'<figure><img src="{jpeg_url(picture)}" alt="{escape(title or caption)}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def frames(question: Question, explained: Explanation) -> str:
    """The point in its own frame and in the target frame."""
    point, start = question.point, torch.tensor([[question.point.x, question.point.y]])
    source = mark_one(question, point.frame, start, True)
    target = mark_one(question, question.target, explained.result.xy.cpu(), explained.visible)
    return figure(source, f"point {question.number} in frame {point.frame}") + figure(
        target, f"found in frame {question.target}"
    )


def mark_one(question: Question, frame: int, xy: Float[Tensor, "1 2"], visible: bool) -> Image.Image:
    """A frame with the point in a ring."""
    shown = {question.number: question.point}
    picture = mark_points(question.clip[frame], xy[:, None], torch.tensor([[visible]]), shown)
    scale = picture.width / question.clip.hw[1]
    return draw_ring(picture, pair_of(xy[0] * scale), point_color(question.point), radius=min(picture.size) / 32)


def facts(question: Question, explained: Explanation, final: bool) -> str:
    """The answer and its confidence."""
    answer, count = explained.result, len(explained.weights)
    x, y = answer.xy[0].tolist()
    within = inside(answer.xy[0], question.clip.hw)
    known = not answer.confidence.isnan().any()
    confident = {"Confidence": f"{answer.confidence[0]:.0%}"} if known else {}
    rows = {
        "Position": f"{x:.1f}, {y:.1f} px" + ("" if within else " (outside)"),
        "Motion": f"{x - question.point.x:+.1f}, {y - question.point.y:+.1f} px",
        **confident,
        "Strength": f"{answer.strength[0]:.3f} <small>{explained.rule}</small>",
        "Visibility": f"× {explained.visibility:.2f} <small>factor of the strength</small>",
        "Spread": f"{answer.spread[0]:.1f} px",
        "Support": f"{answer.support[0]:.1f} <small>of {count} candidates</small>",
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
        shown.append(figure(picture, f"{bar}<b>{weight:.1%}</b><small>{name}</small>", name))
    return "".join(shown)


def steps(question: Question, explained: Explanation) -> str:
    """The weighted response, the distribution before and after each window, and the endpoint."""
    total = heat_map(sqrt_scale(explained.localization, float(explained.localization.max())), explained.target)
    shown = [figure(total, "weighted sum")]
    names = ["distribution", *(f"window {number}" for number in range(1, len(explained.distributions)))]
    for number, (name, probability) in enumerate(zip(names, explained.distributions, strict=True)):
        picture = heat_map(log_scale(probability), explained.target)
        if number == len(names) - 1:
            picture = draw_ring(picture, pair_of(explained.first), point_color(question.point))
        shown.append(figure(picture, name))
    return "".join(shown)


def pair_of(xy: Float[Tensor, "2"]) -> tuple[float, float]:
    """A point as two numbers."""
    x, y = xy.tolist()
    return x, y
