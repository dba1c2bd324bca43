"""One query and one target with everything in between: what each mask answered and why one answer was believed."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lpa_cwm.decode import distribution, localize, windowed_sequence
from lpa_cwm.online import ONLY, OnlineTracker
from lpa_cwm.pair_tracking import PairResult
from lpa_cwm.probe import ObservedPair, first_pass, first_plan
from lpa_cwm.responses import CHANNELS
from lpa_cwm.tracker import CwmTracker, validate_queries
from lpa_cwm.types import Candidates, Clip, Pair, Queries


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything at working size; points in working pixels."""

    source: Float[Tensor, "3 h w"]
    target: Float[Tensor, "3 h w"]
    xy: Float[Tensor, "2"]
    frame: Int[Tensor, "m"]
    """Source frame of each candidate: the query's, and with gaps earlier frames of the track."""
    hidden: Bool[Tensor, "m p"]
    prediction: Float[Tensor, "m 3 h w"] | None
    """Factual predictions, of world models that can show them."""
    response: Float[Tensor, "m 3 h w"]
    peak: Float[Tensor, "m 2"]
    weights: Float[Tensor, "m"]
    visibility: float
    """Visibility factor of the first pass; 1 after a re-evaluation."""
    localization: Float[Tensor, "h w"]
    """Localization map of the weighted response."""
    distributions: Float[Tensor, "k h w"]
    """Before and after each window."""
    first: Float[Tensor, "2"]
    """Endpoint of the first pass."""
    result: PairResult
    """Final result, in pixels of the clip."""
    end: Float[Tensor, "2"]
    """Final endpoint."""
    visibility_threshold: float
    """Strength from which the point counts as visible."""

    def name(self, candidate: int) -> str:
        """Which mask a candidate is of, and from which frame it comes."""
        first = int((self.frame == self.frame[candidate]).nonzero()[0, 0])
        return f"mask {candidate - first + 1} from frame {int(self.frame[candidate])}"

    @property
    def visible(self) -> bool:
        """Whether the final response is strong enough."""
        return bool(self.result.strength[0] >= self.visibility_threshold)


@torch.inference_mode()
def explain(
    tracker: CwmTracker, clip: Clip, query: Queries, target: int, observed: ObservedPair | None = None
) -> Explanation:
    """Track one query to one target and keep every step; `observed` is what an earlier call made of the direct pair.

    With gaps, the point is tracked through all frames before the target, because its candidates start there.
    """
    query = validate_queries(clip, query)
    start = int(query.frame[0])
    if tracker.config.gaps:
        pair, candidates, result = through_time(tracker, clip, query, target)
    else:
        observed = observed or tracker.observe(clip, start, target)
        xy = query.xy[:1].to(tracker.device)
        _, pair, found = next(first_pass(observed, xy))
        candidates, result = found.by_path(target - start), tracker.track_pair(observed, xy)
    assert candidates.path is not None
    gap = candidates.path[0, :, 0].exp2().round().int()
    sources = [observed] if observed else source_pairs(tracker, clip, target, start, gap)
    hidden = torch.cat([first_plan(source, query.xy[:1]).hidden for source in sources])
    return explanation(tracker, pair, candidates, result, sources, hidden, target - gap)


def through_time(tracker: CwmTracker, clip: Clip, query: Queries, target: int) -> tuple[Pair, Candidates, PairResult]:
    """The candidate set of the target frame and its result, after tracking up to there."""
    met: list[tuple[Pair, Candidates]] = []
    online = OnlineTracker(
        tracker.world,
        {ONLY: tracker.adjudicator},
        tracker.config,
        tracker.device,
        clip.name,
        time=int(query.frame[0]),
        on_candidates=lambda _, pair, candidates: met.append((pair, candidates)),
    )
    online.add(query.xy[0], int(query.frame[0]))
    estimates = [online.step(clip[frame])[ONLY] for frame in range(online.time, target + 1)]
    values = (getattr(estimates[-1], name)[:1].to(tracker.device) for name in ("xy", "strength", "support", "spread"))
    return *met[-1], PairResult(*values)


def source_pairs(tracker: CwmTracker, clip: Clip, target: int, start: int, gap: Int[Tensor, "m"]) -> list[ObservedPair]:
    """The frame pairs that candidates come from, in their order."""
    pairs = []
    for frames in dict.fromkeys(gap.tolist()):
        pair = tracker.observe(clip, target - frames, target)
        pairs.append(pair if target - frames == start else pair.with_masks(tracker.config.gap_masks))
    return pairs


def explanation(
    tracker: CwmTracker,
    pair: Pair,
    candidates: Candidates,
    result: PairResult,
    sources: list[ObservedPair],
    hidden: Bool[Tensor, "m p"],
    frame: Int[Tensor, "m"],
) -> Explanation:
    """Every step from the candidates of one point to its result."""
    config, crop = tracker.config, sources[0].crop
    judgement = tracker.adjudicator(pair, candidates)
    response = candidates.response.aggregate(judgement.weights)
    steps = windowed_sequence(distribution(response, config), config.windows)
    predicted = [shown for source in sources if (shown := predictions(source)) is not None]
    replaced = config.passes and config.reevaluation != "native"
    return Explanation(
        source=pair.source,
        target=pair.target,
        xy=pair.xy[0],
        frame=frame,
        hidden=hidden,
        prediction=torch.cat(predicted) if predicted else None,
        response=candidates.response.dense()[0],
        peak=candidates.peak[0],
        weights=judgement.weights[0],
        visibility=1.0 if replaced else judgement.visibility.item(),
        localization=response.dense()[0, 0].abs().sum(0) / (CHANNELS if config.reduce == "mean" else 1),
        distributions=torch.cat([step.probability() for step in steps]),
        first=localize(response, config)[0],
        result=result,
        end=crop.to_crop(result.xy)[0],
        visibility_threshold=config.visibility_threshold,
    )


def predictions(observed: ObservedPair) -> Float[Tensor, "m 3 h w"] | None:
    """The predicted target under each mask, of world models that can show it."""
    predict = getattr(observed.world, "predict", None)
    return predict(observed.scene, observed.factual) if predict and observed.config.mask_sharing == "pair" else None
