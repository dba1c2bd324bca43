"""One query and one target with everything in between: what each mask answered and why one answer was believed."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lpa_cwm.decode import aggregate, distribution, localise, reduce, updates
from lpa_cwm.geometry import View
from lpa_cwm.probe import Probe, shares
from lpa_cwm.tracker import Answer, CwmTracker, ShotPair, checked
from lpa_cwm.types import Candidates, Clip, Pair, Queries


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
    sight: float
    """How far the adjudicator believes that the point is seen: a factor of the answer's strength, of a first look."""
    strength: Float[Tensor, "h w"]
    """Localisation map of the weighted response."""
    distributions: Float[Tensor, "k h w"]
    """Before and after each window."""
    first: Float[Tensor, "2"]
    """Endpoint of the first look."""
    answer: Answer
    """Final answer, in pixels of the clip."""
    end: Float[Tensor, "2"]
    """Final endpoint."""
    visible_from: float
    """Strength from which the point counts as visible."""

    @property
    def visible(self) -> bool:
        """Whether the final response is strong enough."""
        return bool(self.answer.strength[0] >= self.visible_from)


@torch.inference_mode()
def explain(tracker: CwmTracker, clip: Clip, query: Queries, target: int) -> Explanation:
    """Follow one query to one target and keep every step."""
    query = checked(clip, query)
    start = int(query.frame[0])
    pair = ShotPair(tracker.shoot(clip[start]), tracker.shoot(clip[target]), ("clip", clip.name, start, target))
    view = View.full(pair.hw, tracker.world.size)
    xy = query.xy[:1].to(tracker.device)
    scene = tracker.world.observe(pair.source.whole, pair.target.whole)
    plan = tracker.first_plan(pair, xy)
    _, candidates = next(Probe(tracker.world, scene, plan, view.enter(xy), 1).candidates())
    belief = tracker.adjudicator(Pair(pair.source.whole, pair.target.whole, view.enter(xy)), candidates)
    weights = shares(belief)
    response = aggregate(candidates.response, weights)
    steps = updates(distribution(response, tracker.method), tracker.method.windows)
    answer = tracker.follow(pair, xy)
    return Explanation(
        source=pair.source.whole,
        target=pair.target.whole,
        xy=view.enter(xy)[0],
        hidden=plan.hidden,
        prediction=predictions(tracker, scene, plan.hidden),
        **first_look(candidates),
        weights=weights[0],
        sight=1.0 if tracker.passes else belief.sum().item(),
        strength=reduce(response, tracker.method.reduce)[0],
        distributions=torch.cat([step.probability() for step in steps]),
        first=localise(response, tracker.method)[0],
        answer=answer,
        end=view.enter(answer.xy)[0],
        visible_from=tracker.method.visible_from,
    )


def first_look(candidates: Candidates) -> dict[str, Tensor]:
    """The only query's candidates."""
    return {"response": candidates.response[0], "peak": candidates.peak[0]}


def predictions(tracker: CwmTracker, scene: object, hidden: Bool[Tensor, "m p"]) -> Float[Tensor, "m 3 h w"] | None:
    """What the world model believes the target looks like, if it can show it."""
    predict = getattr(tracker.world, "predict", None)
    if predict is None:
        return None
    return predict(scene, tracker.world.imagine(scene, hidden.to(tracker.device)))
