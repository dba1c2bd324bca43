"""Training of the learned world model: its losses, and the loop over generated pairs and natural video.

Backward flow teaches matching, choice among matches, and motion. Generated pairs have it exactly, pairs of natural
video where a round trip of optical flow closes. In natural video without flow the colors of hidden patches teach.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.geometry import patch_centers
from lpa_cwm.pair_tracking import NATIVE_SIDE
from lpa_cwm.rng import generator, seed_of
from lpa_cwm.synth.pair_shards import PairShards
from lpa_cwm.training.flow_pairs import FlowBatch, FlowBatches, PairFolders, Stage, prefetch
from lpa_cwm.training.loop import (
    LogRecord,
    Processes,
    StepLoss,
    StopSchedule,
    TrainingLoop,
    joined_processes,
    save_weights,
)
from lpa_cwm.worlds.learned.densify import Motions, at_quarters
from lpa_cwm.worlds.learned.matching import PATCH, STRIDE
from lpa_cwm.worlds.learned.network import LearnedNetwork, visible_patches
from lpa_cwm.worlds.learned.reliability import gather_rows
from lpa_cwm.worlds.learned.render import origins, pixel_weights, warps
from lpa_cwm.worlds.learned.world import FILE, LearnedWorld

EMA_RATE = 0.001
"""Smallest rate of the averaged weights."""
WEIGHT_DECAY = 1e-2
"""Weight decay of matrices and kernels; vectors and scalars have none."""
VISIBLE, CROP_VISIBLE = (0.06, 0.16), (0.25, 0.45)
"""Bounds of the fraction of visible patches: in general, and in crops as small as those at native resolution."""
WEIGHTS = {"match": 0.5, "choice": 0.5, "motion": 1.0, "color": 1.2}
"""Weights of the terms; the color term is also multiplied by the share of natural pairs in a batch."""
NATURAL_GAPS = (1, 16)
"""Minimum and maximum number of frames between the natural frames of a pair."""
MAX_DEVIATION = 3.0
"""A patch moves as a whole if the flow of its quarters differs from their mean by less than this, in pixels."""
MAX_MATCH_ERROR = 3.0
"""A match is right if it is nearer to the truth than this, in pixels."""
RECALL_RADIUS, RECALL_MOTION = 4.0, 4.0
"""The logged recall counts matches within this error, of patches that move further than this, in pixels."""
MAX_LOGGED_ERROR = 32.0
"""Larger errors of the motion count as this in the log, in pixels."""
UNIFORM_DENSITY = 1 / 128**2
"""Density of the mixture's uniform component, per square pixel."""
COLOR_STD = 0.05
"""Standard deviation of a color in the likelihood of the mixture of warps."""
MAX_COLOR_NLL = 10.0
"""Negative log-likelihood of the uniform component: bounds the loss of a pixel that nothing predicts."""


def by_quarters(values: Tensor) -> Tensor:
    """Values at the centers of squares of four pixels, [b h4 w4 ...], as four per patch, [b p 4 ...]."""
    return rearrange(values, "b (i u) (j v) ... -> b (i j) (u v) ...", u=2, v=2)


def patch_flow(batch: FlowBatch) -> tuple[Float[Tensor, "b p 2"], Bool[Tensor, "b p"]]:
    """Mean flow of each patch, and whether the patch is visible and moves as a whole."""
    quarters, visible = by_quarters(batch.flow), by_quarters(batch.visible).all(-1)
    flow = quarters.mean(2)
    rigid = (quarters - flow[:, :, None]).abs().amax((-2, -1)) < MAX_DEVIATION
    return flow, visible & rigid


def match_loss(logits: Float[Tensor, "b p s"], batch: FlowBatch) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the true origin of a patch among all source positions (InfoNCE, van den Oord et al. 2018).

    Labels are bilinear, because the truth lies between positions. Also returns the accuracy of the best position.
    """
    flow, asked = patch_flow(batch)
    size = batch.source.shape[-1]
    side = size // STRIDE
    place = (patch_centers((size, size), PATCH, flow.device) + flow - PATCH / 2) / STRIDE
    asked = asked & (place >= 0).all(-1) & (place <= side - 2).all(-1)
    logits, place = logits[asked], place[asked]
    log_prob = logits.log_softmax(-1)
    low = place.floor().clamp(max=side - 3)
    high_share = place - low
    total = logits.new_zeros(())
    for dx, dy in ((0, 0), (0, 1), (1, 0), (1, 1)):
        weight = (high_share if dx else 1 - high_share)[:, 0] * (high_share if dy else 1 - high_share)[:, 1]
        index = ((low[:, 1] + dy) * side + low[:, 0] + dx).long()
        total = total - (weight * log_prob.gather(1, index[:, None])[:, 0]).sum()
    best = logits.argmax(-1)
    found = torch.stack((best % side, best // side), dim=-1)
    return total / max(len(place), 1), ((found - place).norm(dim=-1) < 1.0).float().mean()


def choice_loss(
    offset: Float[Tensor, "b mn k 2"], visible: Int[Tensor, "b m n"], logit: Float[Tensor, "bm n k"], batch: FlowBatch
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the right match of a visible patch, or of none; and the recall of the matches.

    `offset` are the matches of the patches `visible`.
    """
    flow, whole = patch_flow(batch)
    # A patch on a motion boundary has no right answer; of a patch that the source does not show, no match is right.
    occluded = by_quarters(batch.labeled & ~batch.visible).all(-1)
    asked = whole | occluded
    rows = visible.flatten(1)
    flow, whole, asked = gather_rows(flow, rows[:, None]), whole.gather(1, rows), asked.gather(1, rows)
    error, nearest = (offset - flow[:, :, None]).norm(dim=-1).min(-1)
    label = torch.where(whole & (error < MAX_MATCH_ERROR), nearest, logit.shape[-1])
    loss = F.cross_entropy(F.pad(logit, (0, 1)).flatten(0, 1), label.flatten(), reduction="none")
    moving = whole & (flow.norm(dim=-1) > RECALL_MOTION)
    recall = (error[moving] < RECALL_RADIUS).float().mean()
    return (loss * asked.flatten()).sum() / asked.sum().clamp(min=1), recall


def motion_loss(motions: Motions, hidden: Bool[Tensor, "b m p"], batch: FlowBatch) -> tuple[Tensor, Tensor]:
    """Negative log-likelihood of the flow of hidden quarters of cells under the mixture of motions.

    Also returns the mean error of the motion with the largest weight.
    """
    masks = hidden.shape[1]
    flow, visible, labeled = (
        by_quarters(values).repeat_interleave(masks, 0) for values in (batch.flow, batch.visible, batch.labeled)
    )
    asked = hidden.flatten(0, 1)[..., None] & labeled
    error = (at_quarters(motions) - flow[:, :, :, None]).square().sum(-1).add(1e-4).sqrt()
    scale = motions.scale[:, :, None]
    # A component's density falls exponentially with the error: exp(-r / s) / (2 pi s^2).
    log_density = -error / scale - 2 * scale.log() - math.log(2 * math.pi)
    absent = (1 - motions.weight.sum(-1)).clamp(min=1e-5)
    components = motions.weight.clamp(min=1e-6).log() + log_density
    components = torch.cat((components, (absent * UNIFORM_DENSITY).log()[..., None]), dim=-1)
    nll = torch.where(visible, -components.logsumexp(-1), -absent.log())
    chosen = error.gather(-1, motions.weight.argmax(-1, keepdim=True))[..., 0]
    seen = asked & visible
    mean_error = (chosen.clamp(max=MAX_LOGGED_ERROR) * seen).sum() / seen.sum().clamp(min=1)
    return (nll * asked).sum() / asked.sum().clamp(min=1), mean_error


def color_loss(motions: Motions, hidden: Bool[Tensor, "b m p"], batch: FlowBatch, rows: Int[Tensor, "r"]) -> Tensor:
    """Negative log-likelihood of the colors of hidden pixels under the mixture of warps, for some pairs."""
    masks, hw = hidden.shape[1], (batch.source.shape[-2], batch.source.shape[-1])
    which = (rows[:, None] * masks + torch.arange(masks, device=rows.device)).flatten()
    part = Motions(*(getattr(motions, name)[which] for name in ("offset", "linear", "weight", "scale", "color")))
    source, target = (frames[rows].repeat_interleave(masks, 0) for frames in (batch.source, batch.target))
    wanted = rearrange(target, "m c (i u) (j v) -> m (i j) (u v) c", u=PATCH, v=PATCH)
    inpainted = part.color[:, :, None, None].expand(-1, -1, PATCH**2, -1, -1)
    colors = torch.cat((warps(source, origins(part, hw)), inpainted), dim=3)
    weight = pixel_weights(part)
    weight = torch.cat((weight, 1 - weight.sum(-1, keepdim=True)), dim=-1).clamp(min=1e-5)
    fit = weight.log() - (colors - wanted[:, :, :, None]).square().sum(-1) / (2 * COLOR_STD**2)
    nll = -torch.cat((fit, torch.full_like(fit[..., :1], -MAX_COLOR_NLL)), dim=-1).logsumexp(-1)
    asked = hidden[rows].flatten(0, 1)[..., None].expand_as(nll)
    return (nll * asked).sum() / asked.sum().clamp(min=1)


def world_loss(network: LearnedNetwork, batch: FlowBatch, hidden: Bool[Tensor, "b m p"]) -> StepLoss:
    """The weighted sum of all terms; the log also shows accuracy and recall of matches and the error of motions."""
    source, target = network.describe(batch.source), network.describe(batch.target, context=False)
    logits = network.correlation(source, target)
    match, accuracy = match_loss(logits, batch)
    # Only patches that some mask shows are matched: row r of the scene is the r-th entry of `visible`.
    visible, valid = visible_patches(hidden)
    scene = network.observe(source, target, logits.detach(), visible.flatten(1))
    rows = torch.arange(visible[0].numel(), device=visible.device).view(1, *visible.shape[1:]).expand_as(visible)
    reading = network.read(scene, rows, valid)
    choice, recall = choice_loss(scene.matches.offset, visible, reading.logit, batch)
    motion, error = motion_loss(reading.motions, hidden, batch)
    terms = {"match": match, "choice": choice, "motion": motion}
    unknown = (~batch.labeled.flatten(1).any(1)).nonzero()[:, 0]
    scale = dict.fromkeys(terms, 1.0)
    if len(unknown):
        terms["color"] = color_loss(reading.motions, hidden, batch, unknown)
        scale["color"] = len(unknown) / len(batch.source)
    total = torch.stack([WEIGHTS[name] * scale[name] * value for name, value in terms.items()]).sum()
    logged = terms | {"match_accuracy": accuracy, "match_recall": recall, "motion_error": error}
    return StepLoss(total, {name: value.item() for name, value in logged.items()})


def training_masks(step: int, rank: int, pairs: int, masks: int, patches: int) -> Bool[Tensor, "pairs masks patches"]:
    """Random masks of a step and process, True where hidden; the fraction of visible patches differs between steps."""
    draw = generator("learned", "masks", step, rank)
    least, most = CROP_VISIBLE if patches <= (NATIVE_SIDE // PATCH) ** 2 else VISIBLE
    fraction = least + (most - least) * torch.rand((), generator=draw)
    order = torch.rand(pairs, masks, patches, generator=draw).argsort(-1)
    return order >= max(6, int(patches * fraction))


@dataclass
class WorldTrainer:
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
        hidden = training_masks(step, self.processes.rank, len(batch.source), self.masks, patches)
        return world_loss(network, batch.to(self.device), hidden.to(self.device))

    def report(self, loop: TrainingLoop[LearnedNetwork]) -> LogRecord:
        """Write the averaged weights in half precision; CPU time and the number of sharded pairs for the log."""
        save_weights(loop.averaged, self.out / FILE, torch.float16)
        return {"cpu_hours": loop.cpu_seconds / 3600, "pairs": sum(map(len, self.batches.shards))}


def train_world(
    pairs: Sequence[Path],
    folders: PairFolders,
    out: Path,
    stages: Sequence[Stage],
    stop: StopSchedule,
    **settings: Any,
) -> Path | None:
    """Train on sharded pairs and on natural video, from the checkpoint in `out` if there is one.

    Returns the path of the averaged weights; None in all processes but the first.

    Args:
        pairs: Folders of shards.
        folders: Where the videos are.
        out: Folder of checkpoint, log and weights.
        stages: Sizes of crops and batches.
        stop: Last step, and how the rate falls towards it.
        settings: Further fields of `WorldTrainer`.
    """
    check_stages(stages)
    natural = folders.video_pairs("train")
    natural = replace(natural, gaps=NATURAL_GAPS) if natural else None
    shards = PairShards.of(*pairs)
    with joined_processes() as processes:
        batches = FlowBatches.of(shards, natural, stages, processes.rank)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        weights = WorldTrainer(batches, out, device=device, processes=processes, **settings).train(stop)
    return weights if processes.is_first else None


def check_stages(stages: Sequence[Stage]) -> None:
    """Refuse stages that leave steps out or are not in order."""
    firsts = [stage.first for stage in stages]
    if not firsts or firsts[0] != 0 or firsts != sorted(set(firsts)):
        raise InputError(f"The stages begin at the updates {firsts}; expected 0 first, then increasing numbers.")


def init_learned_network(weights: Path | None = None) -> LearnedNetwork:
    """The network with the weights of a file, or with random ones, the same each time."""
    if weights is not None:
        return LearnedWorld.load(weights).network.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of("learned", "weights") % 2**31)
        network = LearnedNetwork()
    # Convolutions on a CPU are faster with the channels last.
    return network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
