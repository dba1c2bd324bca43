"""Mechanism audit: how adjudicators weigh cached candidates whose true endpoints are known."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from lpa_cwm.metrics.summary import Estimate, estimates
from lpa_cwm.training.feature_cache import CandidateSets
from lpa_cwm.training.objective import VISIBILITY_THRESHOLD, endpoint_error
from lpa_cwm.types import Judgement

ORACLE = "best of M"
"""Name of the adjudicator that knows the best candidate."""
CORRECT_PX = 4.0
"""Endpoint error in pixels below which a candidate is correct, the threshold of CTS4."""


@dataclass(frozen=True)
class AdjudicatorStats:
    """Statistics of one adjudicator, with equal weight for each video."""

    error: Estimate
    """Endpoint error of the weighted endpoint in pixels."""
    hit: Estimate
    """Rate at which the largest weight is on the best candidate; uniform weights hit by chance."""
    support: Estimate
    """Effective number of candidates."""
    correct: Estimate
    """Total weight of the correct candidates."""
    visible: Estimate
    """Rate at which the tracker's rule calls the point, which is visible, visible."""
    by_rank: list[Estimate]
    """Mean weight of the candidate of each true rank, best first."""


def true_ranks(errors: Float[Tensor, "g m"]) -> Int[Tensor, "g m"]:
    """Candidates in the order of their true errors, best first."""
    return errors.argsort(dim=1, stable=True)


def top1_hits(weights: Float[Tensor, "g m"], errors: Float[Tensor, "g m"]) -> Float[Tensor, "g"]:
    """Probability that a candidate of the largest weight, ties broken at random, has the smallest error."""
    largest = weights == weights.amax(1, keepdim=True)
    best = errors == errors.amin(1, keepdim=True)
    return (largest & best).sum(1) / largest.sum(1)


def mean_by_video(values: Float[Tensor, "g k"], videos: list[str]) -> Float[np.ndarray, "v k"]:
    """Mean over the candidate sets of each video."""
    names = sorted(set(videos))
    index = torch.tensor([names.index(video) for video in videos])
    member = torch.nn.functional.one_hot(index).to(values)
    return (einsum(member, values, "g v, g k -> v k") / member.sum(0)[:, None]).double().numpy()


def audit(sets: CandidateSets, videos: list[str], judgements: Mapping[str, Judgement]) -> dict[str, AdjudicatorStats]:
    """Statistics of several adjudicators, and of the oracle."""
    oracle = torch.nn.functional.one_hot(sets.errors.argmin(1), sets.peak.shape[1]).to(sets.peak)
    every = {**judgements, ORACLE: Judgement.of(oracle)}
    return {name: summarize_adjudicator(sets, videos, judgement) for name, judgement in every.items()}


def summarize_adjudicator(sets: CandidateSets, videos: list[str], judgement: Judgement) -> AdjudicatorStats:
    """Statistics of one adjudicator."""
    weights, errors = judgement.weights, sets.errors
    strength = judgement.visibility * (weights * sets.strength).sum(1)
    columns = torch.cat(
        (
            endpoint_error(weights, sets.peak, sets.end)[:, None],
            top1_hits(weights, errors)[:, None],
            judgement.support[:, None],
            (weights * (errors < CORRECT_PX)).sum(1, keepdim=True),
            (strength[:, None] >= VISIBILITY_THRESHOLD).to(weights),
            weights.gather(1, true_ranks(errors)),
        ),
        dim=1,
    )
    error, hit, support, correct, visible, *by_rank = estimates(mean_by_video(columns, videos))
    return AdjudicatorStats(error, hit, support, correct, visible, by_rank)


def n_correct_histogram(sets: CandidateSets) -> list[int]:
    """Number of sets with 0, 1, ..., M correct candidates; weights matter only between 0 and M."""
    correct = sets.errors < CORRECT_PX
    return torch.bincount(correct.sum(1), minlength=correct.shape[1] + 1).tolist()


def gap_closed(stats: Mapping[str, AdjudicatorStats], name: str, reference: str = "uniform") -> float:
    """Fraction of the error gap between the reference and the oracle that an adjudicator closes."""
    start, end = stats[reference].error.value, stats[ORACLE].error.value
    return (start - stats[name].error.value) / (start - end)
