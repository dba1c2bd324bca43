"""One query and one target with all intermediate results, as values and as a figure.

The responses of all masks, their weights, the response distributions and the endpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lpa_cwm.config import TrackerConfig
from lpa_cwm.decode import distribution, localize, windowed_sequence
from lpa_cwm.errors import require
from lpa_cwm.estimates import FrameEstimate
from lpa_cwm.files import atomic_write
from lpa_cwm.geometry import HW, Crop, to_continuous_index
from lpa_cwm.online import SINGLE, OnlineTracker
from lpa_cwm.probe import ObservedPair, PreparedFrame, first_pass, first_plan, prepare
from lpa_cwm.responses import CHANNELS, dense_magnitude
from lpa_cwm.tracker import CwmTracker, validate_queries
from lpa_cwm.types import Candidates, Clip, Pair, Queries


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything at working size; points in working pixels."""

    source: Float[Tensor, "3 h w"]
    """The source frame."""
    target: Float[Tensor, "3 h w"]
    """The target frame."""
    xy: Float[Tensor, "2"]
    """The point in the source frame."""
    frame: Int[Tensor, "m"]
    """Source frame of each candidate: the query's, and with gaps earlier frames of the track."""
    hidden: Bool[Tensor, "m p"]
    """Hidden patches of each candidate's mask."""
    prediction: Float[Tensor, "m 3 h w"] | None
    """Factual predictions, of world models that can show them."""
    response: Float[Tensor, "m 3 h w"]
    """Response of each candidate."""
    peak: Float[Tensor, "m 2"]
    """Where each response is largest."""
    weights: Float[Tensor, "m"]
    """Weight of each candidate."""
    visibility: float
    """Visibility factor of the first pass; 1 after a re-evaluation."""
    localization: Float[Tensor, "h w"]
    """Localization map of the weighted response."""
    distributions: Float[Tensor, "k h w"]
    """Before and after each window."""
    first: Float[Tensor, "2"]
    """Endpoint of the first pass."""
    result: FrameEstimate
    """Final result, in pixels of the clip."""
    end: Float[Tensor, "2"]
    """Final endpoint."""
    rule: str
    """Threshold of the visibility rule."""

    def name(self, candidate: int) -> str:
        """Mask number and source frame of a candidate.

        Args:
            candidate: Number of the candidate.
        """
        first = int((self.frame == self.frame[candidate]).nonzero()[0, 0])
        return f"mask {candidate - first + 1} from frame {int(self.frame[candidate])}"

    @property
    def visible(self) -> bool:
        """Whether the point counts as visible."""
        return bool(self.result.visible[0])


@torch.inference_mode()
def explain(
    tracker: CwmTracker,
    clip: Clip,
    query: Queries,
    target: int,
    observed: ObservedPair | None = None,
    predictions: bool = True,
) -> Explanation:
    """Track one query to one target and keep every step.

    With gaps, the point is tracked through all frames before the target, because its candidates start there.

    Args:
        tracker: Our tracker.
        clip: The video.
        query: One point.
        target: Number of the frame in which it is looked for.
        observed: The direct frame pair, if an earlier call made it.
        predictions: Whether the factual predictions are wanted.

    Examples:
        >>> from lpa_cwm.registry import bundled_clip
        >>> clip = bundled_clip("toy")

        >>> from lpa_cwm import load
        >>> point = Queries(torch.tensor([[60.0, 80.0]]), torch.tensor([0]))
        >>> explained = explain(load("uniform", "toy", masks=4), clip, point, target=3)
        >>> explained.weights
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    query = validate_queries(clip, query)
    start = int(query.frame[0])
    if tracker.config.gaps:
        pair, candidates, result, frames = candidates_through_time(tracker, clip, query, target)
    else:
        observed, frames = observed or tracker.observe(clip, start, target), {}
        xy = query.xy[:1].to(tracker.device)
        _, pair, found = next(first_pass(observed, xy))
        candidates, result = found.by_path(target - start), FrameEstimate.empty(1)
        result.set_rows(torch.zeros(1, dtype=torch.long), tracker.track_pair(observed, xy), clip.hw, tracker.config)
    assert candidates.path is not None
    gap = candidates.path[0, :, 0].exp2().round().int()
    sources = [observed] if observed else source_pairs(tracker, clip, target, start, gap, frames)
    hidden = torch.cat([first_plan(source, query.xy[:1]).hidden for source in sources])
    shown = predicted_targets(sources) if predictions else None
    return explanation(tracker, pair, candidates, result, sources[0].crop, hidden, target - gap, shown)


def candidates_through_time(
    tracker: CwmTracker, clip: Clip, query: Queries, target: int
) -> tuple[Pair, Candidates, FrameEstimate, dict[int, PreparedFrame]]:
    """The candidate set of the target frame and its result, after tracking up to there, and the latest frames."""
    met: list[tuple[Pair, Candidates]] = []
    online = OnlineTracker(
        tracker.world,
        {SINGLE: tracker.adjudicator},
        tracker.config,
        tracker.device,
        clip.name,
        time=int(query.frame[0]),
        on_candidates=lambda _, pair, candidates: met.append((pair, candidates)),
    )
    online.add(query.xy[0], int(query.frame[0]))
    estimates = [online.step(clip[frame])[SINGLE] for frame in range(online.time, target + 1)]
    return *met[-1], estimates[-1], online.frames


def source_pairs(
    tracker: CwmTracker,
    clip: Clip,
    target: int,
    start: int,
    gap: Int[Tensor, "m"],
    frames: Mapping[int, PreparedFrame],
) -> list[ObservedPair]:
    """The frame pairs that candidates come from, in their order; `frames` are described already."""
    sources = [target - one for one in dict.fromkeys(gap.tolist())]
    described = {
        number: frames[number] if number in frames else prepare(tracker.world, clip[number], tracker.device)
        for number in (target, *sources)
    }
    pairs = []
    for source in sources:
        identity = "clip", clip.name, source, target
        pair = ObservedPair(tracker.world, described[source], described[target], identity, tracker.config)
        pairs.append(pair if source == start else pair.with_masks(tracker.config.gap_masks))
    return pairs


def explanation(
    tracker: CwmTracker,
    pair: Pair,
    candidates: Candidates,
    result: FrameEstimate,
    crop: Crop,
    hidden: Bool[Tensor, "m p"],
    frame: Int[Tensor, "m"],
    prediction: Float[Tensor, "m 3 h w"] | None,
) -> Explanation:
    """Every step from the candidates of one point to its result."""
    config = tracker.config
    judgement = tracker.adjudicator(pair, candidates)
    response = candidates.response.aggregate(judgement.weights)
    steps = windowed_sequence(distribution(response, config), config.windows)
    replaced = config.passes and config.reevaluation != "native"
    return Explanation(
        source=pair.source,
        target=pair.target,
        xy=pair.xy[0],
        frame=frame,
        hidden=hidden,
        prediction=prediction,
        response=candidates.response.dense()[0],
        peak=candidates.peak[0],
        weights=judgement.weights[0],
        visibility=1.0 if replaced else judgement.visibility.item(),
        localization=response.dense()[0, 0].abs().sum(0) / (CHANNELS if config.reduce == "mean" else 1),
        distributions=torch.cat([step.probability() for step in steps]),
        first=localize(response, config)[0],
        result=result,
        end=crop.to_crop(result.xy.to(pair.xy))[0],
        rule=visibility_rule(config),
    )


def visibility_rule(config: TrackerConfig) -> str:
    """The visibility rule in words."""
    if config.calibration is None:
        return f"visible from a strength of {config.visibility_threshold:g}"
    least = f"{config.calibration.threshold:.0%}"
    return f"visible if at least {least}"


def predicted_targets(sources: list[ObservedPair]) -> Float[Tensor, "m 3 h w"] | None:
    """The predicted target from each source under each mask; None if the world model cannot show it."""
    predict = getattr(sources[0].world, "predict", None)
    if predict is None or sources[0].config.mask_sharing != "pair":
        return None
    return torch.cat([predict(source.scene, source.factual) for source in sources])


QUERY, PEAK, END = "#ffd166", "#ffffff", "#ef476f"
COLUMNS = 5
MIN_SPOT = 5
"""Side in pixels of the smallest spot: a sharp distribution is a single pixel, which is too small to see."""


def to_image(image: Float[Tensor, "3 h w"]) -> np.ndarray:
    """Convert to channels last and clamp to [0, 1]."""
    return rearrange(image.clamp(0, 1), "c h w -> h w c").cpu().numpy()


def show_visible_patches(explained: Explanation, index: int) -> Float[Tensor, "3 h w"]:
    """The target frame with the hidden patches in gray."""
    side = int(explained.hidden.shape[1] ** 0.5)
    scale = explained.target.shape[-1] // side
    hidden = rearrange(explained.hidden[index], "(i j) -> i j", i=side).to(explained.target.device)
    return torch.where(repeat(hidden, "i j -> (i a) (j b)", a=scale, b=scale), 0.5, explained.target)


def overlay_heat(values: Float[Tensor, "h w"], most: float, behind: Float[Tensor, "3 h w"]) -> np.ndarray:
    """A heat map of values over a dim gray picture; spots are dilated to at least `MIN_SPOT` pixels."""
    from matplotlib import colormaps

    wide = F.max_pool2d(values[None, None], MIN_SPOT, 1, MIN_SPOT // 2)[0, 0]
    heat = (wide / (most + 1e-12)).clamp(0, 1).sqrt().cpu().numpy()
    gray = 0.45 * behind.mean(0).clamp(0, 1).cpu().numpy()
    return (1 - heat[..., None]) * gray[..., None] + heat[..., None] * colormaps["inferno"](0.3 + 0.7 * heat)[..., :3]


def draw_marker(axes, xy: Tensor, color: str, shape: str = "+") -> None:  # noqa: ANN001
    """A cross or a ring at a point; matplotlib puts pixel centers at whole numbers."""
    x, y = to_continuous_index(xy.cpu()).tolist()
    axes.plot(x, y, shape, color=color, markersize=12, markeredgewidth=1.6, fillstyle="none")


def upper_panels(explained: Explanation) -> list[tuple[str, np.ndarray, list[tuple[Tensor, str]]]]:
    """Title, image and marks of the upper row."""
    heaviest = int(explained.weights.argmax())
    shown = [
        ("source and query", to_image(explained.source), [(explained.xy, QUERY)]),
        ("target and endpoint", to_image(explained.target), [(explained.end, END)]),
        ("visible patches of the heaviest mask", to_image(show_visible_patches(explained, heaviest)), []),
    ]
    if explained.prediction is not None:
        factual = explained.prediction[heaviest]
        shown.append(("factual prediction", to_image(factual), []))
        shown.append(("perturbed prediction", to_image(factual + explained.response[heaviest]), []))
    strength = explained.localization
    shown.append(
        ("weighted response", overlay_heat(strength, float(strength.max()), explained.target), [(explained.first, END)])
    )
    for step, values in enumerate(explained.distributions):
        title = f"distribution after window {step}" if step else "distribution before windows"
        shown.append((title, overlay_heat(values, float(values.max()), explained.target), []))
    return shown


def summary_text(explained: Explanation) -> str:
    """Confidence, strength, visibility, support and spread of the result."""
    result = explained.result
    confident = [] if result.confidence.isnan().any() else [f"confidence {result.confidence[0]:.0%}"]
    lines = (
        *confident,
        f"strength {result.strength[0]:.3f}",
        f"visibility factor {explained.visibility:.2f}",
        f"effective candidates {result.support[0]:.1f} of {len(explained.weights)}",
        f"spread {result.spread[0]:.1f} px",
    )
    return "\n".join(lines)


def draw_explanation(explained: Explanation, path: Path, hw: HW = (1, 1)) -> None:
    """Draw frames, visible patches, predictions and distributions above, and the candidates by weight below.

    The square frames of the model are drawn in the shape of the clip's, of which `hw` is the size.
    """
    require("matplotlib", "report")
    from matplotlib.figure import Figure

    upper, order = upper_panels(explained), explained.weights.argsort(descending=True).tolist()
    above, below = -(-(len(upper) + 1) // COLUMNS), -(-len(order) // COLUMNS)
    shape = hw[0] / hw[1]
    figure = Figure(figsize=(2.6 * COLUMNS, (2.6 * shape + 0.15) * (above + below)), layout="constrained")
    grid = figure.subplots(above + below, COLUMNS, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, (title, image, marks) in zip(grid[:above].flat, upper, strict=False):
        axes.imshow(image, aspect=shape)
        axes.set_title(title, fontsize=9)
        for xy, color in marks:
            draw_marker(axes, xy, color)
    grid[:above].flat[len(upper)].text(0.02, 0.95, summary_text(explained), va="top", fontsize=10, linespacing=1.6)
    strengths = dense_magnitude(explained.response)
    for axes, index in zip(grid[above:].flat, order, strict=False):
        axes.imshow(overlay_heat(strengths[index], float(strengths.max()), explained.target), aspect=shape)
        draw_marker(axes, explained.peak[index], PEAK, "o")
        axes.set_title(f"{explained.name(index)}, weight {explained.weights[index]:.2f}", fontsize=8)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=110, bbox_inches="tight", pad_inches=0.08)
