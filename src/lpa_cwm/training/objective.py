"""What LPA is trained for: soft reliability targets and the three-term loss (Eq. 6-7)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import einsum
from jaxtyping import Float
from torch import Tensor

TEMPERATURE = 4.0
"""Pixels of endpoint error that divide a candidate's share by e."""


@dataclass(frozen=True, slots=True)
class Objective:
    """Weights of the terms added to the divergence; zero leaves a term out, as the ablations do."""

    coordinate: float = 2.0
    best: float = 0.2

    def __call__(
        self, scores: Float[Tensor, "n m"], peak: Float[Tensor, "n m 2"], end: Float[Tensor, "n 2"]
    ) -> Float[Tensor, ""]:
        """KL(targets || weights) + SmoothL1(weighted endpoint, truth) + CE(scores, best candidate).

        About a point that is hidden (its end is NaN) no candidate is to be believed: the divergence from equal weights.
        """
        errors = (peak - end[:, None]).norm(dim=-1)
        loss = F.kl_div(scores.log_softmax(1), soft_targets(errors), reduction="batchmean")
        seen = end.isfinite().all(1)
        if not seen.any():
            return loss
        scores, peak, end, errors = scores[seen], peak[seen], end[seen], errors[seen]
        if self.coordinate:
            loss = loss + self.coordinate * F.smooth_l1_loss(weighted_endpoint(scores.softmax(1), peak), end)
        if self.best:
            loss = loss + self.best * F.cross_entropy(scores, errors.argmin(1))
        return loss


def soft_targets(errors: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    """Relative reliability of candidates from their endpoint errors in pixels; equal where these are unknown."""
    return (-errors.nan_to_num(0.0) / TEMPERATURE).softmax(1)


def weighted_endpoint(weights: Float[Tensor, "n m"], peak: Float[Tensor, "n m 2"]) -> Float[Tensor, "n 2"]:
    """Mean of the candidates' endpoints; a training signal and a selection criterion, never an answer."""
    return einsum(weights, peak, "n m, n m d -> n d")


def endpoint_error(
    weights: Float[Tensor, "n m"], peak: Float[Tensor, "n m 2"], end: Float[Tensor, "n 2"]
) -> Float[Tensor, "n"]:
    """Weighted-coordinate end-point error."""
    return torch.linalg.vector_norm(weighted_endpoint(weights, peak) - end, dim=1)
