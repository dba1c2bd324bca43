"""The cost of a tracking job, estimated before it starts."""

from dataclasses import dataclass
from math import ceil

from lpa_cwm.config import TrackerConfig
from lpa_cwm.masks import joint_group_size
from lpa_cwm.types import Clip, Queries

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
    """Predictions shared by queries."""
    counterfactual: int
    """Predictions with a perturbed source."""


def cost(clip: Clip, queries: Queries, config: TrackerConfig) -> Cost:
    """Count the work of `CwmTracker.track` without doing it."""
    frames = queries.frame.tolist()
    groups = [(frames.count(start), len(clip) - 1 - start) for start in sorted(set(frames))]
    targets = sum(count * later for count, later in groups)
    factual = sum(later * factual_masks(count, config) for count, later in groups)
    return Cost(
        pairs=sum(later for _, later in groups),
        targets=targets,
        factual=factual,
        counterfactual=targets * config.masks * (1 + config.passes),
    )


def factual_masks(queries: int, config: TrackerConfig) -> int:
    """Masks imagined for one frame pair in the first pass and all re-evaluations."""
    first = config.masks * (queries if config.mask_sharing == "query" else 1)
    if config.passes == 0:
        return first
    joint = ceil(queries / joint_group_size(PATCHES)) * config.masks
    again = joint if config.reevaluation == "joint" else queries * config.masks
    return first + again + (config.passes - 1) * queries * config.masks
