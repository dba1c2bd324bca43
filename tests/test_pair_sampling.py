"""The appendix's filter against a loop over pixels, and the laws of the draws."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lpa_cwm.datasets.movif import RecordFile, read_clip
from lpa_cwm.training.pair_sampling import FilterCounts, FlowFilter, PointPairSampler, Reason
from movi_files import drift, write


def plain_verdict(x, y, forward, backward, side):
    """The appendix for one pixel of the 128 variant."""
    f = forward[y, x].astype(np.float64)
    if not np.isfinite(f).all():
        return Reason.NOT_FINITE
    px, py = x + 0.5 + f[0], y + 0.5 + f[1]
    column, row = int(np.floor(px)), int(np.floor(py))
    inside = 0 <= column < side and 0 <= row < side
    if inside and not np.isfinite(backward[row, column]).all():
        return Reason.NOT_FINITE
    if min(x + 0.5, y + 0.5, side - x - 0.5, side - y - 0.5) < 4:
        return Reason.SOURCE_NEAR_BORDER
    if not inside:
        return Reason.TARGET_OUTSIDE
    if min(px, py, side - px, side - py) < 4:
        return Reason.TARGET_NEAR_BORDER
    if np.linalg.norm(f + backward[row, column]) > 2:
        return Reason.FLOWS_DISAGREE
    return Reason.STILL if np.linalg.norm(f) < 0.25 else Reason.KEPT


def fields(seed):
    rng = np.random.default_rng(seed)
    forward = (rng.normal(0, 1, (128, 128, 2)) * rng.choice([0.05, 1, 8, 60], (128, 128, 1))).astype(np.float32)
    backward = rng.normal(0, 1.2, (128, 128, 2)).astype(np.float32)
    forward[rng.random((128, 128)) < 0.01] = np.nan
    backward[rng.random((128, 128)) < 0.01] = np.inf
    return forward, backward


def test_every_pixel_meets_the_verdict_of_the_appendix():
    forward, backward = fields(0)
    reasons = FlowFilter().classify(forward, backward)
    expected = [[plain_verdict(x, y, forward, backward, 128) for x in range(128)] for y in range(128)]
    assert np.array_equal(reasons, np.array(expected))
    assert set(np.unique(reasons)) == {reason.value for reason in Reason}


def test_thresholds_grow_with_the_variant():
    forward, backward = (np.nan_to_num(field, posinf=9.0) for field in fields(1))
    small = FlowFilter().classify(forward, np.zeros_like(backward))
    twice = [np.repeat(np.repeat(field * 2, 2, axis=0), 2, axis=1) for field in (forward, np.zeros_like(backward))]
    large = FlowFilter().classify(twice[0], twice[1])
    assert (large[::2, ::2] == small).mean() > 0.97


def test_tallies_add_and_print():
    one, two = (FilterCounts.of(FlowFilter().classify(*fields(seed))) for seed in (0, 1))
    both = one + two
    assert both.counts.total() == 2 * 128 * 128
    lines = str(both).splitlines()
    assert len(lines) == len(Reason)
    assert lines[0].startswith("kept")
    assert f"{both.counts[Reason.KEPT]:,}" in lines[0]
    assert any(line.startswith("flows disagree") for line in lines)


@pytest.fixture
def clip(tmp_path):
    return read_clip(RecordFile(write(tmp_path / "a", drift((6.0, -3.0)))), 0)


def test_large_motion_survives_because_the_sign_is_right(clip):
    matches, tally = PointPairSampler(points=50)(clip, 1)
    assert len(matches.xy) == 50
    assert tally.counts[Reason.KEPT] == (120 - 6) * (120 - 3)
    assert tally.counts[Reason.FLOWS_DISAGREE] == 0


def test_points_and_targets_are_at_the_training_scale(clip):
    matches, _ = PointPairSampler(points=50)(clip, 1)
    assert matches.source.shape == matches.target.shape == (3, 256, 256)
    assert torch.allclose(matches.target_xy - matches.xy, torch.tensor([12.0, -6.0]), atol=0.01)
    # The center of native pixel i is at 2 i + 1.
    assert torch.equal(matches.xy % 2, torch.ones(50, 2))
    native, _ = PointPairSampler(points=50, size=128)(clip, 1)
    assert torch.equal(native.xy * 2, matches.xy)
    assert torch.equal(native.source, clip.frame(1))


def test_more_points_keep_those_already_drawn(clip):
    few, many = (PointPairSampler(points)(clip, 0)[0] for points in (5, 20))
    assert torch.equal(few.xy, many.xy[:5])
    assert len(torch.unique(many.xy, dim=0)) == 20
    other = replace(PointPairSampler(5), seed=1)(clip, 0)[0]
    assert not torch.equal(few.xy, other.xy)
    assert not torch.equal(few.xy, PointPairSampler(5)(clip, 1)[0].xy)


def test_a_still_scene_gives_no_points(tmp_path):
    still = read_clip(RecordFile(write(tmp_path / "a", drift((0.1, 0.1)))), 0)
    matches, tally = PointPairSampler(5)(still, 0)
    assert matches.xy.shape == (0, 2)
    assert tally.counts[Reason.STILL] == 120 * 120
