"""Training of the compact world model: draw the hidden patches of the second frame; colors are the only teacher."""

import copy
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor

from lpa_cwm.errors import need
from lpa_cwm.files import atomic_write
from lpa_cwm.progress import progress
from lpa_cwm.rng import generator, seed_of
from lpa_cwm.sampling import unit_range
from lpa_cwm.synth.pairs import Batch, PairSource, Stream
from lpa_cwm.training import checkpoint
from lpa_cwm.training.crops import Share
from lpa_cwm.training.ema import follow
from lpa_cwm.training.log import Log, Record
from lpa_cwm.worlds.layered.block_matching import PATCH
from lpa_cwm.worlds.layered.render import WarpMixture, per_motion_warps
from lpa_cwm.worlds.layered.world import FILE, LayeredMotionNetwork, visible_pixels

AVERAGED = 0.01
"""Least share of an update in the averaged weights."""
NOISE = 0.05
"""Standard deviation of a color about the right one, in the likelihood of the mixture."""
SURPRISE = 12.0
"""Pixels cost at most about this much, so that what cannot be foreseen does not rule the gradient."""


@dataclass(frozen=True)
class Schedule:
    """What an update sees and how large it is; a function of its number, so that training can go on anywhere."""

    batch: int = 8
    sizes: tuple[int, ...] = (128, 192)
    """Sides of the frames, in pixels, of the stages."""
    stage: int = 1500
    """Updates per stage; the last has no end."""
    fewest: float = 0.05
    most: float = 0.2
    """Bounds of the share of patches that are visible."""
    rate: float = 1e-3
    warmup: int = 50
    """Updates over which the rate rises."""
    likelihood: float = 0.003
    """Weight of the mixture's likelihood beside the squared error."""

    def size(self, step: int) -> int:
        """Side of the frames of an update."""
        return self.sizes[min(step // self.stage, len(self.sizes) - 1)]

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(size, first update, end) of the parts of a run in which the size stays the same."""
        while start < stop:
            stage = start // self.stage
            end = stop if stage >= len(self.sizes) - 1 else min(stop, (stage + 1) * self.stage)
            yield self.size(start), start, end
            start = end

    def visible(self, step: int, batch: int, worker: int) -> Int[Tensor, "b n"]:
        """The visible patches of an update; their number differs from update to update, not within one."""
        patches = (self.size(step) // PATCH) ** 2
        draw = generator("world", "visible", step, worker)
        share = self.fewest + (self.most - self.fewest) * torch.rand((), generator=draw)
        orders = [torch.randperm(patches, generator=draw) for _ in range(batch)]
        return torch.stack(orders)[:, : max(4, int(share * patches))]


@dataclass(frozen=True)
class Ending:
    """Where a run stops, and over how many of its last updates the rate falls to zero; may differ between runs."""

    steps: int
    cooldown: int

    def factor(self, step: int) -> float:
        """Share of the full rate at an update."""
        return min(1.0, (self.steps - step) / max(self.cooldown, 1))


@dataclass
class Run:
    """All that changes during training, and so all that a checkpoint must hold."""

    network: LayeredMotionNetwork
    average: LayeredMotionNetwork
    """Exponential moving average of the weights; what is evaluated and shipped."""
    optimizer: torch.optim.AdamW
    step: int = 0
    seconds: float = 0.0
    """CPU time spent so far."""

    @classmethod
    def begin(cls, weights: Path | None = None) -> "Run":
        """Weights of a file, or fresh ones, the same each time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of("world", "weights"))
            network = LayeredMotionNetwork()
        if weights is not None:
            network.load_state_dict(load_file(weights))
        optimizer = torch.optim.AdamW(network.parameters(), betas=(0.9, 0.98), weight_decay=1e-3)
        return cls(network, copy.deepcopy(network).requires_grad_(False), optimizer)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        parts = {name: getattr(self, name).state_dict() for name in ("network", "average", "optimizer")}
        return {**parts, "step": self.step, "seconds": self.seconds}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        for name in ("network", "average", "optimizer"):
            getattr(self, name).load_state_dict(state[name])
        self.step, self.seconds = state["step"], state["seconds"]


def save_weights(network: LayeredMotionNetwork, path: Path) -> None:
    """Write weights as safetensors."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
    with atomic_write(path) as aside:
        save_file(tensors, aside)


@dataclass(frozen=True, slots=True)
class Losses:
    """Mean over hidden pixels and channels."""

    error: Float[Tensor, ""]
    """Squared error of the prediction."""
    copying: Float[Tensor, ""]
    """Squared error of the source itself."""
    surprise: Float[Tensor, ""]
    """Negative log-likelihood of the colors under the mixture."""


def losses(
    mixture: WarpMixture,
    source: Float[Tensor, "b 3 h w"],
    target: Float[Tensor, "b 3 h w"],
    hidden: Float[Tensor, "b h w"],
) -> Losses:
    """Reconstruction losses of the hidden target pixels."""
    parts = per_motion_warps(source, mixture.motions)
    drawn = (parts * mixture.weight[:, :, None]).sum(1) + mixture.inpainting
    invented = 1 - mixture.weight.sum(1, keepdim=True)
    own = mixture.inpainting / invented.clamp(min=1e-4)
    parts = torch.cat((parts, own[:, None]), dim=1)
    share = torch.cat((mixture.weight, invented), dim=1).clamp(min=1e-6)
    fit = share.log() - (parts - target[:, None]).square().sum(2) / (2 * NOISE**2)
    fit = torch.cat((fit, torch.full_like(invented, -SURPRISE)), dim=1)

    def mean(values: Float[Tensor, "b h w"]) -> Float[Tensor, ""]:
        return (values * hidden).sum() / hidden.sum()

    return Losses(
        error=mean((drawn - target).square().mean(1)),
        copying=mean((source - target).square().mean(1)),
        surprise=mean(-fit.logsumexp(1)),
    )


@dataclass(frozen=True)
class Place:
    """Where training happens: one process on one device, or one of several that accelerate started."""

    accelerator: Any = None

    @classmethod
    def found(cls) -> "Place":
        """Several processes when `accelerate launch` (or torchrun) started this one, else this one alone."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls()
        return cls(need("accelerate", extra="train").Accelerator(cpu=not torch.cuda.is_available()))

    @property
    def worker(self) -> int:
        """Number of this process."""
        return 0 if self.accelerator is None else self.accelerator.process_index

    @property
    def workers(self) -> int:
        """How many processes share each update."""
        return 1 if self.accelerator is None else self.accelerator.num_processes

    @property
    def device(self) -> torch.device:
        """Where the network lives."""
        if self.accelerator is not None:
            return self.accelerator.device
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def shared(self, network: LayeredMotionNetwork) -> Any:
        """The network as a module whose gradients are averaged over the processes."""
        return network if self.accelerator is None else self.accelerator.prepare_model(network)


@dataclass
class Trainer:
    """Updates a run until its ending, keeping a checkpoint, a log and periodic evaluations in a folder."""

    pairs: PairSource
    schedule: Schedule
    out: Path
    every: int = 100
    """Updates between checkpoints."""
    workers: int = 1
    """Background processes that make pairs."""
    begin: Path | None = None
    """Weights to begin with when there is no checkpoint."""
    check: Callable[[LayeredMotionNetwork], dict[str, float]] | None = None
    """Figures of the averaged weights for the log."""
    check_every: int = 500

    def fit(self, ending: Ending) -> Path:
        """Train, going on from the checkpoint in `out` if there is one; the path of the averaged weights."""
        place = Place.found()
        run = Run.begin(self.begin)
        run.network.to(place.device)
        run.average.to(place.device)
        state = checkpoint.load(self.newest, self.identity(place))
        if state is not None:
            run.restore(state)
        network = place.shared(run.network)
        log = Log(self.out / "log.jsonl", run.step) if place.worker == 0 else None
        ratios = []
        for batch in progress(self.batches(run.step, ending.steps, place), ending.steps - run.step, "world"):
            begin = time.process_time()
            ratios.append(self.update(run, network, batch, ending, place))
            run.seconds += time.process_time() - begin
            if log is not None and (run.step % self.every == 0 or run.step == ending.steps):
                log.write(self.record(run, ratios, ending))
                ratios.clear()
                checkpoint.save(self.newest, self.identity(place), run.state())
                save_weights(run.average, self.out / FILE)
        return self.out / FILE

    @property
    def newest(self) -> Path:
        """The checkpoint."""
        return self.out / "checkpoint.pt"

    def identity(self, place: Place) -> checkpoint.Identity:
        """What must stay the same for a run to go on."""
        options = {name: str(value) for name, value in asdict(self.schedule).items()}
        return {**options, "pairs": self.pairs.name, "processes": place.workers}

    def batches(self, start: int, stop: int, place: Place) -> Iterator[Batch]:
        """The batches of this process, from one update to another."""
        for size, first, end in self.schedule.spans(start, stop):
            share = Share(self.pairs, self.schedule.batch, place.worker, place.workers)
            yield from Stream(share, size, self.schedule.batch, self.workers).batches(first, end)

    def update(self, run: Run, network: Any, batch: Batch, ending: Ending, place: Place) -> float:
        """One step; the error relative to copying the source."""
        source, target = (unit_range(frame.to(place.device)) for frame in (batch.source, batch.target))
        visible = self.schedule.visible(run.step, len(batch), place.worker).to(place.device)
        hw = (target.shape[-2], target.shape[-1])
        hidden = ~visible_pixels(visible, hw)
        loss = losses(network(source, target, visible), source, target, hidden.to(target.dtype))
        for group in run.optimizer.param_groups:
            warm = min(1.0, (run.step + 1) / self.schedule.warmup)
            group["lr"] = self.schedule.rate * warm * ending.factor(run.step)
        run.optimizer.zero_grad(set_to_none=True)
        (100 * (loss.error + self.schedule.likelihood * loss.surprise)).backward()
        torch.nn.utils.clip_grad_norm_(run.network.parameters(), 3.0)
        run.optimizer.step()
        run.step += 1
        follow(run.average, run.network, run.step, AVERAGED)
        return (loss.error / loss.copying.clamp(min=1e-6)).item()

    def record(self, run: Run, ratios: list[float], ending: Ending) -> Record:
        """A line of the log, with an evaluation when one is due."""
        line: Record = {
            "step": run.step,
            "ratio": sum(ratios) / len(ratios),
            "rate": run.optimizer.param_groups[0]["lr"],
            "cpu_hours": run.seconds / 3600,
        }
        due = run.step % self.check_every == 0 or run.step == ending.steps
        if self.check is not None and due:
            line |= self.check(run.average)
        return line
