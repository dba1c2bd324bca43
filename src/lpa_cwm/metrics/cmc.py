"""Completeness-aware Motion Correspondence: localization, completeness, visibility and continuity of moving points."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lpa_cwm.metrics.comparison import (
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
