"""Calibrated confidence: the regressions, their figures, and what the tracker makes of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lpa_cwm import registry
from lpa_cwm.adjudicators.apa import uniform
from lpa_cwm.config import Calibration, Selection, TrackerConfig
from lpa_cwm.errors import InputError
from lpa_cwm.estimates import EVIDENCE, UNKNOWN, compare_appearance, confidence, evidence, sampling_step
from lpa_cwm.evaluation import calibration as calibrating
from lpa_cwm.evaluation.calibration import Estimates
from lpa_cwm.evaluation.predict import Method
from lpa_cwm.geometry import sample_pixels
from lpa_cwm.pair_tracking import PairResult
from lpa_cwm.probe import observe_pair
from lpa_cwm.tracker import CwmTracker, track_clip
from lpa_cwm.types import Grid, Queries, Sample
from lpa_cwm.worlds.toy import ToyMotion, ToyWorld, toy_clip, toy_truth

RULE = Calibration((2.0, -1.0, 0.5, 5.0))


def estimates(count: int = 4000) -> Estimates:
    """Found points have more of the first evidence; errors grow with the second."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(count, len(EVIDENCE), generator=draw)
    visible = torch.rand(count, generator=draw) < (1.5 * x[:, 0] + 1.0).sigmoid()
    error = (x[:, 1] + 0.3 * torch.randn(count, generator=draw)).exp() * 4
    return Estimates(x, x[:, 1].exp(), visible, error.where(visible, torch.inf))


def test_evidence_is_relative_to_the_frame_and_has_a_value_where_it_is_unknown() -> None:
    result = PairResult.empty(torch.zeros(2, 2))
    result.native_strength[0], result.spread[0] = 0.1, 6.0
    expected = torch.tensor(UNKNOWN).log().repeat(2, 1)
    expected[0, 0], expected[0, 2] = float(np.log(0.1)), float(np.log(2.0))
    torch.testing.assert_close(evidence(result, (512, 1152)), expected)


def test_confidence_is_a_logistic_regression() -> None:
    x = torch.randn(7, len(EVIDENCE), generator=torch.Generator().manual_seed(0))
    for row, found in zip(x.tolist(), confidence(RULE, x).tolist(), strict=True):
        logit = 2 * row[0] - row[1] + 0.5 * row[2] + 5
        assert found == pytest.approx(1 / (1 + np.exp(-logit)), rel=1e-5)


def test_appearance_is_compared_in_each_frames_own_pixels() -> None:
    clip = toy_clip(ToyMotion((0.1, 0.0)), 2, (64, 96))
    observed = observe_pair(ToyWorld(), clip[0], clip[0], ("test",), TrackerConfig(), "cpu")
    xy = torch.tensor([[40.0, 30.0], [1.0, 63.0]])
    same = compare_appearance(observed, xy, PairResult.empty(xy))
    assert not same.color_change.any()
    ends = xy + torch.tensor([4.0, 0.0])
    step = sampling_step((64, 96))
    moved = compare_appearance(observed, xy, PairResult.empty(ends))
    square = torch.tensor([(dx * step, dy * step) for dx in range(-4, 5) for dy in range(-4, 5)])
    for row in range(2):
        here, there = (sample_pixels(clip[0], start[row] + square) for start in (xy, ends))
        assert moved.color_change[row].item() == pytest.approx((here - there).abs().mean().item(), rel=1e-4)
    assert sampling_step((480, 854)) == pytest.approx(2 * (480 * 854) ** 0.5 / 256)


def test_the_fit_finds_the_regression_that_made_the_labels() -> None:
    known = estimates()
    weights = calibrating.fit_logistic(known.evidence, known.visible)
    assert weights[0] == pytest.approx(1.5, abs=0.15)
    assert weights[-1] == pytest.approx(1.0, abs=0.15)
    assert all(abs(weight) < 0.15 for weight in weights[1:-1])


def test_a_fitted_confidence_is_calibrated_and_orders_errors() -> None:
    known = estimates()
    report = calibrating.evaluate(calibrating.fit(known), known)
    assert report["calibration_error"] < 0.04
    assert report["auc"] > 0.8
    assert report["rank_spread_error"] > 0.9
    assert report["rank_confidence_error"] > 0.5


@pytest.mark.parametrize("seed", range(3))
def test_ranks_and_areas_equal_plain_loops(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    score = torch.randint(0, 6, (40,), generator=draw).double()
    label = torch.rand(40, generator=draw) < 0.4
    wins = [(p > n) + 0.5 * (p == n) for p in score[label].tolist() for n in score[~label].tolist()]
    assert calibrating.area_under_curve(score, label) == pytest.approx(float(np.mean(wins)))
    below = [(score < value).sum().item() + ((score == value).sum().item() - 1) / 2 for value in score]
    assert calibrating.ranks(score).tolist() == below


def test_the_tracker_decides_visibility_by_the_calibration() -> None:
    config = TrackerConfig(passes=0, calibration=RULE)
    clip = toy_clip(ToyMotion((0.02, 0.0)), 4, (64, 64))
    tracks = CwmTracker(ToyWorld(), uniform, config).track(clip, Grid(2))
    assert tracks.confidence is not None
    assert (tracks.confidence[:, 0] == 1).all()
    assert ((tracks.confidence[:, 1:] > 0) & (tracks.confidence[:, 1:] < 1)).all()
    row = next(iter(CwmTracker(ToyWorld(), uniform, config).stream(iter(clip.frames), Grid(2).on((64, 64)))))
    assert (row.confidence == 1).all(), "the first row of a stream has all columns of the table"
    both = track_clip(CwmTracker(ToyWorld(), uniform, config), clip, Grid(2), backward=True).tracks
    assert torch.equal(both.confidence, tracks.confidence), "nothing lies before the first frame"
    never = replace(config, calibration=replace(RULE, threshold=1.0))
    assert not CwmTracker(ToyWorld(), uniform, never).track(clip, Grid(2)).visible[:, 1:].any()


def test_a_strength_threshold_replaces_the_calibrated_rule() -> None:
    calibrated = TrackerConfig(calibration=RULE)
    assert calibrated.changed({"masks": 3}).calibration == RULE
    assert calibrated.changed({"visibility_threshold": 0.1}).calibration is None
    assert registry.load_cwm("uniform", "toy", calibrated, visibility_threshold=0.1).config.calibration is None


def test_without_a_calibration_there_is_no_confidence() -> None:
    tracks = CwmTracker(ToyWorld(), uniform, TrackerConfig(passes=0)).track(
        toy_clip(ToyMotion((0.02, 0.0)), 3, (64, 64)), Grid(2)
    )
    assert tracks.confidence is None


class ToyData:
    """Clips of the toy world with a disc in front; points are queried in the first frame."""

    name, path, selection = "toy", Path("toy"), Selection()
    names = tuple(f"toy{index}" for index in range(6))

    def __init__(self) -> None:
        self.asked: list[int] = []

    def fingerprint(self, index: int) -> str:
        return str(index)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Sample:
        self.asked.append(index)
        motion = ToyMotion(shift=(0.02, 0.004 * index), disc=(0.6, 0.5, 0.15))
        queries = Queries(torch.tensor([[20.0, 30.0], [40.5, 25.0], [25.0, 44.0]]), torch.zeros(3).long())
        clip = toy_clip(motion, 6, (64, 64), self.names[index])
        return Sample(clip, queries, toy_truth(motion, queries, 6, (64, 64)))


def test_calibration_tracks_every_clip_once_and_says_how_good_it_is(tmp_path: Path) -> None:
    data, method = ToyData(), Method("uniform", world="toy", settings={"masks": 2, "passes": 0})
    first = calibrating.calibrate(method, data, tmp_path)
    (tmp_path / "estimates" / "00001.npz").unlink()
    cut = tmp_path / "estimates" / "00003.npz"
    cut.write_bytes(cut.read_bytes()[:500])
    second = calibrating.calibrate(method, data, tmp_path)
    every = [*range(6)]  # The data set is fingerprinted, then tracked; the second time two clips are missing.
    assert data.asked == [*every, *every, *every, 1, 3]
    assert first == second
    assert first["held_out"]["estimates"] == 2 * 3 * 5
    with pytest.raises(InputError, match="other settings"):
        calibrating.calibrate(replace(method, settings={"masks": 3, "passes": 0}), data, tmp_path)


def test_too_few_clips_are_refused(tmp_path: Path) -> None:
    data = ToyData()
    data.names = data.names[:3]
    with pytest.raises(InputError, match="3 clips; expected 5 or more"):
        calibrating.calibrate(Method("uniform", world="toy"), data, tmp_path)


def test_calibration_is_left_out_where_its_evidence_is_missing() -> None:
    defaults = registry.load_world("learned").defaults
    assert defaults.changed({"masks": 4}).calibration == defaults.calibration is not None
    for settings in ({"passes": 0}, {"reevaluation": "joint"}, {"visibility_threshold": 0.1}):
        assert defaults.changed(settings).calibration is None
    assert defaults.changed({"passes": 0, "calibration": RULE}).calibration == RULE
