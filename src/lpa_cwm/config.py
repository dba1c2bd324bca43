"""Settings of the tracker, each with its meaning; standard library only, so that `--help` stays instant."""

from dataclasses import dataclass
from typing import Literal

ADJUDICATORS = ("uniform", "apa", "lpa")
WORLD, ADJUDICATOR = "compact", "lpa"
"""What every command uses unless told otherwise."""


@dataclass(frozen=True)
class TrackerConfig:
    """How responses become a point. The defaults are the paper's where nothing else is said.

    Every world model has `defaults` of its own, which `load` uses unless a setting is given.
    """

    masks: int = 10
    """Masks, and so candidate responses, per query and target (M)."""
    passes: int = 1
    """Re-evaluations after the first localization (R)."""
    windows: int = 2
    """Gaussian windows applied to the response distribution before its maximum is taken; 0 takes it at once."""
    reduce: Literal["mean", "sum"] = "mean"
    """Channel reduction of the localization map: the paper's mean, or the official code's sum."""
    sharpness: float = 200.0
    """Inverse temperature of the response distribution (beta)."""
    visibility_threshold: float = 0.05
    """Response strength from which a point counts as visible."""
    zoom: float = 0.75
    """Ratio of successive crop sides from the second re-evaluation on (eta)."""
    mask_sharing: Literal["pair", "query"] = "pair"
    """First masks shared by all queries of a frame pair, or drawn for each query."""
    reevaluation: Literal["query", "joint"] = "joint"
    """Masks of the re-evaluation: edited for each query, or for 32 queries at once."""
    reveal: Literal["random", "raster"] = "random"
    """Which hidden patches replace those that a re-evaluation mask hides: random ones, or the official first ones."""
    subpixel: bool = True
    """Refine the endpoint between pixels by parabolas through the peak; the paper answers with a pixel center."""
    batch: int = 16
    """Queries whose responses are in memory at once."""
