"""What LPA is trained for: soft reliability targets and the three-term loss (Eq. 6-7); the answer, and visibility."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor

from lpa_cwm.adjudicators.lpa import to_judgement
from lpa_cwm.config import TrackerConfig
from lpa_cwm.metrics.registry import THRESHOLDS
from lpa_cwm.types import Judgement
from lpa_cwm.worlds.layered.render import GaussianBump

TEMPERATURE = 4.0
"""Pixels of endpoint error that divide a candidate's share by e."""
VISIBLE_FROM = TrackerConfig().visibility_threshold
SEEN = 2.0
"""Weight of a seen point against a hidden one. Of the cached points a quarter is hidden, in videos one in 13: so
accuracy over all points would ask for 4, and the mean of both kinds' accuracies (VisBA) for 1 in 3."""
SOFTNESS = 0.01
"""Strength beyond the visibility rule's threshold that multiplies the odds of being seen by e."""
WIDTH = GaussianBump().sigma
"""Standard deviation of a response in pixels: candidates nearer than this support each other."""
RIVALRY = 0.004
"""Difference of two heights that makes the higher one e times as likely to be the answer."""
STEEPNESS = 6
"""Power of the error that makes a threshold of the accuracy a soft step."""


@dataclass(frozen=True, slots=True)
class Objective:
    """Weights of the terms added to the divergence; zero leaves a term out, as the ablations do."""

    coordinate: float = 2.0
    best: float = 0.2
    visibility: float = 4.0
    """Not in the paper, where an adjudicator has no part in visibility; with a first look alone it has."""
    answer: float = 20.0
    """Nor is this: targets hardly tell one pixel from three, and the mean of endpoints is never the answer."""

    def __call__(
        self,
        scores: Float[Tensor, "n m"],
        peak: Float[Tensor, "n m 2"],
        end: Float[Tensor, "n 2"],
        strength: Float[Tensor, "n m"],
        sight: Float[Tensor, "n"],
    ) -> Float[Tensor, ""]:
        """The paper's three terms, how often the answer is wrong, and the cross-entropy of being seen or hidden.

        A point that is hidden has no end (NaN): about it there is nothing to be learned but that it is hidden.
        """
        seen = end.isfinite().all(1)
        loss = scores.sum() * 0.0
        if seen.any():
            loss = loss + self.localization(scores[seen], peak[seen], end[seen])
            if self.answer:
                right = answer_accuracy(scores[seen].softmax(1), peak[seen], end[seen], strength[seen])
                loss = loss + self.answer * (1 - right.mean())
        if self.visibility:
            loss = loss + self.visibility * visibility_loss(to_judgement(scores, sight), strength, seen)
        return loss

    def localization(
        self, scores: Float[Tensor, "n m"], peak: Float[Tensor, "n m 2"], end: Float[Tensor, "n 2"]
    ) -> Float[Tensor, ""]:
        """KL(targets || weights) + SmoothL1(weighted endpoint, truth) + CE(scores, best)."""
        errors = (peak - end[:, None]).norm(dim=-1)
        loss = F.kl_div(scores.log_softmax(1), soft_targets(errors), reduction="batchmean")
        if self.coordinate:
            loss = loss + self.coordinate * F.smooth_l1_loss(weighted_endpoint(scores.softmax(1), peak), end)
        if self.best:
            loss = loss + self.best * F.cross_entropy(scores, errors.argmin(1))
        return loss


def answer_accuracy(
    weights: Float[Tensor, "n m"],
    peak: Float[Tensor, "n m 2"],
    end: Float[Tensor, "n 2"],
    strength: Float[Tensor, "n m"],
) -> Float[Tensor, "n"]:
    """Expected share of the evaluation's distances within which the answer is, with soft steps.

    The answer is where the weighted responses together are highest; here one of their endpoints, by softmax.
    """
    near = (-torch.cdist(peak, peak).square() / (2 * WIDTH**2)).exp()
    height = einsum(near, weights * strength, "n i j, n j -> n i")
    errors = (peak - end[:, None]).norm(dim=-1, keepdim=True)
    accuracy = (1 / (1 + (errors / errors.new_tensor(THRESHOLDS)) ** STEEPNESS)).mean(-1)
    return ((height / RIVALRY).softmax(1) * accuracy).sum(1)


def visibility_loss(judgement: Judgement, strength: Float[Tensor, "n m"], seen: Bool[Tensor, "n"]) -> Float[Tensor, ""]:
    """The rule that a point is seen if the strength that is believed reaches the threshold, with a soft step."""
    odds = (judgement.visibility * (judgement.weights * strength).sum(1) - VISIBLE_FROM) / SOFTNESS
    return F.binary_cross_entropy_with_logits(odds, seen.to(odds), pos_weight=odds.new_tensor(SEEN))


def soft_targets(errors: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    """Relative reliability of candidates from their endpoint errors in pixels."""
    return (-errors / TEMPERATURE).softmax(1)


def weighted_endpoint(weights: Float[Tensor, "n m"], peak: Float[Tensor, "n m 2"]) -> Float[Tensor, "n 2"]:
    """Mean of the candidates' endpoints; a training signal and a selection criterion, never an answer."""
    return einsum(weights, peak, "n m, n m d -> n d")


def endpoint_error(
    weights: Float[Tensor, "n m"], peak: Float[Tensor, "n m 2"], end: Float[Tensor, "n 2"]
) -> Float[Tensor, "n"]:
    """Weighted-coordinate end-point error."""
    return torch.linalg.vector_norm(weighted_endpoint(weights, peak) - end, dim=1)
