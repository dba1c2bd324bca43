"""Wrong conventions in predictions of other programs, recognized at the query frame.

A tracker is given a point in the query frame and should return that point there. Predictions that miss it by a scale,
an exchange of x and y, a constant offset or a permutation of the tracks follow another convention than
`docs/predictions.md`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from lpa_cwm.metrics import Prediction, Truth
from lpa_cwm.metrics.comparison import SIZE

FEWEST = 4
"""Points below which nothing is concluded."""
MEETS = 1.0
"""Median distance in pixels up to which predictions meet the query points under a convention."""
OFFSET = 0.05
"""Largest deviation in pixels from a constant offset of half a pixel."""


@dataclass(frozen=True)
class QueryErrors:
    """Query points of one video, and the predictions in the query frames."""

    query: Float[np.ndarray, "n 2"]
    predicted: Float[np.ndarray, "n 2"]
    """Of each track in its own query frame."""
    moved: Bool[np.ndarray, "n"]
    """Whether another row of the predictions is nearer to the query point than the track's own."""
    nearest: Float[np.ndarray, "n"]
    """Distance of the query point to the nearest row."""

    @classmethod
    def of(cls, prediction: Prediction, truth: Truth) -> "QueryErrors":
        """Compare one video; tracks without a finite prediction in the query frame are left out."""
        rows = np.arange(len(truth.xy))
        query = truth.xy[rows, truth.query_frame].astype(np.float64)
        # Entry [i, j]: where row j is predicted in the query frame of track i.
        there = prediction.xy.astype(np.float64)[:, truth.query_frame].swapaxes(0, 1)
        distance = np.linalg.norm(there - query[:, None], axis=-1)
        distance[np.isnan(distance)] = np.inf
        known = np.isfinite(there[rows, rows]).all(axis=-1)
        moved = distance.min(axis=1) < distance[rows, rows]
        return cls(query[known], there[rows, rows][known], moved[known], distance.min(axis=1)[known])


def conventions(videos: Sequence[QueryErrors]) -> Iterator[str]:
    """One sentence about the convention that explains the errors at the query frames; none if they are small."""
    videos = [video for video in videos if len(video.query)]
    query = np.concatenate([np.zeros((0, 2)), *(video.query for video in videos)])
    predicted = np.concatenate([np.zeros((0, 2)), *(video.predicted for video in videos)])
    if len(query) < FEWEST:
        return
    miss = _median_distance(predicted, query)
    offset = np.median(predicted - query, axis=0)
    if miss > OFFSET and np.allclose(np.abs(offset), 0.5, atol=OFFSET):
        if _median_distance(predicted - offset, query) <= OFFSET:
            yield _sentence(
                miss, f"are off by ({offset[0]:+.1f}, {offset[1]:+.1f})", "the center of a pixel is at +0.5"
            )
        return
    if miss <= MEETS:
        return
    yield from _explain(videos, predicted, query, miss)


def _explain(
    videos: Sequence[QueryErrors], predicted: Float[np.ndarray, "n 2"], query: Float[np.ndarray, "n 2"], miss: float
) -> Iterator[str]:
    """The first convention under which predictions that miss the query points meet them."""
    moved = np.concatenate([video.moved for video in videos])
    nearest = np.concatenate([video.nearest for video in videos])
    scale, swapped_scale = _scale(predicted, query), _scale(predicted[:, ::-1], query)
    if _median_distance(predicted[:, ::-1], query) <= MEETS:
        yield _sentence(miss, "have x and y exchanged", "`xy` is column first, then row")
    elif np.median(nearest) <= MEETS and moved.mean() > 0.5:
        yield _sentence(miss, "are in another order of tracks", "rows follow the order of the queries")
    elif _median_distance(predicted * scale, query) <= MEETS:
        yield _sentence(miss, _unit(scale), f"points are in pixels of the {SIZE} x {SIZE} raster")
    elif _median_distance(predicted[:, ::-1] * swapped_scale, query) <= MEETS:
        rule = f"`xy` is column first, in pixels of the {SIZE} x {SIZE} raster"
        yield _sentence(miss, f"have x and y exchanged and {_unit(swapped_scale)}", rule)
    else:
        yield (
            f"At the query frame the predictions are {miss:.1f} px from the query points (median); "
            "expected the query points themselves: check units, x and y, and the order of tracks."
        )


def _sentence(miss: float, what: str, rule: str) -> str:
    return f"The predictions {what}: they miss the query points by {miss:.1f} px (median); {rule}."


def _unit(scale: Float[np.ndarray, "2"]) -> str:
    """The unit of predictions that this factor turns into pixels of the raster."""
    width, height = SIZE / scale
    if np.allclose((width, height), 1, rtol=0.02):
        return "are from 0 to 1 instead of pixels"
    return f"are in pixels of a raster of about {width:.0f} x {height:.0f}"


def _scale(predicted: Float[np.ndarray, "n 2"], query: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "2"]:
    """Least-squares factor of each axis from predictions to query points."""
    return (predicted * query).sum(axis=0) / np.maximum((predicted**2).sum(axis=0), 1e-12)


def _median_distance(first: Float[np.ndarray, "n 2"], second: Float[np.ndarray, "n 2"]) -> float:
    return float(np.median(np.linalg.norm(first - second, axis=-1)))
