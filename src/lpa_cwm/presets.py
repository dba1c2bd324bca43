"""The settings of the paper, and ours, by name: one place for the tracker, the feature cache and the training of LPA.

`paper` has what the text of the paper states and nothing else. `default` is this package's own method. Standard
library only, so that `--help` stays instant.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

PresetName = Literal["default", "paper"]


@dataclass(frozen=True)
class Preset:
    """Settings by part; what a part does not name keeps its default."""

    tracker: dict[str, Any] = field(default_factory=dict)
    """Fields of `TrackerConfig`; the world model's own defaults where there are none."""
    cache: dict[str, Any] = field(default_factory=dict)
    """Candidates of `lpa-cwm data cache`."""
    training: dict[str, Any] = field(default_factory=dict)
    """Fields of `LpaTraining`."""
    objective: dict[str, float] = field(default_factory=dict)
    """Weights of the terms of the loss."""


DEFAULT = Preset(cache={"masks": 10, "gaps": (1, 12), "hidden": 0})
PAPER = Preset(
    tracker={
        # Trajectories are direct predictions from the query's frame, without recursion (Section 3.4, Appendix A).
        "gaps": (),
        "masks": 10,
        "passes": 1,
        "windows": 2,
        "reduce": "mean",
        "sharpness": 200.0,
        "visibility_threshold": 0.05,
        "strength": "mean",
        "zoom": 0.75,
        "mask_sharing": "query",
        "reevaluation": "query",
        # The text names a heuristic masking; this is that of the official code of the world model.
        "reveal": "raster",
        "subpixel": False,
    },
    cache={"masks": 10, "gaps": (1, 1), "hidden": 0},
    training={
        "batch": 16,
        "rate": 3e-4,
        "interaction": True,
        "visual": True,
        # The rest of the recipe is ours alone.
        "clip": math.inf,
        "visibility_head": False,
        "path": False,
        "source_dropout": 0.0,
        "oversample": 1,
        "augment": False,
        "average": False,
        "max_oracle_error": math.inf,
    },
    objective={"coordinate": 2.0, "rank": 0.2, "visibility": 0.0, "decoded": 0.0},
)
PRESETS: dict[PresetName, Preset] = {"default": DEFAULT, "paper": PAPER}
