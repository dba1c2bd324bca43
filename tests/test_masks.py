"""Masks: counts, nesting, neighborhoods, and who uses which."""

import pytest
import torch

from lpa_cwm.errors import InputError
from lpa_cwm.masks import hide, jointly, neighborhood, pooled, random_masks, separate, shared, together


def test_921_of_1024_patches_are_hidden():
    assert random_masks(20, 1024, "a").sum(1).tolist() == [921] * 20


def test_fewer_masks_are_a_prefix_of_more():
    assert torch.equal(random_masks(5, 1024, "a", 3), random_masks(20, 1024, "a", 3)[:5])
    assert not torch.equal(random_masks(5, 1024, "a", 3), random_masks(5, 1024, "a", 4))


def test_neighborhoods_are_three_by_three_and_clipped():
    around = neighborhood(torch.tensor([[100.0, 60.0], [1.0, 255.0]]), 256, 8).view(2, 32, 32)
    assert around[0].nonzero().tolist() == [[row, column] for row in (6, 7, 8) for column in (11, 12, 13)]
    assert around[1].nonzero().tolist() == [[30, 0], [30, 1], [31, 0], [31, 1]]


@pytest.mark.parametrize("reveal", ["random", "raster"])
def test_editing_hides_the_neighborhood_and_keeps_the_count(reveal):
    masks = random_masks(20, 1024, "b")
    around = neighborhood(torch.tensor([[100.0, 60.0]]), 256, 8)[0]
    edited = hide(masks, around, reveal, "b")
    assert edited[:, around].all()
    assert edited.sum(1).tolist() == [921] * 20
    for before, after in zip(masks, edited, strict=True):
        revealed = (before & ~after).nonzero()[:, 0]
        if reveal == "raster":
            assert torch.equal(revealed, before.nonzero()[: len(revealed), 0])


def test_hiding_more_than_a_mask_can_is_refused():
    with pytest.raises(InputError, match="query by query"):
        hide(random_masks(1, 1024, "c"), torch.ones(1024, dtype=torch.bool), "random", "c")


def test_joint_masks_hide_the_neighborhoods_of_their_queries_and_later_queries_change_nothing():
    most = together(1024)
    around = neighborhood(torch.rand(2 * most + 3, 2) * 256, 256, 8)
    plan = jointly(around, 10, "random", "j")
    assert len(plan.hidden) == 30
    assert (plan.used.sum(1) == 10).all()
    assert (plan.hidden.sum(1) == 921).all()
    for masks, users in plan.groups():
        assert len(users) <= most
        assert (plan.hidden[masks] | ~around[users].any(0)).all()
    fewer = jointly(around[:most], 10, "random", "j")
    assert torch.equal(fewer.hidden, plan.hidden[:10])


def test_a_query_takes_the_first_masks_of_the_pool_that_hide_its_neighborhood():
    around = neighborhood(torch.rand(6, 2) * 256, 256, 8)
    plan = pooled(around, 10, "d")
    sequence = random_masks(200, 1024, "d")
    for near, used in zip(around, plan.used, strict=True):
        fitting = sequence[(sequence | ~near).all(1)][:10]
        assert torch.equal(plan.hidden[used], fitting)


def test_what_a_query_gets_from_the_pool_does_not_depend_on_the_others():
    around = neighborhood(torch.rand(5, 2) * 256, 256, 8)
    together = pooled(around, 10, "e")
    for row in range(5):
        alone = pooled(around[row : row + 1], 10, "e")
        assert torch.equal(together.hidden[together.used[row]], alone.hidden)


def test_the_pool_has_the_distribution_of_edited_masks():
    """Both hide 921 patches with the neighborhood among them; every other patch is equally often visible."""
    near = neighborhood(torch.tensor([[100.0, 60.0]]), 256, 8)
    chosen = pooled(near, 400, "f").hidden
    edited = hide(random_masks(400, 1024, "g"), near[0], "random", "g")
    for masks in (chosen, edited):
        often = (~masks).float().mean(0)
        assert often[near[0]].max() == 0
        others = often[~near[0]]
        assert abs(others.mean() - 103 / 1015) < 1e-6
        # A binomial share has this standard deviation; systematic preference for any patch would widen it.
        assert abs(others.std() - (0.1015 * 0.8985 / 400) ** 0.5) < 0.002


def test_groups_cover_every_use_once():
    for plan in (
        shared(random_masks(4, 64, 1), 3),
        separate([random_masks(4, 64, 2), random_masks(4, 64, 3)]),
        pooled(neighborhood(torch.rand(3, 2) * 64, 64, 8), 4, 4),
    ):
        seen = torch.zeros_like(plan.used, dtype=torch.long)
        for masks, users in plan.groups():
            seen[users[:, None], masks] += 1
        assert torch.equal(seen, plan.used.long())
        assert plan.used.sum(1).tolist() == [4] * len(plan.used)
