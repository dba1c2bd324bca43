"""The numbers of the method, each with its meaning; standard library only, so that `--help` stays instant."""

from dataclasses import dataclass
from typing import Literal

WORLDS = ("toy", "compact", "compact-total", "opt-cwm", "opt-cwm-512")
METHODS = ("uniform", "apa", "lpa")
SCORES = ("compact", "adm")
WORLD, METHOD = "compact", "lpa"
"""What every command uses unless told otherwise."""
PASSES, COMPACT_PASSES = 1, 0
"""Re-evaluations unless told otherwise: the paper's one; none with the compact world model, whose first look is better
(`benchmarks/passes.py`)."""


@dataclass(frozen=True)
class Method:
    """How responses become a point; the defaults are the paper's where nothing else is said."""

    masks: int = 10
    """Masks, and so candidate responses, per query and target (M)."""
    passes: int | None = None
    """Re-evaluations after the first localisation (R); by default 1 as in the paper, with the compact world model 0."""
    localise: Literal["windowed", "standard"] = "windowed"
    """Suppress distant peaks before taking the maximum, or take it at once."""
    reduce: Literal["mean", "sum"] = "mean"
    """Channel reduction of the localisation map: the paper's mean, or the official code's sum."""
    sharpness: float = 200.0
    """Inverse temperature of the response distribution (beta)."""
    windows: int = 2
    """Updates of the windowed localisation."""
    visible_from: float = 0.05
    """Response strength from which a point counts as visible."""
    zoom: float = 0.75
    """Ratio of successive crop sides from the second re-evaluation on (eta)."""
    mask_sharing: Literal["pair", "query"] = "pair"
    """First masks shared by all queries of a frame pair, or drawn for each query."""
    reevaluation: Literal["query", "pool", "joint"] = "joint"
    """Masks of the re-evaluation: edited for each query; drawn from a pool per pair; edited for 32 queries at once."""
    reveal: Literal["random", "raster"] = "random"
    """Which hidden patches replace those that a re-evaluation mask hides: random ones, or the official first ones."""
    per_pass: int = 1
    """Distant queries perturbed in one prediction; more is cheaper and less accurate."""
    subpixel: bool = True
    """Answer between pixels, by parabolas through the peak; without it with a pixel's centre, as in the paper."""
    adaptive: float = 0.0
    """Draw first masks only until a query's weighted endpoint moves by less than so many pixels; 0 draws all (M)."""
    batch: int = 16
    """Queries whose responses are in memory at once."""

    def passes_or(self, usual: int) -> int:
        """R, or what is usual if it was not given."""
        return usual if self.passes is None else self.passes

    def passes_with(self, world: str) -> int:
        """R for a world model of this name."""
        return self.passes_or(COMPACT_PASSES if world.startswith("compact") else PASSES)
