"""The measures of one video: CMC, for moving points, and TAP-Vid's (Doersch et al. 2022, arXiv 2211.03726)."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from lpa_cwm.metrics.comparison import (
    SIZE,
    SUCCESS,
    THRESHOLDS,
    Bool,
    Columns,
    Comparison,
    Float,
    Int,
    Measures,
    align,
    append_total,
    by_threshold,
    count,
    ratio,
    split_total,
    squared_length,
)

MOTION = 4.0
"""Path, in pixels, from which a track is dynamic (L_motion)."""
COVERAGE = 0.8
"""Share of its visible frames from which a track is complete (c)."""


def cmc(
    xy: ArrayLike,
    visible: ArrayLike,
    truth_xy: ArrayLike,
    truth_visible: ArrayLike,
    query_frame: ArrayLike,
    *,
    motion: float = MOTION,
    coverage: float = COVERAGE,
) -> Measures:
    """CMC of one video, in pixels of the 256 x 256 raster; a missing (not finite) prediction is not visible.

    Args:
        xy: Predicted positions; not finite where there is none.
        visible: Predicted visibility.
        truth_xy: True positions.
        truth_visible: True visibility.
        query_frame: Frame of each query; only later frames count.

        motion: Path in pixels from which a track is dynamic.
        coverage: Share of its visible frames from which a track is complete.

    Examples:
        >>> import numpy as np
        >>> truth = np.cumsum(np.full((1, 6, 2), 2.0), axis=1)
        >>> seen = np.ones((1, 6), bool)

        >>> cmc(truth + 0.5, seen, truth, seen, [0])["dca_avg"]
        1.0
    """
    return cmc_of(align(xy, visible, truth_xy, truth_visible, query_frame), motion, coverage)


def cmc_of(comparison: Comparison, motion: float = MOTION, coverage: float = COVERAGE) -> Measures:
    """CMC of aligned tracks."""
    return cmc_from_counts(cmc_counts(comparison), motion, coverage)


def cmc_from_counts(counts: Columns, motion: float = MOTION, coverage: float = COVERAGE) -> Measures:
    """CMC for any `motion` and `coverage` from counts, without the tracks themselves."""
    # Without a visible frame after the query there is nothing to cover, however low the threshold.
    dynamic = (counts["path"] >= motion) & (counts["seen"] > 0)
    table = track_measures(counts, coverage)
    averages = table[:, dynamic].sum(axis=1) / (dynamic.sum() or np.nan)
    by_track = dict(zip(TRACK_MEASURES, table, strict=True))
    by_frame, values = split_total(frame_measures(append_total(counts, FRAME_COUNTS, dynamic)))
    tracks = by_track | by_frame | {"path": counts["path"], "dynamic": dynamic}
    return Measures(dict(zip(TRACK_MEASURES, averages.tolist(), strict=True)) | values, tracks, counts)


def cmc_counts(comparison: Comparison) -> Columns:
    """Counts of each track that do not depend on the thresholds of motion and coverage."""
    later = comparison.later
    seen = comparison.truth_visible & later
    hidden = later & ~seen
    shown = comparison.visible & comparison.present
    covered = seen & shown
    segments, runs = Runs.of(seen), Runs.of(covered)
    return {
        "path": path_length(comparison),
        "seen": count(seen),
        "hidden": count(hidden),
        "covered": count(covered),
        "rightly_hidden": count(hidden & ~shown),
        "hits": count(comparison.within & covered),
        "shown_distance": np.where(covered, comparison.distance, 0).sum(axis=1),
        "longest": runs.longest,
        "longest_seen": segments.longest,
        "recoveries": runs.returns_within(segments),
    }


def path_length(comparison: Comparison) -> Float[np.ndarray, "n"]:
    """Length of the true path from the query on, over steps with both ends visible."""
    seen = comparison.truth_visible[:, 1:] & comparison.truth_visible[:, :-1] & comparison.later[:, 1:]
    with np.errstate(invalid="ignore"):
        squared = squared_length(comparison.truth_xy[:, 1:] - comparison.truth_xy[:, :-1])
    return np.sqrt(np.where(seen, squared, 0)).sum(axis=1)


@dataclass(frozen=True)
class Runs:
    """Runs of true values in the rows of a mask; positions count through all rows, with a gap after each row."""

    start: Int[np.ndarray, "r"]
    stop: Int[np.ndarray, "r"]
    row: Int[np.ndarray, "r"]
    rows: int

    @classmethod
    def of(cls, mask: Bool[np.ndarray, "n t"]) -> "Runs":
        """The runs in reading order."""
        n, t = mask.shape
        framed = np.zeros((n, t + 2), dtype=bool)
        framed[:, 1:-1] = mask
        start, stop = np.flatnonzero(framed[:, 1:] != framed[:, :-1]).reshape(-1, 2).T
        return cls(start, stop, start // (t + 1), n)

    @property
    def longest(self) -> Int[np.ndarray, "n"]:
        """Length of the longest run of each row."""
        found = np.zeros(self.rows, dtype=np.int64)
        np.maximum.at(found, self.row, self.stop - self.start)
        return found

    def returns_within(self, segments: "Runs") -> Int[np.ndarray, "n"]:
        """Number of runs of each row that are not the first run inside their segment."""
        segment = np.searchsorted(segments.start, self.start, side="right")
        again = segment[1:] == segment[:-1]
        return np.bincount(self.row[1:][again], minlength=self.rows)


TRACK_MEASURES = ("coverage", "complete", *(f"cts_{k}" for k in SUCCESS), "lcc", "lcc_ceiling", "fragmentation")


def track_measures(counts: Columns, coverage: float) -> Float[np.ndarray, "k n"]:
    """`TRACK_MEASURES` of each track; a video's value is the mean over its dynamic tracks."""
    seen = counts["seen"]
    share = ratio(counts["covered"], seen)
    complete = share >= coverage
    error = ratio(counts["shown_distance"], counts["covered"])
    success = complete & (error <= np.array(SUCCESS)[:, None])
    runs = (ratio(counts["longest"], seen), ratio(counts["longest_seen"], seen), counts["recoveries"])
    return np.where(seen > 0, np.array((share, complete, *success, *runs)), np.nan)


FRAME_COUNTS = ("seen", "hidden", "covered", "rightly_hidden", "hits")


def frame_measures(counts: Columns) -> Columns:
    """Measures that pool frames, of each track or of the total of a video."""
    seen, hidden, covered = counts["seen"], counts["hidden"], counts["covered"]
    dca = ratio(counts["hits"], seen)
    rightly, wrongly = counts["rightly_hidden"], seen - covered
    # Without occluded frames there is nothing to find: undefined, even if occlusion was claimed.
    claims = np.where(hidden > 0, hidden + rightly + wrongly, 0)
    return by_threshold("dca", dca, THRESHOLDS) | {
        "dca_avg": dca.sum(axis=0) / len(THRESHOLDS),
        "shown_avg": ratio(counts["hits"].sum(axis=0), covered) / len(THRESHOLDS),
        "vis_ba": (ratio(covered, seen) + ratio(rightly, hidden)) / 2,
        "of1": ratio(2 * rightly, claims),
    }


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
    counts = agreement_counts(comparison, asked)
    # The largest error possible inside the raster: abstaining must not be cheaper than being wrong.
    far = np.where(np.isinf(comparison.distance), np.hypot(SIZE, SIZE), comparison.distance)
    seen = comparison.truth_visible & np.array((asked, asked | queried))
    both = {"visible": count(seen), "distance": (far * seen).sum(axis=-1), "md": median_of_rows(far, seen)}
    for suffix, place in (("", 0), ("_query", 1)):
        counts |= {f"{name}{suffix}": column[place] for name, column in both.items()}
    values = {"md": median(far[seen[0]]), "md_query": median(far[seen[1]])}
    tracks, rated = split_total(rates(append_total(counts, counts.keys() - values.keys())))
    return Measures(rated | values, tracks | {name: counts[name] for name in values}, counts)


def agreement_counts(comparison: Comparison, asked: Bool[np.ndarray, "n t"]) -> Columns:
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
