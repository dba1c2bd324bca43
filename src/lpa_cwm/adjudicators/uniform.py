"""Uniform, the reference adjudicator: every candidate has weight 1/M."""

import torch

from lpa_cwm.types import Candidates, Judgement, Pair


def uniform(pair: Pair, candidates: Candidates) -> Judgement:
    """The same weight for each of the M candidates."""
    return Judgement.of(torch.full_like(candidates.peak[..., 0], 1 / candidates.peak.shape[1]))
