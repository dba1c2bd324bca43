"""The predictor that knows nothing: every point stays where it was."""

from dataclasses import dataclass

import torch

from lpa_cwm.baselines.start import begun
from lpa_cwm.types import Clip, Queries, Tracks


@dataclass(frozen=True, slots=True)
class StaticPoint:
    """A point that never moves and is always visible; what any tracker has to beat."""

    def track(self, clip: Clip, queries: Queries) -> Tracks:
        """Repeat the query from its frame to the last."""
        tracks = begun(clip, queries)
        begins = queries.frame[:, None] <= torch.arange(len(clip), device=queries.frame.device)
        return Tracks(queries.xy[:, None].where(begins[..., None], tracks.xy), begins)
