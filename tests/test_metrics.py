"""Metrics against the official TAP-Vid numbers, plain loops and cases known by heart."""

import math
from pathlib import Path

import numpy as np
import pytest

from lpa_cwm import metrics
from metrics_reference import plain_cmc, plain_tapvid

GOLDEN = np.load(Path(__file__).parent / "golden" / "tapvid_metrics.npz")
DIAGONAL = 256 * math.sqrt(2)


@pytest.mark.parametrize("mode", ["first", "strided"])
def test_tapvid_equals_the_official_function(mode):
    def given(name):
        return GOLDEN[f"{mode}_{name}"][0]

    found = metrics.tapvid(
        given("pred_tracks"),
        ~given("pred_occluded"),
        given("target_points"),
        ~given("occluded"),
        given("query_points")[:, 0].astype(int),
        mode=mode,
    )
    expected = {"aj": "average_jaccard", "delta_avg": "average_pts_within_thresh", "oa": "occlusion_accuracy"}
    expected |= {f"delta_{k}": f"pts_within_{k}" for k in metrics.THRESHOLDS}
    expected |= {f"jaccard_{k}": f"jaccard_{k}" for k in metrics.THRESHOLDS}
    for ours, official in expected.items():
        assert abs(found[ours] - given(f"metric_{official}")) < 1e-12, ours


def random_case(seed):
    """A small video: random sizes, paths that mix motion and rest, whole distances, gaps and missing predictions."""
    rng = np.random.default_rng(seed)
    n, t = int(rng.integers(1, 6)), int(rng.integers(2, 13))
    steps = rng.normal(size=(n, t, 2)) * rng.choice([0.0, 0.3, 3.0], size=(n, 1, 1))
    truth_xy = 100 + np.cumsum(steps, axis=1)
    whole = rng.choice([0, 1, 2, 4, 8, 16, 3], size=(n, t, 2)) * rng.choice([-1, 1], size=(n, t, 2))
    whole[..., 1] *= rng.random((n, t)) < 0.3
    if rng.random() < 0.5:
        truth_xy = np.round(truth_xy)
    xy = truth_xy + np.where(rng.random((n, t, 1)) < 0.5, whole, rng.normal(size=(n, t, 2)) * 4)
    visible = rng.random((n, t)) < rng.choice([0.0, 0.5, 0.8, 1.0])
    truth_visible = rng.random((n, t)) < rng.choice([0.0, 0.5, 0.8, 1.0], size=(n, 1))
    xy[rng.random((n, t)) < rng.choice([0.0, 0.0, 0.3])] = np.nan
    truth_xy[~truth_visible & (rng.random((n, t)) < 0.3)] = np.nan
    query_frame = rng.choice([0, t - 1, int(rng.integers(0, t))], size=n)
    return xy, visible, truth_xy, truth_visible, query_frame


def agree(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("block", range(10))
def test_vectorised_equals_plain_loops_on_thousands_of_cases(block):
    for seed in range(block * 300, block * 300 + 300):
        case = random_case(seed)
        motion, coverage = (4.0, 0.8) if seed % 2 else (1.0, 0.5)
        agree(metrics.cmc(*case, motion=motion, coverage=coverage).values, plain_cmc(*case, motion, coverage))
        mode = "strided" if seed % 3 else "first"
        agree(metrics.tapvid(*case, mode=mode).values, plain_tapvid(*case, mode))
