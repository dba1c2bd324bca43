"""Which candidates an adjudicator believes: error in candidate space, weight by true rank, hit rate, support."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from lpa_cwm.metrics.summary import Estimate, estimates
from lpa_cwm.training.feature_cache import CandidateSets
from lpa_cwm.training.objective import VISIBLE_FROM, endpoint_error
from lpa_cwm.types import Judgement

BEST = "best of M"
RIGHT = 4.0
"""Pixels within which a candidate is right; so it is for a track in CTS4."""


@dataclass(frozen=True)
class Belief:
    """One adjudicator's weights on all groups, summarized with equal weight for each video."""

    error: Estimate
    """Weighted-coordinate end-point error in pixels."""
    hit: Estimate
    """How often the heaviest candidate is the best one; equal weights hit by chance."""
    support: Estimate
    """Effective number of candidates."""
    right: Estimate
    """Weight of the candidates that are right."""
    seen: Estimate
    """How often the strength that is believed says that the point, which is visible, is seen."""
    by_rank: list[Estimate]
    """Mean weight of the candidate of each true rank, best first."""


def ranks(errors: Float[Tensor, "g m"]) -> Int[Tensor, "g m"]:
    """Candidates in the order of their true errors, best first."""
    return errors.argsort(dim=1, stable=True)


def hits(weights: Float[Tensor, "g m"], errors: Float[Tensor, "g m"]) -> Float[Tensor, "g"]:
    """Probability that a heaviest candidate, drawn among equals, has the least error."""
    heaviest = weights == weights.amax(1, keepdim=True)
    least = errors == errors.amin(1, keepdim=True)
    return (heaviest & least).sum(1) / heaviest.sum(1)


def by_video(values: Float[Tensor, "g k"], videos: list[str]) -> Float[np.ndarray, "v k"]:
    """Mean over the groups of each video."""
    names = sorted(set(videos))
    index = torch.tensor([names.index(video) for video in videos])
    member = torch.nn.functional.one_hot(index).to(values)
    return (einsum(member, values, "g v, g k -> v k") / member.sum(0)[:, None]).double().numpy()


def audit(groups: CandidateSets, videos: list[str], judgements: Mapping[str, Judgement]) -> dict[str, Belief]:
    """Beliefs of several adjudicators and of the oracle that knows the best candidate."""
    errors = groups.errors
    oracle = torch.nn.functional.one_hot(errors.argmin(1), errors.shape[1]).to(errors)
    return {
        name: believe(groups, videos, errors, judgement)
        for name, judgement in {**judgements, BEST: Judgement.of(oracle)}.items()
    }


def believe(groups: CandidateSets, videos: list[str], errors: Tensor, judgement: Judgement) -> Belief:
    """One adjudicator."""
    weights = judgement.weights
    strength = judgement.visibility * (weights * groups.strength).sum(1)
    columns = torch.cat(
        (
            endpoint_error(weights, groups.peak, groups.end)[:, None],
            hits(weights, errors)[:, None],
            judgement.support[:, None],
            (weights * (errors < RIGHT)).sum(1, keepdim=True),
            (strength[:, None] >= VISIBLE_FROM).to(weights),
            weights.gather(1, ranks(errors)),
        ),
        dim=1,
    )
    error, hit, support, right, seen, *by_rank = estimates(by_video(columns, videos))
    return Belief(error, hit, support, right, seen, by_rank)


def counts_of_right(groups: CandidateSets) -> list[int]:
    """How many groups have no right candidate, one, two, and so on: with none or all of them there is no choice."""
    right = groups.errors < RIGHT
    return torch.bincount(right.sum(1), minlength=right.shape[1] + 1).tolist()


def gap_closed(beliefs: Mapping[str, Belief], name: str, reference: str = "uniform") -> float:
    """Share of the way from the reference's error to the oracle's."""
    start, end = beliefs[reference].error.value, beliefs[BEST].error.value
    return (start - beliefs[name].error.value) / (start - end)
