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
from lpa_cwm.training import checkpoint
from lpa_cwm.training.crops import Crops, Share
from lpa_cwm.training.ema import follow
from lpa_cwm.training.log import Log, records
from lpa_cwm.training.world import Ending, Run, Schedule, Trainer, losses
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


SCHEDULE = Schedule(batch=2, sizes=(32, 48), stage=3, warmup=2)


def trainer(out, **changes):
    return Trainer(Noise(), SCHEDULE, out, every=2, workers=0, **changes)


def test_a_run_that_stopped_goes_on_as_if_it_had_not(tmp_path):
    ending = Ending(4, 2)
    whole = load_file(trainer(tmp_path / "whole").fit(ending))
    broken = trainer(tmp_path / "broken")
    batches = broken.batches

    def until_the_crash(start, stop, place):
        yield from list(batches(start, stop, place))[:3]
        raise KeyboardInterrupt

    broken.batches = until_the_crash
    with pytest.raises(KeyboardInterrupt):
        broken.fit(ending)
    resumed = load_file(trainer(tmp_path / "broken").fit(ending))
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name
    lines = [records(tmp_path / run / "log.jsonl") for run in ("whole", "broken")]
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


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 torn"])
def test_a_damaged_checkpoint_is_named_and_kept(tmp_path, content):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"checkpoint\.pt is not a checkpoint"):
        checkpoint.load(path, {})
    assert path.read_bytes() == content


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    trainer(tmp_path).fit(Ending(2, 1))
    other = Trainer(Noise(), Schedule(batch=3, sizes=(32,)), tmp_path, workers=0)
    with pytest.raises(InputError, match="batch"):
        other.fit(Ending(3, 1))


def test_checkpoints_appear_whole(tmp_path):
    path = tmp_path / "checkpoint.pt"
    assert checkpoint.load(path, {}) is None
    checkpoint.save(path, {"a": 1}, {"x": torch.ones(2)})
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.pt"]
    state = checkpoint.load(path, {"a": 1})
    assert state is not None
    assert state["x"].tolist() == [1, 1]


def test_the_log_takes_back_what_will_be_done_again(tmp_path):
    path = tmp_path / "log.jsonl"
    log = Log(path, 0)
    for step in (1, 2, 3):
        log.write({"step": step})
    with path.open("a") as file:
        file.write('{"step": 4, "rat')
    Log(path, 2).write({"step": 3, "again": 1})
    assert records(path) == [{"step": 1}, {"step": 2}, {"step": 3, "again": 1}]


def test_stages_follow_one_another_without_gap():
    spans = list(SCHEDULE.spans(1, 20))
    assert spans == [(32, 1, 3), (48, 3, 20)]
    assert list(SCHEDULE.spans(7, 9)) == [(48, 7, 9)]


def test_visible_patches_are_a_function_of_the_update():
    schedule = Schedule()
    first = schedule.visible(5, 4, 0)
    assert torch.equal(first, schedule.visible(5, 4, 0))
    assert not torch.equal(first, schedule.visible(5, 4, 1))
    counts = [schedule.visible(step, 1, 0).shape[1] / 256 for step in range(60)]
    assert schedule.fewest - 0.01 <= min(counts) < 0.08
    assert 0.17 < max(counts) <= schedule.most
    assert all(len(row.unique()) == len(row) for row in first)


def test_the_rate_falls_to_zero_and_only_at_the_end():
    ending = Ending(100, 10)
    assert ending.factor(0) == ending.factor(90) == 1
    assert ending.factor(95) == 0.5
    assert 0 < ending.factor(99) <= 0.1


def test_shares_of_processes_are_the_whole():
    class Numbers:
        name = "numbers"

        def pair(self, index, size):
            frame = torch.full((3, size, size), index, dtype=torch.uint8)
            return Example(frame, frame)

    def numbers(worker):
        share = Share(Numbers(), 2, worker, 3)
        return [int(share.pair(i, 8).source[0, 0, 0]) for i in range(8)]

    parts = [numbers(worker) for worker in range(3)]
    assert sorted(number for part in parts for number in part) == list(range(24))
    assert [parts[w][:2] for w in range(3)] == [[0, 1], [2, 3], [4, 5]]


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
    found = losses(mixture, source, target, hidden.float())
    rows = (source - target).square().movedim(1, -1)[hidden]
    torch.testing.assert_close(found.copying, rows.mean())
    assert 0 < found.surprise <= 12


def test_the_average_begins_at_the_weights_and_follows_them():
    run = Run.begin()
    before = run.average.reliability.cost_weight.clone()
    with torch.no_grad():
        run.network.reliability.cost_weight.add_(1.0)
    follow(run.average, run.network, 10_000, 0.01)
    torch.testing.assert_close(run.average.reliability.cost_weight - before, torch.tensor(0.01), atol=1e-4, rtol=0)
