"""LPA, the learned physical adjudicator: four encoders, a set transformer, one score per candidate (Eq. 5)."""

from itertools import pairwise

import torch
from einops import rearrange, repeat
from huggingface_hub import PyTorchModelHubMixin
from jaxtyping import Float
from torch import Tensor, nn

from lpa_cwm.adjudicators.features import STATISTICS, CandidateFeatures, compress, extract
from lpa_cwm.types import Candidates, Judgement, Pair

LOCAL, RESPONSE, CONTEXT, SCALAR, TOKEN = 192, 96, 192, 64, 256


def encoder(*channels: int) -> nn.Sequential:
    """Stride-2 convolutions with GroupNorm and GELU, averaged over space."""
    blocks = [
        layer
        for before, after in pairwise(channels)
        for layer in (nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GroupNorm(8, after), nn.GELU())
    ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class LPA(nn.Module, PyTorchModelHubMixin, library_name="lpa-cwm", license="apache-2.0"):
    """The network of the paper's appendix, 3,000,257 parameters; `interaction` and `visual` are its ablations.

    With `sight`, which the paper has not, it also says whether the point can be seen at all: 33,537 parameters more.
    """

    def __init__(
        self, interaction: bool = True, visual: bool = True, sight: bool = False, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.interaction, self.visual = interaction, visual
        self.response = encoder(1, 16, 32, 64, RESPONSE)
        if visual:
            self.local = encoder(10, 32, 64, 128, LOCAL)
            self.context = encoder(6, 32, 64, 128, CONTEXT)
        hidden = nn.Linear(STATISTICS, SCALAR), nn.GELU(), nn.Linear(SCALAR, SCALAR)
        self.scalar = nn.Sequential(*hidden, nn.GELU(), nn.LayerNorm(SCALAR))
        width = RESPONSE + SCALAR + (LOCAL + CONTEXT if visual else 0)
        self.token = nn.Sequential(nn.Linear(width, TOKEN), nn.LayerNorm(TOKEN), nn.GELU())
        self.interact = set_encoder(dropout) if interaction else nn.Identity()
        self.head = verdict()
        self.sight = blind() if sight else None
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.zeros(STATISTICS))
        self.register_buffer("std", torch.ones(STATISTICS))

    def logits(
        self,
        local: Float[Tensor, "n m 10 32 32"],
        response: Float[Tensor, "n m 1 32 32"],
        context: Float[Tensor, "n 6 64 64"],
        statistics: Float[Tensor, "n m 16"],
    ) -> tuple[Float[Tensor, "n m"], Float[Tensor, "n"]]:
        """Logits of the candidates, and the logarithm of the visibility factor.

        There is one context per query, so that queries of different pairs may share a batch.
        """
        n, m = statistics.shape[:2]
        scalar = (compress(statistics) - self.mean) / self.std
        parts = [self.response(rearrange(response, "n m c h w -> (n m) c h w")), self.scalar(scalar.flatten(0, 1))]
        if self.visual:
            shared = repeat(self.context(context), "n d -> (n m) d", m=m)
            parts = [self.local(rearrange(local, "n m c h w -> (n m) c h w")), *parts, shared]
        tokens = self.interact(rearrange(self.token(torch.cat(parts, dim=1)), "(n m) d -> n m d", n=n))
        scores = self.head(tokens)[..., 0]
        return scores, scores.new_zeros(n) if self.sight is None else self.sight(tokens)[..., 0].mean(1)

    def judge(self, features: CandidateFeatures) -> Judgement:
        """Weights and visibility from the features of one pair's candidates."""
        context = features.context.expand(len(features.statistics), -1, -1, -1)
        return to_judgement(*self.logits(features.local, features.response, context, features.statistics))

    def forward(self, pair: Pair, candidates: Candidates) -> Judgement:
        """Judge the candidates of a frame pair."""
        return self.judge(extract(pair, candidates))


def to_judgement(logits: Float[Tensor, "n m"], log_visibility: Float[Tensor, "n"]) -> Judgement:
    """Softmax of the logits (Eq. 5), and the visibility factor, which the paper does not have."""
    return Judgement(logits.softmax(1), log_visibility.exp())


def verdict() -> nn.Sequential:
    """From a token to one number."""
    return nn.Sequential(nn.LayerNorm(TOKEN), nn.Linear(TOKEN, 128), nn.GELU(), nn.Linear(128, 1))


def blind() -> nn.Sequential:
    """A head that does not yet change any strength."""
    head = verdict()
    for parameter in head[-1].parameters():
        nn.init.zeros_(parameter)
    return head


def set_encoder(dropout: float) -> nn.TransformerEncoder:
    """Four pre-normalized layers without any position, so that permuting candidates permutes their outputs."""
    layer = nn.TransformerEncoderLayer(
        TOKEN, nhead=8, dim_feedforward=512, dropout=dropout, activation="gelu", batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, num_layers=4, enable_nested_tensor=False)
