"""One query and one target with everything in between: what each mask answered and why one answer was believed."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lpa_cwm.decode import distribution, localize, windowed_sequence
from lpa_cwm.probe import ObservedPair, first_pass, first_plan
from lpa_cwm.responses import CHANNELS
from lpa_cwm.tracker import CwmTracker, PairResult, validate_queries
from lpa_cwm.types import Clip, Queries


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything at working size; points in working pixels."""

    source: Float[Tensor, "3 h w"]
    target: Float[Tensor, "3 h w"]
    xy: Float[Tensor, "2"]
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

    @property
    def visible(self) -> bool:
        """Whether the final response is strong enough."""
        return bool(self.result.strength[0] >= self.visibility_threshold)


@torch.inference_mode()
def explain(
    tracker: CwmTracker, clip: Clip, query: Queries, target: int, observed: ObservedPair | None = None
) -> Explanation:
    """Track one query to one target and keep every step; `observed` is what an earlier call made of the same pair."""
    query = validate_queries(clip, query)
    start = int(query.frame[0])
    observed = observed or tracker.observe(clip, start, target)
    config, crop = observed.config, observed.crop
    xy = query.xy[:1].to(tracker.device)
    _, pair, candidates = next(first_pass(observed, xy))
    judgement = tracker.adjudicator(pair, candidates)
    response = candidates.response.aggregate(judgement.weights)
    steps = windowed_sequence(distribution(response, config), config.windows)
    result = tracker.track_pair(observed, xy)
    return Explanation(
        source=pair.source,
        target=pair.target,
        xy=pair.xy[0],
        hidden=first_plan(observed, xy).hidden,
        prediction=predictions(observed),
        response=candidates.response.dense()[0],
        peak=candidates.peak[0],
        weights=judgement.weights[0],
        visibility=1.0 if config.passes else judgement.visibility.item(),
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
