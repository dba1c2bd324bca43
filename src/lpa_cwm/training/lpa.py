"""Training of LPA on cached features: the objective, augmentation, and model selection on held-out videos.

The objective has soft reliability targets, the paper's three terms (Eq. 6-7), and two further ones. The optimizer is
AdamW with a cosine schedule.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lpa_cwm.adjudicators.features import SCALARS, STATISTICS, compress
from lpa_cwm.adjudicators.lpa import LPA, load_lpa, save_lpa, to_judgement, zero_init_head, zero_init_path
from lpa_cwm.config import PRESETS, PresetName, TrackerConfig
from lpa_cwm.errors import InputError
from lpa_cwm.metrics.comparison import THRESHOLDS
from lpa_cwm.registry import fingerprint_of
from lpa_cwm.rng import KeyPart, generator, seed_of
from lpa_cwm.training.feature_cache import CandidateSets, read_cache
from lpa_cwm.training.loop import LogRecord, StepLoss, TrainingLoop
from lpa_cwm.types import Judgement

TEMPERATURE = 4.0
"""Temperature of the soft targets in pixels of endpoint error (tau)."""
VISIBILITY_THRESHOLD = TrackerConfig().visibility_threshold
VISIBLE_WEIGHT = 2.0
"""BCE weight of visible points. 25 % of cached and 8 % of real points are occluded: matching accuracy on video asks for
4, balanced accuracy for 1/3; 2 is between."""
LOGIT_SCALE = 0.01
"""Response strength above the visibility threshold that is one unit of the visibility logit."""
PEAK_TEMPERATURE = 0.004
"""Temperature of the softmax over the heights of candidate endpoints in the aggregated response."""
STEP_SHARPNESS = 6
"""Power of error / threshold in the soft step 1 / (1 + (error / threshold)^6)."""
VAL_FOLDS = 10
"""One of ten folds of the source videos is held out for model selection."""
EMA_RATE = 0.002
"""Smallest rate of the averaged weights."""
AMBIGUITY_PX = 4.0
"""Candidates agree where all lie within this distance of their mean, in pixels."""


@dataclass(frozen=True, slots=True)
class Objective:
    """Weights of the terms that are added to the KL divergence; zero leaves a term out, as the ablations do."""

    coordinate: float = 2.0
    """Smooth L1 distance of the weighted endpoint."""
    rank: float = 0.2
    """Cross-entropy of the best candidate."""
    visibility: float = 4.0
    """Visibility BCE (not in the paper, which adjudicates location only)."""
    decoded: float = 20.0
    """Decoded-endpoint term (not in the paper): the soft targets (tau = 4 px) barely separate 1 px from 3 px."""

    def __call__(
        self,
        logits: Float[Tensor, "n m"],
        peak: Float[Tensor, "n m 2"],
        end: Float[Tensor, "n 2"],
        strength: Float[Tensor, "n m"],
        log_visibility: Float[Tensor, "n"],
        response_sigma: Float[Tensor, "n"],
    ) -> Float[Tensor, ""]:
        """Sum of all terms; occluded points (`end` is NaN) take part in the visibility term only."""
        visible = end.isfinite().all(1)
        loss = logits.sum() * 0.0
        if visible.any():
            logits_v, peak_v, end_v = logits[visible], peak[visible], end[visible]
            loss = loss + self.localization(logits_v, peak_v, end_v)
            if self.decoded:
                weights, sigma = logits_v.softmax(1), response_sigma[visible]
                accuracy = decoded_accuracy(weights, peak_v, end_v, strength[visible], sigma)
                loss = loss + self.decoded * (1 - accuracy.mean())
        if self.visibility:
            judgement = to_judgement(logits, log_visibility)
            loss = loss + self.visibility * visibility_loss(judgement, strength, visible)
        return loss

    def localization(
        self, logits: Float[Tensor, "n m"], peak: Float[Tensor, "n m 2"], end: Float[Tensor, "n 2"]
    ) -> Float[Tensor, ""]:
        """The paper's terms: KL(targets || weights) + SmoothL1(weighted endpoint, truth) + CE(logits, best)."""
        errors = (peak - end[:, None]).norm(dim=-1)
        loss = F.kl_div(logits.log_softmax(1), soft_targets(errors), reduction="batchmean")
        if self.coordinate:
            loss = loss + self.coordinate * F.smooth_l1_loss(weighted_endpoint(logits.softmax(1), peak), end)
        if self.rank:
            loss = loss + self.rank * F.cross_entropy(logits, errors.argmin(1))
        return loss


def decoded_accuracy(
    weights: Float[Tensor, "n m"],
    peak: Float[Tensor, "n m 2"],
    end: Float[Tensor, "n 2"],
    strength: Float[Tensor, "n m"],
    response_sigma: Float[Tensor, "n"],
) -> Float[Tensor, "n"]:
    """Differentiable average accuracy within the evaluation's thresholds of the endpoint that would be decoded.

    Decoding takes the maximum of the weighted sum of responses. Each response is modeled as a Gaussian around its
    endpoint, the maximum as a softmax over the endpoints, and each threshold as a soft step.
    """
    # Height of the weighted sum of Gaussians at each endpoint.
    overlap = (-torch.cdist(peak, peak).square() / (2 * response_sigma.square())[:, None, None]).exp()
    height = einsum(overlap, weights * strength, "n i j, n j -> n i")
    errors = (peak - end[:, None]).norm(dim=-1, keepdim=True)
    accuracy = (1 / (1 + (errors / errors.new_tensor(THRESHOLDS)) ** STEP_SHARPNESS)).mean(-1)
    return ((height / PEAK_TEMPERATURE).softmax(1) * accuracy).sum(1)


def visibility_loss(
    judgement: Judgement, strength: Float[Tensor, "n m"], visible: Bool[Tensor, "n"]
) -> Float[Tensor, ""]:
    """BCE of the tracker's visibility rule: judged strength against the threshold, as a logit."""
    judged = judgement.visibility * (judgement.weights * strength).sum(1)
    logit = (judged - VISIBILITY_THRESHOLD) / LOGIT_SCALE
    return F.binary_cross_entropy_with_logits(logit, visible.to(logit), pos_weight=logit.new_tensor(VISIBLE_WEIGHT))


def soft_targets(errors: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    """Reliability of candidates from their endpoint errors in pixels (Eq. 6)."""
    return (-errors / TEMPERATURE).softmax(1)


def weighted_endpoint(weights: Float[Tensor, "n m"], peak: Float[Tensor, "n m 2"]) -> Float[Tensor, "n 2"]:
    """Weighted mean of the candidates' endpoints: for training and model selection, never a tracker's output."""
    return einsum(weights, peak, "n m, n m d -> n d")


def endpoint_error(
    weights: Float[Tensor, "n m"], peak: Float[Tensor, "n m 2"], end: Float[Tensor, "n 2"]
) -> Float[Tensor, "n"]:
    """Endpoint error of the weighted endpoint, in pixels."""
    return torch.linalg.vector_norm(weighted_endpoint(weights, peak) - end, dim=1)


@dataclass(frozen=True)
class LpaTraining:
    """All settings of a training."""

    steps: int = 10_000
    batch: int = 16
    rate: float = 3e-4
    save_every: int = 250
    seed: int = 0
    clip: float = 1.0
    """Norm that gradients are clipped to: otherwise the few sets with far candidates decide every update."""
    interaction: bool = True
    visual: bool = True
    visibility_head: bool = True
    """Predict visibility by a separate head (not in the paper), not by the weights alone."""
    path: bool = True
    """Use the path of each candidate through time, if there are several sources (not in the paper)."""
    source_dropout: float = 0.3
    """Probability that a batch leaves out the candidates of a gap, because not every frame has every gap."""
    oversample: int = 3
    """How often an ambiguous set is shown per epoch; the others are shown once."""
    augment: bool = True
    """Flip, transpose and permute the colors of each batch."""
    average: bool = True
    """Select among averaged weights (exponential moving average)."""
    max_oracle_error: float = 8.0
    """Skip sets whose best candidate is further than this from the truth, in pixels: their targets are noise."""
    keep: Literal["best", "last"] = "best"
    """Write the weights with the smallest held-out error, which does not read the visibility, or the last ones."""
    autocast: bool = False
    """Compute the network in bfloat16."""
    objective: Objective = field(default_factory=Objective)
    init: str = ""
    """Fingerprint of the initial weights; empty for random ones."""

    @classmethod
    def of_preset(cls, name: PresetName, terms: Mapping[str, float] | None = None, **given: Any) -> "LpaTraining":
        """The settings of a preset; weights of `terms` of the loss and settings that are `given` override it."""
        preset = PRESETS[name]
        return cls(objective=Objective(**{**preset.objective, **(terms or {})}), **{**preset.training, **given})

    def settings(self, sets: CandidateSets) -> dict[str, int | float | str]:
        """What must be the same when a training is resumed."""
        flat = {**asdict(self), **asdict(self.objective), "candidate_sets": len(sets)}
        del flat["objective"]
        # Left out at their defaults, so that a training that was begun without these switches can be resumed.
        usual = LpaTraining(objective=self.objective)
        for name in ("average", "max_oracle_error", "path", "source_dropout", "keep"):
            if flat[name] == getattr(usual, name):
                del flat[name]
        return flat

    def rate_factor(self, step: int) -> float:
        """Cosine schedule without restarts (Loshchilov and Hutter, 2017)."""
        return (1 + math.cos(math.pi * step / self.steps)) / 2


@dataclass(frozen=True, slots=True)
class Augmentation:
    """A symmetry of the image plane and a color permutation, under which the result of LPA should not change."""

    flip_y: bool = False
    flip_x: bool = False
    transpose: bool = False
    colors: tuple[int, ...] = (0, 1, 2)

    @classmethod
    def sample(cls, *identity: KeyPart) -> "Augmentation":
        """One of the 48, by a key."""
        draw = generator(*identity)
        flip_y, flip_x, transpose = (torch.rand(3, generator=draw) < 0.5).tolist()
        return cls(flip_y, flip_x, transpose, tuple(torch.randperm(3, generator=draw).tolist()))

    def __call__(
        self,
        local: Float[Tensor, "g m 10 i j"],
        response: Float[Tensor, "g m 1 k l"],
        context: Float[Tensor, "g 6 u v"],
        statistics: Float[Tensor, "g m s"],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The features of the transformed scene."""
        local = torch.cat((*(self.permute_colors(local, start) for start in (0, 3, 6)), local[:, :, 9:]), dim=2)
        context = torch.cat([self.permute_colors(context, start) for start in (0, 3)], dim=-3)
        local, response, context = (self.transform_image(image) for image in (local, response, context))
        return local, response, context, self.transform_statistics(statistics)

    def permute_colors(self, image: Float[Tensor, "*b c h w"], start: int) -> Float[Tensor, "*b 3 h w"]:
        """The three color planes from channel `start` on, permuted."""
        return image[..., [start + color for color in self.colors], :, :]

    def transform_image(self, image: Float[Tensor, "*b h w"]) -> Float[Tensor, "*b y x"]:
        """Flip, then transpose."""
        axes = [axis for axis, flipped in ((-2, self.flip_y), (-1, self.flip_x)) if flipped]
        image = image.flip(axes)
        return image.mT if self.transpose else image

    def transform_statistics(self, statistics: Float[Tensor, "*b s"]) -> Float[Tensor, "*b s"]:
        """Transform the displacement (y, x), the first two statistics; the others have no direction."""
        down, across = statistics[..., :1], statistics[..., 1:2]
        move = (-down if self.flip_y else down, -across if self.flip_x else across)
        return torch.cat((*(reversed(move) if self.transpose else move), statistics[..., 2:]), dim=-1)


def split_train_val(videos: list[str]) -> tuple[Int[Tensor, "train"], Int[Tensor, "val"]]:
    """Rows for training and for model selection; all sets of a video are on the same side."""
    place = {video: seed_of("held", video) for video in set(videos)}
    held = {video for video, key in place.items() if key % VAL_FOLDS == 0}
    # Few videos may all fall into other folds: then the one that comes first by its key is held out.
    held = held or {min(place, key=lambda video: place[video])}
    if len(held) == len(place):
        raise InputError(f"{len(place)} videos cannot be split into training and held-out ones; cache more videos.")
    val = torch.tensor([video in held for video in videos])
    return (~val).nonzero()[:, 0], val.nonzero()[:, 0]


def solvable_rows(sets: CandidateSets, rows: Int[Tensor, "k"], most: float) -> Int[Tensor, "j"]:
    """Rows with a candidate within `most` pixels of the truth, or with an occluded point."""
    return rows[~(sets.min_error[rows] > most)]


def selection_set(sets: CandidateSets, val: Int[Tensor, "k"], most: float) -> Int[Tensor, "j"]:
    """Validation sets for model selection: visible points with a candidate within `most` pixels of the truth."""
    rows = val[sets.min_error[val] <= most]
    if not len(rows):
        raise InputError(
            f"None of {len(val)} held-out candidate sets has a candidate within {most:g} pixels of a "
            "visible point; cache more videos, or use a better world model."
        )
    return rows


def oversample_ambiguous(sets: CandidateSets, rows: Int[Tensor, "k"], times: int) -> Int[Tensor, "j"]:
    """Repeat the rows whose candidates disagree: most others are easy and teach little."""
    if times < 1:
        raise InputError(f"Ambiguous sets would be shown {times} times; once is the least: --oversample 1.")
    spread = (sets.peak[rows] - sets.peak[rows].mean(1, keepdim=True)).norm(dim=-1).amax(1)
    return torch.cat((rows[spread <= AMBIGUITY_PX], rows[spread > AMBIGUITY_PX].repeat(times)))


def batch_rows(train: Int[Tensor, "train"], step: int, training: LpaTraining) -> Int[Tensor, "b"]:
    """Rows of one step; every epoch has its own order."""
    size = min(training.batch, len(train))
    per_epoch = len(train) // size
    order = torch.randperm(len(train), generator=generator("epoch", training.seed, step // per_epoch))
    start = (step % per_epoch) * size
    return train[order[start : start + size]]


def step_loss(
    network: LPA, sets: CandidateSets, rows: Int[Tensor, "b"], step: int, training: LpaTraining
) -> Float[Tensor, ""]:
    """Loss of a batch; augmentation, candidate order and dropout are functions of the step."""
    device = network.mean.device
    inputs = sets.inputs(rows)
    if training.augment:
        inputs = Augmentation.sample("turn", training.seed, step)(*inputs)
    local, response, context, statistics = (value.to(device) for value in inputs)
    columns = sets.peak, sets.end, sets.strength, sets.response_sigma
    peak, end, strength, sigma = (value[rows].to(device) for value in columns)
    order = torch.randperm(peak.shape[1], generator=generator("order", training.seed, step))
    order = order[keep_sources(sets.statistics[rows[0]], step, training)[order]].to(device)
    with torch.random.fork_rng(), torch.autocast(device.type, torch.bfloat16, enabled=training.autocast):
        torch.manual_seed(seed_of("dropout", training.seed, step))
        logits, log_visibility = network.logits(local[:, order], response[:, order], context, statistics[:, order])
    return training.objective(logits.float(), peak[:, order], end, strength[:, order], log_visibility.float(), sigma)


def keep_sources(statistics: Float[Tensor, "m s"], step: int, training: LpaTraining) -> Bool[Tensor, "m"]:
    """Candidates of a batch that are used: all from given positions, those of each gap unless it is left out."""
    gap, _, given, *_ = statistics[:, STATISTICS:].unbind(1)
    given = given > 0
    keep = torch.ones_like(given)
    draw = generator("sources", training.seed, step)
    for value in gap[~given].unique().tolist():
        if float(torch.rand((), generator=draw)) < training.source_dropout:
            keep &= given | (gap != value)
    return keep


@torch.inference_mode()
def predict_sets(network: LPA, sets: CandidateSets, rows: Int[Tensor, "b"], batch: int = 64) -> Judgement:
    """LPA's judgement of cached candidate sets."""
    network.eval()
    device = network.mean.device
    parts = [network.logits(*(value.to(device) for value in sets.inputs(part))) for part in rows.split(batch)]
    network.train()
    logits, log_visibility = (torch.cat(columns).cpu() for columns in zip(*parts, strict=True))
    return to_judgement(logits, log_visibility)


def val_error(network: LPA, sets: CandidateSets, rows: Int[Tensor, "b"]) -> float:
    """Mean error of the weighted endpoint, in pixels."""
    weights = predict_sets(network, sets, rows).weights
    return endpoint_error(weights, sets.peak[rows], sets.end[rows]).mean().item()


def init_network(training: LpaTraining, sets: CandidateSets, train: Int[Tensor, "train"]) -> LPA:
    """A network with random weights that standardizes by the training rows."""
    with torch.random.fork_rng():
        torch.manual_seed(seed_of("initial", training.seed))
        network = LPA(training.interaction, training.visual)
    standardize(network, sets, train)
    return network


def standardize(network: LPA, sets: CandidateSets, train: Int[Tensor, "train"]) -> None:
    """Store mean and standard deviation of the compressed statistics of all training candidates."""
    rows = compress(sets.statistics[train, :, :STATISTICS]).flatten(0, 1).double()
    network.mean.copy_(rows.mean(0))
    network.std.copy_(rows.std(0, correction=0).clamp(min=1e-6))


def add_visibility_head(network: LPA, training: LpaTraining) -> LPA:
    """Add a zero-initialized visibility head, if the training wants one and the network has none."""
    if training.visibility_head and network.visibility_head is None:
        with torch.random.fork_rng():
            torch.manual_seed(seed_of("sight", training.seed))
            network.visibility_head = zero_init_head()
    return network


def add_path_encoder(network: LPA, training: LpaTraining) -> LPA:
    """Add a zero-initialized encoder of paths, if the training wants one and the network has none."""
    if training.path and network.path_encoder is None:
        network.path_encoder = zero_init_path()
    return network


def disable_unused_terms(training: LpaTraining, sets: CandidateSets) -> LpaTraining:
    """Drop the visibility loss and head if the cache has no occluded points, and paths if all are direct."""
    occluded = len(sets.visible_rows) < len(sets)
    objective = training.objective if occluded else replace(training.objective, visibility=0.0)
    head = training.visibility_head and objective.visibility > 0
    several = bool((sets.statistics[..., SCALARS.index("source_given")] == 0).any())
    return replace(training, objective=objective, visibility_head=head, path=training.path and several)


def make_loop(network: LPA, out: Path, training: LpaTraining, sets: CandidateSets) -> TrainingLoop[LPA]:
    """The training loop of a network."""
    return TrainingLoop(
        network,
        torch.optim.AdamW(network.parameters(), lr=training.rate, fused=True),
        out,
        training.settings(sets),
        training.steps,
        training.save_every,
        training.rate_factor,
        max_norm=training.clip,
        ema_rate=EMA_RATE if training.average else None,
        extra={"val_error": math.inf, "selected": {}},
    )


def load_initial(path: Path, training: LpaTraining) -> LPA:
    """The network of a weight file; it must have the branches that the training asks for."""
    network = load_lpa(path)
    has = network.interaction, network.visual, network.visibility_head is not None
    # A visibility head may be added to a network that has none: zero-initialized, it changes nothing at first.
    if has != (training.interaction, training.visual, has[2] and training.visibility_head):
        raise InputError(
            f"{path} has interaction {has[0]}, visual {has[1]} and visibility head {has[2]}, but "
            f"{training.interaction}, {training.visual} and {training.visibility_head} were asked for; "
            "give the options it was trained with."
        )
    return network


def train_lpa(
    caches: Sequence[Path], out: Path, training: LpaTraining, device: str = "cpu", init: LPA | Path | None = None
) -> Path:
    """Train, from the checkpoint in `out` if there is one, and write the selected weights.

    An initial network, given or read from a weight file, keeps the standardization that it was trained with.
    """
    if isinstance(init, Path):
        init, training = load_initial(init, training), replace(training, init=fingerprint_of([init]))
    sets, videos = read_cache(*caches)
    train, val = split_train_val(videos)
    training = disable_unused_terms(training, sets)
    network = add_visibility_head(init or init_network(training, sets, train), training)
    network = add_path_encoder(network, training).to(device).train()
    train = oversample_ambiguous(sets, solvable_rows(sets, train, training.max_oracle_error), training.oversample)
    val = selection_set(sets, val, training.max_oracle_error)
    loop = make_loop(network, out, training, sets)

    def loss_of(step: int, rows: Int[Tensor, "b"]) -> StepLoss:
        loss = step_loss(network, sets, rows, step, training)
        return StepLoss(loss, {"loss": loss.item()})

    def select() -> LogRecord:
        # Single updates are noisy, and the best of many would be a lucky one: averages are selected instead.
        error = val_error(loop.averaged, sets, val)
        if training.keep == "last" or error < loop.extra["val_error"]:
            selected = {name: value.clone() for name, value in loop.averaged.state_dict().items()}
            loop.extra = {"val_error": error, "selected": selected}
        return {"val_error": error}

    loop.run(lambda first, end: (batch_rows(train, step, training) for step in range(first, end)), loss_of, select)
    return export(loop, len(train.unique()))


def export(loop: TrainingLoop[LPA], trained_on: int) -> Path:
    """Write the selected weights with their provenance."""
    path = loop.out / "lpa.safetensors"
    # Half precision halves the file and moves weights by less than a thousandth; the statistics span many decades.
    kept = {name: value if name in ("mean", "std") else value.half() for name, value in loop.extra["selected"].items()}
    provenance = {"candidate_sets": trained_on, "val_error": round(loop.extra["val_error"], 4)}
    save_lpa(path, loop.network.architecture, kept, provenance)
    return path
