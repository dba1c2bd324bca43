"""Training of the learned world model on exact backward flow of generated pairs and on colors of natural video."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from lpa_cwm.rng import generator, seed_of
from lpa_cwm.synth.pairs import prefetch
from lpa_cwm.training.flow_batches import FlowBatch, FlowBatches
from lpa_cwm.training.learned_losses import world_loss
from lpa_cwm.training.loop import LogRecord, Processes, StepLoss, StopSchedule, TrainingLoop, save_weights
from lpa_cwm.worlds.learned.encoder import PATCH
from lpa_cwm.worlds.learned.network import LearnedNetwork
from lpa_cwm.worlds.learned.world import FILE, LearnedWorld

EMA_RATE = 0.001
"""Smallest rate of the averaged weights."""
WEIGHT_DECAY = 1e-2
"""Of matrices and kernels; vectors and scalars are not decayed."""
MIN_VISIBLE, MAX_VISIBLE = 0.06, 0.16
"""Bounds of the fraction of visible patches."""


def training_masks(step: int, rank: int, pairs: int, masks: int, patches: int) -> Bool[Tensor, "pairs masks patches"]:
    """Random masks of a step and process, True where hidden; the fraction of visible patches differs between steps."""
    draw = generator("learned", "masks", step, rank)
    fraction = MIN_VISIBLE + (MAX_VISIBLE - MIN_VISIBLE) * torch.rand((), generator=draw)
    order = torch.rand(pairs, masks, patches, generator=draw).argsort(-1)
    return order >= max(6, int(patches * fraction))


@dataclass
class LearnedTrainer:
    """Trains the learned world model in a folder of checkpoint, log and weights."""

    batches: FlowBatches
    out: Path
    rate: float = 1e-3
    warmup: int = 200
    """Steps over which the learning rate rises linearly."""
    masks: int = 2
    """Masks per pair."""
    save_every: int = 100
    workers: int = 1
    """Background processes that make batches."""
    init: Path | None = None
    """Initial weights when there is no checkpoint."""
    device: str = "cpu"
    processes: Processes = field(default_factory=Processes)

    def train(self, stop: StopSchedule) -> Path:
        """Train, from the checkpoint in `out` if there is one; returns the path of the averaged weights."""
        loop = self.make_loop(stop)
        loop.run(
            self.make_batches, lambda step, batch: self.loss_of(loop.network, step, batch), lambda: self.report(loop)
        )
        return self.out / FILE

    def make_loop(self, stop: StopSchedule) -> TrainingLoop[LearnedNetwork]:
        """The training loop up to a last step."""
        network = init_learned_network(self.init).to(self.device)
        matrices, vectors = ([p for p in network.parameters() if (p.dim() > 1) == many] for many in (True, False))
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": WEIGHT_DECAY},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return TrainingLoop(
            network,
            torch.optim.AdamW(groups, lr=self.rate, betas=(0.9, 0.98)),
            self.out,
            self.settings(),
            stop.steps,
            self.save_every,
            lambda step: min(1.0, (step + 1) / self.warmup, stop.factor(step)),
            max_norm=1.0,
            ema_rate=EMA_RATE,
            processes=self.processes,
        )

    def settings(self) -> dict[str, Any]:
        """What must be the same when the training is resumed; shards may be added, so they are not part of it."""
        names = ("rate", "warmup", "masks")
        own = {name: getattr(self, name) for name in names}
        return own | {"stages": self.batches.stages, "seed": self.batches.seed, "processes": self.processes.count}

    def make_batches(self, start: int, stop: int) -> Iterator[FlowBatch]:
        """The batches from one step to another."""
        return prefetch(self.batches, range(start, stop), self.workers)

    def loss_of(self, network: LearnedNetwork, step: int, batch: FlowBatch) -> StepLoss:
        """Loss of a batch under the masks of its step."""
        patches = (batch.source.shape[-1] // PATCH) ** 2
        hidden = training_masks(step, self.processes.rank, len(batch.known), self.masks, patches)
        return world_loss(network, batch.to(self.device), hidden.to(self.device))

    def report(self, loop: TrainingLoop[LearnedNetwork]) -> LogRecord:
        """Write the averaged weights in half precision; CPU time and the number of sharded pairs for the log."""
        save_weights(loop.averaged, self.out / FILE, torch.float16)
        return {"cpu_hours": loop.cpu_seconds / 3600, "pairs": sum(map(len, self.batches.shards))}


def init_learned_network(weights: Path | None = None) -> LearnedNetwork:
    """The network with the weights of a file, or with random ones, the same each time."""
    if weights is not None:
        return LearnedWorld.load(weights).network.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of("learned", "weights") % 2**31)
        network = LearnedNetwork()
    # Convolutions on a CPU are faster with the channels last.
    return network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
