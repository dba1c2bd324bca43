"""One video's predictions laid beside the truth: checked once, then measured by every metric."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lpa_cwm.errors import InputError
from lpa_cwm.metrics.registry import THRESHOLDS
from lpa_cwm.metrics.shapes import Bool, Float, Int, Shaped

SIZE = 256
"""Side of the raster in whose pixels everything is measured."""


@dataclass(frozen=True)
class Comparison:
    """Predicted against true tracks, in pixels of the 256 x 256 raster."""

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
        """Whether the prediction lies nearer than each threshold; the threshold itself is too far."""
        return self.squared < np.square(np.array(THRESHOLDS, dtype=np.float64))[:, None, None]

    def shown_where(self, visible: Bool[np.ndarray, "n t"]) -> "Comparison":
        """The same positions with another opinion on visibility."""
        return replace(self, visible=visible)


def compare(
    xy: ArrayLike, visible: ArrayLike, truth_xy: ArrayLike, truth_visible: ArrayLike, query_frame: ArrayLike
) -> Comparison:
    """Check one video's arrays (`xy [n t 2]`, `visible [n t]`, `query_frame [n]`) and take distances."""
    truth_xy = np.asarray(truth_xy, dtype=np.float64)
    if truth_xy.ndim != 3 or truth_xy.shape[2] != 2:
        raise InputError(f"The true points have shape {truth_xy.shape}; [n t 2] was expected.")
    n, t, _ = truth_xy.shape
    xy = shaped(np.asarray(xy, dtype=np.float64), (n, t, 2), "predicted points")
    visible = shaped(truth_values(visible, "predicted visibility"), (n, t), "predicted visibility")
    truth_visible = shaped(truth_values(truth_visible, "true visibility"), (n, t), "true visibility")
    query_frame = shaped(np.asarray(query_frame), (n,), "query frames")
    refuse_bad_truth(truth_xy, truth_visible, query_frame)
    present = finite(xy)
    with np.errstate(over="ignore", invalid="ignore"):
        squared = squared_length(xy - truth_xy)
    squared[np.isnan(squared)] = np.inf
    return Comparison(squared, visible, present, truth_xy, truth_visible, query_frame)


def shaped(array: Shaped[np.ndarray, "..."], shape: tuple[int, ...], what: str) -> Shaped[np.ndarray, "..."]:
    """The array itself, if its shape is the truth's."""
    if array.shape != shape:
        raise InputError(f"The {what} have shape {array.shape}; the true points ask for {shape}.")
    return array


def truth_values(array: ArrayLike, what: str) -> Bool[np.ndarray, "..."]:
    """Booleans; numbers other than 0 and 1 are refused, for they may be scores."""
    values: Any = np.asarray(array)
    if values.dtype != bool and not np.isin(values, (0, 1)).all():
        raise InputError(f"The {what} must be true or false; give scores as `score`, not as `visible`.")
    return values.astype(bool, copy=False)


def refuse_bad_truth(
    truth_xy: Float[np.ndarray, "n t 2"], truth_visible: Bool[np.ndarray, "n t"], query_frame: Shaped[np.ndarray, "n"]
) -> None:
    """Truth must be a finite point wherever it is visible, and a query must lie in the clip."""
    if (truth_visible & ~finite(truth_xy)).any():
        raise InputError("A true point is visible but not finite; mark it as not visible or give its position.")
    if not np.issubdtype(query_frame.dtype, np.integer):
        raise InputError(f"Query frames are {query_frame.dtype}; whole numbers were expected.")
    frames = truth_visible.shape[1]
    if ((query_frame < 0) | (query_frame >= frames)).any():
        raise InputError(f"A query frame lies outside the clip's {frames} frames; frames count from 0.")


def finite(xy: Float[np.ndarray, "*b 2"]) -> Bool[np.ndarray, "*b"]:
    """Whether both coordinates are."""
    return np.isfinite(xy[..., 0]) & np.isfinite(xy[..., 1])


def squared_length(vectors: Float[np.ndarray, "*b 2"]) -> Float[np.ndarray, "*b"]:
    """Squared Euclidean length."""
    # Reducing an axis of two is several times slower than adding its halves.
    return np.square(vectors[..., 0]) + np.square(vectors[..., 1])


def count(mask: Bool[np.ndarray, "*b t"]) -> Int[np.ndarray, "*b"]:
    """Frames of each track for which the mask holds."""
    # Twice as fast as np.count_nonzero along an axis, and wide enough for any clip.
    return mask.sum(axis=-1, dtype=np.int32)


def ratio(part: Shaped[np.ndarray, "*k n"], whole: Shaped[np.ndarray, "*j n"]) -> Float[np.ndarray, "*k n"]:
    """`part / whole`, undefined (NaN) where the whole is nothing."""
    return part / np.where(whole > 0, whole, np.nan)
