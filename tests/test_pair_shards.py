"""Pairs with backward flow: the flow explains the target, survives crops, flips and the disk."""

import numpy as np
import pytest
import torch
from einops import rearrange

from lpa_cwm.errors import InputError
from lpa_cwm.files import pin_settings
from lpa_cwm.geometry import sample_bilinear
from lpa_cwm.synth import pair_shards
from lpa_cwm.synth.images import ImagePool, PhotometricJitter, capsule, motion_blur, soft_shadow
from lpa_cwm.synth.layered import LayeredConfig, LayeredPairs
from lpa_cwm.synth.pair_shards import (
    FlowPair,
    LayeredFlow,
    PairShards,
    ReversedFlow,
    flow_grid,
    holds_shards,
    write_shard,
    write_shards,
)
from lpa_cwm.synth.pairs import Example
from lpa_cwm.training.flow_pairs import crop_pair, shows_origin


@pytest.fixture(scope="module")
def layered() -> LayeredPairs:
    return LayeredPairs(ImagePool.of(None, "train"), LayeredConfig.hard())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of three pairs of 64 x 64 pixels."""
    monkeypatch.setattr(pair_shards, "SHARD_PAIRS", 3)
    monkeypatch.setattr(pair_shards, "SIZE", 64)


def smooth_pair(size: int = 64, index: int = 0) -> FlowPair:
    """A smooth picture of which the target shows another part: backward flow (-8, 4)."""
    x, y = torch.meshgrid(torch.arange(size + 32.0), torch.arange(size + 32.0), indexing="xy")
    picture = torch.stack((x, y, (x + y) / 2 + index)).to(torch.uint8)
    source, target = picture[:, 16 : 16 + size, 16 : 16 + size], picture[:, 20 : 20 + size, 8 : 8 + size]
    flow = torch.tensor([-8.0, 4.0])[:, None, None].expand(2, size // 4, size // 4)
    return FlowPair(torch.stack((source, target)), flow, torch.ones(size // 4, size // 4, dtype=torch.bool))


def misfit(source: torch.Tensor, target: torch.Tensor, flow: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Differences of color between target points and where they come from, where the source shows them."""
    grid = rearrange(flow_grid((source.shape[-2], source.shape[-1])), "d h w -> 1 (h w) d")
    origin = grid + rearrange(flow, "d h w -> 1 (h w) d")
    colors = sample_bilinear(source[None].float(), origin) - sample_bilinear(target[None].float(), grid)
    return colors[0][visible.flatten()].abs().mean(-1)


def test_backward_flow_explains_the_target(layered):
    scene, _ = layered.scene(5, 128)
    source, target = (scene.draw(moment)[0] for moment in ("source", "target"))
    grid = flow_grid((128, 128))
    origin, visible = scene.source_positions(grid)
    assert visible.float().mean() > 0.2
    still = misfit(source, target, torch.zeros_like(grid), visible).mean()
    assert misfit(source, target, origin - grid, visible).median() < 0.3 * still


def test_backward_flow_undoes_forward_flow(layered):
    """Pixels of the source that are visible in the target come back to where they were."""
    scene, _ = layered.scene(2, 96)
    owner = scene.draw("source")[1]
    ahead = scene.target_positions(owner)
    seen = scene.visible_mask(ahead, owner)
    back, visible = scene.source_positions(ahead)
    assert seen.float().mean() > 0.3
    assert (back - scene.centers).norm(dim=0)[seen].quantile(0.99) < 1e-3
    assert visible[seen].float().mean() > 0.99


def test_bodies_have_limbs_that_move_in_different_ways():
    config = LayeredConfig(sprites=(3, 3), bodies=50.0)
    scene, _ = LayeredPairs(ImagePool.of(None, "train"), config).scene(0, 64)
    # Three bodies, of three to eleven layers each, are in the place of the three cut-outs.
    assert 1 + 3 * 3 <= len(scene.layers) <= 1 + 3 * 11
    linear = torch.stack([layer.motion.affine.linear for layer in scene.layers]).flatten(1)
    assert len(linear.round(decimals=4).unique(dim=0)) > 4


def test_crops_and_augmentation_keep_the_flow():
    compared = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        crop = crop_pair(smooth_pair(), 32, rng).augment(rng)
        inside = crop.visible & shows_origin(rearrange(crop.flow, "d h w -> 1 h w d"), 32)[0]
        near = (crop.flow.abs().amax(0) < 14) & inside
        if bool(near.any()):
            assert misfit(crop.source, crop.target, crop.flow, near).nan_to_num(0).quantile(0.5) < 1.0
            compared += 1
    assert compared > 8


def test_shards_come_back_from_the_disk(tmp_path, small):
    sources = {"hard": lambda index: smooth_pair(index=index), "plain": lambda index: smooth_pair(index=100 + index)}
    paths = list(write_shards(tmp_path, sources, range(3)))
    assert [path.name for path in paths] == ["00000_hard", "00001_hard", "00002_plain"]
    shards = PairShards.of(tmp_path)
    assert len(shards) == 9
    assert shards.kinds() == ("hard", "plain")
    for index, made in ((4, smooth_pair(index=4)), (8, smooth_pair(index=108))):
        assert torch.equal(shards[index].frames, made.frames)
        assert torch.equal(shards[index].flow, made.flow)
    assert torch.equal(shards.of_kinds("plain")[2].frames, shards[8].frames)


def test_a_stopped_run_makes_the_shards_that_are_missing(tmp_path, small):
    asked = []

    def source(index):
        asked.append(index)
        if len(asked) == 5:
            raise KeyboardInterrupt
        return smooth_pair(index=index)

    sources = {"hard": source, "plain": source}
    with pytest.raises(KeyboardInterrupt):
        list(write_shards(tmp_path, sources, range(3)))
    assert [path.name for path in tmp_path.iterdir()] == ["00000_hard"]
    list(write_shards(tmp_path, sources, range(3)))
    assert asked == [0, 1, 2, 3, 4, 3, 4, 5, 6, 7, 8]


def test_a_shard_that_another_process_made_is_kept(tmp_path, small):
    def source(index):
        if not (tmp_path / "00000_hard").exists():
            write_shard(tmp_path / "00000_hard", lambda index: smooth_pair(), 0)
        return smooth_pair(index=1)

    write_shard(tmp_path / "00000_hard", source, 0)
    assert torch.equal(PairShards.of(tmp_path)[0].frames, smooth_pair().frames)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("file", ["frames.npy", "flow.npy", "shown.npy"])
def test_a_shard_that_was_cut_short_is_made_again(tmp_path, small, file):
    sources = dict.fromkeys(("hard", "plain"), lambda index: smooth_pair(index=index))
    pin_settings(tmp_path / "pairs.json", {})
    list(write_shards(tmp_path, sources, range(2)))
    path = tmp_path / "00001_hard" / file
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert len(PairShards.of(tmp_path).paths) == 1
    assert len(list(write_shards(tmp_path, sources, range(2)))) == 2
    assert path.read_bytes() == whole
    assert not [one for one in tmp_path.iterdir() if one.name.startswith(".")]


def test_a_folder_without_shards_is_refused(tmp_path):
    (tmp_path / "00000_hard").mkdir()
    assert not holds_shards(tmp_path)
    with pytest.raises(InputError, match="no shards of frame pairs"):
        PairShards.of(tmp_path)


def test_layered_flow_is_a_function_of_its_number(layered, small):
    first, second = (LayeredFlow(layered)(3) for _ in range(2))
    assert torch.equal(first.frames, second.frames)
    assert first.flow.shape == (2, 16, 16)
    example = layered.pair(3, 64)
    assert torch.equal(first.frames, torch.stack((example.source, example.target)))


def test_the_backward_flow_of_a_pair_is_the_forward_flow_of_its_reverse(small):
    class Slide:
        """Two frames in both orders; the scene moves by 4 pixels to the right."""

        name = "slide"

        def pair(self, index, size):
            sign = -1 if index % 2 else 1
            frames = torch.full((3, size, size), 1), torch.full((3, size, size), 2)
            first, second = (frame.to(torch.uint8) for frame in frames[::sign])
            flow = torch.stack((torch.full((size, size), 4.0 * sign), torch.zeros(size, size)))
            flow[:, 2, 2] = torch.nan
            return Example(first, second, flow, torch.ones(size, size, dtype=torch.bool))

    for index, motion in ((0, -4.0), (1, 4.0)):
        pair = ReversedFlow(Slide())(index)
        assert pair.frames[0, 0, 0, 0] == 1 + index
        assert pair.flow[0, 1:].unique().tolist() == [motion]
        # Where flow is unknown the point counts as not visible.
        assert (~pair.visible).nonzero().tolist() == [[0, 0]]


def test_strong_jitter_changes_the_frames_and_not_the_scene(layered):
    plain = LayeredPairs(layered.photographs, LayeredConfig(jitter=PhotometricJitter()))
    strong = LayeredPairs(layered.photographs, LayeredConfig(jitter=PhotometricJitter.strong()))
    first, second = (pairs.pair(1, 48) for pairs in (plain, strong))
    assert first.flow is not None
    assert second.flow is not None
    assert torch.equal(first.flow, second.flow)
    assert not torch.equal(first.target, second.target)


def test_motion_blur_spreads_a_point_along_its_direction():
    picture = torch.zeros(3, 21, 21)
    picture[:, 10, 10] = 1
    blurred = motion_blur(picture, 0.0, 12.0)
    rows, columns = blurred[0].nonzero().unbind(-1)
    assert rows.unique().tolist() == [10]
    assert columns.tolist() == [4, 6, 8, 10, 12, 14, 16]
    assert blurred[0].sum() == pytest.approx(1)


def test_a_shadow_takes_light_but_not_all():
    for seed in range(5):
        light = soft_shadow(np.random.default_rng(seed), 32)
        assert 0.5 <= light.min() < light.max() <= 1


def test_a_capsule_is_longer_than_wide_and_inside_its_square():
    for seed in range(10):
        shape = capsule(np.random.default_rng(seed), 48) > 0
        rows, columns = shape.nonzero()
        assert 0 < rows.min() < rows.max() < 47
        assert 0 < columns.min() < columns.max() < 47
        assert np.ptp(columns) > np.ptp(rows)
