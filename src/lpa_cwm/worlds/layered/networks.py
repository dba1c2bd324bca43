"""Learned features of the source, shared layers, and the reliability of each hypothesis of a visible patch.

The reliability of a hypothesis follows from its own cost, then from message passing between hypotheses. The update is
that of mean-field inference (Kraehenbuehl & Koltun 2011, arXiv:1210.5644): a hypothesis is a label of its patch, and
labels of nearby patches support each other as far as one motion explains both.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lpa_cwm.sampling import read
from lpa_cwm.worlds.layered.matching import COLOR_WEIGHT, COST_FLOOR, PATCH, Hypotheses
from lpa_cwm.worlds.layered.ransac import local_similarity

COARSE_STRIDE = 4
FINE_STRIDE = 2


Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def zero_init(layer: Layer) -> Layer:
    """Set a layer's parameters to zero, so that a residual starts as the identity (Zhang et al., arXiv:1901.09321)."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


class ResidualConvs(nn.Module):
    """A pre-activation residual block of two 3x3 convolutions (He et al. 2016, arXiv:1603.05027)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = zero_init(nn.Conv2d(width, width, 3, padding=1))

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        return x + self.conv2(F.silu(self.conv1(F.silu(x))))


class SmallUNet(nn.Module):
    """A U-Net (Ronneberger et al. 2015, arXiv:1505.04597) whose skip connections are sums, with a head per level."""

    def __init__(self, inputs: int, widths: tuple[int, ...], outputs: tuple[int, ...], stem: int) -> None:
        """`widths` from fine to coarse, each level half the size of the one before; `outputs` of the finest levels."""
        super().__init__()
        self.stem = nn.Conv2d(inputs, widths[0], 2 * stem + 1, stride=stem, padding=stem)
        steps = list(pairwise(widths))
        self.encoder = nn.ModuleList(ResidualConvs(width) for width in widths)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in steps)
        self.up = nn.ModuleList(nn.Conv2d(b, a, 1) for a, b in steps)
        self.decoder = nn.ModuleList(ResidualConvs(width) for width in widths[:-1])
        self.heads = nn.ModuleList(nn.Conv2d(a, b, 1) for a, b in zip(widths, outputs, strict=False))

    def forward(self, x: Float[Tensor, "b c h w"]) -> list[Tensor]:
        # Channels last: convolutions of few channels are a third faster.
        x = self.stem(x.contiguous(memory_format=torch.channels_last))
        levels = []
        for i, block in enumerate(self.encoder):
            x = block(self.down[i - 1](F.silu(x)) if i else x)
            levels.append(x)
        for i in reversed(range(len(self.decoder))):
            raised = F.interpolate(self.up[i](F.silu(x)), size=levels[i].shape[-2:], mode="bilinear")
            x = self.decoder[i](levels[i] + raised)
            levels[i] = x
        return [head(F.silu(level)) for head, level in zip(self.heads, levels, strict=False)]


class SourceEncoder(nn.Module):
    """Features of the source: fine ones at half resolution, coarse ones at a quarter."""

    def __init__(self, fine: int, coarse: int) -> None:
        super().__init__()
        self.unet = SmallUNet(3, (20, 40, 64, 64), (fine, coarse), stem=FINE_STRIDE)

    def forward(
        self, source: Float[Tensor, "b 3 h w"]
    ) -> tuple[Float[Tensor, "b f h2 w2"], Float[Tensor, "b c h4 w4"]]:
        fine, coarse = self.unet(source - 0.5)
        return fine, coarse


def mlp(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """One hidden layer and a zero-initialized output layer."""
    return nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), zero_init(nn.Linear(width, outputs)))


def group_similarity(
    first: Float[Tensor, "*#b c"], second: Float[Tensor, "*#b c"], groups: int
) -> Float[Tensor, "*b groups"]:
    """Inner products of two feature vectors, one per group of channels."""
    product = first * second
    members = torch.eye(groups, device=product.device).repeat_interleave(product.shape[-1] // groups, 0)
    # A product with a small matrix: sums over few channels are far slower.
    return product @ members.to(product.dtype)


def normalize_groups(values: Float[Tensor, "b c h w"], groups: int) -> Float[Tensor, "b c h w"]:
    """Scale each group of channels to unit length."""
    grouped = values.unflatten(1, (groups, -1))
    return (grouped / torch.sqrt(grouped.square().sum(2, keepdim=True) + 1e-4)).flatten(1, 2)


MESSAGE_ROUNDS = 2
MAX_NEGATIVE_LOG = 25.0
"""Bound on negative logarithms of weights: products of smaller weights are denormal, which is slow."""
MESSAGE_SCALES = (2.0, 5.0)
"""Distances in patches over which the weight of a message falls to 1/e."""
OWN_FEATURES = 7
MATCH_FEATURES = OWN_FEATURES + len(MESSAGE_SCALES)


@dataclass(frozen=True, slots=True)
class ReliableMatches:
    """The most reliable hypotheses of the visible patches: sparse matches for the densification."""

    center: Float[Tensor, "b v 2"]
    offset: Float[Tensor, "b v 2"]
    linear: Float[Tensor, "b v 2 2"]
    """Gradient of the offset around the match."""
    log_reliability: Float[Tensor, "b v"]
    color_offset: Float[Tensor, "b v 3"]
    structure_tensor: Float[Tensor, "b v 3"]
    features: Float[Tensor, "b v e"]
    """`match_features` and the messages of the last round."""
    descriptor: Float[Tensor, "b v c"]
    """Coarse source features at the matched position."""


def match_features(matches: Hypotheses, variance: Float[Tensor, "b n"]) -> Float[Tensor, "b n k e"]:
    """What is known of each hypothesis by itself, as numbers of order one."""
    variance = variance[..., None].expand_as(matches.zero_mean_error)
    # Trace and smallest eigenvalue of the structure tensor: the corner measure of Shi & Tomasi (1994).
    xx, xy, yy = matches.structure_tensor.unbind(-1)
    trace = xx + yy
    smallest = trace / 2 - torch.sqrt(((xx - yy) / 2).square() + xy.square())
    logs = [
        torch.log(value.clamp(min=0) + 1e-5) + 6
        for value in (matches.zero_mean_error, matches.color_error, variance, trace, smallest)
    ]
    best = logs[0].amin(-1, keepdim=True)
    far = torch.log1p(matches.displacement)
    return torch.stack((*logs, logs[0] - best, far), dim=-1) / 2


def motion_affinity(
    offset: Float[Tensor, "b v 2"],
    linear: Float[Tensor, "b v 2 2"],
    center: Float[Tensor, "b v 2"],
    tolerance: Tensor,
    tolerance_slope: Tensor,
) -> Float[Tensor, "b v v"]:
    """How well the motion of one match (row) predicts the offset of another, in (0, 1].

    A Gaussian of the residual; its variance is `tolerance`^2 plus (`tolerance_slope` * distance)^2.
    """
    distance = torch.cdist(center, center)
    start = offset - torch.einsum("bvde,bve->bvd", linear, center)
    predicted = start[:, :, None] + torch.einsum("bvde,bwe->bvwd", linear, center)
    residual = (predicted - offset[:, None]).square().sum(-1)
    variance = tolerance.square() + (tolerance_slope * distance).square()
    return torch.exp(-(0.5 * residual / variance).clamp(max=MAX_NEGATIVE_LOG))


class MatchReliability(nn.Module):
    """Scores the hypotheses of the visible patches and keeps the most reliable ones."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.unary = mlp(OWN_FEATURES, 32, 1)
        self.cost_weight = nn.Parameter(torch.tensor(2.0))
        self.message_weight = nn.Parameter(torch.full((MESSAGE_ROUNDS, len(MESSAGE_SCALES)), 0.3))
        self.similarity_weight = nn.Parameter(torch.full((MESSAGE_ROUNDS,), 0.3))
        self.displacement_weight = nn.Parameter(torch.tensor(0.25))
        self.support_weight = nn.Parameter(torch.tensor(0.25))
        self.tolerance = nn.Parameter(torch.tensor(1.0))
        self.tolerance_slope = nn.Parameter(torch.tensor(0.12))
        self.channels = channels

    def forward(
        self,
        matches: Hypotheses,
        variance: Float[Tensor, "b n"],
        centers: Float[Tensor, "b n 2"],
        coarse: Float[Tensor, "b c h w"],
        kept_ratio: float,
    ) -> ReliableMatches:
        """The most reliable hypotheses, `kept_ratio` times as many as there are patches."""
        n, k = matches.zero_mean_error.shape[1:]
        features = match_features(matches, variance)
        cost = matches.zero_mean_error + COLOR_WEIGHT * matches.color_error
        unary = self.unary(features)[..., 0] - self.cost_weight * torch.log(cost + COST_FLOOR)
        unary = unary - self.displacement_weight * features[..., -1]
        center = centers.repeat_interleave(k, dim=1)
        offset, linear = matches.offset.flatten(1, 2), matches.linear.flatten(1, 2)
        descriptor = read(coarse, (center + offset) / COARSE_STRIDE)
        logits, messages = self.message_passing(unary, center, offset, linear, descriptor[..., : self.channels])
        log_reliability = logits.log_softmax(-1) + self.support_weight * messages.mean(-1)
        log_reliability, best = log_reliability.flatten(1).topk(min(round(kept_ratio * n), n * k))

        def kept(values: Float[Tensor, "b v f"]) -> Float[Tensor, "b w f"]:
            return values.gather(1, best[..., None].expand(-1, -1, values.shape[-1]))

        own = kept(linear.flatten(2)).unflatten(-1, (2, 2))
        return ReliableMatches(
            center=kept(center),
            offset=kept(offset),
            linear=local_similarity(kept(center), kept(offset), own, log_reliability),
            log_reliability=log_reliability,
            color_offset=kept(matches.color_offset.flatten(1, 2)),
            structure_tensor=kept(matches.structure_tensor.flatten(1, 2)),
            features=kept(torch.cat((features, messages), dim=-1).flatten(1, 2)),
            descriptor=kept(descriptor),
        )

    def message_passing(
        self,
        unary: Float[Tensor, "b n k"],
        center: Float[Tensor, "b v 2"],
        offset: Float[Tensor, "b v 2"],
        linear: Float[Tensor, "b v 2 2"],
        descriptor: Float[Tensor, "b v c"],
    ) -> tuple[Float[Tensor, "b n k"], Float[Tensor, "b n k r"]]:
        """Logits and last messages after `MESSAGE_ROUNDS`; a message is the log share of neighbors that agree."""
        n, k = unary.shape[1:]
        affinity = motion_affinity(offset, linear, center, self.tolerance, self.tolerance_slope)
        distance = torch.cdist(center, center) / PATCH
        similarity = descriptor @ descriptor.transpose(1, 2)
        other = 1 - torch.eye(n, device=unary.device).repeat_interleave(k, 0).repeat_interleave(k, 1)
        logits, messages = unary, unary[..., None]
        for i in range(MESSAGE_ROUNDS):
            belief = logits.softmax(-1).flatten(1)
            received = []
            for scale in MESSAGE_SCALES:
                weight = torch.exp(self.similarity_weight[i] * similarity - distance / scale) * other
                agreeing = ((weight * affinity) @ belief[..., None])[..., 0]
                total = (weight @ belief[..., None])[..., 0]
                received.append(torch.log((agreeing + 0.02) / (total + 0.1)).unflatten(-1, (n, k)))
            messages = torch.stack(received, dim=-1)
            logits = unary + messages @ self.message_weight[i]
        return logits, messages
