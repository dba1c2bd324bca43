"""Multiplexed probing: who is asked together, and that the masks agree on each query's own peak."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpa_cwm.config import Method
from lpa_cwm.errors import InputError
from lpa_cwm.hub import load
from lpa_cwm.interfaces import WorldModel
from lpa_cwm.probe import magnitude, peak_of
from lpa_cwm.sampling import unit_range
from lpa_cwm.types import Queries
from lpa_cwm.world.masks import random_masks
from lpa_cwm.world.multiplex import Multiplexed, gathered, multiplex
from lpa_cwm.world.toy import ToyFactual, ToyMotion, ToyWorld, toy_frame, toy_truth

SIZE = 128
MOTION = ToyMotion(shift=(0.08, -0.05), disc=(0.75, 0.75, 0.2))


@dataclass(frozen=True)
class JointToy(ToyWorld):
    """The toy's prediction is linear in the source: a joint response is the sum of the single ones."""

    size: int = SIZE

    def intervene_jointly(self, scene, factual, xy):
        columns = []
        for mask in range(xy.shape[1]):
            one = ToyFactual(factual.origin[mask : mask + 1], factual.open[mask : mask + 1])
            single = self.intervene(scene, one, xy[:, mask].reshape(-1, 2)).nan_to_num()[:, 0]
            columns.append(single.unflatten(0, xy[:, mask].shape[:2]).sum(1))
        return torch.stack(columns, dim=1)


def scene_of(world):
    return world.observe(*(unit_range(toy_frame(MOTION, frame, (SIZE, SIZE))) for frame in (0, 1)))


def points(count, seed=0):
    return torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * SIZE


def ask(world, xy, count=8):
    scene = scene_of(world)
    return world.intervene(scene, world.imagine(scene, random_masks(count, (SIZE // 8) ** 2, "test")), xy)


@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 40), per_pass=st.integers(1, 6), apart=st.sampled_from([0.0, 20.0, 60.0]))
def test_groups_are_small_separated_and_complete(count, per_pass, apart):
    world = Multiplexed(JointToy(), per_pass, apart)
    xy = points(count, seed=count)
    mask = random_masks(1, 256, "groups", count)[0]
    group = world.assign(xy, mask)
    assert torch.equal(group.unique(), torch.arange(int(group.max()) + 1))
    for index in group.unique():
        members = xy[group == index]
        assert len(members) <= min(per_pass, (count + 1) // 2)
        assert (torch.pdist(members) >= apart).all()
    seats = gathered(xy, group[:, None], per_pass)[:, 0]
    listed = seats[~seats.isnan().any(-1)]
    assert torch.equal(listed.sort(0).values, xy.sort(0).values)
    for query, index in enumerate(group):
        assert (seats[index] == xy[query]).all(-1).any()


def test_companions_are_drawn_anew_for_each_mask_and_depend_on_the_mask_alone():
    world = Multiplexed(JointToy(), 4, 0.0)
    masks = random_masks(6, 256, "draw")
    draws = [world.assign(points(16), mask) for mask in masks]
    assert torch.equal(draws[0], world.assign(points(16, seed=5), masks[0]))
    together = torch.stack([draw[:, None] == draw for draw in draws]).float().mean(0)
    assert (together.fill_diagonal_(0) < 1).all()


def test_one_per_pass_is_the_world_itself():
    xy = points(5)
    torch.testing.assert_close(ask(Multiplexed(JointToy(), 1), xy), ask(JointToy(), xy), atol=0, rtol=0)


@pytest.mark.parametrize("attribute", [True, False])
def test_the_mean_over_masks_peaks_where_the_query_went(attribute):
    world = Multiplexed(JointToy(sigma=2), 4, 24.0, attribute)
    xy = points(24)
    truth = toy_truth(MOTION, Queries(xy, torch.zeros(24, dtype=torch.long)), 2, (SIZE, SIZE))
    seen = truth.visible[:, 1]
    assert seen.sum() > 12
    assert isinstance(world, WorldModel)
    end = peak_of(magnitude(ask(world, xy, count=16).mean(1)))
    assert ((end - truth.xy[:, 1])[seen].norm(dim=1) < 3).all()


def test_only_with_attribution_a_point_that_is_hidden_stays_silent():
    xy = torch.cat((torch.tensor([[0.67 * SIZE, 0.8 * SIZE]]), points(15)))
    plain, shared, own = (
        magnitude(ask(world, xy)[0]).amax((-2, -1)).mean()
        for world in (JointToy(), Multiplexed(JointToy(), attribute=False), Multiplexed(JointToy()))
    )
    assert plain < 0.01
    assert shared > 0.5
    assert own < 0.3 * shared


def test_a_world_that_cannot_is_refused_unless_nothing_is_asked_of_it():
    with pytest.raises(InputError, match="ToyWorld cannot perturb 4"):
        multiplex(ToyWorld(), 4)
    world = ToyWorld()
    assert multiplex(world, 1) is world
    assert isinstance(multiplex(JointToy(), 4), Multiplexed)


def test_queries_that_share_no_masks_are_not_asked_together():
    with pytest.raises(InputError, match="choose the joint re-evaluation"):
        load("uniform", JointToy(), Method(per_pass=4, reevaluation="pool"))
    assert isinstance(load("uniform", JointToy(), Method(per_pass=4, reevaluation="joint")).world, Multiplexed)
    assert isinstance(load("uniform", JointToy(), Method(per_pass=4, passes=0)).world, Multiplexed)
