"""Declarations of all measures, and predictions of one video aligned with the truth.

Tables take arrows, units and bold from the declarations. Shape annotations are jaxtyping's where it is installed and
plain arrays elsewhere, so that numpy alone is enough.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from lpa_cwm.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped
else:
    try:
        from jaxtyping import Bool, Float, Int, Shaped
    except ImportError:

        class Shaped:
            """Stands in for a jaxtyping annotation."""

            def __class_getitem__(cls, item: Any) -> type:
                return np.ndarray

        Bool = Float = Int = Shaped

__all__ = ["Bool", "Float", "Int", "Shaped"]


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
    averaged: bool = False
    """Whether it is one threshold of a measure that is their mean."""

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
        *(Metric(f"dca_{k}", f"DCA@{k}", "localization", share.format(k), averaged=True) for k in THRESHOLDS),
        Metric("dca_avg", "DCA", "localization", "Mean of DCA at 1, 2, 4, 8 and 16 px; missing predictions fail."),
        Metric("shown_avg", "Acc. shown", "localization", shown),
    ]


def _completeness() -> list[Metric]:
    """Share of each track that was predicted."""
    coverage = "Share of a dynamic track's visible frames that are predicted visible, mean over tracks."
    success = "Share of dynamic tracks with coverage of at least c and a mean error of at most {} px where shown."
    return [
        Metric("coverage", "Cov.", "completeness", coverage),
        Metric("complete", "C@c", "completeness", "Share of dynamic tracks whose coverage is at least c."),
        *(Metric(f"cts_{k}", f"CTS{k}", "completeness", success.format(k)) for k in SUCCESS),
    ]


def _visibility() -> list[Metric]:
    """Recognition of visible and occluded frames."""
    balanced = (
        "Mean of the shares of visible and of occluded frames after the query that are recognized, in dynamic tracks."
    )
    return [
        Metric("vis_ba", "VisBA", "visibility", balanced),
        Metric("of1", "OF1", "visibility", "F1 of predicted occlusion over all later frames of dynamic tracks."),
    ]


def _continuity() -> list[Metric]:
    """Continuity of tracks."""
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
        *(Metric(f"jaccard_{k}", f"J@{k}", "tap-vid", jaccard.format(k), averaged=True) for k in THRESHOLDS),
        Metric("aj", "AJ", "tap-vid", "Mean of the five Jaccards: position and visibility together."),
        *(Metric(f"delta_{k}", f"δ@{k}", "tap-vid", delta.format(k), averaged=True) for k in THRESHOLDS),
        Metric("delta_avg", "δ avg", "tap-vid", "Mean of the five shares of points within a threshold."),
        Metric("oa", "OA", "tap-vid", "Share of evaluated frames whose visibility is predicted correctly."),
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


SIZE = 256
"""Side of the raster in whose pixels everything is measured."""


@dataclass(frozen=True)
class Comparison:
    """Predicted and true tracks of one video, in pixels of the 256 x 256 raster."""

    squared: Float[np.ndarray, "n t"]
    """Squared distance; infinite where the prediction is missing or the truth unknown."""
    visible: Bool[np.ndarray, "n t"]
    """Predicted visibility, as given."""
    present: Bool[np.ndarray, "n t"]
    """Whether a finite position was predicted."""
    truth_xy: Float[np.ndarray, "n t 2"]
    truth_visible: Bool[np.ndarray, "n t"]
    query_frame: Int[np.ndarray, "n"]

    @cached_property
    def later(self) -> Bool[np.ndarray, "n t"]:
        """Frames after the query."""
        return np.arange(self.visible.shape[1]) > self.query_frame[:, None]

    @cached_property
    def distance(self) -> Float[np.ndarray, "n t"]:
        """Between prediction and truth."""
        return np.sqrt(self.squared)

    @cached_property
    def within(self) -> Bool[np.ndarray, "k n t"]:
        """Whether the distance is below each threshold (strictly)."""
        return self.squared < np.square(np.array(THRESHOLDS, dtype=np.float64))[:, None, None]

    def shown_where(self, visible: Bool[np.ndarray, "n t"]) -> "Comparison":
        """The same positions with another predicted visibility."""
        return replace(self, visible=visible)


def align(
    xy: ArrayLike, visible: ArrayLike, truth_xy: ArrayLike, truth_visible: ArrayLike, query_frame: ArrayLike
) -> Comparison:
    """Check the arrays of one video (`xy [n t 2]`, `visible [n t]`, `query_frame [n]`) and compute distances."""
    truth_xy = np.asarray(truth_xy, dtype=np.float64)
    if truth_xy.ndim != 3 or truth_xy.shape[2] != 2:
        raise InputError(f"The true points have shape {truth_xy.shape}; [n t 2] was expected.")
    n, t, _ = truth_xy.shape
    xy = check_shape(np.asarray(xy, dtype=np.float64), (n, t, 2), "predicted points")
    visible = check_shape(truth_values(visible, "predicted visibility"), (n, t), "predicted visibility")
    truth_visible = check_shape(truth_values(truth_visible, "true visibility"), (n, t), "true visibility")
    query_frame = check_shape(np.asarray(query_frame), (n,), "query frames")
    check_truth(truth_xy, truth_visible, query_frame)
    present = finite(xy)
    with np.errstate(over="ignore", invalid="ignore"):
        squared = squared_length(xy - truth_xy)
    squared[np.isnan(squared)] = np.inf
    return Comparison(squared, visible, present, truth_xy, truth_visible, query_frame)


def check_shape(array: Shaped[np.ndarray, "..."], shape: tuple[int, ...], what: str) -> Shaped[np.ndarray, "..."]:
    """Return the array if it has this shape."""
    if array.shape != shape:
        raise InputError(f"The {what} have shape {array.shape}; the true points ask for {shape}.")
    return array


def truth_values(array: ArrayLike, what: str) -> Bool[np.ndarray, "..."]:
    """Convert to booleans; numbers other than 0 and 1 are refused because they may be scores."""
    values: Any = np.asarray(array)
    if values.dtype != bool and not np.isin(values, (0, 1)).all():
        raise InputError(f"The {what} must be true or false; give scores as `score`, not as `visible`.")
    return values.astype(bool, copy=False)


def check_truth(
    truth_xy: Float[np.ndarray, "n t 2"], truth_visible: Bool[np.ndarray, "n t"], query_frame: Shaped[np.ndarray, "n"]
) -> None:
    """Require finite true points where they are visible, and query frames inside the clip."""
    if (truth_visible & ~finite(truth_xy)).any():
        raise InputError("A true point is visible but not finite; mark it as not visible or give its position.")
    if not np.issubdtype(query_frame.dtype, np.integer):
        raise InputError(f"Query frames are {query_frame.dtype}; whole numbers were expected.")
    frames = truth_visible.shape[1]
    if ((query_frame < 0) | (query_frame >= frames)).any():
        raise InputError(f"A query frame lies outside the clip's {frames} frames; frames count from 0.")


def finite(xy: Float[np.ndarray, "*b 2"]) -> Bool[np.ndarray, "*b"]:
    """Whether both coordinates are finite."""
    return np.isfinite(xy[..., 0]) & np.isfinite(xy[..., 1])


def squared_length(vectors: Float[np.ndarray, "*b 2"]) -> Float[np.ndarray, "*b"]:
    """Squared Euclidean length."""
    # Reducing an axis of two is several times slower than adding its halves.
    return np.square(vectors[..., 0]) + np.square(vectors[..., 1])


def count(mask: Bool[np.ndarray, "*b t"]) -> Int[np.ndarray, "*b"]:
    """Number of frames of each track for which the mask is true."""
    # Twice as fast as np.count_nonzero along an axis, and wide enough for any clip.
    return mask.sum(axis=-1, dtype=np.int32)


def ratio(part: Shaped[np.ndarray, "*k n"], whole: Shaped[np.ndarray, "*j n"]) -> Float[np.ndarray, "*k n"]:
    """`part / whole`, NaN (undefined) where the whole is zero."""
    return part / np.where(whole > 0, whole, np.nan)


Columns = dict[str, Shaped[np.ndarray, "... _"]]
"""Arrays by name, with one number (or one per threshold) for each track."""


@dataclass(frozen=True)
class Measures:
    """Measures by name, as fractions or pixels; undefined ones are NaN. Prints as a table.

    Examples:
        >>> import numpy as np
        >>> truth = np.cumsum(np.full((1, 6, 2), 2.0), axis=1)
        >>> seen = np.ones((1, 6), bool)

        >>> from lpa_cwm.metrics import cmc
        >>> measures = cmc(truth, seen, truth, seen, [0])
        >>> measures["coverage"], measures.tracks["dynamic"].tolist()
        (1.0, [True])
    """

    values: dict[str, float]
    """Values of the video."""
    tracks: Columns
    """Values of each track."""
    counts: Columns
    """Counts of each track, from which everything else is computed."""
    sweep: dict[str, list[float]] = field(default_factory=dict)
    """Values of the video at each threshold of the predictor's visibility score."""

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def __str__(self) -> str:
        wide = max(map(len, self.values), default=0)
        rows = (METRICS[name] for name in self.values)
        return "\n".join(f"{row.name:{wide}} {row.show(self[row.name]):>8} {row.unit}" for row in rows)

    def merged(self, other: "Measures") -> "Measures":
        """Measures of both kinds of the same video.

        Args:
            other: Measures of another kind.
        """
        return Measures(self.values | other.values, self.tracks | other.tracks, self.counts | other.counts)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, undefined values as None; without `tracks`, which `counts` determine."""
        return {
            "values": {name: plain(value) for name, value in self.values.items()},
            "counts": {name: plain(column.tolist()) for name, column in self.counts.items()},
            "sweep": {name: plain(column) for name, column in self.sweep.items()},
        }


def plain(value: Any) -> Any:
    """Numbers, nested lists and dictionaries with None for NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return None if value != value else value


def append_total(
    counts: Columns, names: Iterable[str], chosen: slice | Shaped[np.ndarray, "n"] = slice(None)
) -> Columns:
    """Append one entry to each column: the sum over the chosen tracks, as if they were one long track."""
    totals = ((name, counts[name], counts[name][..., chosen].sum(axis=-1, keepdims=True)) for name in names)
    return {name: np.concatenate((column, total), axis=-1) for name, column, total in totals}


def by_threshold(name: str, rows: Shaped[np.ndarray, "k n"], thresholds: Iterable[int]) -> Columns:
    """Rows under the names `name_1`, `name_2`, ..."""
    return {f"{name}_{threshold}": row for threshold, row in zip(thresholds, rows, strict=True)}


def split_total(columns: Columns) -> tuple[Columns, dict[str, float]]:
    """Split columns into the entries of the tracks and the last entry, their total."""
    tracks = {name: column[:-1] for name, column in columns.items()}
    return tracks, {name: float(column[-1]) for name, column in columns.items()}
