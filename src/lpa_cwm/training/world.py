"""Training of the compact world model: masked prediction of the second frame; colors are the only supervision."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lpa_cwm.io.checkpoints import load_weights
from lpa_cwm.rng import generator, numpy_rng, seed_of
from lpa_cwm.sampling import unit_range
from lpa_cwm.synth.layered import LayeredPairs
from lpa_cwm.synth.pairs import Batch, Example, Mixture, PairSource, Stream
from lpa_cwm.training.loop import LogRecord, StepLoss, StopSchedule, TrainingLoop, save_weights
from lpa_cwm.worlds.layered.matching import PATCH
from lpa_cwm.worlds.layered.render import WarpMixture, per_motion_warps
from lpa_cwm.worlds.layered.world import FILE, LayeredMotionNetwork, visible_pixels

EMA_RATE = 0.01
"""Smallest rate of the averaged weights."""
COLOR_STD = 0.05
"""Standard deviation of a color in the likelihood of the mixture."""
MAX_NLL = 12.0
"""Negative log-likelihood of the mixture's uniform component: bounds the loss of pixels that nothing predicts."""
LOSS_SCALE = 100.0
"""Factor of the whole loss; the clipping norm belongs to it."""
LAYERED_SHARE, NATURAL_SHARE, SIMULATED_SHARES = 0.3, 0.3, (0.2, 0.2)
"""Of layered scenes, natural video, and simulated scenes with little and with much motion."""
CHECK_EVERY = 5
"""Lines of the log between evaluations on a few held-out pairs."""


@dataclass(frozen=True)
class Crops:
    """Random crops of the pairs of another source, which are made at a larger size.

    The network then trains on few pixels, at the scale at which it will be used.
    """

    pairs: PairSource
    scenes: tuple[int, int] = (160, 288)
    """Bounds of the side of a whole scene, in pixels; a scene is never smaller than its crop."""

    @property
    def name(self) -> str:
        """Source and sizes."""
        return f"{self.pairs.name} of {self.scenes[0]}-{self.scenes[1]}"

    def pair(self, index: int, size: int) -> Example:
        """The crop of this number, at the same position in both frames."""
        rng = numpy_rng("crop", self.name, index)
        whole = max(size, int(rng.integers(self.scenes[0], self.scenes[1] + 1)))
        x, y = (int(at) for at in rng.integers(0, whole - size + 1, 2))
        scene = self.pairs.pair(index, whole)
        part = (..., slice(y, y + size), slice(x, x + size))
        return Example(scene.source[part], scene.target[part])


@dataclass(frozen=True)
class WorldTraining:
    """Settings of a training that must be the same when it is resumed."""

    batch: int = 8
    sizes: tuple[int, ...] = (128, 192)
    """Sides of the frames of the successive stages, in pixels."""
    stage: int = 1500
    """Steps per stage; the last stage has no end."""
    min_visible: float = 0.05
    max_visible: float = 0.2
    """Bounds of the fraction of visible patches."""
    rate: float = 1e-3
    warmup: int = 50
    """Steps over which the learning rate rises linearly."""
    nll_weight: float = 0.003
    """Weight of the negative log-likelihood beside the squared error."""

    def size(self, step: int) -> int:
        """Side of the frames of a step."""
        return self.sizes[min(step // self.stage, len(self.sizes) - 1)]

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Parts of a run with frames of one size, as (size, first step, end)."""
        while start < stop:
            stage = start // self.stage
            end = stop if stage >= len(self.sizes) - 1 else min(stop, (stage + 1) * self.stage)
            yield self.size(start), start, end
            start = end

    def visible_patches(self, step: int, batch: int) -> Int[Tensor, "b n"]:
        """The visible patches of a step, equally many in each pair of the batch."""
        patches = (self.size(step) // PATCH) ** 2
        draw = generator("world", "visible", step, 0)
        fraction = self.min_visible + (self.max_visible - self.min_visible) * torch.rand((), generator=draw)
        orders = [torch.randperm(patches, generator=draw) for _ in range(batch)]
        return torch.stack(orders)[:, : max(4, int(fraction * patches))]


@dataclass(frozen=True, slots=True)
class PredictionLosses:
    """Means over hidden pixels and channels."""

    error: Float[Tensor, ""]
    """Squared error of the prediction."""
    copy_error: Float[Tensor, ""]
    """Squared error of the unchanged source frame."""
    nll: Float[Tensor, ""]
    """Negative log-likelihood of the colors under the mixture of warps."""


def prediction_losses(
    mixture: WarpMixture,
    source: Float[Tensor, "b 3 h w"],
    target: Float[Tensor, "b 3 h w"],
    hidden: Float[Tensor, "b h w"],
) -> PredictionLosses:
    """Losses of a predicted target over its hidden pixels."""
    parts = per_motion_warps(source, mixture.motions)
    predicted = (parts * mixture.weight[:, :, None]).sum(1) + mixture.inpainting
    inpainted = 1 - mixture.weight.sum(1, keepdim=True)
    color = mixture.inpainting / inpainted.clamp(min=1e-4)
    # Log-likelihood of a mixture of Gaussians around each warp and the inpainted color, and of a uniform component.
    parts = torch.cat((parts, color[:, None]), dim=1)
    share = torch.cat((mixture.weight, inpainted), dim=1).clamp(min=1e-6)
    fit = share.log() - (parts - target[:, None]).square().sum(2) / (2 * COLOR_STD**2)
    fit = torch.cat((fit, torch.full_like(inpainted, -MAX_NLL)), dim=1)

    def mean(values: Float[Tensor, "b h w"]) -> Float[Tensor, ""]:
        return (values * hidden).sum() / hidden.sum()

    return PredictionLosses(
        error=mean((predicted - target).square().mean(1)),
        copy_error=mean((source - target).square().mean(1)),
        nll=mean(-fit.logsumexp(1)),
    )


@dataclass
class WorldTrainer:
    """Trains the compact world model in a folder of checkpoint, log and weights."""

    pairs: PairSource
    training: WorldTraining
    out: Path
    save_every: int = 100
    workers: int = 1
    """Background processes that make pairs."""
    init: Path | None = None
    """Initial weights when there is no checkpoint."""
    evaluate: Callable[[LayeredMotionNetwork], dict[str, float]] | None = None
    """Figures of the averaged weights for the log."""
    evaluate_every: int = 500
    device: str = "cpu"

    def train(self, stop: StopSchedule) -> Path:
        """Train, from the checkpoint in `out` if there is one; returns the path of the averaged weights."""
        loop = self.make_loop(stop)
        loop.run(self.batches, lambda step, batch: self.loss_of(loop.network, step, batch), lambda: self.report(loop))
        return self.out / FILE

    def make_loop(self, stop: StopSchedule) -> TrainingLoop[LayeredMotionNetwork]:
        """The training loop up to a last step."""
        training = self.training
        network = init_world_network(self.init).to(self.device)

        def rate_factor(step: int) -> float:
            return min(1.0, (step + 1) / training.warmup) * stop.factor(step)

        return TrainingLoop(
            network,
            torch.optim.AdamW(network.parameters(), lr=training.rate, betas=(0.9, 0.98), weight_decay=1e-3),
            self.out,
            {**asdict(training), "pairs": self.pairs.name},
            stop.steps,
            self.save_every,
            rate_factor,
            max_norm=3.0,
            ema_rate=EMA_RATE,
        )

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """The batches from one step to another."""
        for size, first, end in self.training.spans(start, stop):
            yield from Stream(self.pairs, size, self.training.batch, self.workers).batches(first, end)

    def loss_of(self, network: LayeredMotionNetwork, step: int, batch: Batch) -> StepLoss:
        """Loss of a batch; the log shows the error relative to copying the source."""
        source, target = (unit_range(frame.to(self.device)) for frame in (batch.source, batch.target))
        visible = self.training.visible_patches(step, len(source)).to(self.device)
        hw = (target.shape[-2], target.shape[-1])
        hidden = ~visible_pixels(visible, hw)
        losses = prediction_losses(network(source, target, visible), source, target, hidden.to(target.dtype))
        loss = LOSS_SCALE * (losses.error + self.training.nll_weight * losses.nll)
        return StepLoss(loss, {"ratio": (losses.error / losses.copy_error.clamp(min=1e-6)).item()})

    def report(self, loop: TrainingLoop[LayeredMotionNetwork]) -> LogRecord:
        """Write the averaged weights; CPU time for the log, with an evaluation when one is due."""
        save_weights(loop.averaged, self.out / FILE)
        line: LogRecord = {"cpu_hours": loop.cpu_seconds / 3600}
        due = loop.step % self.evaluate_every == 0 or loop.step == loop.steps
        if self.evaluate is not None and due:
            line |= self.evaluate(loop.averaged)
        return line


def init_world_network(weights: Path | None = None) -> LayeredMotionNetwork:
    """The network with the weights of a file, or with random ones, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of("world", "weights"))
        network = LayeredMotionNetwork()
    if weights is not None:
        load_weights(network, weights, "a file of weights of the compact world model", "give another --init")
    return network


def train_world(
    out: Path,
    training: WorldTraining,
    stop: StopSchedule,
    *,
    photos: Path | None = None,
    natural: PairSource | None = None,
    simulated: Sequence[PairSource] = (),
    save_every: int = 100,
    workers: int = 1,
    init: Path | None = None,
    evaluate: Callable[[LayeredMotionNetwork], dict[str, float]] | None = None,
) -> Path:
    """Train the compact world model on layered scenes and what else is given, as `lpa-cwm train world` does."""
    sources: list[PairSource] = [Crops(LayeredPairs.of(photos, "train"))]
    shares = [LAYERED_SHARE]
    if natural is not None:
        sources.append(natural)
        shares.append(NATURAL_SHARE)
    sources += simulated
    shares += SIMULATED_SHARES[: len(simulated)]
    trainer = WorldTrainer(
        Mixture(tuple(sources), tuple(shares)),
        training,
        out,
        save_every,
        workers,
        init,
        evaluate=evaluate,
        evaluate_every=CHECK_EVERY * save_every,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )
    return trainer.train(stop)
