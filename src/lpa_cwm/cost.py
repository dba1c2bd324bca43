"""The price of a tracking job, told before it is paid."""

from dataclasses import dataclass
from math import ceil, comb

from lpa_cwm.config import Method
from lpa_cwm.types import Clip, Queries
from lpa_cwm.world.masks import HIDDEN_SHARE, together

PATCHES = 1024
"""Of a frame of 256 pixels, as all shipped world models have it; others are told a little more or less."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What the world model is asked."""

    pairs: int
    """Frame pairs that are observed whole."""
    targets: int
    """(query, target) answers."""
    factual: int
    """Predictions shared by queries, about."""
    counterfactual: int
    """Predictions with a perturbed source, at the least."""


def cost(clip: Clip, queries: Queries, method: Method, passes: int) -> Cost:
    """Count the work of `CwmTracker.track` with so many re-evaluations without doing it."""
    frames = queries.frame.tolist()
    groups = [(frames.count(start), len(clip) - 1 - start) for start in sorted(set(frames))]
    targets = sum(count * later for count, later in groups)
    factual = sum(later * factual_masks(count, method, passes) for count, later in groups)
    return Cost(
        pairs=sum(later for _, later in groups),
        targets=targets,
        factual=round(factual),
        counterfactual=ceil(targets / method.per_pass) * method.masks * (1 + passes),
    )


def factual_masks(queries: int, method: Method, passes: int) -> float:
    """Masks imagined for one frame pair in the first look and all re-evaluations."""
    first = method.masks * (queries if method.mask_sharing == "query" else 1)
    if passes == 0:
        return float(first)
    joint = ceil(queries / together(PATCHES)) * method.masks
    again = {"query": queries * method.masks, "joint": joint, "pool": pool_size(queries, method.masks)}
    return float(first) + again[method.reevaluation] + (passes - 1) * queries * method.masks


def pool_size(queries: int, masks: int) -> float:
    """Expected number of masks that some query takes, for queries with independent interior neighbourhoods."""
    fits = HIDDEN_SHARE**9
    total, index, share = 0.0, 0, 1.0
    while share > 1e-4 or index < masks:
        needy = sum(comb(index, k) * fits**k * (1 - fits) ** (index - k) for k in range(min(masks, index + 1)))
        share = 1 - (1 - fits * needy) ** queries
        total += share
        index += 1
    return total
