"""Laws of the training of the compact world model: what it sees, what it minimizes, and that it can stop anywhere."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load_file

from lpa_cwm.errors import InputError
from lpa_cwm.synth.pairs import Example
from lpa_cwm.training.loop import StopSchedule, read_log
from lpa_cwm.training.world import Crops, WorldTrainer, WorldTraining, prediction_losses
from lpa_cwm.worlds.layered.world import LayeredMotionNetwork, visible_pixels


@dataclass(frozen=True)
class Noise:
    """Frames of colored squares that slide by two pixels."""

    name: str = "noise"

    def pair(self, index, size):
        draw = torch.Generator().manual_seed(index)
        wide = torch.randint(0, 255, (3, size // 8 + 1, size // 8 + 1), generator=draw, dtype=torch.uint8)
        wide = wide.repeat_interleave(8, 1).repeat_interleave(8, 2)
        return Example(wide[:, :size, :size].contiguous(), wide[:, 2 : size + 2, 2 : size + 2].contiguous())


TRAINING = WorldTraining(batch=2, sizes=(32, 48), stage=3, warmup=2)


def trainer(out, **changes):
    return WorldTrainer(Noise(), TRAINING, out, save_every=2, workers=0, **changes)


def test_a_run_that_stopped_goes_on_as_if_it_had_not(tmp_path):
    stop = StopSchedule(4, 2)
    whole = load_file(trainer(tmp_path / "whole").train(stop))
    broken = trainer(tmp_path / "broken")
    batches = broken.batches

    def until_the_crash(start, stop):
        yield from list(batches(start, stop))[:3]
        raise KeyboardInterrupt

    broken.batches = until_the_crash
    with pytest.raises(KeyboardInterrupt):
        broken.train(stop)
    resumed = load_file(trainer(tmp_path / "broken").train(stop))
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name
    lines = [read_log(tmp_path / run / "log.jsonl") for run in ("whole", "broken")]
    assert [line["step"] for line in lines[1]] == [2, 4]
    assert [line["ratio"] for line in lines[0]] == [line["ratio"] for line in lines[1]]


@pytest.mark.slow
def test_a_killed_process_goes_on_exactly(tmp_path):
    def start(out, steps):
        command = [sys.executable, "-m", "lpa_cwm.cli.main", "train", "world", "--out", str(out), "--steps", str(steps)]
        options = ["--batch", "1", "--save-every", "1", "--workers", "0", "--cooldown", "1"]
        return subprocess.Popen([*command, *options], env={**os.environ, "OMP_NUM_THREADS": "1"})

    assert start(tmp_path / "whole", 4).wait() == 0
    victim = start(tmp_path / "killed", 4)
    while not (tmp_path / "killed" / "checkpoint.pt").exists():
        time.sleep(0.05)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert start(tmp_path / "killed", 4).wait() == 0
    first, second = (load_file(tmp_path / run / "world-compact.safetensors") for run in ("whole", "killed"))
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    trainer(tmp_path).train(StopSchedule(2, 1))
    other = WorldTrainer(Noise(), WorldTraining(batch=3, sizes=(32,)), tmp_path, workers=0)
    with pytest.raises(InputError, match="batch"):
        other.train(StopSchedule(3, 1))


def test_stages_follow_one_another_without_gap():
    spans = list(TRAINING.spans(1, 20))
    assert spans == [(32, 1, 3), (48, 3, 20)]
    assert list(TRAINING.spans(7, 9)) == [(48, 7, 9)]


def test_visible_patches_are_a_function_of_the_update():
    training = WorldTraining()
    first = training.visible_patches(5, 4)
    assert torch.equal(first, training.visible_patches(5, 4))
    assert not torch.equal(first[:, :4], training.visible_patches(6, 4)[:, :4])
    counts = [training.visible_patches(step, 1).shape[1] / 256 for step in range(60)]
    assert training.min_visible - 0.01 <= min(counts) < 0.08
    assert 0.17 < max(counts) <= training.max_visible
    assert all(len(row.unique()) == len(row) for row in first)


def test_the_rate_falls_to_zero_and_only_at_the_end():
    stop = StopSchedule(100, 10)
    assert stop.factor(0) == stop.factor(90) == 1
    assert stop.factor(95) == 0.5
    assert 0 < stop.factor(99) <= 0.1


def test_crops_are_cut_from_both_frames_at_one_place():
    class Ramp:
        name = "ramp"

        def pair(self, index, size):
            picture = torch.arange(size, dtype=torch.uint8).expand(3, size, size).contiguous()
            return Example(picture, picture.clone())

    for index in range(5):
        example = Crops(Ramp(), (20, 40)).pair(index, 16)
        assert example.source.shape == (3, 16, 16)
        assert torch.equal(example.source, example.target)


def test_losses_by_their_definition():
    torch.manual_seed(0)
    source, target = torch.rand(2, 3, 32, 32), torch.rand(2, 3, 32, 32)
    visible = torch.tensor([[0, 5, 9], [1, 2, 15]])
    mixture = LayeredMotionNetwork()(source, target, visible)
    hidden = ~visible_pixels(visible, (32, 32))
    found = prediction_losses(mixture, source, target, hidden.float())
    rows = (source - target).square().movedim(1, -1)[hidden]
    torch.testing.assert_close(found.copy_error, rows.mean())
    assert 0 < found.nll <= 12
