"""Metrics against the official TAP-Vid numbers, plain loops and cases known by heart."""

import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from lpa_cwm import metrics
from lpa_cwm.errors import InputError
from metrics_reference import plain_cmc, plain_tapvid

with np.load(Path(__file__).parent / "golden" / "tapvid_metrics.npz") as file:
    GOLDEN = dict(file)
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
    steps = rng.normal(size=(n, t, 2)) * rng.choice([0.0, 0.3, 3.0, 9.0], size=(n, 1, 1))
    truth_xy = 100 + np.cumsum(steps, axis=1)
    whole = rng.choice([0, 1, 2, 4, 8, 16, 3], size=(n, t, 2)) * rng.choice([-1, 1], size=(n, t, 2))
    whole[..., 1] *= rng.random((n, t)) < 0.3
    if rng.random() < 0.5:
        truth_xy = np.round(truth_xy)
    xy = truth_xy + np.where(rng.random((n, t, 1)) < 0.5, whole, rng.normal(size=(n, t, 2)) * 4)
    visible = rng.random((n, t)) < rng.choice([0.0, 0.6, 0.9, 1.0])
    truth_visible = rng.random((n, t)) < rng.choice([0.0, 0.6, 0.9, 1.0], size=(n, 1))
    xy[rng.random((n, t)) < rng.choice([0.0, 0.0, 0.3])] = np.nan
    truth_xy[~truth_visible & (rng.random((n, t)) < 0.3)] = np.nan
    query_frame = rng.choice([0, 0, t - 1, int(rng.integers(0, t))], size=n)
    return xy, visible, truth_xy, truth_visible, query_frame


def agree(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("block", [0, 1, *(pytest.param(block, marks=pytest.mark.slow) for block in range(2, 8))])
def test_vectorised_equals_plain_loops_on_thousands_of_cases(block):
    defined = Counter()
    for seed in range(block * 250, block * 250 + 250):
        case = random_case(seed)
        motion, coverage = [(4.0, 0.8), (1.0, 0.5), (4.0, 0.8), (0.0, 1.0)][seed % 4]
        mode = "strided" if seed % 3 else "first"
        own, official = metrics.cmc(*case, motion=motion, coverage=coverage), metrics.tapvid(*case, mode=mode)
        agree(own.values, plain_cmc(*case, motion, coverage))
        agree(official.values, plain_tapvid(*case, mode))
        defined.update(name for name, value in (own.values | official.values).items() if not math.isnan(value))
    assert min(defined.values()) > 20, "too few cases exercise some measure"


@pytest.mark.parametrize("block", range(2))
def test_a_track_alone_is_measured_as_a_video_of_one_track(block):
    for seed in range(block * 30, block * 30 + 30):
        case = random_case(seed)
        together = metrics.cmc(*case, motion=0.0).tracks | metrics.tapvid(*case).tracks
        for i in range(len(case[0])):
            alone = [array[i : i + 1] for array in case]
            expected = plain_tapvid(*alone)
            if together["lcc"][i] == together["lcc"][i]:
                expected |= plain_cmc(*alone, motion=0.0)
            for name, value in expected.items():
                np.testing.assert_allclose(together[name][i], value, rtol=0, atol=1e-12, err_msg=name)


def moving(frames=10, step=5.0):
    """One track moving right, visible throughout, queried in the first frame."""
    truth_xy = np.stack((20 + step * np.arange(frames), np.full(frames, 50.0)), axis=1)[None]
    return truth_xy, np.ones((1, frames), dtype=bool), np.zeros(1, dtype=int)


def test_four_points_one_off_by_one_and_a_half_pixels():
    truth_xy, truth_visible, query = moving(frames=5)
    xy = truth_xy.copy()
    xy[0, 3, 1] += 1.5
    found = metrics.cmc(xy, truth_visible, truth_xy, truth_visible, query)
    assert [found[f"dca_{k}"] for k in metrics.THRESHOLDS] == [0.75, 1, 1, 1, 1]
    assert found["dca_avg"] == pytest.approx(0.95)
    assert found["coverage"] == found["complete"] == found["cts_4"] == found["lcc"] == 1
    assert found["fragmentation"] == 0
    assert math.isnan(found["vis_ba"])
    assert math.isnan(found["of1"])


def test_an_error_of_exactly_the_threshold_fails_and_a_mean_error_of_exactly_four_succeeds():
    truth_xy, truth_visible, query = moving()
    found = metrics.cmc(truth_xy + np.array([0, 4]), truth_visible, truth_xy, truth_visible, query)
    assert (found["dca_4"], found["dca_8"], found["cts_4"]) == (0, 1, 1)


def test_coverage_of_exactly_four_fifths_is_complete():
    truth_xy, truth_visible, query = moving(frames=11)
    shown = truth_visible.copy()
    shown[0, 4:6] = False
    found = metrics.cmc(truth_xy, shown, truth_xy, truth_visible, query)
    assert (found["coverage"], found["complete"], found["cts_4"]) == (0.8, 1, 1)
    assert (found["lcc"], found["fragmentation"]) == (0.5, 1)


def test_a_path_of_exactly_four_pixels_is_dynamic_and_a_shorter_one_is_not():
    truth_xy, truth_visible, query = moving(frames=5, step=1.0)
    assert metrics.cmc(truth_xy, truth_visible, truth_xy, truth_visible, query)["dca_avg"] == 1
    found = metrics.cmc(truth_xy * 0.99, truth_visible, truth_xy * 0.99, truth_visible, query)
    assert all(math.isnan(value) for value in found.values.values())


def test_truth_itself_reaches_the_ceiling_of_lcc_and_no_more():
    truth_xy, truth_visible, query = moving(frames=26, step=3.0)
    truth_visible[0, 11:16] = False
    found = metrics.cmc(truth_xy, truth_visible, truth_xy, truth_visible, query)
    assert (found["lcc"], found["lcc_ceiling"]) == (0.5, 0.5)
    assert (found["vis_ba"], found["of1"], found["fragmentation"]) == (1, 1, 0)


def test_reappearing_after_true_occlusion_is_no_fragment():
    truth_xy, truth_visible, query = moving(frames=12)
    truth_visible[0, 4:6] = False
    shown = truth_visible.copy()
    shown[0, [2, 9]] = False
    assert metrics.cmc(truth_xy, shown, truth_xy, truth_visible, query)["fragmentation"] == 2


def test_missing_predictions_fail_everywhere():
    truth_xy, truth_visible, query = moving(frames=5)
    xy = truth_xy.copy()
    xy[0, 3] = np.nan
    own, official = (
        measure(xy, truth_visible, truth_xy, truth_visible, query) for measure in (metrics.cmc, metrics.tapvid)
    )
    assert own["coverage"] == own["dca_16"] == official["delta_16"] == 0.75
    assert official["jaccard_16"] == 3 / 5
    assert official["ad"] == pytest.approx(DIAGONAL / 4)
    assert (official["md"], official["ad_query"]) == (0, pytest.approx(DIAGONAL / 5))


def test_query_on_the_last_frame_leaves_nothing_to_measure_but_the_query():
    truth_xy, truth_visible, _ = moving()
    found = metrics.tapvid(truth_xy, truth_visible, truth_xy, truth_visible, np.array([9]))
    assert {name for name, value in found.values.items() if not math.isnan(value)} == {"ad_query", "md_query"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"xy": np.zeros((1, 9, 2))}, r"predicted points have shape \(1, 9, 2\); the true points ask for \(1, 10, 2\)"),
        ({"visible": np.ones((2, 10), dtype=bool)}, "predicted visibility have shape"),
        ({"visible": np.full((1, 10), 0.7)}, "give scores as `score`"),
        ({"truth_xy": np.zeros((1, 10))}, r"\[n t 2\] was expected"),
        ({"truth_xy": np.full((1, 10, 2), np.nan)}, "visible but not finite"),
        ({"query_frame": np.array([10])}, "outside the clip's 10 frames"),
        ({"query_frame": np.array([0.5])}, "whole numbers"),
    ],
)
def test_bad_arrays_are_refused_in_one_sentence(change, sentence):
    truth_xy, truth_visible, query = moving()
    given = {"xy": truth_xy, "visible": truth_visible, "truth_xy": truth_xy, "truth_visible": truth_visible}
    with pytest.raises(InputError, match=sentence):
        metrics.cmc(**given | {"query_frame": query} | change)


def test_no_tracks_is_undefined_not_zero():
    nothing = (np.zeros((0, 5, 2)), np.zeros((0, 5), dtype=bool))
    for measure in (metrics.cmc, metrics.tapvid):
        values = measure(*nothing, *nothing, np.zeros(0, dtype=int)).values.values()
        assert all(math.isnan(value) for value in values)


def test_result_prints_as_a_table_of_declared_measures():
    truth_xy, truth_visible, query = moving()
    lines = str(metrics.cmc(truth_xy, truth_visible, truth_xy, truth_visible, query)).splitlines()
    assert "coverage        100.00 %" in lines
    assert any(line.split() == ["vis_ba", "–", "%"] for line in lines)


def test_every_measure_is_declared():
    truth_xy, truth_visible, query = moving()
    truth = metrics.Truth(truth_xy, truth_visible, query)
    found = metrics.measure(metrics.Prediction(truth_xy, truth_visible, seconds=1.0), truth)
    assert found.values.keys() == metrics.METRICS.keys()
    assert found["latency"] == pytest.approx(1000 / 9)


def test_numpy_alone_is_enough():
    code = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in ("numpy", "lpa_cwm"):
            raise ImportError(name)

import numpy
sys.meta_path.insert(0, Refuse())
from lpa_cwm import metrics
zeros = numpy.zeros((1, 3, 2))
seen = numpy.ones((1, 3), dtype=bool)
print(metrics.tapvid(zeros, seen, zeros, seen, [0])["aj"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "1.0\n", done.stderr
