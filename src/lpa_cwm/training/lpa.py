"""Training LPA on cached evidence: AdamW, cosine schedule, selection on held-out weighted-coordinate error."""

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from lpa_cwm.adjudicators.features import compress
from lpa_cwm.adjudicators.lpa import LPA, save_lpa, to_judgement, zero_init_head
from lpa_cwm.errors import InputError
from lpa_cwm.progress import progress
from lpa_cwm.rng import generator, seed_of
from lpa_cwm.training import checkpoint
from lpa_cwm.training.augment import Turn
from lpa_cwm.training.ema import follow
from lpa_cwm.training.feature_cache import CandidateSets, read
from lpa_cwm.training.log import Log
from lpa_cwm.training.objective import Objective, endpoint_error
from lpa_cwm.types import Judgement

HELD_SHARE = 10
"""One source video in so many is held out for selection."""
AVERAGED = 0.002
"""Least share of an update in the averaged weights."""
REACHABLE = 8.0
"""Groups whose best candidate misses by more pixels than this teach nothing: whom to believe among liars is chance."""
ALIKE = 4.0
"""Pixels: where candidates lie no further than this from their mean, whom to believe makes no difference."""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what comes out of a training."""

    steps: int = 10_000
    batch: int = 16
    rate: float = 3e-4
    every: int = 250
    seed: int = 0
    clip: float = 1.0
    """Longest gradient: else the few sets whose candidates lie far apart decide every update."""
    interaction: bool = True
    visual: bool = True
    sight: bool = True
    """Learn to say whether the point is seen, beyond the weights' own part in it; the paper's network cannot."""
    choice: int = 3
    """How often a group whose candidates disagree is shown for each time that one is whose candidates agree."""
    turned: bool = True
    """Show each batch mirrored, turned and in other colors, as a key decides: cached groups are few."""
    autocast: bool = False
    """Compute the network in bfloat16."""
    objective: Objective = field(default_factory=Objective)
    start: str = ""
    """Identity of the weights it begins with; none begins with random ones."""


@dataclass
class State:
    """What a checkpoint holds."""

    network: LPA
    average: LPA
    """What is selected and written: single updates are noisy, and the best of many noisy ones is a lucky one."""
    optimizer: torch.optim.AdamW
    step: int = 0
    best: float = math.inf
    chosen: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def begin(cls, network: LPA, rate: float) -> "State":
        average = copy.deepcopy(network).requires_grad_(False)
        return cls(network, average, torch.optim.AdamW(network.parameters(), lr=rate, fused=True))

    def dump(self) -> dict:
        return {
            "network": self.network.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "best": self.best,
            "chosen": self.chosen,
        }

    def restore(self, held: dict) -> None:
        self.network.load_state_dict(held["network"])
        self.average.load_state_dict(held["average"])
        self.optimizer.load_state_dict(held["optimizer"])
        self.step, self.best, self.chosen = held["step"], held["best"], held["chosen"]


def held_out(videos: list[str]) -> tuple[Int[Tensor, "train"], Int[Tensor, "held"]]:
    """Groups for training and for selection; all groups of a video are on the same side."""
    held = torch.tensor([seed_of("held", video) % HELD_SHARE == 0 for video in videos])
    if held.all() or not held.any():
        raise InputError(
            f"{len(set(videos))} videos cannot be split into training and held-out ones; cache some more videos."
        )
    return (~held).nonzero()[:, 0], held.nonzero()[:, 0]


def batch_rows(train: Int[Tensor, "train"], step: int, recipe: Recipe) -> Int[Tensor, "b"]:
    """The groups of one step; every epoch has an order of its own."""
    size = min(recipe.batch, len(train))
    per_epoch = len(train) // size
    order = torch.randperm(len(train), generator=generator("epoch", recipe.seed, step // per_epoch))
    start = (step % per_epoch) * size
    return train[order[start : start + size]]


def standardize(network: LPA, groups: CandidateSets, train: Int[Tensor, "train"]) -> None:
    """Store the population mean and deviation of all candidate rows of the training split."""
    rows = compress(groups.statistics[train]).flatten(0, 1).double()
    network.mean.copy_(rows.mean(0))
    network.std.copy_(rows.std(0, correction=0).clamp(min=1e-6))


def reachable(groups: CandidateSets, rows: Int[Tensor, "k"]) -> Int[Tensor, "j"]:
    """Those of some groups that have a candidate worth believing, or whose point is hidden."""
    return rows[~(groups.least[rows] > REACHABLE)]


def judged_by(groups: CandidateSets, held: Int[Tensor, "k"]) -> Int[Tensor, "j"]:
    """The held-out groups that select weights: their point is seen, and a candidate is worth believing."""
    rows = held[groups.least[held] <= REACHABLE]
    if not len(rows):
        raise InputError(
            f"Of {len(held)} held-out groups none has a candidate within {REACHABLE:g} pixels of a visible point; "
            "cache some more videos, or ask a better world model."
        )
    return rows


def emphasized(groups: CandidateSets, rows: Int[Tensor, "k"], choice: int) -> Int[Tensor, "j"]:
    """Some groups, those whose candidates disagree `choice` times: most others are easy and teach little."""
    if choice < 1:
        raise InputError(f"Sets with a choice would be shown {choice} times; once is the least: --oversample 1.")
    spread = (groups.peak[rows] - groups.peak[rows].mean(1, keepdim=True)).norm(dim=-1).amax(1)
    return torch.cat((rows[spread <= ALIKE], rows[spread > ALIKE].repeat(choice)))


def learn(state: State, groups: CandidateSets, rows: Int[Tensor, "b"], recipe: Recipe) -> float:
    """One update; candidate order and dropout are functions of the step."""
    device = state.network.mean.device
    inputs = groups.inputs(rows)
    if recipe.turned:
        inputs = Turn.drawn("turn", recipe.seed, state.step)(*inputs)
    local, response, context, statistics = (value.to(device) for value in inputs)
    peak, end, strength = (value[rows].to(device) for value in (groups.peak, groups.end, groups.strength))
    order = torch.randperm(peak.shape[1], generator=generator("order", recipe.seed, state.step)).to(device)
    for group in state.optimizer.param_groups:
        group["lr"] = recipe.rate * (1 + math.cos(math.pi * state.step / recipe.steps)) / 2
    with torch.random.fork_rng(), torch.autocast(device.type, torch.bfloat16, enabled=recipe.autocast):
        torch.manual_seed(seed_of("dropout", recipe.seed, state.step))
        scores, sight = state.network.logits(local[:, order], response[:, order], context, statistics[:, order])
    loss = recipe.objective(scores.float(), peak[:, order], end, strength[:, order], sight.float())
    state.optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(state.network.parameters(), recipe.clip)
    state.optimizer.step()
    follow(state.average, state.network, state.step, AVERAGED)
    return loss.item()


@torch.inference_mode()
def weigh(network: LPA, groups: CandidateSets, rows: Int[Tensor, "b"], batch: int = 64) -> Judgement:
    """LPA's judgement of the candidates of cached groups."""
    network.eval()
    device = network.mean.device
    parts = [network.logits(*(value.to(device) for value in groups.inputs(part))) for part in rows.split(batch)]
    network.train()
    logits, log_visibility = (torch.cat(columns).cpu() for columns in zip(*parts, strict=True))
    return to_judgement(logits, log_visibility)


def held_error(network: LPA, groups: CandidateSets, rows: Int[Tensor, "b"]) -> float:
    """Mean weighted-coordinate error."""
    weights = weigh(network, groups, rows).weights
    return endpoint_error(weights, groups.peak[rows], groups.end[rows]).mean().item()


def fresh(recipe: Recipe, groups: CandidateSets, train: Int[Tensor, "train"]) -> LPA:
    """A network with random weights that knows the statistics of its training split."""
    with torch.random.fork_rng():
        torch.manual_seed(seed_of("initial", recipe.seed))
        network = LPA(recipe.interaction, recipe.visual)
    standardize(network, groups, train)
    return network


def sighted(network: LPA, recipe: Recipe) -> LPA:
    """The network with a head for sight, if the recipe wants one; a new one does not change anything yet."""
    if recipe.sight and network.visibility_head is None:
        with torch.random.fork_rng():
            torch.manual_seed(seed_of("sight", recipe.seed))
            network.visibility_head = zero_init_head()
    return network


def feasible(recipe: Recipe, groups: CandidateSets) -> Recipe:
    """Without hidden points visibility is left out: it would only teach to believe the strongest; and so is sight."""
    objective = recipe.objective if len(groups.seen) < len(groups) else replace(recipe.objective, visibility=0.0)
    return replace(recipe, objective=objective, sight=recipe.sight and objective.visibility > 0)


def fit(caches: Sequence[Path], out: Path, recipe: Recipe, device: str = "cpu", start: LPA | None = None) -> Path:
    """Train, go on where a stopped training was, and write the best weights.

    A network to start from keeps the statistics it was trained with.
    """
    groups, videos = read(*caches)
    train, held = held_out(videos)
    recipe = feasible(recipe, groups)
    network = sighted(start or fresh(recipe, groups, train), recipe).to(device).train()
    state = State.begin(network, recipe.rate)
    identity: checkpoint.Identity = {**asdict(recipe), **asdict(recipe.objective), "groups": len(groups)}
    del identity["objective"]
    stored = checkpoint.load(out / "checkpoint.pt", identity)
    if stored is not None:
        state.restore(stored)
    train = emphasized(groups, reachable(groups, train), recipe.choice)
    held = judged_by(groups, held)
    log = Log(out / "log.jsonl", state.step)
    for step in progress(range(state.step, recipe.steps), recipe.steps - state.step, "LPA"):
        state.step = step
        loss = learn(state, groups, batch_rows(train, step, recipe), recipe)
        state.step = step + 1
        if state.step % recipe.every == 0 or state.step == recipe.steps:
            error = held_error(state.average, groups, held)
            log.write({"step": state.step, "loss": loss, "held_error": error})
            if error < state.best:
                state.best = error
                state.chosen = {name: value.clone() for name, value in state.average.state_dict().items()}
            checkpoint.save(out / "checkpoint.pt", identity, state.dump())
    return export(state, out, len(train.unique()))


def export(state: State, out: Path, trained_on: int) -> Path:
    """The selected weights with their provenance."""
    path = out / "lpa.safetensors"
    # Half precision halves the file and moves weights by less than a thousandth; the statistics span many decades.
    kept = {name: value if name in ("mean", "std") else value.half() for name, value in state.chosen.items()}
    provenance = {"candidate_sets": trained_on, "val_error": round(state.best, 4)}
    save_lpa(path, state.network.architecture, kept, provenance)
    return path
