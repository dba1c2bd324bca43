"""The measures of TAP-Vid (Doersch et al. 2022, arXiv 2211.03726), queried first or strided."""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from lpa_cwm.metrics.comparison import (
    SIZE,
    THRESHOLDS,
    Bool,
    Columns,
    Comparison,
    Float,
    Measures,
    align,
    append_total,
    by_threshold,
    count,
    ratio,
    split_total,
)

Mode = Literal["first", "strided"]


def tapvid(
    xy: ArrayLike,
    visible: ArrayLike,
    truth_xy: ArrayLike,
    truth_visible: ArrayLike,
    query_frame: ArrayLike,
    *,
    mode: Mode = "first",
) -> Measures:
    """TAP-Vid's measures of one video, in pixels of the 256 x 256 raster; a missing position is never near enough.

    Args:
        xy: Predicted positions; not finite where there is none.
        visible: Predicted visibility.
        truth_xy: True positions.
        truth_visible: True visibility.
        query_frame: Frame of each query.

        mode: `first` counts the frames after each query, `strided` all others too.

    Examples:
        >>> import numpy as np
        >>> truth = np.cumsum(np.full((1, 6, 2), 2.0), axis=1)
        >>> seen = np.ones((1, 6), bool)

        >>> tapvid(truth + 3, seen, truth, seen, [0])["delta_8"]
        1.0
    """
    return tapvid_of(align(xy, visible, truth_xy, truth_visible, query_frame), mode)


def tapvid_of(comparison: Comparison, mode: Mode = "first") -> Measures:
    """TAP-Vid's measures of aligned tracks."""
    queried = np.arange(comparison.visible.shape[1]) == comparison.query_frame[:, None]
    asked = comparison.later if mode == "first" else ~queried
    counts = agreement(comparison, asked)
    # The largest error possible inside the raster: abstaining must not be cheaper than being wrong.
    far = np.where(np.isinf(comparison.distance), np.hypot(SIZE, SIZE), comparison.distance)
    seen = comparison.truth_visible & np.array((asked, asked | queried))
    both = {"visible": count(seen), "distance": (far * seen).sum(axis=-1), "md": median_of_rows(far, seen)}
    for suffix, place in (("", 0), ("_query", 1)):
        counts |= {f"{name}{suffix}": column[place] for name, column in both.items()}
    values = {"md": median(far[seen[0]]), "md_query": median(far[seen[1]])}
    tracks, rated = split_total(rates(append_total(counts, counts.keys() - values.keys())))
    return Measures(rated | values, tracks | {name: counts[name] for name in values}, counts)


def agreement(comparison: Comparison, asked: Bool[np.ndarray, "n t"]) -> Columns:
    """Counts of each track over the evaluated frames."""
    shown = comparison.visible & asked
    seen = comparison.truth_visible & asked
    near = comparison.within & seen
    return {
        "frames": count(asked),
        "agreeing": count((shown == seen) & asked),
        "shown": count(shown),
        "within": count(near),
        "true": count(near & shown),
    }


def median(values: Float[np.ndarray, "m"]) -> float:
    """Median, undefined without values."""
    if not values.size:
        return float("nan")
    middle = values.size // 2
    # Asking np.partition for both middle values takes three times as long as for one.
    ordered = np.partition(values, middle)
    lower = ordered[middle] if values.size % 2 else ordered[:middle].max()
    return float(lower + ordered[middle]) / 2


def median_of_rows(rows: Float[np.ndarray, "n t"], chosen: Bool[np.ndarray, "*k n t"]) -> Float[np.ndarray, "*k n"]:
    """Median of the chosen entries of each row."""
    # One sort that puts NaN last; np.nanmedian is many times slower and warns of empty rows.
    ordered = np.sort(np.where(chosen, rows, np.nan), axis=-1)
    known = count(chosen)[..., None]
    middle = np.concatenate((np.maximum(known - 1, 0) // 2, np.minimum(known // 2, rows.shape[1] - 1)), axis=-1)
    return np.take_along_axis(ordered, middle, axis=-1).sum(axis=-1) / 2


def tapvid_tracks(counts: Columns) -> Columns:
    """The measures of each track."""
    return rates(counts) | {name: counts[name] for name in ("md", "md_query")}


def rates(counts: Columns) -> Columns:
    """Measures computed from counts, of each track or of the total of a video."""
    visible, true = counts["visible"], counts["true"]
    delta = ratio(counts["within"], visible)
    jaccard = ratio(true, visible + counts["shown"] - true)
    return {
        **by_threshold("jaccard", jaccard, THRESHOLDS),
        "aj": jaccard.sum(axis=0) / len(THRESHOLDS),
        **by_threshold("delta", delta, THRESHOLDS),
        "delta_avg": delta.sum(axis=0) / len(THRESHOLDS),
        "oa": ratio(counts["agreeing"], counts["frames"]),
        "ad": ratio(counts["distance"], visible),
        "ad_query": ratio(counts["distance_query"], counts["visible_query"]),
    }
