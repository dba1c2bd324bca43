"""Laws of the training of the learned world model: batches by step, losses by their definition, exact resumption."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lpa_cwm.errors import InputError
from lpa_cwm.files import bundled_weights
from lpa_cwm.geometry import patch_centers
from lpa_cwm.pair_tracking import NATIVE_HIDDEN_SHARE
from lpa_cwm.rng import generator
from lpa_cwm.synth import pair_shards
from lpa_cwm.synth.images import ImagePool
from lpa_cwm.synth.pair_shards import PairShards, layered_sources, write_shards
from lpa_cwm.synth.pairs import Example
from lpa_cwm.training.flow_pairs import FlowBatch, FlowBatches, Stage, crop_pair
from lpa_cwm.training.loop import StopSchedule, read_log
from lpa_cwm.training.world import (
    WorldTrainer,
    choice_loss,
    color_loss,
    init_learned_network,
    match_loss,
    motion_loss,
    patch_flow,
    training_masks,
)
from lpa_cwm.worlds.learned.densify import Motions
from lpa_cwm.worlds.learned.matching import PATCH, STRIDE

SIZE = 64
CELLS = (SIZE // PATCH) ** 2
STAGES = (Stage(0, 64, 2), Stage(2, 64, 3))


class Still:
    """Natural pairs without motion."""

    name = "still"

    def pair(self, index, size):
        frame = torch.from_numpy(np.random.default_rng(index).integers(0, 255, (3, size, size), dtype=np.uint8))
        return Example(frame, frame.clone())


@pytest.fixture(scope="module")
def batches(tmp_path_factory):
    """Batches from two shards of two small pairs each, and natural pairs."""
    folder = tmp_path_factory.mktemp("pairs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_shards, "SHARD_PAIRS", 2)
        patch.setattr(pair_shards, "SIZE", 96)
        list(write_shards(folder, layered_sources(ImagePool.of(None, "train")), range(2)))
        yield FlowBatches.of(PairShards.of(folder), Still(), STAGES)


def constant_batch(flow=(4.0, -8.0), labeled=True):
    """A batch whose target is the source moved by a constant flow; only inner points come from inside the crop."""
    wide = torch.rand(1, 3, SIZE + 32, SIZE + 32, generator=generator("test", "constant"))
    dx, dy = map(int, flow)
    source, target = (
        wide[..., 16 : 16 + SIZE, 16 : 16 + SIZE],
        wide[..., 16 + dy : 16 + dy + SIZE, 16 + dx : 16 + dx + SIZE],
    )
    side = SIZE // 4
    visible = torch.zeros(1, side, side, dtype=torch.bool)
    visible[:, 4:-4, 4:-4] = True
    known = torch.full_like(visible, labeled)
    return FlowBatch(source, target, torch.tensor(flow).expand(1, side, side, 2), visible & known, known)


def constant_motions(offset, weight=0.9, scale=0.5, masks=1):
    """One motion in every cell."""
    return Motions(
        torch.tensor(offset).expand(masks, CELLS, 1, 2),
        torch.zeros(masks, CELLS, 1, 2, 2),
        torch.full((masks, CELLS, 4, 1), weight),
        torch.full((masks, CELLS, 1), scale),
        torch.full((masks, CELLS, 3), 0.5),
    )


def test_batches_are_functions_of_the_step_and_the_process(batches):
    again = FlowBatches.of(batches.shards[0], Still(), STAGES)
    for step in (3, 0):
        first, second = batches[step], again[step]
        for name in ("source", "target", "flow", "visible", "labeled"):
            assert torch.equal(getattr(first, name), getattr(second, name))
    assert not torch.equal(batches[0].source, replace(batches, rank=1)[0].source)
    assert not torch.equal(batches[0].source, batches[1].source)


def test_natural_pairs_have_no_flow_and_their_share(batches):
    labeled = torch.cat([batches[step].labeled.flatten(1).all(1) for step in range(60)])
    # Layered pairs and natural video, 4 to 1.
    assert labeled.float().mean() == pytest.approx(0.8, abs=0.12)
    natural = replace(batches, shards=(), shares=(1.0,))[0]
    assert not natural.labeled.any()
    assert natural.flow.isfinite().all()
    assert not natural.visible.any()


def test_stages_follow_one_another_and_then_take_turns(batches):
    stages = (Stage(0, 64, 4), Stage(10, 72, 3), Stage(20, 80, 2))
    sizes = [replace(batches, stages=stages).stage(step).size for step in (0, 9, 10, 19, 20, 21, 22)]
    assert sizes == [64, 64, 72, 72, 80, 64, 72]
    assert replace(batches, stages=stages[:1]).stage(5) == stages[0]


def test_shards_of_unknown_kinds_are_refused(tmp_path):
    with pytest.raises(InputError, match="kinds other"):
        FlowBatches.of(PairShards((tmp_path / "00000_other",)), None, STAGES)


def test_masks_are_functions_of_step_and_process():
    masks = training_masks(5, 0, 3, 2, 256)
    assert torch.equal(masks, training_masks(5, 0, 3, 2, 256))
    assert not torch.equal(masks, training_masks(5, 1, 3, 2, 256))
    visible = [(~training_masks(step, 0, 1, 1, 256)).float().mean().item() for step in range(40)]
    assert 0.05 < min(visible) < 0.08
    assert 0.13 < max(visible) <= 0.16


def test_masks_of_small_crops_show_as_much_as_those_at_native_resolution():
    visible = [(~training_masks(step, 0, 1, 1, 64)).float().mean().item() for step in range(40)]
    assert 0.24 < min(visible) < 1 - NATIVE_HIDDEN_SHARE < max(visible) <= 0.45


def test_small_crops_show_the_same_point_near_their_middles(batches):
    pair = batches.shards[0][0]
    errors = []
    for seed in range(60):
        crop = crop_pair(pair, 64, np.random.default_rng(seed))
        middle = crop.flow[:, 6:10, 6:10].flatten(1).norm(dim=0)
        errors.append(middle[crop.visible[6:10, 6:10].flatten()].median().item())
    assert np.nanmedian(errors) < 16


def test_the_matching_loss_is_the_entropy_of_the_true_position():
    """Flow of whole positions: the label is one position, and uniform logits cost the log of their number."""
    batch = constant_batch()
    flow, asked = patch_flow(batch)
    side = SIZE // STRIDE
    place = (patch_centers((SIZE, SIZE), PATCH) + flow[0] - PATCH / 2) / STRIDE
    index = (place[:, 1] * side + place[:, 0]).long().clamp(0, side**2 - 1)
    logits = torch.zeros(1, CELLS, side**2)
    loss, accuracy = match_loss(logits, batch)
    assert loss.item() == pytest.approx(np.log(side**2), rel=1e-4)
    assert accuracy < 0.1
    logits[0, torch.arange(CELLS), index] = 50.0
    loss, accuracy = match_loss(logits, batch)
    assert loss.item() == pytest.approx(0, abs=1e-4)
    assert accuracy == 1
    assert asked.sum() == 6 * 6 - 20  # The border of 16 pixels is not visible.


def test_the_choice_loss_asks_for_the_right_match_or_for_none():
    batch = constant_batch()
    visible = torch.tensor([[[27, 0]]])  # A patch in the middle, and one that the source does not show.
    offset = torch.tensor([[30.0, 0.0], [4.5, -8.0]]).expand(1, 2, 2, 2)
    right = torch.tensor([[[-30.0, 30.0], [-30.0, -30.0]]])
    loss, recall = choice_loss(offset, visible, right, batch)
    assert loss.item() == pytest.approx(0, abs=1e-5)
    assert recall == 1
    assert choice_loss(offset, visible, right.flip(1), batch)[0] > 10


def test_the_motion_loss_prefers_the_truth_and_calibrated_scales():
    batch, hidden = constant_batch(), torch.ones(1, 1, CELLS, dtype=torch.bool)
    exact, error = motion_loss(constant_motions((4.0, -8.0)), hidden, batch)
    assert error < 0.02
    off = [motion_loss(constant_motions((8.0, -8.0), scale=scale), hidden, batch)[0] for scale in (0.5, 2.0)]
    assert exact < off[1] < off[0]
    # What the source does not show is absent; a mixture that claims to know it all pays.
    unseen = replace(batch, visible=torch.zeros_like(batch.visible))
    assert motion_loss(constant_motions((0.0, 0.0), weight=0.1), hidden, unseen)[0].item() == pytest.approx(
        -np.log(0.9)
    )
    assert motion_loss(constant_motions((4.0, -8.0)), hidden, constant_batch(labeled=False))[0] == 0


def test_the_color_loss_is_small_for_the_true_warp_and_bounded():
    batch, hidden, rows = constant_batch(), torch.zeros(1, 1, CELLS, dtype=torch.bool), torch.tensor([0])
    middle = ((patch_centers((SIZE, SIZE), PATCH) - SIZE / 2).abs() < 16).all(-1)
    hidden[0, 0, middle] = True
    right, wrong = (color_loss(constant_motions(offset), hidden, batch, rows) for offset in ((4.0, -8.0), (-3.0, 5.0)))
    assert right < 0.2
    assert 2 < wrong <= 10


def trainer(batches, out, **changes):
    return WorldTrainer(batches, out, warmup=2, save_every=1, workers=0, **changes)


def test_a_run_that_stopped_goes_on_as_if_it_had_not(batches, tmp_path):
    stop, batches = StopSchedule(2, 1), replace(batches, stages=(Stage(0, 64, 1),))
    whole = load_file(trainer(batches, tmp_path / "whole").train(stop))
    broken = trainer(batches, tmp_path / "broken")
    make_batches = broken.make_batches

    def until_the_crash(start, stop):
        yield from list(make_batches(start, stop))[:1]
        raise KeyboardInterrupt

    broken.make_batches = until_the_crash
    with pytest.raises(KeyboardInterrupt):
        broken.train(stop)
    resumed = load_file(trainer(batches, tmp_path / "broken").train(stop))
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name
    assert all(value.dtype == torch.float16 for value in whole.values())
    lines = [read_log(tmp_path / run / "log.jsonl") for run in ("whole", "broken")]
    assert [line["motion"] for line in lines[0]] == [line["motion"] for line in lines[1]]
    assert lines[0][-1]["pairs"] == 4
    with pytest.raises(InputError, match="stages"):
        trainer(replace(batches, stages=STAGES), tmp_path / "broken").train(stop)


def test_a_training_begins_with_the_weights_of_a_file():
    first, second = init_learned_network(), init_learned_network()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    bundled = init_learned_network(bundled_weights("world-learned.safetensors"))
    assert bundled.training
    assert not torch.equal(bundled.correlation.prior, first.correlation.prior)
