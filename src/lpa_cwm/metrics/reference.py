"""Predictors that know nothing and everything: the floor and the ceiling of every table."""

from collections.abc import Callable

import numpy as np

from lpa_cwm.metrics.scores import Prediction, Truth


def static_point(truth: Truth) -> Prediction:
    """A point that never moves and is always visible."""
    start = truth.xy[np.arange(len(truth.xy)), truth.query_frame]
    return Prediction(np.repeat(start[:, None], truth.xy.shape[1], axis=1), np.ones_like(truth.visible))


def ground_truth(truth: Truth) -> Prediction:
    """The annotation itself."""
    return Prediction(truth.xy, truth.visible)


TRIVIAL: dict[str, Callable[[Truth], Prediction]] = {"static point": static_point, "ground truth": ground_truth}
"""Always in the table: what needs no tracker, and what no tracker can beat."""
