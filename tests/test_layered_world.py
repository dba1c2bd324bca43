"""Laws of the compact world model that hold whatever its weights are."""

import pytest
import torch
import torch.nn.functional as F

from lpa_cwm.geometry import patch_centers, pixel_centers, to_sampler
from lpa_cwm.masks import mask_pixels
from lpa_cwm.protocols import WorldModel
from lpa_cwm.responses import to_dense
from lpa_cwm.worlds.layered.densify import (
    SparseAttention,
    assign,
    fit_affine,
    greedy_modes,
    normal_terms,
    solve_symmetric3,
)
from lpa_cwm.worlds.layered.matching import PATCH, MatchingFeatures, dct_basis, match_patches
from lpa_cwm.worlds.layered.networks import MATCH_FEATURES, ReliableMatches
from lpa_cwm.worlds.layered.render import GaussianBump, render
from lpa_cwm.worlds.layered.world import LayeredMotionNetwork, LayeredMotionWorld

SIZE = 64
HW = (SIZE, SIZE)
CELLS = (SIZE // PATCH) ** 2
CENTERS = patch_centers(HW, PATCH)


def texture(seed, size=SIZE, blur=2):
    """Smooth color noise, so that bilinear shifts of it are faithful."""
    noise = torch.rand(1, 3, size + 4 * blur, size + 4 * blur, generator=torch.Generator().manual_seed(seed))
    for _ in range(2):
        noise = F.avg_pool2d(noise, 2 * blur + 1, stride=1)
    low, high = noise.amin(), noise.amax()
    return ((noise - low) / (high - low))[0]


def shifted(image, shift):
    """The image moved by (x, y) pixels, the border repeated."""
    grid = to_sampler(pixel_centers(HW) - torch.tensor(shift), HW)
    return F.grid_sample(image[None], grid[None], padding_mode="border", align_corners=False)[0]


def observe(world, source, target):
    return world.observe(world.describe(source), world.describe(target))


def hidden_pixels(hidden):
    return mask_pixels(hidden, SIZE // PATCH, PATCH)


@pytest.fixture(scope="module")
def network():
    """Zero-initialized layers are perturbed, so that every part takes effect."""
    torch.manual_seed(0)
    network = LayeredMotionNetwork().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return network


@pytest.fixture(scope="module")
def world(network):
    return LayeredMotionWorld(network, size=SIZE)


@pytest.fixture(scope="module")
def frames():
    source = texture(1)
    return source, shifted(source, (3.0, -2.0))


@pytest.fixture(scope="module")
def hidden():
    order = torch.stack([torch.randperm(CELLS, generator=torch.Generator().manual_seed(i)) for i in range(3)])
    return order >= 10


@pytest.fixture(scope="module")
def scene(world, frames):
    return observe(world, *frames)


@pytest.fixture(scope="module")
def factual(world, scene, hidden):
    return world.imagine(scene, hidden)


def test_it_is_a_world_model(world):
    assert isinstance(world, WorldModel)


def test_hidden_pixels_of_the_target_have_no_say(world, frames, hidden, factual):
    source, target = frames
    for mask, k in zip(hidden, range(len(hidden)), strict=True):
        noise = torch.rand(target.shape, generator=torch.Generator().manual_seed(9))
        other = torch.where(hidden_pixels(mask[None]), noise, target)
        again = world.imagine(observe(world, source, other), mask[None])
        assert torch.equal(again.mixture.weight[0], factual.mixture.weight[k])
        assert torch.equal(again.mixture.inpainting[0], factual.mixture.inpainting[k])
        assert torch.equal(again.mixture.motions.offset[0], factual.mixture.motions.offset[k])


def test_masks_do_not_disturb_one_another(world, scene, hidden, factual):
    alone = world.imagine(scene, hidden[1:2])
    assert torch.equal(alone.mixture.weight[0], factual.mixture.weight[1])


def test_the_response_is_the_change_of_the_rendering_with_the_mixture_fixed(world, scene, factual):
    xy = torch.tensor([[10.2, 30.7], [0.5, 0.5], [63.9, 20.0], [40.0, 41.5], [5.0, 62.0]])
    response = to_dense(world.intervene(scene, factual, xy))
    source = scene.source.image.expand(len(factual.hidden), -1, -1, -1)
    shown = hidden_pixels(factual.hidden)[:, None]
    for point, change in zip(xy, response, strict=True):
        bump = world.bump.image(point[None], HW)
        direct = render(source + bump, factual.mixture) - render(source, factual.mixture)
        torch.testing.assert_close(change, direct * shown, atol=1e-6, rtol=0)
    assert response.abs().amax() > 1e-3


def test_the_total_effect_is_perturb_predict_again_subtract(world, scene, factual, frames, hidden):
    source, target = frames
    total = world.total_effect()
    pair = observe(total, source, target)
    xy = torch.tensor([[20.0, 33.0]])
    perturbed = observe(world, source + world.bump.image(xy, HW)[0], target)
    expected = world.predict(perturbed, world.imagine(perturbed, hidden)) - world.predict(scene, factual)
    assert torch.equal(total.intervene(pair, total.imagine(pair, hidden), xy)[0], expected)


@pytest.mark.parametrize("kind", ["direct", "total"])
def test_nothing_changes_on_visible_patches(world, frames, hidden, kind):
    world = world if kind == "direct" else world.total_effect()
    scene = observe(world, *frames)
    response = to_dense(world.intervene(scene, world.imagine(scene, hidden), torch.tensor([[30.0, 30.0]])))
    visible = ~hidden_pixels(hidden)[None, :, None].expand_as(response)
    assert (response[visible] == 0).all()
    assert response.abs().amax() > 0


def test_weights_are_shares(factual):
    weight = factual.mixture.weight
    assert (weight >= 0).all()
    assert (weight.sum(1) <= 1 + 1e-5).all()


def test_bump_between_pixels_is_bilinear():
    bump = GaussianBump()
    xy = torch.tensor([[7.3, 11.9]])
    places = torch.rand(500, 2, generator=torch.Generator().manual_seed(3)) * 30 - 3
    image = bump.image(xy, (24, 24))
    expected = F.grid_sample(
        image[None], to_sampler(places, (24, 24))[None, None], padding_mode="border", align_corners=False
    )
    torch.testing.assert_close(bump.interpolate(places, xy, (24, 24)), expected[0, 0, 0], atol=1e-6, rtol=0)


def test_basis_is_orthonormal_up_to_the_means():
    basis = dct_basis().flatten(1)
    gram = basis @ basis.T
    diagonal = gram.diagonal()
    torch.testing.assert_close(gram, torch.diag(diagonal), atol=1e-6, rtol=0)
    assert sorted(set(diagonal.mul(4).round().tolist())) == [0, 4]


@pytest.mark.parametrize("shift", [(3.0, -2.0), (0.0, 0.0), (-5.4, 1.3), (9.25, 6.5)])
def test_matches_find_a_shift_to_a_tenth_of_a_pixel(shift):
    source = texture(5)
    target = shifted(source, shift)
    inner = [c for c in range(CELLS) if ((CENTERS[c] - torch.tensor(shift) - 32).abs() < 26).all()]
    matches = match_patches(MatchingFeatures.of(source[None]), target[None], torch.tensor([inner]), keep=4).hypotheses
    error = (matches.offset[0, :, 0] + torch.tensor(shift)).norm(dim=-1)
    assert error.median() < 0.1
    assert (error < 0.5).float().mean() > 0.95


def test_a_described_frame_is_encoded_once_for_all_targets_and_only_as_a_source(network, world, frames, monkeypatch):
    encoded = []
    encode = network.encode
    monkeypatch.setattr(network, "encode", lambda image: encoded.append(image) or encode(image))
    source, target = (world.describe(frame) for frame in frames)
    world.observe(source, target)
    world.observe(source, source)
    assert [image.data_ptr() for image in encoded] == [frames[0].data_ptr()]
    world.observe(target, source)
    assert [image.data_ptr() for image in encoded] == [frame.data_ptr() for frame in frames]


def test_a_match_depends_on_its_own_patch_alone(frames):
    source, target = frames
    patches = torch.arange(CELLS)[None]
    every = match_patches(MatchingFeatures.of(source[None]), target[None], patches, keep=4)
    other = target.clone()
    other[:, :, :32] = 0.3
    kept = [c for c in range(CELLS) if CENTERS[c, 0] > 32]
    again = match_patches(MatchingFeatures.of(source[None]), other[None], torch.tensor([kept]), keep=4)
    torch.testing.assert_close(again.hypotheses.offset[0], every.hypotheses.offset[0, kept])
    torch.testing.assert_close(again.coarse_offset[0], every.coarse_offset[0, kept])


def affine_matches(count, offset_of):
    center = torch.rand(1, count, 2, generator=torch.Generator().manual_seed(1)) * SIZE
    return ReliableMatches(
        center=center,
        offset=offset_of(center),
        log_reliability=torch.zeros(1, count),
        linear=torch.zeros(1, count, 2, 2),
        color_offset=torch.zeros(1, count, 3),
        structure_tensor=torch.tensor([0.01, 0.0, 0.01]).expand(1, count, 3),
        features=torch.zeros(1, count, MATCH_FEATURES),
        descriptor=torch.zeros(1, count, 1),
    )


def test_an_affine_motion_is_fitted_exactly():
    linear = torch.tensor([[0.05, -0.1], [0.08, 0.02]])
    shift = torch.tensor([3.0, -1.0])
    matches = affine_matches(20, lambda xy: xy @ linear.T + shift)
    weight = torch.rand(1, CELLS, 2, 20).softmax(-1)
    mean, sums = weight @ matches.offset[:, None], weight @ normal_terms(matches).flatten(2)[:, None]
    offset, gradient = fit_affine(mean, sums, CENTERS, torch.tensor(1e-7))
    torch.testing.assert_close(offset[0, :, 0], CENTERS @ linear.T + shift, atol=0.05, rtol=0)
    torch.testing.assert_close(gradient, linear.expand_as(gradient), atol=2e-3, rtol=0)


def test_small_systems_are_solved():
    root = torch.randn(50, 3, 3, generator=torch.Generator().manual_seed(0))
    matrix = root @ root.mT + 0.1 * torch.eye(3)
    known = torch.randn(50, 3)
    i, j = torch.triu_indices(3, 3)
    found = torch.stack(solve_symmetric3(list(matrix[:, i, j].T), list(known.T)), dim=-1)
    torch.testing.assert_close(found, torch.linalg.solve(matrix, known), atol=1e-3, rtol=1e-3)


def test_motions_are_told_apart_and_no_weight_is_used_twice():
    affinity = torch.block_diag(torch.ones(3, 3), torch.ones(2, 2), torch.ones(1, 1))[None] * 0.999
    weight = torch.tensor([[[0.1, 0.2, 0.1, 0.25, 0.15, 0.2]]])
    index = torch.tensor([[[5, 3, 0, 1, 4, 2]]])
    attention = SparseAttention(index, matches=6)
    modes = greedy_modes(attention, weight.gather(2, index), affinity, torch.tensor(1.0), 3)
    groups = torch.tensor([0, 0, 0, 1, 1, 2])[modes[0, 0]]
    assert sorted(groups.tolist()) == [0, 1, 2]
    shares = attention.scatter(assign(attention, weight.gather(2, index), affinity, modes))
    assert (shares.sum(2) <= weight + 1e-6).all()
    torch.testing.assert_close(shares.sum(2), weight, atol=1e-3, rtol=0)


def test_gradients_reach_every_weight():
    network = LayeredMotionNetwork()
    source, target = texture(1)[None], texture(2)[None]
    visible = torch.arange(0, CELLS, 5)[None]
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    (render(source, network(source, target, visible)) - target).square().mean().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # Of a number that is added to all scores alike, and lost in their softmax, there is only the rounding.
        assert name == "reliability.unary.2.bias" or parameter.grad.abs().sum() > 0, name
