"""Laws of the learned world model: no leak, zero on visible patches, masks and batches independent."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from einops import rearrange

from lpa_cwm.config import TrackerConfig
from lpa_cwm.errors import InputError
from lpa_cwm.files import bundled_weights
from lpa_cwm.geometry import patch_centers, pixel_centers
from lpa_cwm.registry import load
from lpa_cwm.rng import generator
from lpa_cwm.types import Grid
from lpa_cwm.worlds.learned.matching import PATCH, STRIDE, lucas_kanade
from lpa_cwm.worlds.learned.network import LearnedNetwork
from lpa_cwm.worlds.learned.render import render
from lpa_cwm.worlds.learned.world import CALIBRATION, LearnedFactual, LearnedWorld
from lpa_cwm.worlds.toy import ToyMotion, toy_clip

SIDE = 96
CELLS = (SIDE // PATCH) ** 2


@pytest.fixture(scope="module")
def world() -> LearnedWorld:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = LearnedNetwork().eval()
        # Every part takes part, also those that begin at zero.
        for parameter in network.densifier.sharpen.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    return LearnedWorld(network, size=SIDE)


@pytest.fixture(scope="module")
def frames() -> tuple[torch.Tensor, torch.Tensor]:
    noise = torch.rand(1, 3, SIDE + 16, SIDE + 16, generator=generator("test", "learned"))
    smooth = torch.nn.functional.avg_pool2d(noise, 3, 1, 1)[0]
    smooth = (smooth - smooth.mean()) * 2 + 0.5
    return smooth[:, 8 : 8 + SIDE, 8 : 8 + SIDE], smooth[:, 6 : 6 + SIDE, 5 : 5 + SIDE]


def masks(count: int, share: float = 0.85) -> torch.Tensor:
    order = torch.rand(count, CELLS, generator=generator("test", "masks")).argsort(-1)
    return order < int(share * CELLS)


def assert_same(first: LearnedFactual, second: LearnedFactual, rows: slice = slice(None)) -> None:
    for name in ("offset", "linear", "weight", "scale", "color"):
        a, b = (getattr(factual.motions, name) for factual in (first, second))
        assert torch.allclose(a[rows] if a.shape != b.shape else a, b, atol=1e-3, rtol=1e-3), name


def test_a_descriptor_sees_its_patch_alone(world: LearnedWorld, frames: tuple[torch.Tensor, torch.Tensor]) -> None:
    frame = frames[0].clone()
    before = world.describe(frame).patches
    frame[:, 40, 47] += 0.5
    changed = (world.describe(frame).patches - before)[0].abs().amax(-1) > 1e-6
    rows, columns = changed.nonzero().unbind(-1)
    covers = [(i, j) for i in range(before.shape[1]) for j in range(before.shape[2])]
    wanted = {(i, j) for i, j in covers if 0 <= 40 - STRIDE * i < PATCH and 0 <= 47 - STRIDE * j < PATCH}
    assert set(zip(rows.tolist(), columns.tolist(), strict=True)) <= wanted
    assert len(rows) > 0


def test_hidden_patches_do_not_leak(world: LearnedWorld, frames: tuple[torch.Tensor, torch.Tensor]) -> None:
    source, target = frames
    hidden = masks(1)
    shown = (~hidden).view(SIDE // PATCH, -1).repeat_interleave(PATCH, 0).repeat_interleave(PATCH, 1)
    noise = torch.rand(3, SIDE, SIDE, generator=generator("test", "other"))
    changed = torch.where(shown, target, noise), torch.where(shown, noise, target)
    first, hidden_changed, visible_changed = (
        world.imagine(world.observe(world.describe(source), world.describe(frame)), hidden)
        for frame in (target, *changed)
    )
    assert_same(first, hidden_changed)
    # The visible patches do matter, so the comparison above can fail.
    with pytest.raises(AssertionError):
        assert_same(first, visible_changed)


def test_masks_and_their_number_do_not_interact(world: LearnedWorld, frames: tuple[torch.Tensor, torch.Tensor]) -> None:
    scene = world.observe(*map(world.describe, frames))
    hidden = masks(10)
    together = world.imagine(scene, hidden)
    for row in (0, 7):
        assert_same(together, world.imagine(scene, hidden[row : row + 1]), slice(row, row + 1))


def test_masks_with_different_numbers_of_patches(
    world: LearnedWorld, frames: tuple[torch.Tensor, torch.Tensor]
) -> None:
    scene = world.observe(*map(world.describe, frames))
    few, many = masks(1, 0.9), masks(1, 0.7)
    together = world.imagine(scene, torch.cat((few, many)))
    assert_same(together, world.imagine(scene, few), slice(0, 1))
    assert_same(together, world.imagine(scene, many), slice(1, 2))


def test_pairs_of_a_batch_do_not_interact(world: LearnedWorld, frames: tuple[torch.Tensor, torch.Tensor]) -> None:
    first, second = frames
    hidden = masks(2)
    with torch.inference_mode():
        network = world.network
        sources, targets = (network.describe(torch.stack(pair)) for pair in ((first, second), (second, first)))
        batch = network.imagine(network.observe(sources, targets), hidden.expand(2, -1, -1))
    alone = world.imagine(world.observe(world.describe(second), world.describe(first)), hidden)
    assert_same(replace(alone, motions=batch.motions), alone, slice(2, 4))


def test_response_is_zero_on_visible_patches_and_equals_the_rendered_bump(
    world: LearnedWorld, frames: tuple[torch.Tensor, torch.Tensor]
) -> None:
    scene = world.observe(*map(world.describe, frames))
    hidden = masks(3)
    factual = world.imagine(scene, hidden)
    xy = torch.tensor([[40.3, 50.1], [30.0, 60.0], [61.5, 40.5]])
    response = world.intervene(scene, factual, xy).dense()
    pixels = hidden.view(3, SIDE // PATCH, -1).repeat_interleave(PATCH, 1).repeat_interleave(PATCH, 2)
    assert response.shape == (3, 3, 3, SIDE, SIDE)
    assert response[:, ~pixels.unsqueeze(1).expand(-1, 3, -1, -1)].abs().max() == 0
    for number, bump in enumerate(world.bump.image(xy, (SIDE, SIDE))):
        light = bump.expand(3, 3, -1, -1)
        colorless = factual.motions.color * 0
        motions = type(factual.motions)(
            factual.motions.offset, factual.motions.linear, factual.motions.weight, factual.motions.scale, colorless
        )
        rendered = render(light, motions) * pixels[:, None]
        # Rendering interpolates the bump between pixels and repeats the border; carrying it does neither.
        assert (response[number] - rendered).abs().max() < 0.08 * world.bump.amplitude
    assert response.abs().max() > 0


@pytest.mark.parametrize("count", [1, 12])
def test_only_what_points_can_reach_is_imagined(
    world: LearnedWorld, frames: tuple[torch.Tensor, torch.Tensor], count: int
) -> None:
    """Responses are those of the whole frame, and those of a part of the masks; far fewer cells are computed."""
    source, target = map(world.describe, frames)
    hidden, xy = masks(4), SIDE * torch.rand(count, 2, generator=generator("asked", count))
    scene = world.observe(source, target)
    partly = world.observe_shown(source, target, hidden)
    for some in (hidden, hidden[:2]):
        whole, near = world.imagine(scene, some), world.imagine_near(partly, some, xy)
        expected, found = (world.intervene(scene, factual, xy).dense() for factual in (whole, near))
        assert expected.abs().max() > 0
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
    cells = near.motions.offset.shape[1]
    assert 0 < cells < int(hidden[:2].sum()) * (0.5 if count == 1 else 1)


def test_weights_are_a_sub_probability(world: LearnedWorld, frames: tuple[torch.Tensor, torch.Tensor]) -> None:
    factual = world.imagine(world.observe(*map(world.describe, frames)), masks(2))
    total = factual.motions.weight.sum(-1)
    assert factual.motions.weight.min() >= 0
    assert total.max() <= 1 + 1e-5


def test_total_effect_is_small_where_nothing_is_perturbed(
    world: LearnedWorld, frames: tuple[torch.Tensor, torch.Tensor]
) -> None:
    total, hidden = world.total_effect(), masks(1)
    pair = total.observe(*map(total.describe, frames))
    response = total.intervene(pair, total.imagine(pair, hidden), torch.tensor([[48.0, 48.0]]))
    assert response.shape == (1, 1, 3, SIDE, SIDE)
    scene = world.observe(*map(world.describe, frames))
    assert world.intervene(scene, world.imagine(scene, hidden), torch.tensor([[500.0, 500.0]])).blocks.numel() == 0


def test_lucas_kanade_finds_a_fraction_of_a_pixel() -> None:
    xy = pixel_centers((SIDE, SIDE))
    waves = [
        torch.sin(xy @ torch.tensor(k) + p) for k, p in (((0.5, 0.2), 0.3), ((-0.2, 0.45), 1.0), ((0.3, -0.35), 2.0))
    ]
    moved = [
        torch.sin((xy + torch.tensor([-1.3, 0.8])) @ torch.tensor(k) + p)
        for k, p in (((0.5, 0.2), 0.3), ((-0.2, 0.45), 1.0), ((0.3, -0.35), 2.0))
    ]
    source, target = (0.5 + 0.15 * sum(parts).expand(3, -1, -1) for parts in (waves, moved))
    centers = patch_centers((SIDE, SIDE), PATCH)[None]
    pixels = rearrange(target[None], "b c (i u) (j v) -> b (i j) c u v", u=PATCH, v=PATCH)
    start = torch.zeros(1, CELLS, 1, 2)
    offset, residual, _ = lucas_kanade(source[None], pixels, centers, start)
    inner = ((centers[0] > 8) & (centers[0] < SIDE - 8)).all(-1)
    error = (offset[0, inner, 0] - torch.tensor([-1.3, 0.8])).norm(dim=-1)
    assert error.median() < 0.1
    assert residual[0, inner].median() < 0.01


def test_bundled_weights_load_and_track_a_clip() -> None:
    clip = toy_clip(ToyMotion(shift=(0.03, 0.01)), 2)
    tracker = load("uniform", "learned", masks=4)
    settings = {"hidden_share": 0.8, "gaps": (1, 4), "passes": 1, "reevaluation": "native", "sharpness": 500.0}
    assert tracker.config == TrackerConfig(masks=4, **settings, calibration=CALIBRATION, batch=32)
    tracks = tracker.track(clip, Grid(3).on(clip.hw))
    assert tracks.xy.isfinite().all()
    assert tracks.confidence is not None
    assert ((tracks.confidence[:, 1] >= 0) & (tracks.confidence[:, 1] <= 1)).all()


def test_rows_are_unique_and_sorted(world: LearnedWorld, frames: tuple[torch.Tensor, torch.Tensor]) -> None:
    scene = world.observe(*map(world.describe, frames))
    responses = world.intervene(scene, world.imagine(scene, masks(3)), torch.tensor([[40.3, 50.1], [30.0, 60.0]]))
    assert len(responses.patch) > 0
    assert (torch.diff(responses.candidate * CELLS + responses.patch) > 0).all()


def test_other_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="of the learned world model"):
        LearnedWorld.load(bundled_weights("score-compact.safetensors"))
    with pytest.raises(InputError, match="of the learned world model"):
        LearnedWorld.load(tmp_path / "absent.safetensors")


def test_weights_may_be_loaded_in_inference_mode() -> None:
    with torch.inference_mode():
        world = LearnedWorld.load()
        frame = torch.rand(3, SIDE, SIDE)
        assert world.observe(world.describe(frame), world.describe(frame)).matches.offset.isfinite().all()
