"""How every tracker of this package begins: queries checked, tracks known in the queries' own frames only."""

import torch

from lpa_cwm.errors import InputError
from lpa_cwm.types import Clip, Queries, Tracks


def begun(clip: Clip, queries: Queries) -> Tracks:
    """Tracks to be filled in: the query itself, seen, in its own frame; NaN and hidden in all others."""
    check(clip, queries)
    rows = torch.arange(len(queries), device=queries.xy.device)
    xy = queries.xy.new_full((len(queries), len(clip), 2), torch.nan)
    xy[rows, queries.frame] = queries.xy
    visible = torch.zeros(xy.shape[:2], dtype=torch.bool, device=xy.device)
    visible[rows, queries.frame] = True
    return Tracks(xy, visible)


def check(clip: Clip, queries: Queries) -> None:
    """Refuse queries in frames that do not exist and points that are not finite."""
    misplaced = (queries.frame < 0) | (queries.frame >= len(clip)) | ~queries.xy.isfinite().all(-1)
    if misplaced.any():
        row = int(misplaced.nonzero()[0, 0])
        raise InputError(
            f"Query {row} is the point {queries.xy[row].tolist()} of frame {int(queries.frame[row])}; "
            f"{clip.name} has frames 0 to {len(clip) - 1}; give finite points in frames of the clip."
        )
