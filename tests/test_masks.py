"""Masks: counts, nesting, neighborhoods, and who uses which."""

import pytest
import torch

from lpa_cwm.errors import InputError
from lpa_cwm.masks import (
    balanced_masks,
    hide,
    joint_group_size,
    joint_plan,
    mask_pixels,
    neighborhood,
    per_query_plan,
    random_masks,
    shared_plan,
)


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
    most = joint_group_size(1024)
    around = neighborhood(torch.rand(2 * most + 3, 2) * 256, 256, 8)
    plan = joint_plan(around, 10, "random", "j")
    assert len(plan.hidden) == 30
    assert (plan.used.sum(1) == 10).all()
    assert (plan.hidden.sum(1) == 921).all()
    for masks, users in plan.groups():
        assert len(users) <= most
        assert (plan.hidden[masks] | ~around[users].any(0)).all()
    fewer = joint_plan(around[:most], 10, "random", "j")
    assert torch.equal(fewer.hidden, plan.hidden[:10])


def test_edited_masks_prefer_no_patch_outside_the_neighborhood():
    """All hide 921 patches with the neighborhood among them; every other patch is equally often visible."""
    near = neighborhood(torch.tensor([[100.0, 60.0]]), 256, 8)[0]
    often = (~hide(random_masks(400, 1024, "g"), near, "random", "g")).float().mean(0)
    assert often[near].max() == 0
    others = often[~near]
    assert abs(others.mean() - 103 / 1015) < 1e-6
    # The standard deviation of a binomial proportion; systematic preference for any patch would widen it.
    assert abs(others.std() - (0.1015 * 0.8985 / 400) ** 0.5) < 0.002


def test_masks_become_pixels():
    mask = torch.tensor([[False, True, False, True, False, False]])
    pixels = mask_pixels(mask, 3, 2)
    assert pixels[0].nonzero().tolist() == [[0, 2], [0, 3], [1, 2], [1, 3], [2, 0], [2, 1], [3, 0], [3, 1]]


def test_groups_cover_every_use_once():
    for plan in (
        shared_plan(random_masks(4, 64, 1), 3),
        per_query_plan([random_masks(4, 64, 2), random_masks(4, 64, 3)]),
        joint_plan(neighborhood(torch.rand(3, 2) * 64, 64, 8), 4, "random", 4),
    ):
        seen = torch.zeros_like(plan.used, dtype=torch.long)
        for masks, users in plan.groups():
            seen[users[:, None], masks] += 1
        assert torch.equal(seen, plan.used.long())
        assert plan.used.sum(1).tolist() == [4] * len(plan.used)


@pytest.mark.parametrize(("count", "share"), [(5, 0.6), (10, 0.9), (3, 0.5)])
def test_balanced_masks_hide_every_patch_equally_often(count, share):
    hidden = balanced_masks(count, 64, "law", hidden_share=share)
    assert (hidden.sum(1) == int(share * 64)).all()
    often = hidden.sum(0)
    assert often.max() - often.min() <= 1
    assert torch.equal(hidden, balanced_masks(count, 64, "law", hidden_share=share))
    assert not torch.equal(hidden, balanced_masks(count, 64, "other", hidden_share=share))
