"""Every measure of point tracks, with numpy alone.

`cmc(...)` and `tapvid(...)` measure one video; `measure(prediction, truth)` does both. `Scores` keeps a data set's.
All points are in pixels of the 256 x 256 raster, a pixel's center at +0.5.
"""

from lpa_cwm.metrics.comparison import METRICS, THRESHOLDS, Measures, Metric
from lpa_cwm.metrics.measures import cmc, tapvid
from lpa_cwm.metrics.scores import (
    TRIVIAL,
    Difference,
    Estimate,
    Prediction,
    Protocol,
    Scores,
    Truth,
    curve,
    difference,
    dump_scores,
    load_scores,
    measure,
    summarize,
    sweep_thresholds,
)

__all__ = [
    "METRICS",
    "THRESHOLDS",
    "TRIVIAL",
    "Difference",
    "Estimate",
    "Measures",
    "Metric",
    "Prediction",
    "Protocol",
    "Scores",
    "Truth",
    "cmc",
    "curve",
    "difference",
    "dump_scores",
    "load_scores",
    "measure",
    "summarize",
    "sweep_thresholds",
    "tapvid",
]
