"""The appendix's filter against a loop over pixels, and the laws of the draws."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lpa_cwm.datasets.movif import MoviClips, read_clip
from lpa_cwm.datasets.point_pairs import Filter, MatchSampler, Tally, Verdict
from lpa_cwm.datasets.tfrecord import Shard
from lpa_cwm.synth.pairs import split_of
from movi_files import drift, write


def plain_verdict(x, y, forward, backward, side):
    """The appendix for one pixel of the 128 variant."""
    f = forward[y, x].astype(np.float64)
    if not np.isfinite(f).all():
        return Verdict.NOT_FINITE
    px, py = x + 0.5 + f[0], y + 0.5 + f[1]
    column, row = int(np.floor(px)), int(np.floor(py))
    inside = 0 <= column < side and 0 <= row < side
    if inside and not np.isfinite(backward[row, column]).all():
        return Verdict.NOT_FINITE
    if min(x + 0.5, y + 0.5, side - x - 0.5, side - y - 0.5) < 4:
        return Verdict.SOURCE_NEAR_BORDER
    if not inside:
        return Verdict.GOAL_OUTSIDE
    if min(px, py, side - px, side - py) < 4:
        return Verdict.GOAL_NEAR_BORDER
    if np.linalg.norm(f + backward[row, column]) > 2:
        return Verdict.FLOWS_DISAGREE
    return Verdict.STILL if np.linalg.norm(f) < 0.25 else Verdict.KEPT


def fields(seed):
    rng = np.random.default_rng(seed)
    forward = (rng.normal(0, 1, (128, 128, 2)) * rng.choice([0.05, 1, 8, 60], (128, 128, 1))).astype(np.float32)
    backward = rng.normal(0, 1.2, (128, 128, 2)).astype(np.float32)
    forward[rng.random((128, 128)) < 0.01] = np.nan
    backward[rng.random((128, 128)) < 0.01] = np.inf
    return forward, backward


def test_every_pixel_meets_the_verdict_of_the_appendix():
    forward, backward = fields(0)
    verdicts = Filter().judge(forward, backward)
    expected = [[plain_verdict(x, y, forward, backward, 128) for x in range(128)] for y in range(128)]
    assert np.array_equal(verdicts, np.array(expected))
    assert set(np.unique(verdicts)) == {verdict.value for verdict in Verdict}


def test_thresholds_grow_with_the_variant():
    forward, backward = (np.nan_to_num(field, posinf=9.0) for field in fields(1))
    small = Filter().judge(forward, np.zeros_like(backward))
    twice = [np.repeat(np.repeat(field * 2, 2, axis=0), 2, axis=1) for field in (forward, np.zeros_like(backward))]
    large = Filter().judge(twice[0], twice[1])
    assert (large[::2, ::2] == small).mean() > 0.97


def test_tallies_add_and_print():
    one, two = (Tally.of(Filter().judge(*fields(seed))) for seed in (0, 1))
    both = one + two
    assert both.counts.total() == 2 * 128 * 128
    lines = str(both).splitlines()
    assert len(lines) == len(Verdict)
    assert lines[0].startswith("kept")
    assert f"{both.counts[Verdict.KEPT]:,}" in lines[0]
    assert any(line.startswith("flows disagree") for line in lines)


@pytest.fixture
def clip(tmp_path):
    return read_clip(Shard(write(tmp_path / "a", drift((6.0, -3.0)))), 0)


def test_large_motion_survives_because_the_sign_is_right(clip):
    matches, tally = MatchSampler(points=50)(clip, 1)
    assert len(matches.xy) == 50
    assert tally.counts[Verdict.KEPT] == (120 - 6) * (120 - 3)
    assert tally.counts[Verdict.FLOWS_DISAGREE] == 0


def test_points_and_goals_are_at_the_training_scale(clip):
    matches, _ = MatchSampler(points=50)(clip, 1)
    assert matches.source.shape == matches.target.shape == (3, 256, 256)
    assert torch.allclose(matches.goal - matches.xy, torch.tensor([12.0, -6.0]), atol=0.01)
    # The center of native pixel i is at 2 i + 1.
    assert torch.equal(matches.xy % 2, torch.ones(50, 2))
    native, _ = MatchSampler(points=50, size=128)(clip, 1)
    assert torch.equal(native.xy * 2, matches.xy)
    assert torch.equal(native.source, clip.frame(1))


def test_more_points_keep_those_already_drawn(clip):
    few, many = (MatchSampler(points)(clip, 0)[0] for points in (5, 20))
    assert torch.equal(few.xy, many.xy[:5])
    assert len(torch.unique(many.xy, dim=0)) == 20
    other = replace(MatchSampler(5), seed=1)(clip, 0)[0]
    assert not torch.equal(few.xy, other.xy)
    assert not torch.equal(few.xy, MatchSampler(5)(clip, 1)[0].xy)


def test_a_still_scene_gives_no_points(tmp_path):
    still = read_clip(Shard(write(tmp_path / "a", drift((0.1, 0.1)))), 0)
    matches, tally = MatchSampler(5)(still, 0)
    assert matches.xy.shape == (0, 2)
    assert tally.counts[Verdict.STILL] == 120 * 120


def test_all_pairs_of_all_clips_are_visited(tmp_path):
    names = [str(number) for number in range(40) if split_of(str(number)) == "train"][:3]
    write(tmp_path / "m-train.tfrecord-0", *(drift((2.0, 1.0), 64, frames=4, name=name) for name in names))
    clips = MoviClips.of(tmp_path, "train")
    visited = [(matches.clip, matches.frame) for matches, _ in MatchSampler(2).over(clips)]
    assert visited == [(name, t) for name in names for t in range(3)]
