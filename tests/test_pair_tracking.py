"""Re-evaluation in small crops, up to the clip's own resolution."""

import pytest
import torch

from lpa_cwm.config import TrackerConfig
from lpa_cwm.errors import InputError
from lpa_cwm.geometry import HW
from lpa_cwm.masks import random_masks
from lpa_cwm.pair_tracking import (
    NATIVE_SIDE,
    NativeRefiner,
    PairResult,
    PointsInFrame,
    PointSource,
    crop_sizes,
    native_corners,
    native_crop,
    reevaluate,
)
from lpa_cwm.probe import observe_pair, prepare
from lpa_cwm.worlds.learned.world import CROP_HYPOTHESES, LearnedWorld
from lpa_cwm.worlds.toy import ToyWorld

NATIVE = TrackerConfig(passes=1, reevaluation="native", sharpness=2000.0)


def textured(height: int, width: int) -> torch.Tensor:
    """A frame of smooth random texture."""
    noise = torch.rand(1, 3, height // 6, width // 6, generator=torch.Generator().manual_seed(0))
    smooth = torch.nn.functional.interpolate(noise, (height, width), mode="bicubic", align_corners=False)
    return (smooth[0].clamp(0, 1) * 255).to(torch.uint8)


@pytest.fixture(scope="module")
def world() -> LearnedWorld:
    return LearnedWorld.load()


def test_finds_a_shift_in_native_pixels_from_a_rough_endpoint(world: LearnedWorld) -> None:
    frame = textured(180, 320)
    shift = torch.tensor([7, -4])
    moved = frame.roll((int(shift[1]), int(shift[0])), (1, 2))
    xy = torch.tensor([[100.5, 90.5], [200.0, 80.0], [160.2, 60.7]])
    truth = xy + shift
    rough = truth + torch.tensor([[4.0, 3.0], [-5.0, 2.0], [0.0, 0.0]])
    found = NativeRefiner(world, moved, NATIVE, ("clip", 0, 1)).refine([PointSource(frame, xy)], rough)
    assert ((found.xy - truth).norm(dim=1) < 0.1).all()


def test_result_does_not_depend_on_the_other_points(world: LearnedWorld) -> None:
    frame = textured(96, 128)
    moved = frame.roll(3, 2)
    xy = torch.tensor([[40.0, 40.0], [80.0, 50.0]])
    both = NativeRefiner(world, moved, NATIVE, ("clip", 0, 1)).refine([PointSource(frame, xy)], xy)
    one = NativeRefiner(world, moved, NATIVE, ("clip", 0, 1)).refine([PointSource(frame, xy[1:])], xy[1:])
    torch.testing.assert_close(both.xy[1:], one.xy, atol=1e-3, rtol=0)


def test_batched_crops_equal_one_pair_at_a_time(world: LearnedWorld) -> None:
    frame = textured(96, 128)
    here = torch.stack([native_crop(frame, (0, 0)), native_crop(frame, (40, 20))])
    there = torch.stack([native_crop(frame, (2, 1)), native_crop(frame, (37, 24))])
    xy = torch.tensor([[[30.0, 30.0], [33.0, 28.0]], [[29.0, 32.0], [33.5, 27.0]]])
    hidden = torch.stack([random_masks(3, 64, "law", source, hidden_share=0.6) for source in range(2)])
    near = torch.tensor([[30.0, 30.0], [60.0, 2.0]])
    sources = [here, here.flip(0)]
    targets = world.describe_crops(there, context=False)
    inside = ((slice(8, 48), slice(8, 48)), (slice(0, 40), slice(24, 64)))
    for source, crops in enumerate(sources):
        together = world.respond(world.describe_crops(crops), targets, xy[source], near, hidden[source]).dense()
        for row, part in enumerate(inside):
            pair = world.describe(crops[row]), world.describe(there[row])
            scene = world.network.observe(*pair, hypotheses=CROP_HYPOTHESES)
            alone = world.intervene(scene, world.imagine(scene, hidden[source]), xy[source, row : row + 1]).dense()
            torch.testing.assert_close(together[row, ..., *part], alone[0, ..., *part], atol=3e-5, rtol=0)


def test_masks_do_not_depend_on_where_the_points_are(world: LearnedWorld) -> None:
    """A point that moves by a rounding error keeps its masks, so that its endpoint moves as little."""
    frame = textured(96, 128)
    moved = frame.roll(3, 2)
    xy = torch.tensor([[40.0, 40.0], [80.0, 50.0]])
    refiner = NativeRefiner(world, moved, NATIVE, ("clip", 0, 1))
    exact, shifted = (refiner.refine([PointSource(frame, place)], xy) for place in (xy, xy + 1e-5))
    torch.testing.assert_close(exact.xy, shifted.xy, atol=1e-3, rtol=0)


def test_a_crop_is_described_once(world: LearnedWorld) -> None:
    source = PointSource(textured(96, 128), torch.tensor([[40.0, 40.0], [80.0, 50.0], [40.2, 39.9]]))
    first = source.describe(world)
    assert first[0] is first[2]
    assert len(source.described) == 2
    again = PointSource(source.frame, source.xy[1:2], source.described).describe(world)
    assert again[0] is first[1]


def test_crops_stay_inside_and_small_frames_are_padded() -> None:
    frame = textured(120, 160)
    corner = native_corners(torch.tensor([[0.0, 0.0], [159.0, 119.0], [80.0, 60.0]]), (120, 160), 8)
    assert corner.tolist() == [[0, 0], [160 - NATIVE_SIDE, 120 - NATIVE_SIDE], [80 - 28, 60 - 28]]
    small = textured(48, 48)
    padded = native_crop(small, (0, 0))
    assert padded.shape == (3, NATIVE_SIDE, NATIVE_SIDE)
    assert torch.equal(padded[:, -1, :48], small[:, -1].float() / 255)
    assert native_crop(frame, (10, 20)).shape == (3, NATIVE_SIDE, NATIVE_SIDE)


def test_an_endpoint_without_response_stays(world: LearnedWorld) -> None:
    frame, other = textured(96, 128), torch.zeros(3, 96, 128, dtype=torch.uint8)
    config = TrackerConfig(passes=1, reevaluation="native", visibility_threshold=1e3)
    observed = observe_pair(world, frame, other, ("clip", 0, 1), config, "cpu")
    before = PairResult.empty(torch.tensor([[50.0, 40.0]]))
    after = reevaluate(observed, torch.tensor([[40.0, 40.0]]), before, 1)
    assert torch.equal(after.xy, before.xy)


def test_world_models_without_crops_are_refused() -> None:
    frame, xy = textured(96, 96), torch.ones(1, 2)
    with pytest.raises(InputError, match="cannot answer in crops"):
        NativeRefiner(ToyWorld(), frame, NATIVE, ("a",)).refine([PointSource(frame, xy)], xy)


def test_another_endpoint_wins_by_its_stronger_response(world: LearnedWorld) -> None:
    frame = textured(180, 320)
    moved = frame.roll((-4, 7), (1, 2))
    xy = torch.tensor([[100.5, 90.5], [200.0, 80.0]])
    truth = xy + torch.tensor([7.0, -4.0])
    observed = observe_pair(world, frame, moved, ("clip", 0, 1), NATIVE, "cpu")
    wrong = PairResult.empty(truth + torch.tensor([90.0, 40.0]))
    nowhere = torch.full_like(truth, torch.nan)
    found = reevaluate(observed, xy, wrong, 1, others=torch.stack((nowhere, truth + 3), dim=1))
    assert ((found.xy - truth).norm(dim=1) < 0.75).all()
    alone = reevaluate(observed, xy, PairResult.empty(truth + 3), 1)
    assert torch.equal(found.native_strength, alone.native_strength)


@pytest.mark.parametrize(
    ("hw", "sizes"),
    [
        ((480, 854), ((480, 854), (960, 1707))),
        ((480, 640), ((480, 640), (1109, 1478))),
        ((256, 256), ((640, 640), (1280, 1280))),
        ((1080, 1920), ((480, 853), (1080, 1920))),
        ((2160, 3840), ((480, 853), (2160, 3840))),
    ],
)
def test_crops_show_as_much_of_a_frame_of_any_size(hw: HW, sizes: tuple[HW, HW]) -> None:
    assert crop_sizes(hw) == sizes


def test_large_clips_are_tracked_to_a_fraction_of_their_own_pixels(world: LearnedWorld) -> None:
    frame = textured(1080, 1440)
    moved = frame.roll((-12, 21), (1, 2))
    xy = torch.tensor([[300.5, 290.5], [900.0, 480.0]])
    truth = xy + torch.tensor([21.0, -12.0])
    observed = observe_pair(world, frame, moved, ("clip", 0, 1), NATIVE, "cpu")
    # Further away than a crop of the clip's own pixels reaches.
    rough = PairResult.empty(truth + torch.tensor([[34.0, 6.0], [-7.0, -36.0]]))
    found = reevaluate(observed, xy, rough, 1)
    assert ((found.xy - truth).norm(dim=1) < 0.15).all()


def test_a_recent_frame_is_asked_only_where_the_query_is_not_recognized(world: LearnedWorld) -> None:
    frame = textured(480, 640)
    moved = frame.roll((-4, 7), (1, 2))
    lost = torch.zeros_like(frame)
    xy = torch.tensor([[200.5, 190.5]])
    end, shift = xy + torch.tensor([7.0, -4.0]), torch.tensor([6.0, 5.0])
    # Asked from there, the recent frame would lead to another place.
    recent = PointsInFrame(prepare(world, frame, "cpu"), xy + shift)
    for source, expected in ((frame, end), (lost, end + shift)):
        observed = observe_pair(world, source, moved, ("clip", 0, 2), NATIVE, "cpu")
        found = reevaluate(observed, xy, PairResult.empty(end + shift / 2), 1, recent)
        torch.testing.assert_close(found.xy, expected, atol=0.3, rtol=0)
