"""Names, units, directions and definitions of all measures; tables take arrows, units and bold from here."""

from dataclasses import dataclass
from typing import Literal

Dimension = Literal["completeness", "localization", "visibility", "continuity", "tap-vid", "cost"]

THRESHOLDS = (1, 2, 4, 8, 16)
"""Distances, in pixels of the 256 x 256 raster, within which a point counts as found."""
SUCCESS = (4, 8)
"""Mean errors, in the same pixels, up to which a complete track is a success."""


@dataclass(frozen=True)
class Metric:
    """One measure: a value times `scale` is read in `unit`."""

    name: str
    label: str
    dimension: Dimension
    definition: str
    unit: str = "%"
    scale: float = 100.0
    higher_is_better: bool | None = True
    """None for a property of the data, such as a ceiling."""

    @property
    def arrow(self) -> str:
        """The direction in which the measure improves."""
        return {True: "↑", False: "↓", None: ""}[self.higher_is_better]

    def show(self, value: float, digits: int = 2) -> str:
        """The value as tables print it; a dash where it is undefined."""
        return "–" if value != value else f"{value * self.scale:.{digits}f}"


def _localization() -> list[Metric]:
    """Dynamic correspondence accuracy at each threshold and its means."""
    share = "Share of dynamic tracks' visible frames that are predicted visible and within {} px of the truth."
    shown = "As DCA, but only over visible frames that were predicted visible: accuracy that ignores completeness."
    return [
        *(Metric(f"dca_{k}", f"DCA@{k}", "localization", share.format(k)) for k in THRESHOLDS),
        Metric("dca_avg", "DCA", "localization", "Mean of DCA at 1, 2, 4, 8 and 16 px; missing predictions fail."),
        Metric("shown_avg", "Acc. shown", "localization", shown),
    ]


def _completeness() -> list[Metric]:
    """How much of each track is there."""
    coverage = "Share of a dynamic track's visible frames that are predicted visible, mean over tracks."
    success = "Share of dynamic tracks with coverage of at least c and a mean error of at most {} px where shown."
    return [
        Metric("coverage", "Cov.", "completeness", coverage),
        Metric("complete", "C@c", "completeness", "Share of dynamic tracks whose coverage is at least c."),
        *(Metric(f"cts_{k}", f"CTS{k}", "completeness", success.format(k)) for k in SUCCESS),
    ]


def _visibility() -> list[Metric]:
    """How well visible and occluded are told apart."""
    balanced = "Mean of the recognized shares of visible and of occluded later frames of dynamic tracks."
    return [
        Metric("vis_ba", "VisBA", "visibility", balanced),
        Metric("of1", "OF1", "visibility", "F1 of predicted occlusion over all later frames of dynamic tracks."),
    ]


def _continuity() -> list[Metric]:
    """How unbroken tracks are."""
    longest = "Longest run predicted visible inside one visible segment, over the track's visible frames."
    ceiling = "The LCC that the truth reaches: below 100 where tracks are visible in several segments."
    gaps = "Gaps after which a track is shown again inside one visible segment, per 100 dynamic tracks."
    return [
        Metric("lcc", "LCC", "continuity", longest),
        Metric("lcc_ceiling", "LCC max", "continuity", ceiling, higher_is_better=None),
        Metric("fragmentation", "Frag.", "continuity", gaps, unit="per 100", higher_is_better=False),
    ]


def _tapvid() -> list[Metric]:
    """The measures of TAP-Vid at each threshold and their means."""
    jaccard = "Found and predicted visible within {} px, over all visible frames plus false claims of visibility."
    delta = "Share of visible frames whose prediction lies within {} px, whatever visibility was predicted."
    return [
        *(Metric(f"jaccard_{k}", f"J@{k}", "tap-vid", jaccard.format(k)) for k in THRESHOLDS),
        Metric("aj", "AJ", "tap-vid", "Mean of the five Jaccards: position and visibility together."),
        *(Metric(f"delta_{k}", f"δ@{k}", "tap-vid", delta.format(k)) for k in THRESHOLDS),
        Metric("delta_avg", "δ avg", "tap-vid", "Mean of the five shares of points within a threshold."),
        Metric("oa", "OA", "tap-vid", "Share of evaluated frames whose visibility is predicted rightly."),
        _distance("ad", "AD", "Mean distance over the visible evaluated frames"),
        _distance("md", "MD", "Median distance over the visible evaluated frames"),
        _distance("ad_query", "AD+q", "AD with the query frame itself included, as Opt-CWM counts"),
        _distance("md_query", "MD+q", "MD with the query frame itself included, as Opt-CWM counts"),
    ]


def _distance(name: str, label: str, definition: str) -> Metric:
    """A distance in pixels, the smaller the better."""
    text = f"{definition}; a missing prediction counts as the raster's diagonal."
    return Metric(name, label, "tap-vid", text, unit="px", scale=1.0, higher_is_better=False)


_TIME = "Time of prediction per point and evaluated frame."
_ALL = [
    *_completeness(),
    *_localization(),
    *_visibility(),
    *_continuity(),
    *_tapvid(),
    Metric("latency", "ms/point", "cost", _TIME, unit="ms", scale=1.0, higher_is_better=False),
]

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
