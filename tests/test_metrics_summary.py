"""Laws of means over videos, intervals, paired differences, and the score file."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from lpa_cwm import metrics
from lpa_cwm.errors import InputError
from lpa_cwm.metrics.scores import estimates
from test_metrics import random_case


def scores(method="ours", seeds=range(8), shift=0.0, **fields):
    videos = {}
    for seed in seeds:
        xy, visible, truth_xy, truth_visible, query = random_case(seed)
        score = np.random.default_rng(seed).random(visible.shape)
        prediction = metrics.Prediction(xy + shift, visible, score, seconds=0.5)
        truth = metrics.Truth(truth_xy, truth_visible, query)
        videos[f"video {seed}"] = metrics.measure(prediction, truth, thresholds=[0.0, 0.5])
    return metrics.Scores("toys", method, videos, thresholds=[0.0, 0.5], **fields)


def test_mean_weighs_videos_equally_and_counts_what_is_undefined():
    one = scores()
    column = one.column("dca_avg")
    found = metrics.summarize(one)["dca_avg"]
    assert found.undefined == np.isnan(column).sum() > 0
    assert found.videos + found.undefined == 8
    assert found.value == pytest.approx(np.nanmean(column))
    assert found.low <= found.value <= found.high


def test_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    found = estimates(rng.normal(size=(60, 400)), draws=1000)
    covered = np.mean([one.low < 0 < one.high for one in found])
    assert 0.91 < covered < 0.98


def test_interval_is_the_normal_one_for_many_videos():
    column = np.random.default_rng(1).normal(size=(400, 1))
    (found,) = estimates(column)
    half = 1.96 * column.std() / 20
    assert found.high - found.low == pytest.approx(2 * half, rel=0.05)


def test_undefined_videos_do_not_move_the_interval_but_for_their_number():
    column = np.random.default_rng(2).normal(size=(30, 1))
    (full,) = estimates(column)
    (padded,) = estimates(np.concatenate((column, np.full((1, 1), np.nan))))
    assert padded.value == pytest.approx(full.value)
    assert (padded.videos, padded.undefined) == (30, 1)
    assert padded.low == pytest.approx(full.low, abs=0.05)


@pytest.mark.parametrize("known", [0, 1])
def test_fewer_than_two_videos_have_no_interval(known):
    (found,) = estimates(np.array([[1.0], [np.nan], [np.nan]])[: known + 1] if known else np.full((2, 1), np.nan))
    assert (found.videos, math.isnan(found.low)) == (known, True)


def test_difference_is_paired_antisymmetric_and_counts_wins_by_direction():
    truth_like, shifted = scores("a"), scores("b", shift=3.0)
    forth, back = metrics.difference(truth_like, shifted), metrics.difference(shifted, truth_like)
    for name in ("delta_avg", "ad"):
        assert forth[name].estimate.value == pytest.approx(-back[name].estimate.value)
        assert forth[name].won + back[name].won + forth[name].tied == pytest.approx(1)
        expected = np.nanmean(truth_like.column(name) - shifted.column(name))
        assert forth[name].estimate.value == pytest.approx(expected)
    assert forth["ad"].estimate.value < 0 < forth["ad"].won
    assert math.isnan(forth["lcc_ceiling"].won)


def test_a_method_never_differs_from_itself_and_order_of_videos_is_irrelevant():
    one, other = scores(), scores(seeds=reversed(range(8)))
    assert all(found.estimate.value == 0 for found in metrics.difference(one, other).values() if found.estimate.videos)


@pytest.mark.parametrize("fields", [{"manifest": "x"}, {"seeds": range(7)}, {"protocol": metrics.Protocol("strided")}])
def test_scores_of_different_tasks_are_not_compared(fields):
    with pytest.raises(InputError, match="different videos, tracks, frames or protocols"):
        metrics.difference(scores(), scores(**fields))


def test_score_file_round_trip(tmp_path):
    path = tmp_path / "scores.json"
    given = [scores(notes={"masks": 10}), scores("static point", reference=True)]
    path.write_text(metrics.dump_scores(given))
    for before, after in zip(given, metrics.load_scores(path), strict=True):
        assert (after.task, after.method, after.notes, after.reference) == (
            before.task, before.method, before.notes, before.reference,
        )  # fmt: skip
        for name, video in before.videos.items():
            loaded = after.videos[name]
            np.testing.assert_equal(loaded.values, video.values)
            np.testing.assert_equal(loaded.sweep, video.sweep)
            np.testing.assert_equal(loaded.tracks, video.tracks)


CUT = '{"format": "lpa-cwm scores 1", "scores": [{"protocol": {}, "videos": {"v": []}}]}'


@pytest.mark.parametrize("text", ["", "{}", "[]", "1", '{"format": "other"}', '{"format": "lpa-cwm scores 1"}', CUT])
def test_what_is_no_score_file_is_refused(tmp_path, text):
    path = tmp_path / "scores.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"scores\.json is"):
        metrics.load_scores(path)


def test_other_thresholds_from_counts_equal_measuring_again():
    again = scores().at(motion=1.0, coverage=0.5)
    for seed in range(8):
        expected = metrics.cmc(*random_case(seed), motion=1.0, coverage=0.5)
        np.testing.assert_equal(again.videos[f"video {seed}"].values, expected.values)


def test_sweep_equals_measuring_with_that_visibility_and_hides_more_as_it_rises():
    one = scores()
    xy, visible, *truth = random_case(5)
    score = np.random.default_rng(5).random(visible.shape)
    at_half = metrics.cmc(xy, score >= 0.5, *truth)
    for name, values in one.videos["video 5"].sweep.items():
        np.testing.assert_equal(values[1], at_half[name])
    all_shown, half_shown = metrics.curve(one)["coverage"]
    assert all_shown > half_shown


def test_sweep_thresholds_weigh_videos_alike_and_ignore_what_is_not_finite():
    long, short = np.zeros((10, 1000)), np.array([[1.0, np.nan]])
    found = metrics.sweep_thresholds([long, short], levels=11)
    assert found == [0.0, 1.0]
    assert metrics.sweep_thresholds([np.full((2, 2), np.nan)]) == []


def test_trivial_predictors_are_floor_and_ceiling():
    _, _, truth_xy, truth_visible, query = random_case(5)
    truth = metrics.Truth(np.nan_to_num(truth_xy), truth_visible, query)
    best = metrics.measure(metrics.TRIVIAL["ground truth"](truth), truth)
    still = metrics.measure(metrics.TRIVIAL["static point"](truth), truth)
    assert best["dca_avg"] == best["aj"] == best["oa"] == still["coverage"] == 1
    assert best["lcc"] == best["lcc_ceiling"]
    assert still["vis_ba"] == 0.5


def test_documentation_runs(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "docs" / "metrics.md").read_text(), re.S)
    xy, visible, truth_xy, truth_visible, query_frame = random_case(7)
    given = {"xy": xy, "visible": visible, "truth_xy": truth_xy, "truth_visible": truth_visible}
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    exec("\n".join(blocks), given | {"query_frame": query_frame})
    assert [one.method for one in metrics.load_scores("run/scores.json")] == ["my tracker", *metrics.TRIVIAL]
