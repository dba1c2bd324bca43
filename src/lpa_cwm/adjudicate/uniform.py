"""Equal belief in every candidate."""

import torch
from jaxtyping import Float
from torch import Tensor

from lpa_cwm.types import Candidates, Pair


def uniform(pair: Pair, candidates: Candidates) -> Float[Tensor, "n m"]:
    """The same weight for each of the M candidates."""
    peak = candidates.peak
    return torch.full_like(peak[..., 0], 1 / peak.shape[1])
