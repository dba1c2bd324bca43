"""LPA, the learned physical adjudicator: four encoders, a set transformer, one logit per candidate (Eq. 5)."""

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from einops import rearrange, repeat
from huggingface_hub import PyTorchModelHubMixin
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor, nn

from lpa_cwm.adjudicators.features import STATISTICS, CandidateFeatures, compress, extract
from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write
from lpa_cwm.io.safe_load import check_state_dict, load_safetensors
from lpa_cwm.types import PATH_NAMES, Candidates, Judgement, Pair
from lpa_cwm.validation import parse_json, reading, structure

LOCAL, RESPONSE, CONTEXT, SCALAR, TOKEN = 192, 96, 192, 64, 256
"""Widths of the four encoders and of a candidate's token."""
CACHED = 128
"""Crops whose features fit into the cache of a CPU."""


def conv_encoder(*channels: int) -> nn.Sequential:
    """Stride-2 convolutions with GroupNorm and GELU, averaged over space."""
    blocks = [
        layer
        for before, after in pairwise(channels)
        for layer in (nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GroupNorm(8, after), nn.GELU())
    ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def encode(encoder: nn.Module, crops: Float[Tensor, "n m c h w"]) -> Float[Tensor, "nm d"]:
    """Features of all crops of all queries; on a CPU as many at a time as its cache holds."""
    flat = rearrange(crops, "n m c h w -> (n m) c h w")
    at_once = CACHED if flat.device.type == "cpu" else len(flat)
    return torch.cat([encoder(some) for some in flat.split(at_once)])


class LPA(nn.Module, PyTorchModelHubMixin, library_name="lpa-cwm", license="apache-2.0"):
    """The network of the paper's appendix, 3,000,257 parameters; `interaction` and `visual` are its ablations.

    Two branches are not in the paper. `visibility_head` (33,537 parameters) predicts whether the point is visible.
    `path` (1,536 parameters) adds the statistics of a candidate's path through time to its token.

    Args:
        interaction: Whether candidates attend to each other.
        visual: Whether the network sees crops of the frames, beside responses and statistics.
        visibility_head: Whether it predicts a visibility factor.
        dropout: Share of activations dropped in training.
        path: Whether it uses the candidates' paths through time.

    Examples:
        >>> from lpa_cwm.registry import load_adjudicator
        >>> type(load_adjudicator("lpa")).__name__
        'LPA'
    """

    def __init__(
        self,
        interaction: bool = True,
        visual: bool = True,
        visibility_head: bool = False,
        dropout: float = 0.1,
        path: bool = False,
    ) -> None:
        super().__init__()
        self.interaction, self.visual = interaction, visual
        self.response_encoder = conv_encoder(1, 16, 32, 64, RESPONSE)
        if visual:
            self.local_encoder = conv_encoder(10, 32, 64, 128, LOCAL)
            self.context_encoder = conv_encoder(6, 32, 64, 128, CONTEXT)
        hidden = nn.Linear(STATISTICS, SCALAR), nn.GELU(), nn.Linear(SCALAR, SCALAR)
        self.statistics_encoder = nn.Sequential(*hidden, nn.GELU(), nn.LayerNorm(SCALAR))
        width = RESPONSE + SCALAR + (LOCAL + CONTEXT if visual else 0)
        self.token = nn.Sequential(nn.Linear(width, TOKEN), nn.LayerNorm(TOKEN), nn.GELU())
        self.set_encoder = set_encoder(dropout) if interaction else nn.Identity()
        self.scoring_head = scoring_head()
        self.visibility_head = zero_init_head() if visibility_head else None
        self.path_encoder = zero_init_path() if path else None
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.zeros(STATISTICS))
        self.register_buffer("std", torch.ones(STATISTICS))

    @property
    def architecture(self) -> dict[str, bool]:
        """Constructor arguments that decide which tensors the network has."""
        head = self.visibility_head is not None
        # Left out where it is not used: files from before it existed are the same.
        path = {"path": True} if self.path_encoder is not None else {}
        return {"interaction": self.interaction, "visual": self.visual, "visibility_head": head, **path}

    @property
    def networks(self) -> tuple[nn.Module, ...]:
        """Networks that may compute in half precision."""
        visual = (self.local_encoder, self.context_encoder) if self.visual else ()
        return *visual, self.response_encoder, self.set_encoder

    def logits(
        self,
        local: Float[Tensor, "n m 10 32 32"],
        response: Float[Tensor, "n m 1 32 32"],
        context: Float[Tensor, "k 6 64 64"],
        statistics: Float[Tensor, "n m s"],
    ) -> tuple[Float[Tensor, "n m"], Float[Tensor, "n"]]:
        """Logits of the candidates, and the logarithm of the visibility factor.

        There is one context for all queries, or one per query if they are of different pairs.
        """
        n, m = statistics.shape[:2]
        own, path = statistics[..., :STATISTICS], statistics[..., STATISTICS:]
        scalar = (compress(own) - self.mean) / self.std
        parts = [
            encode(self.response_encoder, response),
            self.statistics_encoder(scalar.flatten(0, 1)),
        ]
        if self.visual:
            shared = repeat(self.context_encoder(context).expand(n, -1), "n d -> (n m) d", m=m)
            parts = [encode(self.local_encoder, local), *parts, shared]
        tokens = rearrange(self.token(torch.cat(parts, dim=1)), "(n m) d -> n m d", n=n)
        if self.path_encoder is not None:
            tokens = tokens + self.path_encoder(path)
        tokens = self.set_encoder(tokens)
        logits = self.scoring_head(tokens)[..., 0]
        if self.visibility_head is None:
            return logits, logits.new_zeros(n)
        return logits, self.visibility_head(tokens)[..., 0].mean(1)

    def predict(self, features: CandidateFeatures) -> Judgement:
        """Weights and visibility from the features of one pair's candidates."""
        return to_judgement(
            *self.logits(features.local, features.response, features.context[None], features.statistics)
        )

    def forward(self, pair: Pair, candidates: Candidates) -> Judgement:
        """Judge the candidates of a frame pair.

        Args:
            pair: The frames and points.
            candidates: Their responses.
        """
        return self.predict(extract(pair, candidates))


def to_judgement(logits: Float[Tensor, "n m"], log_visibility: Float[Tensor, "n"]) -> Judgement:
    """Softmax of the logits (Eq. 5), and the visibility factor, which the paper does not have."""
    return Judgement(logits.softmax(1), log_visibility.exp())


def scoring_head() -> nn.Sequential:
    """From a token to one number."""
    return nn.Sequential(nn.LayerNorm(TOKEN), nn.Linear(TOKEN, 128), nn.GELU(), nn.Linear(128, 1))


def zero_init_head() -> nn.Sequential:
    """Zero-initialized head: the visibility factor starts at 1."""
    head = scoring_head()
    for parameter in head[-1].parameters():
        nn.init.zeros_(parameter)
    return head


def zero_init_path() -> nn.Linear:
    """Zero-initialized layer: paths change nothing at first."""
    layer = nn.Linear(len(PATH_NAMES), TOKEN)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def set_encoder(dropout: float) -> nn.TransformerEncoder:
    """Set transformer (Lee et al., 2019): four pre-norm layers without positions, equivariant to permutations."""
    layer = nn.TransformerEncoderLayer(
        TOKEN, nhead=8, dim_feedforward=512, dropout=dropout, activation="gelu", batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, num_layers=4, enable_nested_tensor=False)


def save_lpa(
    path: Path, architecture: Mapping[str, bool], state: Mapping[str, Tensor], provenance: Mapping[str, Any]
) -> None:
    """Write weights with the constructor arguments of their network and where they come from."""
    # One entry: safetensors writes several in an order of its own, and equal weights must give equal files.
    about = json.dumps({"architecture": dict(architecture), **provenance})
    with atomic_write(path) as temporary:
        save_file({name: value.cpu().contiguous() for name, value in state.items()}, temporary, {"about": about})


def load_lpa(path: Path) -> LPA:
    """LPA from a file that `save_lpa` wrote."""
    if not path.is_file():
        raise InputError(
            f"There are no LPA weights at {path}; train some with `lpa-cwm train lpa` or use another adjudicator."
        )
    with reading(path, "a file of weights of LPA", "give a file that `lpa-cwm train lpa` wrote"):
        state, metadata = load_safetensors(path)
        architecture = structure(parse_json(metadata["about"])["architecture"], dict[str, bool], "architecture")
        network = LPA(**architecture)
        check_state_dict(state, network, path, "a file of weights of LPA")
        network.load_state_dict(state)
    return network.eval()
