"""Candidates from dense responses, with endpoints that need not be their peaks."""

from dataclasses import replace

from lpa_cwm.responses import Responses
from lpa_cwm.types import Candidates


def dense_candidates(response, peak, patch=8):
    """Candidates of responses [n m 3 h w] whose endpoints are given."""
    return replace(Candidates.of(Responses.from_dense(response, patch)), peak=peak)
