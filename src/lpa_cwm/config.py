"""Settings of the tracker, of a data set and of presets; standard library only, so that `--help` stays instant.

Of the presets, `paper` has what the text of the paper states and nothing else. `default` is this package's own method.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar

from lpa_cwm.errors import InputError

Item = TypeVar("Item")
ADJUDICATORS = ("uniform", "apa", "lpa")
WORLD, ADJUDICATOR = "learned", "lpa"
"""Defaults of all commands."""


@dataclass(frozen=True)
class Calibration:
    """A logistic regression of `estimates.EVIDENCE`, and the rule of visibility; see `lpa_cwm.estimates`."""

    weights: tuple[float, ...]
    """Weights of the evidence, then the bias: whether the point is visible and found."""
    threshold: float = 0.5
    """A point counts as visible if its confidence is at least this."""


@dataclass(frozen=True)
class TrackerConfig:
    """How responses become a point. The defaults are the paper's unless stated otherwise.

    Every world model has `defaults` of its own, which `load` uses unless a setting is given.

    Examples:
        >>> TrackerConfig(masks=4, passes=0).masks
        4
    """

    masks: int = 10
    """Masks, and so candidates, per query and target (M)."""
    hidden_share: float = 0.9
    """Share of the target's patches that a mask of a whole frame hides."""
    gaps: tuple[int, ...] = ()
    """Distances in frames from a target to further source frames; the paper has the query frame only."""
    gap_masks: int = 3
    """Masks per further source frame."""
    passes: int = 1
    """Re-evaluations after the first localization (R)."""
    windows: int = 2
    """Number of Gaussian windows on the response distribution before its maximum is taken."""
    reduce: Literal["mean", "sum"] = "mean"
    """Channel reduction of the localization map: the paper's mean, or the official code's sum."""
    sharpness: float = 200.0
    """Inverse temperature of the response distribution (beta)."""
    visibility_threshold: float = 0.05
    """Minimum response strength of a visible point, if there is no calibration."""
    calibration: Calibration | None = None
    """Calibrated confidence, which then also decides visibility; the paper has none."""
    strength: Literal["judged", "mean"] = "judged"
    """Response strength of the first pass: by the adjudicator's weights and visibility factor, or the paper's mean."""
    zoom: float = 0.75
    """Ratio of successive crop sides from the second re-evaluation on (eta)."""
    mask_sharing: Literal["pair", "query"] = "pair"
    """Masks of the first pass: shared by all queries of a frame pair, or drawn for each query."""
    reevaluation: Literal["query", "joint", "native"] = "joint"
    """Re-evaluation with masks edited for each query, for 32 queries at once, or in crops at native resolution."""
    reveal: Literal["random", "raster"] = "random"
    """Which hidden patches a re-evaluation mask reveals in exchange: random ones, or the first ones (official code)."""
    subpixel: bool = True
    """Refine the endpoint by parabolas through the peak; in the paper it is a pixel center."""
    batch: int = 16
    """Queries whose responses are in memory at once."""

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        whole = {"masks": 1, "gap_masks": 1, "passes": 0, "windows": 0, "batch": 1}
        for name, least in whole.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InputError(f"{name} is {value!r}; expected a whole number from {least} on.")
        if not 0 < self.hidden_share < 1:
            raise InputError(f"hidden_share is {self.hidden_share!r}; expected a share between 0 and 1.")
        if not self.sharpness > 0:
            raise InputError(f"sharpness is {self.sharpness!r}; expected a number above 0.")
        if not all(isinstance(gap, int) and gap > 0 for gap in self.gaps):
            raise InputError(f"gaps is {self.gaps!r}; expected whole numbers from 1 on, as in (1, 4).")

    @property
    def first_masks_only(self) -> bool:
        """Whether all queries in whole frames use the shared first masks, and no others."""
        return self.mask_sharing == "pair" and (self.passes == 0 or self.reevaluation == "native")

    def changed(self, settings: Mapping[str, Any]) -> "TrackerConfig":
        """The configuration with other settings.

        A threshold of response strength replaces the calibrated rule of visibility. So does a re-evaluation that is not
        in native crops, because the calibration reads responses there.

        Args:
            settings: Values by the names of fields.
        """
        known = [entry.name for entry in fields(self)]
        for name in settings.keys() - set(known):
            near = get_close_matches(name, known, 1)
            meant = f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}."
            raise InputError(f"There is no setting {name}; {meant}")
        after = replace(self, **settings)
        native = after.passes > 0 and after.reevaluation == "native"
        replaced = "visibility_threshold" in settings or (settings.keys() & {"passes", "reevaluation"} and not native)
        return replace(after, calibration=None) if replaced and "calibration" not in settings else after


@dataclass(frozen=True)
class Selection:
    """The videos, tracks, frames and queries of a data set that are used; the default is everything."""

    videos: tuple[str, ...] = ()
    """Names or patterns such as badja/*, or one number: that many videos, evenly spaced."""
    max_tracks: int | None = None
    """Maximum number of tracks per video, evenly spaced among the tracks that are ever visible."""
    frames: int | None = None
    """Maximum number of frames per video, from the first one on."""
    queries: Literal["first", "strided"] = "first"
    """Query each track where it is first visible, or at every fifth frame where it is visible."""

    def __post_init__(self) -> None:
        for name, least in (("max_tracks", 1), ("frames", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"--{name.replace('_', '-')} is {value}; expected {least} or more.")

    def of_names(self, names: Sequence[str]) -> list[str]:
        """The chosen videos, in the data set's own order."""
        if not self.videos:
            return list(names)
        if len(self.videos) == 1 and self.videos[0].isdigit() and self.videos[0] not in names:
            return _count_of(names, int(self.videos[0]))
        chosen = set()
        for pattern in self.videos:
            matching = {pattern} & set(names) or {name for name in names if fnmatchcase(name, pattern)}
            if not matching:
                few = ", ".join(names[:3])
                raise InputError(f"No video is called {pattern!r}; the {len(names)} of this set are {few} and so on.")
            chosen |= matching
        return [name for name in names if name in chosen]


def _count_of(names: Sequence[str], number: int) -> list[str]:
    if not 1 <= number <= len(names):
        raise InputError(f"--videos asks for {number} videos; expected 1 to {len(names)}, which is all of them.")
    return evenly_spaced(names, number)


def evenly_spaced(items: Sequence[Item], number: int) -> list[Item]:
    """`number` items at even distances, or all items if there are fewer."""
    number = min(number, len(items))
    return [items[index * len(items) // number] for index in range(number)]


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
        "hidden_share": 0.9,
        "passes": 1,
        "windows": 2,
        "reduce": "mean",
        "sharpness": 200.0,
        "visibility_threshold": 0.05,
        "calibration": None,
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
        # The other settings are not in the paper.
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
