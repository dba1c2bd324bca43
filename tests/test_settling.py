"""Masks are drawn until a query has settled, and the answer is that of so many masks."""

import pytest
import torch

from counting import Counting
from lpa_cwm import hub
from lpa_cwm.adjudicate.uniform import uniform
from lpa_cwm.config import Method
from lpa_cwm.errors import InputError
from lpa_cwm.probe import magnitude, peak_of
from lpa_cwm.settling import FIRST, MORE, Settling
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.types import Candidates, Grid
from lpa_cwm.world.masks import random_masks
from lpa_cwm.world.toy import ToyMotion, ToyWorld, toy_clip

SIZE = 64
DRIFT = ToyMotion(shift=(3 / SIZE, -2 / SIZE))


def tracked(world, **numbers):
    return CwmTracker(world, uniform, Method(passes=0, **numbers)).track(toy_clip(DRIFT, 2, (SIZE, SIZE)), Grid(3))


def noisy():
    return Counting(ToyWorld(error=5.0, wrong=0.4, size=SIZE, sigma=2.0))


def test_what_never_settles_sees_all_masks():
    every, settling = tracked(noisy()), tracked(noisy(), adaptive=1e-9)
    assert torch.equal(every.xy.nan_to_num(), settling.xy.nan_to_num())
    torch.testing.assert_close(every.strength, settling.strength, equal_nan=True)


def test_what_settles_at_once_is_asked_twice_and_answers_as_so_many_masks_would():
    world = noisy()
    settling = tracked(world, adaptive=1e9)
    fewer = tracked(noisy(), masks=FIRST + MORE)
    assert world.masks == [FIRST, MORE]
    assert torch.equal(fewer.xy.nan_to_num(), settling.xy.nan_to_num())


@pytest.mark.parametrize("tolerance", [0.5, 2.0])
def test_each_query_stops_at_the_first_round_that_changes_little(tolerance):
    """Against a plain loop over the rounds, query by query."""
    world = noisy()
    clip = toy_clip(DRIFT, 2, (SIZE, SIZE))
    scene = world.observe(clip[0].float() / 255, clip[1].float() / 255)
    masks = random_masks(10, 64, "settle")
    xy = torch.rand(9, 2, generator=torch.Generator().manual_seed(1)) * 40 + 12
    found = {}

    def believe(rows, candidates):
        return torch.full(candidates.peak.shape[:2], 1 / candidates.peak.shape[1])

    for rows, candidates, weights in Settling(world, scene, masks, xy, 4, tolerance).candidates(believe):
        assert weights.shape == candidates.peak.shape[:2]
        found |= {int(row): candidates.peak[i] for i, row in enumerate(rows)}
    assert sorted(found) == list(range(9))
    for row in range(9):
        response = world.intervene(scene, world.imagine(scene, masks), xy[row : row + 1])
        peak = Candidates(response, peak_of(magnitude(response))).peak[0]
        counts = range(FIRST, 11, MORE)
        means = [peak[:count].mean(0) for count in counts]
        stop = next(
            (counts[i] for i in range(1, len(means)) if (means[i] - means[i - 1]).norm() < tolerance), counts[-1]
        )
        assert len(found[row]) == stop
        assert torch.equal(found[row], peak[:stop])


@pytest.mark.parametrize("adaptive", [0.0, 1.0])
def test_how_much_is_believed_scales_the_strength_and_moves_nothing(adaptive):
    clip, method = toy_clip(DRIFT, 2, (SIZE, SIZE)), Method(passes=0, adaptive=adaptive)
    less = CwmTracker(noisy(), lambda pair, candidates: uniform(pair, candidates) / 4, method).track(clip, Grid(3))
    plain = CwmTracker(noisy(), uniform, method).track(clip, Grid(3))
    assert torch.equal(less.xy.nan_to_num(), plain.xy.nan_to_num())
    torch.testing.assert_close(less.support, plain.support, equal_nan=True)
    torch.testing.assert_close(less.strength * 4, plain.strength, equal_nan=True)


@pytest.mark.parametrize("adaptive", [0.0, 1.0])
def test_who_believes_in_no_candidate_hides_the_point_and_leaves_it_where_all_of_them_say(adaptive):
    clip, method = toy_clip(DRIFT, 2, (SIZE, SIZE)), Method(passes=0, adaptive=adaptive)
    none = CwmTracker(noisy(), lambda pair, candidates: uniform(pair, candidates) * 0, method).track(clip, Grid(3))
    plain = CwmTracker(noisy(), uniform, method).track(clip, Grid(3))
    torch.testing.assert_close(none.xy, plain.xy)
    assert not none.visible[:, 1].any()


@pytest.mark.parametrize("numbers", [{"adaptive": 1.0, "mask_sharing": "query"}, {"adaptive": -1.0}])
def test_what_cannot_settle_is_refused(numbers):
    with pytest.raises(InputError, match="adaptive is"):
        hub.load("uniform", "toy", Method(**numbers))
