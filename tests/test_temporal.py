"""Tracking through time on the toy world, where the truth is known."""

from dataclasses import replace
from threading import Barrier

import pytest
import torch

import lpa_cwm.pair_tracking
from lpa_cwm import load
from lpa_cwm.adjudicators.apa import uniform
from lpa_cwm.config import TrackerConfig
from lpa_cwm.errors import InputError
from lpa_cwm.jobs import computed_once, in_threads
from lpa_cwm.online import SINGLE, OnlineTracker
from lpa_cwm.registry import bundled_clip
from lpa_cwm.rng import generator
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.types import Clip, Judgement, Queries
from lpa_cwm.worlds.toy import ToyMotion, ToyWorld, toy_clip, toy_truth

SIZE = 64
SMALL = {"size": SIZE, "sigma": 2.0}
TEMPORAL = TrackerConfig(masks=4, gap_masks=3, gaps=(1, 4), passes=0, visibility_threshold=0.75)
"""Of a bump of 0.5 in three channels, half must be seen."""


def queries(*points):
    xy, frames = zip(*(((x, y), frame) for x, y, frame in points), strict=True)
    return Queries(torch.tensor(xy), torch.tensor(frames))


def tracker(adjudicator=uniform, config=TEMPORAL, **world):
    return CwmTracker(ToyWorld(**SMALL, **world), adjudicator, config)


def strongest(pair, candidates):
    """All weight on the candidate with the largest response."""
    return Judgement.of(torch.nn.functional.one_hot(candidates.strength.argmax(1), candidates.peak.shape[1]).float())


def test_candidates_come_from_the_query_frame_and_from_the_gaps():
    counts = []

    def count(pair, candidates):
        counts.append(candidates.peak.shape[1])
        return uniform(pair, candidates)

    clip = toy_clip(ToyMotion(shift=(0.01, 0.0)), 7, (SIZE, SIZE))
    tracker(count).track(clip, queries((20.5, 30.5, 0)))
    # Frame 1 has the direct path alone; from frame 2 on t - 1 is another source, from frame 5 on t - 4 as well.
    assert counts == [4, 7, 7, 7, 10, 10]


def test_without_gaps_the_direct_path_is_unchanged():
    clip = toy_clip(ToyMotion(shift=(0.02, 0.01), turn=0.02), 5, (SIZE, SIZE))
    points = queries((20.3, 30.8, 0), (30.1, 25.2, 1))
    direct = tracker(config=TrackerConfig(passes=0), error=5.0).track(clip, points)
    for frame in range(1, 5):
        rows = points.frame < frame
        observed = tracker(config=TrackerConfig(passes=0), error=5.0).observe(clip, 0, frame)
        alone = tracker(config=TrackerConfig(passes=0), error=5.0).track_pair(observed, points.xy[:1])
        assert torch.equal(alone.xy[0], direct.xy[0, frame])
        assert rows[0]


@pytest.mark.slow
def test_slow_motion_over_200_frames_does_not_drift():
    motion = ToyMotion(shift=(0.1 / SIZE, 0.05 / SIZE))
    points = queries((12.5, 20.5, 0), (20.5, 40.5, 0))
    tracks = tracker().track(toy_clip(motion, 200, (SIZE, SIZE)), points)
    truth = toy_truth(motion, points, 200, (SIZE, SIZE))
    assert (tracks.xy[:, -1] - truth.xy[:, -1]).norm(dim=-1).max() < 1


def test_a_point_hidden_for_30_frames_is_found_again():
    motion = ToyMotion(shift=(1.2 / SIZE, 0.0), disc=(0.55, 0.5, 0.28))
    points = queries((8.5, 32.5, 0))
    truth = toy_truth(motion, points, 44, (SIZE, SIZE))
    assert (~truth.visible).sum() >= 30
    tracks = tracker().track(toy_clip(motion, 44, (SIZE, SIZE)), points)
    assert torch.equal(tracks.visible[0, -1], truth.visible[0, -1])
    assert (tracks.xy[0, -1] - truth.xy[0, -1]).norm() < 1
    hidden = ~tracks.visible[0, 1:]
    assert torch.equal(tracks.xy[0, 1:][hidden], tracks.xy[0, :-1][hidden])
    hidden = ~truth.visible[0]
    # At either edge of the disc the bump is partly seen for two frames.
    assert (tracks.visible[0] & hidden).sum() <= 4


def test_a_wrong_step_does_not_stay_wrong():
    """The adjudicator believes a displaced candidate in one frame; the direct path brings the point back."""
    motion = ToyMotion(shift=(1.0 / SIZE, 0.5 / SIZE))
    points = queries((20.5, 20.5, 0))
    truth = toy_truth(motion, points, 12, (SIZE, SIZE))
    tracking = OnlineTracker(ToyWorld(**SMALL), {SINGLE: uniform}, TEMPORAL)
    tracking.add(points.xy[0], 0)
    clip = toy_clip(motion, 12, (SIZE, SIZE))
    for frame in range(12):
        estimate = tracking.step(clip[frame])[SINGLE]
        if frame == 5:
            with torch.inference_mode():
                tracking.history[SINGLE][5].xy[0] += 9
    assert (estimate.xy[0] - truth.xy[0, -1]).norm() < 1


def test_streaming_is_the_same_as_the_whole_clip_and_keeps_few_frames():
    clip = toy_clip(ToyMotion(shift=(0.01, 0.004), turn=0.01), 12, (SIZE, SIZE))
    points = queries((20.5, 30.5, 0), (33.5, 40.5, 2))
    whole = tracker(error=4.0).track(clip, points)
    tracking = OnlineTracker(ToyWorld(**SMALL, error=4.0), {SINGLE: uniform}, TEMPORAL, name=clip.name)
    tracking.add(points.xy[0], 0)
    tracking.add(points.xy[1], 2)
    for frame in range(12):
        estimate = tracking.step(clip[frame])[SINGLE]
        torch.testing.assert_close(estimate.xy, whole.xy[:, frame], equal_nan=True, atol=0, rtol=0)
        assert torch.equal(estimate.visible, whole.visible[:, frame])
    # Two frames with given positions and the four that the longest gap reaches back to, the newest one included.
    assert len(tracking.frames) <= 2 + 4
    assert len(tracking.history[SINGLE]) <= 4


def test_points_come_and_go_on_the_way():
    clip = toy_clip(ToyMotion(shift=(0.01, 0.0)), 8, (SIZE, SIZE))
    tracking = OnlineTracker(ToyWorld(**SMALL), {SINGLE: uniform}, TEMPORAL)
    tracking.step(clip[0])
    first = tracking.add(torch.tensor([20.5, 30.5]))
    tracking.step(clip[1])
    second = tracking.add(torch.tensor([40.5, 30.5]))
    estimate = tracking.step(clip[2])[SINGLE]
    assert estimate.visible.tolist() == [True, True]
    tracking.remove(first)
    estimate = tracking.step(clip[3])[SINGLE]
    assert estimate.visible.tolist() == [False, True]
    assert second == 1
    for frame in range(4, 8):
        tracking.step(clip[frame])
    with pytest.raises(InputError, match="is gone"):
        tracking.add(torch.tensor([1.0, 1.0]), 2)


def test_backward_tracks_are_those_of_the_reversed_clip():
    motion = ToyMotion(shift=(0.02, 0.01))
    clip = toy_clip(motion, 6, (SIZE, SIZE))
    truth = toy_truth(motion, queries((20.5, 30.5, 0)), 6, (SIZE, SIZE))
    middle = Queries(truth.xy[:, 3], torch.tensor([3]))
    tracks = tracker().track(clip, middle, backward=True)
    # A pixel or two are lost where masks show the endpoint's patch.
    assert (tracks.xy - truth.xy).norm(dim=-1).max() < 2
    assert tracks.visible.all()
    assert tracker().track(clip, middle).xy[0, :3].isnan().all()


def test_a_second_position_repairs_a_track():
    """A point that the world model loses is found again from a correction, and the correction itself is exact."""
    clip = toy_clip(ToyMotion(shift=(0.01, 0.0)), 6, (SIZE, SIZE))
    frames = torch.stack([clip[index] for index in range(6)])
    jump = Clip(torch.cat((frames[:3].flip(-1), frames[3:])), "jump")
    given = Queries(torch.tensor([[20.5, 30.5], [22.5, 30.5]]), torch.tensor([0, 3]), torch.tensor([0, 0]))
    tracks = tracker().track(jump, given)
    assert tracks.xy.shape[0] == 1
    assert tracks.xy[0, 3].tolist() == [22.5, 30.5]
    expected = torch.tensor([22.5 + 2 * 0.64, 30.5])
    assert (tracker(strongest).track(jump, given).xy[0, 5] - expected).norm() < 4


def test_workers_give_the_same_bytes_as_one(monkeypatch):
    """Points of two frames, some of which are lost on the way, by the learned model in native crops."""
    frames = bundled_clip("learned").frames
    clip = Clip(torch.stack([frames[index] for index in range(3)]), "bundled")
    points = Queries(torch.rand(10, 2, generator=generator("workers")) * 200 + 20, torch.arange(10) % 2)
    monkeypatch.setattr(lpa_cwm.pair_tracking, "CROPS_AT_ONCE", 4)
    alone = load("lpa", batch=4, masks=3, gap_masks=2, workers=1)
    torch.set_num_threads(1)
    one, two = (replace(alone, workers=workers).track(clip, points) for workers in (1, 2))
    for name, value in one.known().items():
        assert value.numpy().tobytes() == getattr(two, name).numpy().tobytes(), name


def test_threads_compute_attributes_of_different_objects_at_the_same_time():
    both = Barrier(2)

    class Waiting:
        computed = 0

        @computed_once
        def value(self) -> int:
            both.wait(timeout=10)
            self.computed += 1
            return self.computed

    pair = [Waiting(), Waiting()]
    assert in_threads(lambda one: one.value, pair, 2) == [1, 1]
    assert [one.value for one in pair] == [1, 1]
