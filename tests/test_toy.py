"""The toy world: its reading of the motion, and the definition of a response."""

import pytest
import torch

from lpa_cwm.errors import InputError
from lpa_cwm.geometry import Crop, center_of, crop_resize, unit_range
from lpa_cwm.masks import random_masks
from lpa_cwm.types import Queries
from lpa_cwm.worlds.toy import ToyMotion, ToyWorld, toy_clip, toy_truth

MOTION = ToyMotion(shift=(0.02, 0.03), turn=0.03, zoom=1.02, disc=(0.7, 0.3, 0.1))


def test_the_motion_is_read_off_the_pixels():
    clip = toy_clip(MOTION, 3, (96, 128))
    world = ToyWorld(size=64)
    view = Crop.full((96, 128), 64)
    scene = world.observe(*(world.describe(crop_resize(clip[frame], view)) for frame in (0, 2)))
    start = torch.tensor([[40.0, 50.0], [90.0, 60.0]])
    end = toy_truth(MOTION, Queries(start, torch.zeros(2).long()), 3, (96, 128)).xy[:, 2]
    for point, place in zip(view.to_crop(start), view.to_crop(end), strict=True):
        column, row = place.floor().long().tolist()
        back = scene.origin[row, column] - (center_of(torch.tensor([column, row])) - place)
        assert (back - point).norm() < 0.1


def test_frames_without_the_colors_of_the_plane_are_refused():
    world = ToyWorld(size=64)
    flat = world.describe(torch.full((3, 64, 64), 0.5))
    with pytest.raises(InputError, match="choose another world model"):
        world.observe(flat, flat)


def test_the_response_is_zero_on_visible_patches_and_under_the_disc():
    clip = toy_clip(MOTION, 2, (64, 64))
    world = ToyWorld(size=64)
    scene = world.observe(*(world.describe(unit_range(clip[frame])) for frame in (0, 1)))
    hidden = random_masks(4, 64, "x")
    response = world.intervene(scene, world.imagine(scene, hidden), torch.tensor([[30.0, 30.0], [44.0, 20.0]]))
    open_pixels = hidden.view(4, 8, 8).repeat_interleave(8, 1).repeat_interleave(8, 2)
    assert (response.abs().sum(2) * ~open_pixels).max() == 0
    assert (response.abs().sum(2) * scene.covered).max() == 0
    assert response.abs().max() > 0.1


def test_errors_depend_on_the_mask_alone():
    world = ToyWorld(error=5.0, wrong=0.5)
    masks = random_masks(40, 1024, "y")
    offsets = torch.stack([world.offset(mask) for mask in masks])
    lengths = offsets.norm(dim=1)
    assert torch.equal(offsets, torch.stack([world.offset(mask) for mask in masks]))
    assert ((lengths - 5).abs() < 1e-5).logical_or(lengths == 0).all()
    assert 10 < (lengths > 0).sum() < 30
