"""The measures of TAP-Vid, for queries at the first visible frame or strided through the clip."""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from lpa_cwm.metrics.comparison import SIZE, Comparison, compare, count, ratio
from lpa_cwm.metrics.declaration import THRESHOLDS
from lpa_cwm.metrics.measures import Columns, Measures, by_threshold, pooled, single
from lpa_cwm.metrics.shapes import Bool, Float

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
    """TAP-Vid's measures of one video, in pixels of the 256 x 256 raster; a missing position is never near enough."""
    return tapvid_of(compare(xy, visible, truth_xy, truth_visible, query_frame), mode)


def tapvid_of(comparison: Comparison, mode: Mode = "first") -> Measures:
    """TAP-Vid's measures of tracks already laid beside the truth."""
    queried = np.arange(comparison.visible.shape[1]) == comparison.query_frame[:, None]
    asked = comparison.later if mode == "first" else ~queried
    counts = agreement(comparison, asked)
    values = {}
    for suffix, including_query in (("", False), ("_query", True)):
        far = distances(comparison, asked | queried if including_query else asked)
        counts |= {f"visible{suffix}": count(far >= 0), f"distance{suffix}": np.nansum(far, axis=1)}
        counts[f"md{suffix}"] = median_of_rows(far)
        values[f"md{suffix}"] = float(median_of_rows(far.reshape(1, -1))[0])
    added = pooled(counts, counts.keys() - values.keys())
    return Measures(single(rates(added)) | values, tapvid_tracks(counts), counts)


def agreement(comparison: Comparison, asked: Bool[np.ndarray, "n t"]) -> Columns:
    """What TAP-Vid counts on each track over the frames asked for."""
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


def distances(comparison: Comparison, frames: Bool[np.ndarray, "n t"]) -> Float[np.ndarray, "n t"]:
    """Distance where the truth is visible, NaN elsewhere; the raster's diagonal where the prediction is missing."""
    far = np.where(comparison.truth_visible & frames, np.sqrt(comparison.squared), np.nan)
    far[np.isinf(far)] = np.hypot(SIZE, SIZE)
    return far


def median_of_rows(rows: Float[np.ndarray, "n t"]) -> Float[np.ndarray, "n"]:
    """Median of what is defined in each row."""
    if not rows.shape[1]:
        return np.full(len(rows), np.nan)
    # np.nanmedian warns of empty rows and is many times slower than one sort, which puts NaN last.
    ordered = np.sort(rows, axis=1)
    known = count(~np.isnan(rows))
    low, high = np.maximum(known - 1, 0) // 2, np.minimum(known // 2, rows.shape[1] - 1)
    return np.take_along_axis(ordered, np.stack((low, high), axis=1), axis=1).mean(axis=1)


def tapvid_tracks(counts: Columns) -> Columns:
    """The measures of each track by itself."""
    return rates(counts) | {name: counts[name] for name in ("md", "md_query")}


def rates(counts: Columns) -> Columns:
    """Measures that follow from counts: of each track by itself, or of a video's tracks added up."""
    visible, true = counts["visible"], counts["true"]
    delta = ratio(counts["within"], visible)
    jaccard = ratio(true, visible + counts["shown"] - true)
    return {
        **by_threshold("jaccard", jaccard, THRESHOLDS),
        "aj": jaccard.mean(axis=0),
        **by_threshold("delta", delta, THRESHOLDS),
        "delta_avg": delta.mean(axis=0),
        "oa": ratio(counts["agreeing"], counts["frames"]),
        "ad": ratio(counts["distance"], visible),
        "ad_query": ratio(counts["distance_query"], counts["visible_query"]),
    }
