"""The score of the published 256x256 unconditional ADM diffusion model (Dhariwal and Nichol, 2021).

The names of the parts are those of the published state dict, so the file is loaded as it is.
"""

import math
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from lpa_cwm.adjudicators.score_models.noise import TIME, deviation
from lpa_cwm.errors import InputError
from lpa_cwm.files import cache_dir
from lpa_cwm.io.checkpoints import check_fit, tensors

FILE = "256x256_diffusion_uncond.pt"
URL = f"https://openaipublic.blob.core.windows.net/diffusion/jul-2021/{FILE}"
EXPECTED = f"the file {URL}"
BYTES = 2_211_383_297
SHA256 = "a37c32fffd316cd494cf3f35b339936debdc1576dad13fe57c42399a5dbc78b1"
TIMESTEP = 999 * TIME
"""What NSG tells the network; it is not rounded to one of the thousand steps of training."""


class Norm(nn.GroupNorm):
    """Group normalization in single precision, whatever the input's."""

    def __init__(self, channels: int) -> None:
        super().__init__(32, channels)

    def forward(self, input: Float[Tensor, "b c *hw"]) -> Float[Tensor, "b c *hw"]:
        return super().forward(input.float()).to(input.dtype)


class Residual(nn.Module):
    """Two convolutions scaled and shifted by the time, optionally after halving or doubling the resolution."""

    def __init__(self, inner: int, outer: int, time: int, resize: nn.Module | None = None) -> None:
        super().__init__()
        self.in_layers = nn.Sequential(Norm(inner), nn.SiLU(), nn.Conv2d(inner, outer, 3, padding=1))
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(time, 2 * outer))
        # The identity stands where training had dropout: the published names count it.
        self.out_layers = nn.Sequential(Norm(outer), nn.SiLU(), nn.Identity(), nn.Conv2d(outer, outer, 3, padding=1))
        self.skip_connection = nn.Identity() if inner == outer else nn.Conv2d(inner, outer, 1)
        self.resize = resize or nn.Identity()

    def forward(self, x: Float[Tensor, "b c h w"], time: Float[Tensor, "1 e"]) -> Float[Tensor, "b c2 h2 w2"]:
        hidden = self.in_layers[2](self.resize(self.in_layers[:2](x)))
        scale, shift = self.emb_layers(time).to(x.dtype)[..., None, None].chunk(2, dim=1)
        hidden = self.out_layers[0](hidden) * (1 + scale) + shift
        return self.skip_connection(self.resize(x)) + self.out_layers[1:](hidden)


class Attention(nn.Module):
    """Self-attention over all positions; channels are ordered head, then query-key-value."""

    def __init__(self, channels: int, head: int) -> None:
        super().__init__()
        self.heads = channels // head
        self.norm = Norm(channels)
        self.qkv = nn.Conv1d(channels, 3 * channels, 1)
        self.proj_out = nn.Conv1d(channels, channels, 1)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        flat = rearrange(x, "b c h w -> b c (h w)")
        query, key, value = rearrange(
            self.qkv(self.norm(flat)), "b (head part c) p -> part b head p c", head=self.heads, part=3
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        return x + self.proj_out(rearrange(mixed, "b head p c -> b (head c) p")).view_as(x)


class Stage(nn.ModuleList):
    """Parts in a row, of which the residual ones are told the time."""

    def forward(self, x: Float[Tensor, "b c h w"], time: Float[Tensor, "1 e"]) -> Float[Tensor, "b c2 h2 w2"]:
        for part in self:
            x = part(x, time) if isinstance(part, Residual) else part(x)
        return x


class UNet(nn.Module):
    """The ADM U-Net: five halvings, attention on the three coarsest grids, noise and variance as output."""

    MULTIPLES = (1, 1, 2, 2, 4, 4)
    ATTENTIVE = 3
    """Levels from this one on have attention."""
    DEPTH = 2
    """Residual parts per level on the way down; one more on the way up."""

    def __init__(self, channels: int = 256, head: int = 64) -> None:
        super().__init__()
        self.channels, self.head = channels, head
        time = 4 * channels
        self.time_embed = nn.Sequential(nn.Linear(channels, time), nn.SiLU(), nn.Linear(time, time))
        self.input_blocks, widths = self.descent(time)
        coarsest = widths[-1]
        self.middle_block = Stage(
            [Residual(coarsest, coarsest, time), Attention(coarsest, head), Residual(coarsest, coarsest, time)]
        )
        self.output_blocks = self.ascent(widths, time)
        self.out = nn.Sequential(Norm(channels), nn.SiLU(), nn.Conv2d(channels, 6, 3, padding=1))

    def mixing(self, inner: int, level: int, time: int) -> list[nn.Module]:
        """A residual part to the level's width, followed by attention where the level has it."""
        outer = self.channels * self.MULTIPLES[level]
        attention = [Attention(outer, self.head)] if level >= self.ATTENTIVE else []
        return [Residual(inner, outer, time), *attention]

    def descent(self, time: int) -> tuple[nn.ModuleList, list[int]]:
        """Stages on the way down, and the width after each."""
        stages = nn.ModuleList([Stage([nn.Conv2d(3, self.channels, 3, padding=1)])])
        widths = [self.channels]
        for level, multiple in enumerate(self.MULTIPLES):
            width = self.channels * multiple
            if level:
                stages.append(Stage([Residual(widths[-1], widths[-1], time, nn.AvgPool2d(2))]))
                widths.append(widths[-1])
            for _ in range(self.DEPTH):
                stages.append(Stage(self.mixing(widths[-1], level, time)))
                widths.append(width)
        return stages, widths

    def ascent(self, widths: list[int], time: int) -> nn.ModuleList:
        """Stages on the way up; each also reads the output of the stage that mirrors it on the way down."""
        stages = nn.ModuleList()
        levels = [level for level in reversed(range(len(self.MULTIPLES))) for _ in range(self.DEPTH + 1)]
        below = widths[-1]
        for (level, following), skip in zip(pairwise([*levels, 0]), reversed(widths), strict=True):
            width = self.channels * self.MULTIPLES[level]
            doubled = [Residual(width, width, time, nn.Upsample(scale_factor=2))] if following < level else []
            stages.append(Stage([*self.mixing(below + skip, level, time), *doubled]))
            below = width
        return stages

    def forward(self, x: Float[Tensor, "b 3 h w"], timestep: float) -> Float[Tensor, "b 6 h w"]:
        time = self.time_embed(embed(timestep, self.channels, x.device)[None])
        hidden = x.to(next(self.input_blocks.parameters()).dtype)
        passed = []
        for stage in self.input_blocks:
            hidden = stage(hidden, time)
            passed.append(hidden)
        hidden = self.middle_block(hidden, time)
        for stage in self.output_blocks:
            hidden = stage(torch.cat((hidden, passed.pop()), dim=1), time)
        return self.out(hidden.float())


def embed(timestep: float, channels: int, device: torch.device) -> Float[Tensor, "channels"]:
    """Cosines, then sines, of the timestep at frequencies from 1 down to nearly 1/10000."""
    steps = torch.arange(channels // 2, device=device) / (channels // 2)
    angles = timestep * torch.exp(-math.log(10_000) * steps)
    return torch.cat((angles.cos(), angles.sin()))


class AdmScore(nn.Module):
    """The score as NSG computes it: no noise is added, and the predicted noise is divided by its deviation."""

    def __init__(self, network: UNet) -> None:
        super().__init__()
        self.network = network.eval().requires_grad_(False)

    def forward(self, frames: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]:
        self.network.to(frames.device)
        noise = self.network(frames, TIMESTEP)[:, :3]
        return -noise / deviation(TIME)


def halve(network: UNet) -> UNet:
    """Inner convolutions in half precision, as published; normalization, time and output stay in single."""
    for trunk in (network.input_blocks, network.middle_block, network.output_blocks):
        for module in trunk.modules():
            if isinstance(module, nn.Conv1d | nn.Conv2d):
                module.half()
    return network


def load(path: Path | None = None, half: bool = False) -> AdmScore:
    """The published weights from a given file or the cache; `half` is for a GPU."""
    path = path or cache_dir() / FILE
    if not path.is_file():
        raise InputError(
            f"The ADM weights are not at {path}; expected {URL} ({BYTES:,} bytes, sha256 {SHA256}); download the file "
            "there, or use the compact score field, which needs no download."
        )
    with torch.device("meta"):
        network = UNet()
    network.load_state_dict(published(path, network), assign=True)
    return AdmScore(halve(network) if half else network)


def published(path: Path, network: UNet) -> dict[str, Tensor]:
    """The state dict in a file, once its names and shapes are known to be the network's."""
    state = tensors(path, EXPECTED)
    check_fit(state, network, path, EXPECTED)
    return state
