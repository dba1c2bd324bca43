"""LPA's training objective: soft reliability targets, the paper's three terms (Eq. 6-7), and two further ones."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor

from lpa_cwm.adjudicators.lpa import to_judgement
from lpa_cwm.config import TrackerConfig
from lpa_cwm.metrics.comparison import THRESHOLDS
from lpa_cwm.types import Judgement

TEMPERATURE = 4.0
"""Temperature of the soft targets in pixels of endpoint error (tau)."""
VISIBILITY_THRESHOLD = TrackerConfig().visibility_threshold
VISIBLE_WEIGHT = 2.0
"""BCE weight of visible points. 25 % of cached and 8 % of real points are occluded: matching accuracy on video asks for
4, balanced accuracy for 1/3; 2 is between."""
LOGIT_SCALE = 0.01
"""Response strength above the visibility threshold that is one unit of the visibility logit."""
PEAK_TEMPERATURE = 0.004
"""Temperature of the softmax over the heights of candidate endpoints in the aggregated response."""
STEP_SHARPNESS = 6
"""Power of error / threshold in the soft step 1 / (1 + (error / threshold)^6)."""


@dataclass(frozen=True, slots=True)
class Objective:
    """Weights of the terms that are added to the KL divergence; zero leaves a term out, as the ablations do."""

    coordinate: float = 2.0
    """Smooth L1 distance of the weighted endpoint."""
    rank: float = 0.2
    """Cross-entropy of the best candidate."""
    visibility: float = 4.0
    """Visibility BCE (not in the paper, which adjudicates location only)."""
    decoded: float = 20.0
    """Decoded-endpoint term (not in the paper): the soft targets (tau = 4 px) barely separate 1 px from 3 px."""

    def __call__(
        self,
        logits: Float[Tensor, "n m"],
        peak: Float[Tensor, "n m 2"],
        end: Float[Tensor, "n 2"],
        strength: Float[Tensor, "n m"],
        log_visibility: Float[Tensor, "n"],
        response_sigma: Float[Tensor, "n"],
    ) -> Float[Tensor, ""]:
        """Sum of all terms; occluded points (`end` is NaN) take part in the visibility term only."""
        visible = end.isfinite().all(1)
        loss = logits.sum() * 0.0
        if visible.any():
            logits_v, peak_v, end_v = logits[visible], peak[visible], end[visible]
            loss = loss + self.localization(logits_v, peak_v, end_v)
            if self.decoded:
                weights, sigma = logits_v.softmax(1), response_sigma[visible]
                accuracy = decoded_accuracy(weights, peak_v, end_v, strength[visible], sigma)
                loss = loss + self.decoded * (1 - accuracy.mean())
        if self.visibility:
            judgement = to_judgement(logits, log_visibility)
            loss = loss + self.visibility * visibility_loss(judgement, strength, visible)
        return loss

    def localization(
        self, logits: Float[Tensor, "n m"], peak: Float[Tensor, "n m 2"], end: Float[Tensor, "n 2"]
    ) -> Float[Tensor, ""]:
        """The paper's terms: KL(targets || weights) + SmoothL1(weighted endpoint, truth) + CE(logits, best)."""
        errors = (peak - end[:, None]).norm(dim=-1)
        loss = F.kl_div(logits.log_softmax(1), soft_targets(errors), reduction="batchmean")
        if self.coordinate:
            loss = loss + self.coordinate * F.smooth_l1_loss(weighted_endpoint(logits.softmax(1), peak), end)
        if self.rank:
            loss = loss + self.rank * F.cross_entropy(logits, errors.argmin(1))
        return loss


def decoded_accuracy(
    weights: Float[Tensor, "n m"],
    peak: Float[Tensor, "n m 2"],
    end: Float[Tensor, "n 2"],
    strength: Float[Tensor, "n m"],
    response_sigma: Float[Tensor, "n"],
) -> Float[Tensor, "n"]:
    """Differentiable average accuracy within the evaluation's thresholds of the endpoint that would be decoded.

    Decoding takes the maximum of the weighted sum of responses. Each response is modeled as a Gaussian around its
    endpoint, the maximum as a softmax over the endpoints, and each threshold as a soft step.
    """
    # Height of the weighted sum of Gaussians at each endpoint.
    overlap = (-torch.cdist(peak, peak).square() / (2 * response_sigma.square())[:, None, None]).exp()
    height = einsum(overlap, weights * strength, "n i j, n j -> n i")
    errors = (peak - end[:, None]).norm(dim=-1, keepdim=True)
    accuracy = (1 / (1 + (errors / errors.new_tensor(THRESHOLDS)) ** STEP_SHARPNESS)).mean(-1)
    return ((height / PEAK_TEMPERATURE).softmax(1) * accuracy).sum(1)


def visibility_loss(
    judgement: Judgement, strength: Float[Tensor, "n m"], visible: Bool[Tensor, "n"]
) -> Float[Tensor, ""]:
    """BCE of the tracker's visibility rule: judged strength against the threshold, as a logit."""
    judged = judgement.visibility * (judgement.weights * strength).sum(1)
    logit = (judged - VISIBILITY_THRESHOLD) / LOGIT_SCALE
    return F.binary_cross_entropy_with_logits(logit, visible.to(logit), pos_weight=logit.new_tensor(VISIBLE_WEIGHT))


def soft_targets(errors: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    """Reliability of candidates from their endpoint errors in pixels (Eq. 6)."""
    return (-errors / TEMPERATURE).softmax(1)


def weighted_endpoint(weights: Float[Tensor, "n m"], peak: Float[Tensor, "n m 2"]) -> Float[Tensor, "n 2"]:
    """Weighted mean of the candidates' endpoints: for training and model selection, never a tracker's output."""
    return einsum(weights, peak, "n m, n m d -> n d")


def endpoint_error(
    weights: Float[Tensor, "n m"], peak: Float[Tensor, "n m 2"], end: Float[Tensor, "n 2"]
) -> Float[Tensor, "n"]:
    """Endpoint error of the weighted endpoint, in pixels."""
    return torch.linalg.vector_norm(weighted_endpoint(weights, peak) - end, dim=1)
