"""Calibrated confidence: how probable it is that a point is visible, and that it was found.

Two logistic regressions (Platt scaling: Platt, 1999) read what the tracker knows about an estimate. The first gives the
probability that the point can be seen in the frame; the second, the *confidence*, that it can be seen and lies within
eight pixels of the estimate at a frame size of 256 x 256. What is reported as visible depends on both, as in TAPIR
(Doersch et al., 2023): a point that is probably lost is not called visible. `lpa-cwm train confidence` fits them.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lpa_cwm.config import Calibration
from lpa_cwm.pair_tracking import PairResult

EVIDENCE = ("strength", "mean_strength", "native_strength", "native_spread", "support")
"""Fields of `PairResult` that the regressions read, each by its logarithm."""
FOUND_WITHIN = 8.0
"""Pixels at a frame size of 256 x 256."""
LEAST = 1e-3


def evidence(result: PairResult) -> Float[Tensor, "n e"]:
    """Logarithms of `EVIDENCE`; what is unknown counts as the least."""
    values = torch.stack([getattr(result, name) for name in EVIDENCE], dim=1)
    return values.nan_to_num(LEAST).clamp(min=LEAST).log()


def probabilities(
    calibration: Calibration, evidence: Float[Tensor, "n e"]
) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
    """That each point is visible, and that it is visible and was found."""
    weights = evidence.new_tensor([calibration.visible, calibration.found])
    visible, found = (evidence @ weights[:, :-1].T + weights[:, -1]).sigmoid().unbind(1)
    return visible, found


def called_visible(
    calibration: Calibration, visible: Float[Tensor, "n"], found: Float[Tensor, "n"]
) -> Bool[Tensor, "n"]:
    """Whether each point is reported as visible: if the mean of both probabilities reaches the threshold."""
    return (visible + found) / 2 >= calibration.threshold
