"""The training loop: checkpoints, logs, averaged weights, and schedules that may change between the parts of a run."""

import math
import threading
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from lpa_cwm.errors import InputError
from lpa_cwm.training.loop import (
    Processes,
    StepLoss,
    TrainingLog,
    TrainingLoop,
    ema_update,
    joined_processes,
    load_checkpoint,
    mean_values,
    read_log,
    save_checkpoint,
)


def loop(out, steps=6, save_every=2, rate_factor=lambda step: 1 / (step + 1), **settings):
    torch.manual_seed(0)
    network = torch.nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1)
    return TrainingLoop(network, optimizer, out, settings, steps, save_every, rate_factor, 1.0, ema_rate=0.01)


def loss_of(loop):
    def loss(step, batch):
        draw = torch.Generator().manual_seed(step)
        value = loop.network(torch.rand(4, 3, generator=draw)).square().mean()
        return StepLoss(value, {"loss": value.item()})

    return loss


def train(loop, stop_at=None):
    """Train; with a step to stop at, die there."""

    def batches(first, end):
        for step in range(first, end):
            if step == stop_at:
                raise KeyboardInterrupt
            yield step

    loop.run(batches, loss_of(loop))
    return loop


def assert_equal_states(one, other):
    assert one.step == other.step
    for a, b in ((one.network, other.network), (one.average, other.average)):
        assert all(torch.equal(value, b.state_dict()[name]) for name, value in a.state_dict().items())
    assert one.optimizer.state_dict()["param_groups"] == other.optimizer.state_dict()["param_groups"]


@pytest.mark.parametrize("stop_at", [1, 2, 3, 5])
def test_a_stopped_training_ends_like_an_uninterrupted_one(tmp_path, stop_at):
    whole = train(loop(tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        train(loop(tmp_path / "parts"), stop_at)
    parts = train(loop(tmp_path / "parts"))
    assert_equal_states(whole, parts)
    assert (tmp_path / "whole/log.jsonl").read_text() == (tmp_path / "parts/log.jsonl").read_text()


def test_a_finished_training_may_go_on_to_a_later_step(tmp_path):
    """The schedule is a function of the last step; rates after it are those of the new one."""
    cooldown = [lambda step, end=end: min(1.0, (end - step) / 2) for end in (4, 8)]
    train(loop(tmp_path, 4, 2, cooldown[0]))
    train(loop(tmp_path, 8, 2, cooldown[1]))
    rates = [record["rate"] for record in read_log(tmp_path / "log.jsonl")]
    assert rates == pytest.approx([0.1, 0.05, 0.1, 0.05])


def test_the_log_has_the_mean_of_what_is_shown(tmp_path):
    one = loop(tmp_path / "single", save_every=1)
    train(one)
    train(loop(tmp_path / "pairs", save_every=3))
    losses = [record["loss"] for record in read_log(tmp_path / "single/log.jsonl")]
    means = [record["loss"] for record in read_log(tmp_path / "pairs/log.jsonl")]
    assert means == pytest.approx([sum(losses[:3]) / 3, sum(losses[3:]) / 3])


def test_other_settings_are_refused(tmp_path):
    train(loop(tmp_path, batch=3, sizes=(1, 2)))
    train(loop(tmp_path, batch=3, sizes=(1, 2)))
    with pytest.raises(InputError, match="batch"):
        train(loop(tmp_path, batch=4, sizes=(1, 2)))


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 torn"])
def test_a_damaged_checkpoint_is_named_and_kept(tmp_path, content):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"checkpoint\.pt is not a checkpoint"):
        load_checkpoint(path)
    assert path.read_bytes() == content


def test_checkpoints_appear_whole(tmp_path):
    path = tmp_path / "checkpoint.pt"
    assert load_checkpoint(path) is None
    state = {"network": {"x": torch.ones(2)}, "optimizer": {}, "step": 1, "cpu_seconds": 0.5, "extra": {}}
    save_checkpoint(path, state)
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.pt"]
    loaded = load_checkpoint(path)
    assert loaded is not None
    assert loaded["network"]["x"].tolist() == [1, 1]


def test_the_log_takes_back_what_will_be_done_again(tmp_path):
    path = tmp_path / "log.jsonl"
    log = TrainingLog(path, 0)
    for step in (1, 2, 3):
        log.write({"step": step})
    with path.open("a") as file:
        file.write('{"step": 4, "rat')
    TrainingLog(path, 2).write({"step": 3, "again": 1})
    assert read_log(path) == [{"step": 1}, {"step": 2}, {"step": 3, "again": 1}]


def test_the_average_is_quick_at_first_and_slow_in_the_end():
    for count, rate in ((1, 2**-0.75), (15, 0.125), (10_000, 0.01)):
        slow, fast = torch.zeros(2), torch.ones(2)
        ema_update(0.01)([slow], [fast], torch.tensor(count))
        torch.testing.assert_close(slow, torch.full((2,), rate))


def test_the_average_begins_at_the_weights(tmp_path):
    one = train(loop(tmp_path, steps=1, save_every=1))
    assert torch.equal(one.averaged.weight, one.network.weight)
    two = train(loop(tmp_path, steps=2, save_every=1))
    assert not torch.equal(two.averaged.weight, two.network.weight)


def test_values_that_some_steps_lack_are_averaged_over_the_others():
    records = [{"a": 1.0, "b": 4.0}, {"a": 2.0}, {"a": math.nan, "b": 6.0, "c": math.nan}]
    assert mean_values(records) == {"a": 1.5, "b": 5.0}


def test_a_gradient_that_is_not_finite_changes_nothing(tmp_path):
    one = train(loop(tmp_path, steps=1))
    before = {name: value.clone() for name, value in one.network.state_dict().items()}
    one.update(0, lambda step, batch: StepLoss(one.network.weight.sum() * math.inf, {}))
    assert all(torch.equal(value, before[name]) for name, value in one.network.state_dict().items())
    assert one.step == 2
    one.update(1, loss_of(one))
    assert not torch.equal(one.network.weight, before["weight"])


def rank_loss(network, step, rank):
    """A loss that each process has on its own data; the bias is used by the first process only."""
    inputs = torch.rand(4, 3, generator=torch.Generator().manual_seed(10 * step + rank))
    return (torch.nn.functional.linear(inputs, network.weight) + (network.bias if rank == 0 else 0)).square().mean()


def test_two_processes_give_what_one_gives_with_the_gradients_of_both_halves(tmp_path):
    """Both ranks run as threads, with gloo between them."""
    store, loops = dist.HashStore(), [loop(tmp_path / "both") for _ in range(2)]

    def run(rank):
        own = loops[rank]
        own.processes = Processes(rank, 2, dist.ProcessGroupGloo(store, rank, 2))

        def loss(step, batch):
            value = rank_loss(own.network, step, rank)
            return StepLoss(value, {"loss": value.item()})

        own.run(range, loss)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    alone = loop(tmp_path / "alone")

    def mean_loss(step, batch):
        return StepLoss((rank_loss(alone.network, step, 0) + rank_loss(alone.network, step, 1)) / 2, {})

    alone.run(range, mean_loss)
    for name, value in alone.network.state_dict().items():
        torch.testing.assert_close(loops[0].network.state_dict()[name], value)
        assert torch.equal(loops[0].network.state_dict()[name], loops[1].network.state_dict()[name])
    # The first process alone writes.
    assert [record["step"] for record in read_log(tmp_path / "both/log.jsonl")] == [2, 4, 6]


def test_a_process_is_alone_unless_the_environment_says_otherwise(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with joined_processes() as alone:
        assert alone == replace(alone, rank=0, count=1, group=None)
    for rank, count in (("2", "2"), ("x", "2"), ("-1", "1")):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", count)
        with pytest.raises(InputError, match="torchrun"), joined_processes():
            pass
