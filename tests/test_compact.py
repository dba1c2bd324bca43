"""Laws of the compact world model: its definitions hold whatever its weights are."""

import pytest
import torch
import torch.nn.functional as F
from lpa_cwm.worlds.layered.intervention import GaussianBump
from lpa_cwm.worlds.layered.network import Network, pixels_of
from lpa_cwm.worlds.layered.patches import PATCH, patch_centers

from lpa_cwm.geometry import pixel_centers, to_sampler
from lpa_cwm.protocols import WorldModel
from lpa_cwm.worlds.layered.block_matching import smooth_basis
from lpa_cwm.worlds.layered.densify import Hearing, divide, fit, moments, solve, strongest
from lpa_cwm.worlds.layered.refine import Ground, match
from lpa_cwm.worlds.layered.reliability import EVIDENCE, Voters
from lpa_cwm.worlds.layered.render import draw
from lpa_cwm.worlds.layered.world import LayeredMotionWorld

SIZE = 64
HW = (SIZE, SIZE)
CELLS = (SIZE // PATCH) ** 2


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


@pytest.fixture(scope="module")
def network():
    """Weights of order one everywhere, so that no part is silent."""
    torch.manual_seed(0)
    network = Network().eval()
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
    return world.observe(*frames)


@pytest.fixture(scope="module")
def factual(world, scene, hidden):
    return world.imagine(scene, hidden)


def test_it_is_a_world_model(world):
    assert isinstance(world, WorldModel)


def test_hidden_pixels_of_the_target_have_no_say(world, frames, hidden, factual):
    source, target = frames
    for mask, k in zip(hidden, range(len(hidden)), strict=True):
        noise = torch.rand(target.shape, generator=torch.Generator().manual_seed(9))
        other = torch.where(pixels_of(mask[None], HW), noise, target)
        again = world.imagine(world.observe(source, other), mask[None])
        assert torch.equal(again.drawing.weight[0], factual.drawing.weight[k])
        assert torch.equal(again.drawing.invention[0], factual.drawing.invention[k])
        assert torch.equal(again.drawing.motions.offset[0], factual.drawing.motions.offset[k])


def test_masks_do_not_disturb_one_another(world, scene, hidden, factual):
    alone = world.imagine(scene, hidden[1:2])
    assert torch.equal(alone.drawing.weight[0], factual.drawing.weight[1])


def test_content_is_the_total_effect_of_a_renderer_with_motion_frozen(world, scene, factual):
    xy = torch.tensor([[10.2, 30.7], [0.5, 0.5], [63.9, 20.0], [40.0, 41.5], [5.0, 62.0]])
    response = world.intervene(scene, factual, xy)
    source = scene.view.source.expand(len(factual.hidden), -1, -1, -1)
    shown = pixels_of(factual.hidden, HW)[:, None]
    for point, change in zip(xy, response, strict=True):
        bump = world.bump.image(point[None], HW)
        direct = draw(source + bump, factual.drawing) - draw(source, factual.drawing)
        torch.testing.assert_close(change, direct * shown, atol=1e-6, rtol=0)
    assert response.abs().amax() > 1e-3


def test_total_is_perturb_run_again_subtract(network, frames, hidden):
    total = LayeredMotionWorld(network, "total", size=SIZE)
    source, target = frames
    scene = total.observe(source, target)
    factual = total.imagine(scene, hidden)
    xy = torch.tensor([[20.0, 33.0]])
    other = total.observe(source + total.bump.image(xy, HW)[0], target)
    expected = total.predict(other, total.imagine(other, hidden)) - total.predict(scene, factual)
    assert torch.equal(total.intervene(scene, factual, xy)[0], expected)


@pytest.mark.parametrize("kind", ["content", "total"])
def test_nothing_changes_on_visible_patches(network, frames, hidden, kind):
    world = LayeredMotionWorld(network, kind, size=SIZE)
    scene = world.observe(*frames)
    response = world.intervene(scene, world.imagine(scene, hidden), torch.tensor([[30.0, 30.0]]))
    visible = ~pixels_of(hidden, HW)[None, :, None].expand_as(response)
    assert (response[visible] == 0).all()
    assert response.abs().amax() > 0


def test_weights_are_shares(factual):
    weight = factual.drawing.weight
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
    torch.testing.assert_close(bump.between(places, xy, (24, 24)), expected[0, 0, 0], atol=1e-6, rtol=0)


def test_basis_is_orthonormal_up_to_the_means():
    basis = smooth_basis().flatten(1)
    gram = basis @ basis.T
    diagonal = gram.diagonal()
    torch.testing.assert_close(gram, torch.diag(diagonal), atol=1e-6, rtol=0)
    assert sorted(set(diagonal.mul(4).round().tolist())) == [0, 4]


@pytest.mark.parametrize("shift", [(3.0, -2.0), (0.0, 0.0), (-5.4, 1.3), (9.25, 6.5)])
def test_matches_find_a_shift_to_a_tenth_of_a_pixel(shift):
    source = texture(5)
    target = shifted(source, shift)
    inner = [c for c in range(CELLS) if ((patch_centers(HW)[c] - torch.tensor(shift) - 32).abs() < 26).all()]
    matches = match(Ground.of(source[None]), target[None], torch.tensor([inner]), keep=4).matches
    error = (matches.offset[0, :, 0] + torch.tensor(shift)).norm(dim=-1)
    assert error.median() < 0.1
    assert (error < 0.5).float().mean() > 0.95


def test_a_source_is_described_once_and_never_taken_for_another(network, frames, monkeypatch):
    source, target = frames
    world, described = LayeredMotionWorld(network, size=SIZE), []
    look = network.look
    monkeypatch.setattr(network, "look", lambda image: described.append(image) or look(image))
    world.observe(source, target)
    again = world.observe(source.clone(), source)
    assert len(described) == 1
    other = world.observe(target, source)
    assert len(described) == 2
    torch.testing.assert_close(again.view.source[0], source)
    torch.testing.assert_close(other.view.source[0], target)
    fresh = LayeredMotionWorld(network, size=SIZE).observe(target, source)
    torch.testing.assert_close(other.looks.matches.offset, fresh.looks.matches.offset)


def test_a_match_depends_on_its_own_patch_alone(frames):
    source, target = frames
    patches = torch.arange(CELLS)[None]
    every = match(Ground.of(source[None]), target[None], patches, keep=4)
    other = target.clone()
    other[:, :, :32] = 0.3
    kept = [c for c in range(CELLS) if patch_centers(HW)[c, 0] > 32]
    again = match(Ground.of(source[None]), other[None], torch.tensor([kept]), keep=4)
    torch.testing.assert_close(again.matches.offset[0], every.matches.offset[0, kept])
    torch.testing.assert_close(again.likeness[0], every.likeness[0, kept])


def voters(count, offset_of):
    center = torch.rand(1, count, 2, generator=torch.Generator().manual_seed(1)) * SIZE
    return Voters(
        center=center,
        offset=offset_of(center),
        log_belief=torch.zeros(1, count),
        linear=torch.zeros(1, count, 2, 2),
        light=torch.zeros(1, count, 3),
        information=torch.tensor([0.01, 0.0, 0.01]).expand(1, count, 3),
        evidence=torch.zeros(1, count, EVIDENCE),
        place=torch.zeros(1, count, 1),
    )


def test_an_affine_motion_is_fitted_exactly():
    linear = torch.tensor([[0.05, -0.1], [0.08, 0.02]])
    shift = torch.tensor([3.0, -1.0])
    centers = patch_centers(HW)
    crowd = voters(20, lambda xy: xy @ linear.T + shift)
    weight = torch.rand(1, CELLS, 2, 20).softmax(-1)
    mean, sums = weight @ crowd.offset[:, None], weight @ moments(crowd).flatten(2)[:, None]
    offset, gradient = fit(mean, sums, centers, torch.tensor(1e-7))
    torch.testing.assert_close(offset[0, :, 0], centers @ linear.T + shift, atol=0.05, rtol=0)
    torch.testing.assert_close(gradient, linear.expand_as(gradient), atol=2e-3, rtol=0)


def test_small_systems_are_solved():
    root = torch.randn(50, 3, 3, generator=torch.Generator().manual_seed(0))
    matrix = root @ root.mT + 0.1 * torch.eye(3)
    known = torch.randn(50, 3)
    i, j = torch.triu_indices(3, 3)
    found = torch.stack(solve(list(matrix[:, i, j].T), list(known.T)), dim=-1)
    torch.testing.assert_close(found, torch.linalg.solve(matrix, known), atol=1e-3, rtol=1e-3)


def test_motions_are_told_apart_and_no_weight_is_used_twice():
    kin = torch.block_diag(torch.ones(3, 3), torch.ones(2, 2), torch.ones(1, 1))[None] * 0.999
    weight = torch.tensor([[[0.1, 0.2, 0.1, 0.25, 0.15, 0.2]]])
    heard = torch.tensor([[[5, 3, 0, 1, 4, 2]]])
    hearing = Hearing(heard, voters=6)
    seeds = strongest(hearing, weight.gather(2, heard), kin, torch.tensor(1.0), 3)
    groups = torch.tensor([0, 0, 0, 1, 1, 2])[seeds[0, 0]]
    assert sorted(groups.tolist()) == [0, 1, 2]
    normalize_weights = hearing.spread(divide(hearing, weight.gather(2, heard), kin, seeds))
    assert (normalize_weights.sum(2) <= weight + 1e-6).all()
    torch.testing.assert_close(normalize_weights.sum(2), weight, atol=1e-3, rtol=0)


def test_gradients_reach_every_weight():
    network = Network()
    source, target = texture(1)[None], texture(2)[None]
    visible = torch.arange(0, CELLS, 5)[None]
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    (draw(source, network(source, target, visible)) - target).square().mean().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # Of a number that is added to all scores alike, and lost in their softmax, there is only the rounding.
        assert name == "reader.unary.2.bias" or parameter.grad.abs().sum() > 0, name
