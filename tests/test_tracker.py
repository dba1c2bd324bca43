"""The method end to end on the toy world, where the truth is known."""

from dataclasses import replace

import pytest
import torch

from lpa_cwm.adjudicators.apa import uniform
from lpa_cwm.adjudicators.lpa import LPA
from lpa_cwm.config import TrackerConfig
from lpa_cwm.errors import InputError
from lpa_cwm.registry import load
from lpa_cwm.tracker import CwmTracker, track_many
from lpa_cwm.types import Clip, Grid, Judgement, Queries
from lpa_cwm.video_tracking import estimate_cost
from lpa_cwm.worlds.toy import ToyMotion, ToyWorld, toy_clip, toy_truth

SIZE = 64
SMALL = {"size": SIZE, "sigma": 2.0}
DRIFT = ToyMotion(shift=(3 / SIZE, -2 / SIZE))
TURNING = ToyMotion(shift=(0.03, 0.01), turn=0.05, zoom=1.03)


def queries(*points):
    xy, frames = zip(*(((x, y), frame) for x, y, frame in points), strict=True)
    return Queries(torch.tensor(xy), torch.tensor(frames))


POINTS = queries((20.5, 30.5, 0), (33.5, 40.5, 0), (25.5, 22.5, 1))


@pytest.mark.parametrize("mode", ["query", "joint"])
def test_whole_pixel_motion_is_recovered_to_the_pixel(mode):
    clip = toy_clip(DRIFT, 4, (SIZE, SIZE))
    tracker = CwmTracker(ToyWorld(**SMALL), uniform, TrackerConfig(reevaluation=mode, subpixel=False))
    tracks = tracker.track(clip, POINTS)
    truth = toy_truth(DRIFT, POINTS, 4, (SIZE, SIZE))
    torch.testing.assert_close(tracks.xy, truth.xy, equal_nan=True, atol=1e-4, rtol=0)
    assert torch.equal(tracks.visible, truth.visible)


@pytest.mark.parametrize("hw", [(64, 64), (48, 80)])
@pytest.mark.parametrize("passes", [0, 1, 2, 3])
def test_sub_pixel_motion_is_recovered_to_half_a_diagonal(hw, passes):
    """An endpoint is the center of a working pixel, so it may be off by half that pixel's diagonal.

    Without re-evaluation the true pixel may lie in a patch that some masks show, where they answer nothing; the best
    pixel of a neighboring patch then wins, a pixel or two away.
    """
    clip = toy_clip(TURNING, 3, hw)
    points = queries((20.3, 20.8, 0), (30.2, 25.1, 0), (24.7, 30.9, 1))
    truth = toy_truth(TURNING, points, 3, hw)
    for mode in ("query", "joint"):
        tracks = CwmTracker(ToyWorld(**SMALL), uniform, TrackerConfig(passes=passes, reevaluation=mode)).track(
            clip, points
        )
        pixel = (hw[0] ** 2 + hw[1] ** 2) ** 0.5 / SIZE
        assert (tracks.xy - truth.xy).norm(dim=-1).nan_to_num().max() < (0.5 if passes else 1.5) * pixel + 0.03


def test_a_covered_point_is_hidden_and_comes_back():
    motion = ToyMotion(shift=(8 / SIZE, 0.0), disc=(0.5, 0.5, 0.1))
    points = queries((16.5, 32.5, 0))
    truth = toy_truth(motion, points, 5, (SIZE, SIZE))
    assert truth.visible.tolist() == [[True, True, False, True, True]]
    tracks = CwmTracker(ToyWorld(**SMALL), uniform, TrackerConfig()).track(toy_clip(motion, 5, (SIZE, SIZE)), points)
    assert torch.equal(tracks.visible, truth.visible)


CONFIGS = [
    TrackerConfig(passes=0),
    TrackerConfig(passes=0, subpixel=False),
    TrackerConfig(reevaluation="query", mask_sharing="query", subpixel=False),
    TrackerConfig(reevaluation="query", passes=2, subpixel=False),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_a_batch_of_seven_is_seven_batches_of_one(config):
    clip = toy_clip(TURNING, 2, (SIZE, SIZE))
    points = Queries(16 + 32 * torch.rand(7, 2, generator=torch.Generator().manual_seed(3)), torch.zeros(7).long())
    world = ToyWorld(error=5.0, wrong=0.4, **SMALL)
    torch.manual_seed(0)
    tracker = CwmTracker(world, LPA().eval(), config)
    together = tracker.track(clip, points)
    for row in range(7):
        alone = tracker.track(clip, Queries(points.xy[row : row + 1], points.frame[row : row + 1]))
        torch.testing.assert_close(alone.xy[0], together.xy[row], equal_nan=True, atol=1e-3, rtol=0)
        # Sums over other numbers of rows differ in their last bit, which parabolas show and pixels do not.
        assert config.subpixel or torch.equal(alone.xy[0].nan_to_num(), together.xy[row].nan_to_num())
        torch.testing.assert_close(alone.strength[0], together.strength[row], equal_nan=True)


def test_memory_chunks_change_nothing():
    clip = toy_clip(TURNING, 2, (SIZE, SIZE))
    world = ToyWorld(error=5.0, **SMALL)
    one, many = (CwmTracker(world, uniform, TrackerConfig(batch=batch)).track(clip, Grid(3)) for batch in (2, 64))
    assert torch.equal(one.xy.nan_to_num(), many.xy.nan_to_num())


def test_candidates_disagree_and_a_good_adjudicator_wins():
    """Masks are wrong by 9 pixels in 60 of 100 cases; believing the candidates near the truth finds it."""
    clip = toy_clip(DRIFT, 2, (SIZE, SIZE))
    points = queries((25.5, 35.5, 0))
    truth = toy_truth(DRIFT, points, 2, (SIZE, SIZE)).xy[0, 1]
    spread = []

    def oracle(pair, candidates):
        error = (candidates.peak - truth).norm(dim=-1)
        spread.append(error)
        return Judgement.of((-4 * error).softmax(1))

    world = ToyWorld(error=9.0, wrong=0.6, **SMALL)
    track = CwmTracker(world, oracle, TrackerConfig(passes=0)).track(clip, points)
    assert spread[0].max() > 7
    assert spread[0].min() < 0.1
    assert (track.xy[0, 1] - truth).norm() < 0.1
    assert track.support[0, 1] < 10


def test_before_the_query_there_is_nothing_and_at_the_query_the_query():
    clip = toy_clip(DRIFT, 3, (SIZE, SIZE))
    tracks = CwmTracker(ToyWorld(**SMALL), uniform, TrackerConfig()).track(clip, queries((20.25, 30.75, 1)))
    assert tracks.xy[0, 0].isnan().all()
    assert tracks.xy[0, 1].tolist() == [20.25, 30.75]
    assert tracks.visible.tolist() == [[False, True, True]]


def test_targets_are_asked_directly():
    """Dropping a frame in between changes nothing about the others."""
    clip = toy_clip(TURNING, 4, (SIZE, SIZE))
    frames = clip.frames
    tracker = CwmTracker(ToyWorld(**SMALL), uniform, TrackerConfig())
    spoilt = Clip(torch.stack([frames[0], frames[0].flip(-1), frames[2]]), clip.name)
    point = queries((25.5, 35.5, 0))
    assert torch.equal(tracker.track(clip, point).xy[0, 2], tracker.track(spoilt, point).xy[0, 2])


def test_effective_support():
    assert Judgement.of(torch.tensor([[1.0, 0, 0, 0]])).support.item() == pytest.approx(1)
    assert Judgement.of(torch.full((1, 10), 0.1)).support.item() == pytest.approx(10)


def test_the_plan_counts_what_tracking_does():
    calls = {"pairs": 0, "factual": 0, "counterfactual": 0}

    class Counting(ToyWorld):
        def observe(self, source, target):
            calls["pairs"] += 1
            return super().observe(source, target)

        def imagine(self, scene, hidden):
            calls["factual"] += len(hidden)
            return super().imagine(scene, hidden)

        def intervene(self, scene, factual, xy):
            calls["counterfactual"] += len(xy) * len(factual.origin)
            return super().intervene(scene, factual, xy)

    clip = toy_clip(DRIFT, 4, (SIZE, SIZE))
    for method in (TrackerConfig(reevaluation="query"), TrackerConfig(reevaluation="joint"), TrackerConfig(passes=0)):
        calls.update(pairs=0, factual=0, counterfactual=0)
        CwmTracker(Counting(**SMALL), uniform, method).track(clip, POINTS)
        price = estimate_cost(CwmTracker(ToyWorld(**SMALL), uniform, method), clip, POINTS)
        assert calls == {"pairs": price.pairs, "factual": price.factual, "counterfactual": price.counterfactual}


@pytest.mark.parametrize(
    ("clip", "points", "said"),
    [
        (toy_clip(DRIFT, 1, (SIZE, SIZE)), POINTS, "at least two"),
        (Clip(torch.zeros(0, 3, 8, 8, dtype=torch.uint8), "empty"), POINTS, "0 frame"),
        (toy_clip(DRIFT, 2, (SIZE, SIZE)), queries((64.0, 3.0, 0)), "not inside"),
        (toy_clip(DRIFT, 2, (SIZE, SIZE)), queries((float("nan"), 3.0, 0)), "not inside"),
        (toy_clip(DRIFT, 2, (SIZE, SIZE)), queries((4.0, 3.0, 2)), "frames 0 to 1"),
        (toy_clip(DRIFT, 2, (SIZE, SIZE)), queries((4.0, 3.0, -1)), "frames 0 to 1"),
        (toy_clip(DRIFT, 2, (SIZE, SIZE)), Queries(torch.zeros(0, 2), torch.zeros(0).long()), "no points"),
        (toy_clip(DRIFT, 2, (SIZE, SIZE)), Grid(0), "at least 1"),
    ],
)
def test_what_cannot_be_tracked_is_refused_with_a_sentence(clip, points, said):
    with pytest.raises(InputError, match=said):
        CwmTracker(ToyWorld(**SMALL), uniform, TrackerConfig()).track(clip, points)


def test_the_world_model_has_defaults_of_its_own():
    own = TrackerConfig(passes=0, sharpness=900.0)
    world = ToyWorld(defaults=own, **SMALL)
    assert load("uniform", world).config == own
    assert load("uniform", ToyWorld(**SMALL)).config == TrackerConfig()
    assert load("uniform", world, passes=2, masks=3).config == replace(own, passes=2, masks=3)


def test_adjudicators_share_candidates_and_do_not_disturb_each_other():
    clip = toy_clip(TURNING, 3, (SIZE, SIZE))
    world = ToyWorld(error=5.0, wrong=0.4, **SMALL)
    seen = []

    def first_only(pair, candidates):
        seen.append(candidates)
        return Judgement.of(torch.eye(candidates.peak.shape[1])[:1].expand(len(candidates.peak), -1))

    def again(pair, candidates):
        assert any(candidates is one for one in seen)
        return uniform(pair, candidates)

    config = TrackerConfig(masks=4)
    together = track_many(world, {"first": first_only, "uniform": again}, clip, POINTS, config=config)
    alone = CwmTracker(world, uniform, config).track(clip, POINTS)
    torch.testing.assert_close(together["uniform"].xy, alone.xy, equal_nan=True, atol=0, rtol=0)


def test_a_listener_may_stop_the_work():
    def stop(done, total):
        assert total == 4
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        track_many(ToyWorld(**SMALL), {"uniform": uniform}, toy_clip(DRIFT, 4, (SIZE, SIZE)), POINTS, on_frame=stop)
