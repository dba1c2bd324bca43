"""Every measure of point tracks, with numpy alone.

`cmc(...)` and `tapvid(...)` measure one video; `measure(prediction, truth)` does both. `Scores` keeps a data set's.
All points are in pixels of the 256 x 256 raster, a pixel's centre at +0.5.
"""

from lpa_cwm.metrics.cmc import cmc
from lpa_cwm.metrics.declaration import METRICS, THRESHOLDS, Metric
from lpa_cwm.metrics.measures import Measures
from lpa_cwm.metrics.scores import (
    Prediction,
    Protocol,
    Scores,
    Truth,
    dump_scores,
    load_scores,
    measure,
    sweep_thresholds,
)
from lpa_cwm.metrics.summary import Difference, Estimate, curve, difference, summarise
from lpa_cwm.metrics.tapvid import tapvid
from lpa_cwm.metrics.trivial import TRIVIAL

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
    "summarise",
    "sweep_thresholds",
    "tapvid",
]
