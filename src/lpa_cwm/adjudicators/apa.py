"""Adjudicators without training: Uniform, and APA's weights from the normalized spatiotemporal gradient (Eq. 3-4).

APA compares the change between frames with the gradient of the log-density of images (Song et al., 2021), which a score
model computes. One score model is the published 256x256 unconditional ADM diffusion model (Dhariwal and Nichol, 2021);
the names of its parts are those of the published state dict, so the file is loaded as it is. The compact model is
bundled. Both are evaluated at NSG's noise level: a variance-preserving diffusion at a very early time.
"""

import math
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from lpa_cwm.files import bundled_weights
from lpa_cwm.geometry import index_of
from lpa_cwm.io.safe_load import check_state_dict, load_state_dict, load_weights
from lpa_cwm.protocols import ScoreModel
from lpa_cwm.types import Candidates, Judgement, Pair


def uniform(pair: Pair, candidates: Candidates) -> Judgement:
    """The same weight for each of the M candidates."""
    return Judgement.of(torch.full_like(candidates.peak[..., 0], 1 / candidates.peak.shape[1]))


SIZE = 224
"""Side in pixels of the frames at which the score is evaluated."""


class APA:
    """Weights candidates by how well the image score explains the observed change near their peaks; untrained."""

    def __init__(
        self,
        score: ScoreModel,
        radius: int = 6,
        stabilizer: float = 1e-6,
        low: float = 1e-3,
        high: float = 1e3,
    ) -> None:
        """`low` and `high` bound a candidate's mean gradient over a disc of `radius` pixels around its peak."""
        self.score = score
        self.offsets = disc(radius)
        self.stabilizer = stabilizer
        self.low, self.high = low, high

    def __call__(self, pair: Pair, candidates: Candidates) -> Judgement:
        gradient = self.gradient(pair)[None, None]
        aligned = F.interpolate(gradient, candidates.response.hw, mode="bilinear", align_corners=False)[0, 0]
        means = mean_around(aligned, candidates.peak.cpu(), self.offsets).clamp(self.low, self.high)
        weights = (means / means.sum(dim=-1, keepdim=True)).to(candidates.peak)
        return Judgement(weights, torch.ones_like(weights[:, 0]))

    def gradient(self, pair: Pair) -> Float[Tensor, "s s"]:
        """The map P of Eq. 3 on the score's grid."""
        # The inner product cancels and P spans eight decades: float64, and on the CPU because not every device has it.
        score = self.score_of(pair).cpu().double()
        change = (to_score_frame(pair.target) - to_score_frame(pair.source)).cpu().double()
        return score.norm(dim=0) / ((score * change).sum(dim=0).abs() + self.stabilizer)

    @torch.no_grad()
    def score_of(self, pair: Pair) -> Float[Tensor, "3 s s"]:
        """The score of the source, computed once for all targets and queries."""
        if self not in pair.derived:
            pair.derived[self] = self.score(to_score_frame(pair.source)[None])[0]
        return pair.derived[self]


def to_score_frame(frame: Float[Tensor, "3 h w"]) -> Float[Tensor, "3 s s"]:
    """From [0, 1] at working size to [-1, 1] at the score's, by antialiased bilinear interpolation."""
    resized = F.interpolate(frame[None], size=(SIZE, SIZE), mode="bilinear", antialias=True, align_corners=False)
    return 2 * resized[0] - 1


def disc(radius: int) -> Int[Tensor, "k 2"]:
    """Offsets (column, row) within the Euclidean distance `radius`."""
    reach = torch.arange(-radius, radius + 1)
    offsets = torch.cartesian_prod(reach, reach)
    return offsets[(offsets**2).sum(dim=-1) <= radius**2]


def mean_around(
    image: Float[Tensor, "h w"], xy: Float[Tensor, "*b 2"], offsets: Int[Tensor, "k 2"]
) -> Float[Tensor, "*b"]:
    """Mean of the image over the offsets around the pixel of each point; pixels outside the image do not count."""
    height, width = image.shape
    column, row = (index_of(xy, (height, width)).unsqueeze(-2) + offsets).unbind(dim=-1)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    values = image[row.clamp(0, height - 1), column.clamp(0, width - 1)]
    return (values * inside).sum(dim=-1) / inside.sum(dim=-1)


TIME = 0.006
"""Diffusion time (t_s), between 0 (image) and 1 (noise)."""
BETA_MIN, BETA_MAX = 0.1, 20.0
"""Noise rate at times 0 and 1; it grows linearly between them."""


def noise_std(time: float) -> float:
    """Standard deviation of the noise at a diffusion time, for images in [-1, 1]."""
    accumulated = BETA_MIN * time + (BETA_MAX - BETA_MIN) * time**2 / 2
    return math.sqrt(-math.expm1(-accumulated))


EXPECTED = "the published 256x256 unconditional ADM model; run `lpa-cwm data fetch adm`"
TIMESTEP = 999 * TIME
"""Time that the network is given, as in NSG: not rounded to one of the thousand steps of its training."""


class Fp32GroupNorm(nn.GroupNorm):
    """Group normalization in single precision, whatever the input's."""

    def __init__(self, channels: int) -> None:
        super().__init__(32, channels)

    def forward(self, input: Float[Tensor, "b c *hw"]) -> Float[Tensor, "b c *hw"]:
        return super().forward(input.float()).to(input.dtype)


class AdmResBlock(nn.Module):
    """Two convolutions scaled and shifted by the time, optionally after halving or doubling the resolution."""

    def __init__(self, inner: int, outer: int, time: int, resize: nn.Module | None = None) -> None:
        super().__init__()
        self.in_layers = nn.Sequential(Fp32GroupNorm(inner), nn.SiLU(), nn.Conv2d(inner, outer, 3, padding=1))
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(time, 2 * outer))
        # The identity stands where training had dropout: the published names count it.
        self.out_layers = nn.Sequential(
            Fp32GroupNorm(outer), nn.SiLU(), nn.Identity(), nn.Conv2d(outer, outer, 3, padding=1)
        )
        self.skip_connection = nn.Identity() if inner == outer else nn.Conv2d(inner, outer, 1)
        self.resize = resize or nn.Identity()

    def forward(self, x: Float[Tensor, "b c h w"], time: Float[Tensor, "1 e"]) -> Float[Tensor, "b c2 h2 w2"]:
        hidden = self.in_layers[2](self.resize(self.in_layers[:2](x)))
        scale, shift = self.emb_layers(time).to(x.dtype)[..., None, None].chunk(2, dim=1)
        hidden = self.out_layers[0](hidden) * (1 + scale) + shift
        return self.skip_connection(self.resize(x)) + self.out_layers[1:](hidden)


class AdmAttention(nn.Module):
    """Self-attention over all positions; channels are ordered head, then query-key-value."""

    def __init__(self, channels: int, head: int) -> None:
        super().__init__()
        self.heads = channels // head
        self.norm = Fp32GroupNorm(channels)
        self.qkv = nn.Conv1d(channels, 3 * channels, 1)
        self.proj_out = nn.Conv1d(channels, channels, 1)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        flat = rearrange(x, "b c h w -> b c (h w)")
        query, key, value = rearrange(
            self.qkv(self.norm(flat)), "b (head part c) p -> part b head p c", head=self.heads, part=3
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        return x + self.proj_out(rearrange(mixed, "b head p c -> b (head c) p")).view_as(x)


class TimestepSequential(nn.ModuleList):
    """Modules in sequence; residual blocks also get the time embedding."""

    def forward(self, x: Float[Tensor, "b c h w"], time: Float[Tensor, "1 e"]) -> Float[Tensor, "b c2 h2 w2"]:
        for part in self:
            x = part(x, time) if isinstance(part, AdmResBlock) else part(x)
        return x


class AdmUNet(nn.Module):
    """The ADM U-Net: five halvings, attention on the three coarsest grids, noise and variance as output."""

    MULTIPLES = (1, 1, 2, 2, 4, 4)
    ATTENTIVE = 3
    """Levels from this one on have attention."""
    DEPTH = 2
    """Residual blocks per level on the way down; one more on the way up."""

    def __init__(self, channels: int = 256, head: int = 64) -> None:
        super().__init__()
        self.channels, self.head = channels, head
        time = 4 * channels
        self.time_embed = nn.Sequential(nn.Linear(channels, time), nn.SiLU(), nn.Linear(time, time))
        self.input_blocks, widths = self.descent(time)
        coarsest = widths[-1]
        self.middle_block = TimestepSequential(
            [AdmResBlock(coarsest, coarsest, time), AdmAttention(coarsest, head), AdmResBlock(coarsest, coarsest, time)]
        )
        self.output_blocks = self.ascent(widths, time)
        self.out = nn.Sequential(Fp32GroupNorm(channels), nn.SiLU(), nn.Conv2d(channels, 6, 3, padding=1))

    def mixing(self, inner: int, level: int, time: int) -> list[nn.Module]:
        """A residual part to the level's width, followed by attention where the level has it."""
        outer = self.channels * self.MULTIPLES[level]
        attention = [AdmAttention(outer, self.head)] if level >= self.ATTENTIVE else []
        return [AdmResBlock(inner, outer, time), *attention]

    def descent(self, time: int) -> tuple[nn.ModuleList, list[int]]:
        """Stages on the way down, and the width after each."""
        stages = nn.ModuleList([TimestepSequential([nn.Conv2d(3, self.channels, 3, padding=1)])])
        widths = [self.channels]
        for level, multiple in enumerate(self.MULTIPLES):
            width = self.channels * multiple
            if level:
                stages.append(TimestepSequential([AdmResBlock(widths[-1], widths[-1], time, nn.AvgPool2d(2))]))
                widths.append(widths[-1])
            for _ in range(self.DEPTH):
                stages.append(TimestepSequential(self.mixing(widths[-1], level, time)))
                widths.append(width)
        return stages, widths

    def ascent(self, widths: list[int], time: int) -> nn.ModuleList:
        """Stages on the way up; each also reads the output of the stage that mirrors it on the way down."""
        stages = nn.ModuleList()
        levels = [level for level in reversed(range(len(self.MULTIPLES))) for _ in range(self.DEPTH + 1)]
        below = widths[-1]
        for (level, following), skip in zip(pairwise([*levels, 0]), reversed(widths), strict=True):
            width = self.channels * self.MULTIPLES[level]
            doubled = [AdmResBlock(width, width, time, nn.Upsample(scale_factor=2))] if following < level else []
            stages.append(TimestepSequential([*self.mixing(below + skip, level, time), *doubled]))
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

    def __init__(self, network: AdmUNet) -> None:
        super().__init__()
        self.network = network.eval().requires_grad_(False)

    def forward(self, frames: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]:
        self.network.to(frames.device)
        noise = self.network(frames, TIMESTEP)[:, :3]
        return -noise / noise_std(TIME)


def to_half(network: AdmUNet) -> AdmUNet:
    """Inner convolutions in half precision, as published; normalization, time and output stay in single."""
    for trunk in (network.input_blocks, network.middle_block, network.output_blocks):
        for module in trunk.modules():
            if isinstance(module, nn.Conv1d | nn.Conv2d):
                module.half()
    return network


def load_adm(path: Path, half: bool = False) -> AdmScore:
    """The score of a file of published weights; `half` is for a GPU."""
    with torch.device("meta"):
        network = AdmUNet()
    network.load_state_dict(load_published_state(path, network), assign=True)
    # The file's tensors are taken as they are, and some copies store them in half precision.
    network.float()
    return AdmScore(to_half(network) if half else network).eval()


def load_published_state(path: Path, network: AdmUNet) -> dict[str, Tensor]:
    """The state dict in a file, once its names and shapes are known to be the network's."""
    state = load_state_dict(path, EXPECTED)
    check_state_dict(state, network, path, EXPECTED)
    return state


FILE = "score-compact.safetensors"
SIGMA = noise_std(TIME)


class DenoiserBlock(nn.Module):
    """Residual block of two convolutions (He et al., 2016), without normalization."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        # Zero initialization makes a block start as the identity: high learning rates without normalization.
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        return x + self.second(F.relu(self.first(x)))


class NoisePredictor(nn.Module):
    """From noisy frames in [-1, 1] of even sides to their noise, in units of its deviation."""

    def __init__(self, channels: int = 64, blocks: int = 5) -> None:
        super().__init__()
        # Work on the grid of 2x2 pixels: a quarter of the cost and twice the reach.
        self.enter = nn.Conv2d(12, channels, 3, padding=1)
        self.blocks = nn.Sequential(*(DenoiserBlock(channels) for _ in range(blocks)))
        self.leave = nn.Conv2d(channels, 12, 3, padding=1)

    def forward(self, frames: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]:
        hidden = self.blocks(self.enter(F.pixel_unshuffle(frames, 2)))
        return F.pixel_shuffle(self.leave(hidden), 2)


class CompactScore(nn.Module):
    """Tweedie: the score is (denoised - frames) / sigma^2, that is, minus the predicted noise over sigma."""

    def __init__(self, network: NoisePredictor) -> None:
        super().__init__()
        self.network = network.eval().requires_grad_(False)

    def forward(self, frames: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]:
        return -self.network.to(frames.device)(frames) / SIGMA


def load_compact_score(path: Path | None = None) -> CompactScore:
    """The bundled weights, or those of a file."""
    path = path or bundled_weights(FILE)
    network = NoisePredictor()
    load_weights(
        network, path, "a file of weights of the compact score model", "give a file that `lpa-cwm train score` wrote"
    )
    return CompactScore(network).eval()
