"""Completeness-aware Motion Correspondence: localisation, completeness, visibility and continuity of moving points."""

import numpy as np
from numpy.typing import ArrayLike

from lpa_cwm.metrics.comparison import Comparison, compare, count, ratio
from lpa_cwm.metrics.declaration import SUCCESS, THRESHOLDS
from lpa_cwm.metrics.measures import Columns, Measures, by_threshold, pooled, single
from lpa_cwm.metrics.shapes import Bool, Float, Int

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
    """CMC of one video, in pixels of the 256 x 256 raster; a missing (not finite) prediction is not visible."""
    return cmc_of(compare(xy, visible, truth_xy, truth_visible, query_frame), motion, coverage)


def cmc_of(comparison: Comparison, motion: float = MOTION, coverage: float = COVERAGE) -> Measures:
    """CMC of tracks already laid beside the truth."""
    return cmc_from_counts(cmc_counts(comparison), motion, coverage)


def cmc_from_counts(counts: Columns, motion: float = MOTION, coverage: float = COVERAGE) -> Measures:
    """CMC for any `motion` and `coverage` from what was counted, without the tracks themselves."""
    dynamic = counts["path"] >= motion
    by_track = track_measures(counts, coverage)
    together = pooled(counts, ("seen", "hidden", "covered", "rightly_hidden", "hits"), dynamic)
    values = {name: mean(column[dynamic]) for name, column in by_track.items()} | single(frame_measures(together))
    return Measures(values, by_track | frame_measures(counts) | {"path": counts["path"], "dynamic": dynamic}, counts)


def cmc_counts(comparison: Comparison) -> Columns:
    """What CMC counts on each track, whatever the thresholds of motion and coverage."""
    later = comparison.later
    seen = comparison.truth_visible & later
    hidden = later & ~seen
    shown = comparison.visible & comparison.present
    covered = seen & shown
    return {
        "path": path_length(comparison),
        "seen": count(seen),
        "hidden": count(hidden),
        "covered": count(covered),
        "rightly_hidden": count(hidden & ~shown),
        "hits": count(comparison.within & covered),
        "shown_distance": np.sqrt(comparison.squared, where=covered, out=np.zeros(covered.shape)).sum(axis=1),
        "longest": longest_run(covered),
        "longest_seen": longest_run(seen),
        "recoveries": recoveries(covered, seen),
    }


def path_length(comparison: Comparison) -> Float[np.ndarray, "n"]:
    """Length of the true path from the query on, over steps with both ends visible."""
    seen = comparison.truth_visible[:, 1:] & comparison.truth_visible[:, :-1] & comparison.later[:, 1:]
    squared = np.square(np.diff(comparison.truth_xy, axis=1)).sum(axis=2)
    return np.sqrt(squared, where=seen, out=np.zeros(seen.shape)).sum(axis=1)


def longest_run(mask: Bool[np.ndarray, "n t"]) -> Int[np.ndarray, "n"]:
    """Length of the longest unbroken run in each row."""
    total = mask.cumsum(axis=1)
    before_run = np.maximum.accumulate(np.where(mask, 0, total), axis=1)
    return (total - before_run).max(axis=1, initial=0)


def recoveries(covered: Bool[np.ndarray, "n t"], seen: Bool[np.ndarray, "n t"]) -> Int[np.ndarray, "n"]:
    """How often a track is shown again after a gap inside one visible segment."""
    total = covered.cumsum(axis=1)
    before_segment = np.maximum.accumulate(np.where(seen, 0, total), axis=1)
    shown_before = total - covered > before_segment
    starts = covered[:, 1:] & ~covered[:, :-1]
    return count(starts & shown_before[:, 1:])


def track_measures(counts: Columns, coverage: float) -> Columns:
    """Measures that are defined on a track and averaged over tracks."""
    seen = counts["seen"]
    share = ratio(counts["covered"], seen)
    complete = share >= coverage
    error = ratio(counts["shown_distance"], counts["covered"])
    success = by_threshold("cts", complete & (error <= np.array(SUCCESS)[:, None]), SUCCESS)
    runs = {
        "lcc": ratio(counts["longest"], seen),
        "lcc_ceiling": ratio(counts["longest_seen"], seen),
        "fragmentation": counts["recoveries"],
    }
    measures = {"coverage": share, "complete": complete} | success | runs
    return {name: np.where(seen > 0, column, np.nan) for name, column in measures.items()}


def frame_measures(counts: Columns) -> Columns:
    """Measures that pool frames: of each track by itself, or of a video's tracks added up."""
    seen, hidden, covered = counts["seen"], counts["hidden"], counts["covered"]
    dca = ratio(counts["hits"], seen)
    rightly, wrongly = counts["rightly_hidden"], seen - covered
    # Without occluded frames there is nothing to find: undefined, even if occlusion was claimed.
    claims = np.where(hidden > 0, hidden + rightly + wrongly, 0)
    return by_threshold("dca", dca, THRESHOLDS) | {
        "dca_avg": dca.mean(axis=0),
        "shown_avg": ratio(counts["hits"], covered).mean(axis=0),
        "vis_ba": (ratio(covered, seen) + ratio(rightly, hidden)) / 2,
        "of1": ratio(2 * rightly, claims),
    }


def mean(column: Float[np.ndarray, "n"]) -> float:
    """Mean over tracks, undefined without tracks."""
    return float(column.mean()) if column.size else float("nan")
