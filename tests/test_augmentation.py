"""Augmented features are the features of the transformed scene."""

import pytest
import torch

from dense_candidates import dense_candidates
from lpa_cwm.adjudicators.features import extract
from lpa_cwm.training.lpa import Augmentation
from lpa_cwm.types import Pair

SIDE = 96


def scene():
    draw = torch.Generator().manual_seed(5)
    source, target = torch.rand(2, 3, SIDE, SIDE, generator=draw)
    xy = torch.rand(2, 2, generator=draw) * 60 + 18
    response = torch.rand(2, 4, 3, SIDE, SIDE, generator=draw) - 0.5
    peak = (torch.rand(2, 4, 2, generator=draw) * 60 + 18).floor() + 0.5
    return Pair(source, target, xy), dense_candidates(response, peak)


def inputs(pair, candidates):
    features = extract(pair, candidates)
    return features.local, features.response, features.context.expand(2, -1, -1, -1), features.statistics


def points(augmentation, xy):
    x, y = xy.unbind(-1)
    x, y = (SIDE - x if augmentation.flip_x else x), (SIDE - y if augmentation.flip_y else y)
    return torch.stack((y, x) if augmentation.transpose else (x, y), dim=-1)


@pytest.mark.parametrize(
    "flips",
    [(False, False, False), (True, False, False), (False, True, False), (False, False, True), (True, False, True)],
)
def test_augmented_features_are_those_of_the_transformed_scene(flips):
    augmentation = Augmentation(*flips)
    pair, candidates = scene()
    other = Pair(
        augmentation.transform_image(pair.source),
        augmentation.transform_image(pair.target),
        points(augmentation, pair.xy),
    )
    response = augmentation.transform_image(candidates.response.dense())
    seen = inputs(other, dense_candidates(response, points(augmentation, candidates.peak)))
    for ours, theirs in zip(augmentation(*inputs(pair, candidates)), seen, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


def test_colors_change_alike_in_both_frames():
    pair, candidates = scene()
    augmentation = Augmentation(colors=(2, 0, 1))
    other = Pair(pair.source[[2, 0, 1]], pair.target[[2, 0, 1]], pair.xy)
    ours, theirs = augmentation(*inputs(pair, candidates)), inputs(other, candidates)
    for one, two in zip(ours[:3], theirs[:3], strict=True):
        torch.testing.assert_close(one, two)
    # Fourteen statistics and the difference of the frames do not see colors; edges are of gray values and do.
    torch.testing.assert_close(ours[3][..., :15], theirs[3][..., :15])


def test_all_augmentations_are_sampled_and_a_key_draws_the_same():
    assert len({Augmentation.sample("t", step) for step in range(800)}) == 48
    assert Augmentation.sample("t", 3) == Augmentation.sample("t", 3)
