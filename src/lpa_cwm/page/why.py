"""One point and one target frame on the page: every candidate by weight, and the way to the answer."""

from collections import OrderedDict
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.explain import Explanation, explain
from lpa_cwm.geometry import inside
from lpa_cwm.page import models
from lpa_cwm.page.pictures import heat, ink, logarithmic, marked, ringed, root, web_color
from lpa_cwm.page.session import Point, queries
from lpa_cwm.probe import ObservedPair
from lpa_cwm.report.pictures import data_address
from lpa_cwm.responses import dense_magnitude
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.types import Clip

WHITE = (255, 255, 255)


@dataclass(frozen=True, slots=True)
class Question:
    """Where did this point of this clip go in that frame, by that method and world model?"""

    clip: Clip
    points: tuple[Point, ...]
    number: int
    target: int
    method: str
    world: str

    @property
    def point(self) -> Point:
        return self.points[self.number]


def looks_again(question: Question) -> bool:
    """Whether there is a re-evaluation after the first pass."""
    return models.tracker(question.method, question.world).config.passes > 0


def asked(question: Question, first_look: bool = False) -> Explanation:
    """The explanation of the first pass alone, or with its re-evaluation."""
    if not question.point.frame < question.target < len(question.clip):
        raise InputError(
            f"Point {question.number} was clicked in frame {question.point.frame}; choose a target frame after it."
        )
    settings = {"passes": 0} if first_look else {}
    tracker = models.tracker(question.method, question.world, **settings)
    observed = observed_pair(tracker, question.clip, question.point.frame, question.target, question.world)
    return explain(tracker, question.clip, queries((question.point,)), question.target, observed)


_observed: OrderedDict[Any, ObservedPair] = OrderedDict()
KEPT_PAIRS = 8
"""Frame pairs whose scene and factual predictions stay in memory: another point or method then costs little."""


def observed_pair(tracker: CwmTracker, clip: Clip, source: int, target: int, world: str) -> ObservedPair:
    """The frame pair as an earlier question left it, or a new one."""
    key = id(clip.frames), clip.name, source, target, world
    known = _observed.pop(key, None) or tracker.observe(clip, source, target)
    _observed[key] = known
    while len(_observed) > KEPT_PAIRS:
        _observed.popitem(last=False)
    return replace(known, config=tracker.config) if known.config != tracker.config else known


def panel(question: Question, explained: Explanation, settled: bool) -> str:
    """The whole view as HTML; `settled` once the re-evaluation is in."""
    height, width = question.clip.hw
    note = "" if settled else '<p class="pending">First look; looking again around the endpoint …</p>'
    return f"""<div class="why" style="--shape: {width} / {height}; --ink: {web_color(question.point)}">
<div class="why-top">{frames(question, explained)}{facts(question, explained, settled)}</div>{note}
<h3>{len(explained.weights)} masks, {len(explained.weights)} answers <small>each response over the target frame, \
by the weight that {escape(models.TITLES[question.method])} gives it; the ring is its peak</small></h3>
<div class="why-candidates">{candidates(explained)}</div>
<h3>From answers to a point <small>their weighted sum, then where it says the point is</small></h3>
<div class="why-steps">{steps(question, explained)}</div></div>"""


def figure(picture: Image.Image, caption: str, title: str = "") -> str:
    """A picture with a line below."""
    return (
        f'<figure><img src="{data_address(picture)}" alt="{escape(title or caption)}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def frames(question: Question, explained: Explanation) -> str:
    """The point in its own frame and in the target frame."""
    point, start = question.point, torch.tensor([[question.point.x, question.point.y]])
    source = spotted(question, point.frame, start, True)
    target = spotted(question, question.target, explained.result.xy.cpu(), explained.visible)
    return figure(source, f"point {question.number} in frame {point.frame}") + figure(
        target, f"found in frame {question.target}"
    )


def spotted(question: Question, frame: int, xy: Float[Tensor, "1 2"], visible: bool) -> Image.Image:
    """A frame with the point in a ring that catches the eye."""
    picture = marked(question.clip[frame], xy[:, None], torch.tensor([[visible]]), {question.number: question.point})
    scale = picture.width / question.clip.hw[1]
    return ringed(picture, place(xy[0] * scale), ink(question.point), radius=min(picture.size) / 32)


def facts(question: Question, explained: Explanation, settled: bool) -> str:
    """The answer and how sure it is."""
    answer, count = explained.result, len(explained.weights)
    x, y = answer.xy[0].tolist()
    within = inside(answer.xy[0], question.clip.hw)
    rows = {
        "Position": f"{x:.1f}, {y:.1f} px" + ("" if within else " (outside)"),
        "Moved by": f"{x - question.point.x:+.1f}, {y - question.point.y:+.1f} px",
        "Strength": f"{answer.strength[0]:.3f} <small>visible from {explained.visibility_threshold:g}</small>",
        "Sight": f"x {explained.visibility:.2f} <small>how far it is believed to be seen, in strength</small>",
        "Spread": f"{answer.spread[0]:.1f} px",
        "Believed": f"{answer.support[0]:.1f} <small>of {count} candidates</small>",
    }
    seen = "visible" if explained.visible else "hidden"
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows.items())
    state = "settled" if settled else "waiting"
    return f'<div class="why-facts {state}"><span class="seen {seen}">{seen}</span><dl>{listed}</dl></div>'


def candidates(explained: Explanation) -> str:
    """Every mask's response, the most believed first."""
    strengths = dense_magnitude(explained.response)
    most = float(strengths.max())
    shown = []
    for mask in explained.weights.argsort(descending=True, stable=True).tolist():
        weight = float(explained.weights[mask])
        picture = ringed(heat(root(strengths[mask], most), explained.target), place(explained.peak[mask]), WHITE)
        share = 100 * weight / float(explained.weights.max())
        bar = f'<span class="bar"><i style="width: {share:.0f}%"></i></span>'
        shown.append(figure(picture, f"{bar}<b>{weight:.1%}</b><small>mask {mask + 1}</small>", f"mask {mask + 1}"))
    return "".join(shown)


def steps(question: Question, explained: Explanation) -> str:
    """The weighted response, the distribution before and after each window, and the endpoint."""
    color = ink(question.point)
    total = heat(root(explained.localization, float(explained.localization.max())), explained.target)
    shown = [figure(total, "weighted sum")]
    names = ["distribution", *(f"window {number}" for number in range(1, len(explained.distributions)))]
    for number, (name, probability) in enumerate(zip(names, explained.distributions, strict=True)):
        picture = heat(logarithmic(probability), explained.target)
        if number == len(names) - 1:
            picture = ringed(picture, place(explained.first), color)
        shown.append(figure(picture, name))
    return "".join(shown)


def place(xy: Float[Tensor, "2"]) -> tuple[float, float]:
    """A point for the drawing library."""
    x, y = xy.tolist()
    return x, y
