"""The layered generator's flow and visibility are true, and its scenes depend on their number alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from PIL import Image

from lpa_cwm.errors import InputError
from lpa_cwm.geometry import inside, pixel_centers, to_sampler
from lpa_cwm.rng import numpy_rng
from lpa_cwm.synth.images import ImagePool, PhotometricJitter, gaussian_blur, outline, procedural_photo
from lpa_cwm.synth.layered import (
    Affine,
    Layer,
    LayeredConfig,
    LayeredPairs,
    LayerStack,
    PlanarMotion,
    SceneSampler,
    SinusoidalShear,
    rotation,
)
from lpa_cwm.synth.pairs import split_of

CALM = LayeredConfig(jitter=PhotometricJitter(shade=0.0, light=0.0, tint=0.0, slope=0.0, blur=0.0, grain=0.0))


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photographs")
    for number in range(60):
        Image.fromarray(procedural_photo(np.random.default_rng(number), 160)).save(folder / f"{number:03d}.png")
    return ImagePool.of(folder, "train", procedural=0.0)


@pytest.fixture(scope="module")
def source(photographs):
    return LayeredPairs(photographs, CALM)


def warped(frame, flow):
    """The target read where the flow points, by the sampler of torch."""
    size = frame.shape[-1]
    target_xy = pixel_centers((size, size)) + rearrange(flow, "d h w -> h w d")
    return F.grid_sample(frame[None].float(), to_sampler(target_xy, (size, size))[None], align_corners=False)[0]


def scene(photographs, index, size):
    made = SceneSampler(photographs, CALM, numpy_rng("test", index), size).scene()
    owner = made.draw("source")[1]
    return made, owner, made.target_positions(owner)


def test_the_flow_explains_the_second_frame(source):
    before = after = 0.0
    for index in range(16):
        pair = source.pair(index, 128)
        after += float((warped(pair.target, pair.flow) - pair.source)[:, pair.visible].abs().mean())
        before += float((pair.target.float() - pair.source)[:, pair.visible].abs().mean())
    assert after / before <= 0.25


def test_visibility_agrees_with_asking_every_layer_at_every_point(photographs):
    for index in range(12):
        made, owner, target_xy = scene(photographs, index, 64)
        on_top = torch.zeros_like(owner)
        for number, layer in enumerate(made.layers):
            on_top[layer.look_up(target_xy, "target", slice(3, 4))[0] > 0] = number
        expected = inside(rearrange(target_xy, "d h w -> h w d"), (64, 64)) & (on_top <= owner)
        assert torch.equal(made.visible_mask(target_xy, owner), expected)


def test_flow_leads_back_along_the_same_layer(photographs):
    for index in range(12):
        made, owner, target_xy = scene(photographs, index, 64)
        for number, layer in enumerate(made.layers):
            mine = owner == number
            back = layer.motion.backward(target_xy[:, mine])
            assert torch.allclose(back, made.centers[:, mine], atol=1e-3)


def flat(color, center, radius, motion, distance):
    texture = torch.cat((torch.full((3, 32, 32), color), distance[None]))
    place = Affine(radius * torch.eye(2), torch.tensor(center)).inverse()
    return Layer(texture, place, motion, 1.0)


def test_a_square_that_moves_right_hides_what_it_reaches():
    still = PlanarMotion((), Affine.identity())
    step = PlanarMotion((), Affine(torch.eye(2), torch.tensor([4.0, 0.0])))
    everywhere = torch.full((32, 32), 99.0)
    ticks = (torch.arange(32) + 0.5) / 16 - 1
    square = 8 * (0.5 - torch.maximum(ticks.abs(), ticks.abs()[:, None]))
    back = replace(flat(0.2, [16.0, 16.0], 16.0, still, everywhere), padding="reflection")
    front = flat(0.9, [10.0, 16.0], 8.0, step, square)
    made = LayerStack([back, front], 32)
    picture, owner = made.draw("source")
    assert torch.equal(owner.nonzero(), torch.cartesian_prod(torch.arange(12, 20), torch.arange(6, 14)))
    assert picture[0, 16, 10].item() == pytest.approx(0.9)
    target_xy = made.target_positions(owner)
    assert torch.equal((target_xy - made.centers)[0], 4.0 * owner)
    hidden = ~made.visible_mask(target_xy, owner)
    assert torch.equal(hidden.nonzero(), torch.cartesian_prod(torch.arange(12, 20), torch.arange(14, 18)))


def test_what_leaves_the_frame_is_not_visible(source):
    pair = LayeredPairs(source.photographs, replace(CALM, still=0.0, travel=0.2)).pair(3, 64)
    target_xy = pixel_centers((64, 64)) + rearrange(pair.flow, "d h w -> h w d")
    gone = ~inside(target_xy, (64, 64))
    assert gone.any()
    assert not pair.visible[gone].any()


def test_motions_are_undone_exactly():
    waves = (
        SinusoidalShear(torch.tensor([1.5, 0.0]), torch.tensor([0.0, 0.1]), 0.3),
        SinusoidalShear(torch.tensor([0.0, -2.0]), torch.tensor([0.07, 0.0]), 1.0),
    )
    affine = Affine.around(torch.tensor([30.0, 20.0]), 1.3 * rotation(0.4), torch.tensor([5.0, -7.0]))
    points = 64 * torch.rand(2, 500, generator=torch.Generator().manual_seed(1))
    motion = PlanarMotion(waves, affine)
    assert torch.allclose(motion.backward(motion.forward(points)), points, atol=1e-4)
    assert torch.allclose(affine.after(affine.inverse())(points), points, atol=1e-4)
    assert torch.allclose(affine(torch.tensor([[30.0], [20.0]])), torch.tensor([[35.0], [13.0]]), atol=1e-4)


def test_pairs_depend_on_their_number_alone(source):
    forwards = [source.pair(index, 48) for index in range(4)]
    for index in reversed(range(4)):
        again = source.pair(index, 48)
        assert torch.equal(again.source, forwards[index].source)
        assert torch.equal(again.target, forwards[index].target)
        assert torch.equal(again.flow, forwards[index].flow)
    assert not torch.equal(replace(source, seed=1).pair(0, 48).source, forwards[0].source)


def test_default_motion_is_a_few_pixels_with_a_long_tail(source):
    lengths = torch.stack([source.pair(index, 32).flow.norm(dim=0) for index in range(80)]) * 128 / 32
    assert 3 < lengths.mean() < 5
    assert lengths.max() > 20
    calmer = LayeredPairs(source.photographs, replace(CALM, travel=0.004, zoom=0.01, turn=0.01))
    assert torch.stack([calmer.pair(index, 32).flow.norm(dim=0) for index in range(20)]).mean() * 4 < 1.5


def test_weather_changes_the_picture_and_not_the_truth(source):
    rough = LayeredPairs(source.photographs).pair(1, 64)
    calm = source.pair(1, 64)
    assert torch.equal(rough.flow, calm.flow)
    assert not torch.equal(rough.target, calm.target)


def test_blur_is_that_of_a_convolution():
    picture = torch.rand(3, 20, 20, generator=torch.Generator().manual_seed(0))
    taps = torch.exp(-0.5 * (torch.arange(-3.0, 4.0) / 1.3) ** 2)
    kernel = torch.outer(taps, taps) / taps.sum() ** 2
    padded = F.pad(picture[:, None], (3, 3, 3, 3), mode="replicate")
    assert torch.allclose(gaussian_blur(picture, 1.3), F.conv2d(padded, kernel[None, None])[:, 0], atol=1e-6)


@pytest.mark.parametrize("number", range(20))
def test_outlines_stay_inside_their_square_and_enclose_something(number):
    field = outline(np.random.default_rng(number), 0.04, 64)
    edge = np.concatenate((field[0], field[-1], field[:, 0], field[:, -1]))
    assert edge.max() < 0
    assert 0.01 < (field > 0).mean() < 0.95
    slope = np.hypot(*np.gradient(field, 2 / 64))[np.abs(field) < 0.03]
    assert 0.5 < np.median(slope) < 1.5


def test_photographs_are_split_by_name(photographs):
    folder = photographs.files[0].parent
    held_out = ImagePool.of(folder, "val")
    assert not set(photographs.files) & set(held_out.files)
    assert len(photographs.files) + len(held_out.files) == 60
    normalize_weights = [split_of(f"picture_{number}.jpg") == "val" for number in range(4000)]
    assert np.mean(normalize_weights) == pytest.approx(0.1, abs=0.02)
    assert LayeredPairs(held_out).name == "layered_val"


def test_nothing_but_a_seed_is_needed():
    pair = LayeredPairs.of(None, "val").pair(0, 32)
    assert pair.source.float().std() > 5


def test_a_folder_without_photographs_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds 0 photographs"):
        ImagePool.of(tmp_path, "train")
