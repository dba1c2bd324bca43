"""Everything that no mask changes: descriptions of single frames, and matches of target patches in the source.

Matches are found by correlation of descriptors, then refined by Lucas-Kanade on pixels. A hypothesis of a patch depends
on its own pixels and on the source alone. So all are found once per frame pair, and no mask can leak. An *offset* is
backward flow: a patch at x in the target comes from x + offset in the source.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from lpa_cwm.geometry import HW, constant, patch_centers, pixel_centers, to_continuous_index

PATCH = 8
"""Side of the patches in which the target is seen or hidden."""
STRIDE = 4
"""Step between described positions of a frame."""
NMS_RADIUS = 6.0
"""Of two matches closer than this, in pixels, only the better is kept."""
LK_STEPS = 2
DAMPING = 3e-5
LK_MAX_SHIFT = 4.0
"""A refined match further than this from its start, in pixels, is rejected."""


@dataclass(frozen=True, slots=True)
class Description:
    """A frame as the network sees it, in the role of source and of target."""

    frame: Float[Tensor, "b 3 h w"]
    patches: Float[Tensor, "b i j d"]
    """Unit descriptors of the 8 x 8 patches whose corners lie on multiples of four pixels; in mere targets eight."""
    context: Float[Tensor, "b i4 j4 c"]
    """What belongs together, on a grid of four pixels; each group of channels has unit length."""
    coarse: Float[Tensor, "b i8 j8 e"]
    """The same, richer, on a grid of eight pixels."""

    @property
    def hw(self) -> HW:
        """Height and width of the frame."""
        return self.frame.shape[-2], self.frame.shape[-1]

    @property
    def aligned(self) -> Float[Tensor, "b p d"]:
        """Descriptors of the patches of the grid, in raster order: the frame in the role of target."""
        step = 2 if self.patches.shape[1] > self.hw[0] // PATCH else 1
        return rearrange(self.patches[:, ::step, ::step], "b i j d -> b (i j) d")

    @classmethod
    def join(cls, parts: "Sequence[Description]") -> "Description":
        """Several descriptions as one batch."""
        return cls(*(torch.cat([getattr(part, entry.name) for part in parts]) for entry in fields(cls)))

    def single(self) -> "list[Description]":
        """The descriptions of single frames."""
        parts = (getattr(self, entry.name).split(1) for entry in fields(self))
        return [Description(*one) for one in zip(*parts, strict=True)]


class ChannelNorm(nn.LayerNorm):
    """Layer normalization (Ba et al. 2016) over the channels of every pixel."""

    def forward(self, input: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class PatchDescriptor(nn.Module):
    """Descriptor of 8 x 8 patches at every fourth or eighth pixel; its receptive field is exactly the patch."""

    def __init__(self, dim: int = 64, width: int = 128) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 48, 4, stride=2)
        self.second = nn.Conv2d(48, width, 3, stride=2)
        self.head = nn.Sequential(
            nn.LayerNorm(width, eps=1e-3), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, dim)
        )

    def forward(self, frame: Float[Tensor, "b 3 h w"], step: int = STRIDE) -> Float[Tensor, "b i j d"]:
        hidden = F.relu(self.first(frame * 4 - 2))
        hidden = F.conv2d(hidden, self.second.weight, self.second.bias, stride=step // 2)
        return F.normalize(self.head(F.relu(hidden).permute(0, 2, 3, 1)), dim=-1)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions around a ReLU, added to the input (He et al. 2016)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = ChannelNorm(width)
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        return x + self.second(F.relu(self.first(self.norm(x))))


class ContextEncoder(nn.Module):
    """A small U-Net (Ronneberger et al. 2015) from the frame to features on grids of four and of eight pixels."""

    def __init__(self, context: int, coarse: int, groups: int, widths: tuple[int, ...] = (32, 64, 96, 128)) -> None:
        super().__init__()
        self.groups = groups
        self.stem = nn.Conv2d(3, widths[0], 8, stride=4, padding=2)
        self.blocks = nn.ModuleList(
            nn.Sequential(*(ResidualBlock(width) for _ in range(1 if level in (0, 3) else 2)))
            for level, width in enumerate(widths)
        )
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(nn.Conv2d(low, high, 4, stride=2, padding=1) for low, high in pairs)
        self.up = nn.ModuleList(nn.Conv2d(high, low, 1) for low, high in pairs)
        self.merge = nn.ModuleList(ResidualBlock(low) for low, _ in pairs)
        self.context = nn.Conv2d(widths[0], context, 1)
        self.coarse = nn.Conv2d(widths[1], coarse, 1)

    def forward(self, frame: Float[Tensor, "b 3 h w"]) -> tuple[Float[Tensor, "b i4 j4 c"], Float[Tensor, "b i8 j8 e"]]:
        levels = [self.blocks[0](self.stem(frame * 4 - 2))]
        for down, block in zip(self.down, self.blocks[1:], strict=True):
            levels.append(block(F.relu(down(levels[-1]))))
        for level in (2, 1, 0):
            above = F.interpolate(levels[level + 1], levels[level].shape[-2:], mode="bilinear", align_corners=False)
            levels[level] = self.merge[level](levels[level] + self.up[level](above))
        context = rearrange(self.context(levels[0]), "b (g c) i j -> b i j g c", g=self.groups)
        coarse = self.coarse(levels[1]).permute(0, 2, 3, 1)
        return F.normalize(context, dim=-1).flatten(-2), coarse


@dataclass(frozen=True, slots=True)
class MatchHypotheses:
    """For every target patch the best matches in the source."""

    offset: Float[Tensor, "b p k 2"]
    log_prob: Float[Tensor, "b p k"]
    """Of the match among the best source positions of all squares of eight pixels."""
    residual: Float[Tensor, "b p k"]
    """Root-mean-square difference in brightness after refinement, means removed."""
    texture: Float[Tensor, "b p 2"]
    """Square roots of the eigenvalues of the structure tensor, smaller first."""


class Correlation(nn.Module):
    """Log-probability of every source position for every target patch: scaled cosine plus a displacement prior."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(2.7))
        self.prior = nn.Parameter(torch.tensor([0.5, 2.0]))
        """Exponent, and logarithm of the radius in pixels, of a heavy-tailed (Cauchy-like) prior."""
        self._priors: dict[Any, Tensor] = {}

    def forward(
        self, source: Description, target: Description, patches: Int[Tensor, "b u"] | None = None
    ) -> Float[Tensor, "b u s"]:
        """Logits over the source positions, of all target patches or of these."""
        queries, prior = target.aligned * self.log_scale.exp(), self.displacement_prior(source.hw)
        if patches is None:
            prior = prior.expand(len(queries), -1, -1)
        else:
            queries, prior = queries.gather(1, patches[..., None].expand(-1, -1, queries.shape[2])), prior[0][patches]
        # One more row and column than there are patches, of no probability: even numbers are faster to search.
        keys = rearrange(F.pad(source.patches, (0, 0, 0, 1, 0, 1)), "b i j d -> b d (i j)")
        return torch.baddbmm(prior, queries, keys)

    def displacement_prior(self, hw: HW) -> Float[Tensor, "1 p s"]:
        """Log-prior of the displacement; kept between calls unless it is being trained."""
        device = self.prior.device
        if self.training:
            return self.log_prior(hw, device)
        # Weights that were loaded in inference mode never change.
        known = hw, device, 0 if self.prior.is_inference() else self.prior._version
        if known not in self._priors:
            # Frames and crops take turns, so two sizes are kept; more would only be the priors of other clips.
            self._priors = dict([*self._priors.items()][-1:]) | {known: self.log_prior(hw, device)}
        return self._priors[known]

    def log_prior(self, hw: HW, device: torch.device) -> Float[Tensor, "1 p s"]:
        """Exponent times the logarithm of one plus the squared displacement in radii."""
        offset = position_centers(hw, device)[None] - patch_centers(hw, PATCH, device)[:, None]
        exponent, radius = F.softplus(self.prior[0]), self.prior[1].exp()
        outside = (position_centers(hw, device) > constant((hw[1], hw[0]), torch.long, device) - PATCH / 2).any(-1)
        distance = offset[..., 0].square() + offset[..., 1].square()
        return (-exponent * torch.log1p(distance / radius**2) - 1e4 * outside)[None]


def position_centers(hw: HW, device: torch.device | None = None) -> Float[Tensor, "s 2"]:
    """Centers of the source positions, in raster order; the last of every row and column lies on the border."""
    return rearrange(
        to_continuous_index(pixel_centers((hw[0] // STRIDE, hw[1] // STRIDE), device)) * STRIDE + PATCH / 2,
        "i j d -> (i j) d",
    )


def top_matches(
    logits: Float[Tensor, "b p s"], centers: Float[Tensor, "b p 2"], hw: HW, count: int
) -> tuple[Float[Tensor, "b p k 2"], Float[Tensor, "b p k"]]:
    """Best local maxima by non-maximum suppression, and their log-probability.

    They are moved between the positions by a soft-argmax over their 3 x 3 neighbors.
    """
    rows, columns = hw[0] // STRIDE, hw[1] // STRIDE
    batch, patches = logits.shape[:2]
    flat = logits.flatten(0, 1)
    # Best of every 2 x 2 positions, then the best of these blocks, then only those with no better one nearby.
    upper, lower = flat.view(-1, rows // 2, 2, columns).unbind(2)
    best = torch.maximum(upper, lower)
    best = torch.maximum(best[..., 0::2], best[..., 1::2]).flatten(1)
    across = columns // 2
    score, block = best.topk(3 * count, dim=1)
    row, column = 2 * (block // across), 2 * (block % across)
    places = [(row + i, column + j) for i in (0, 1) for j in (0, 1)]
    within = torch.stack([flat.gather(1, r * columns + c) for r, c in places]).argmax(0)
    row, column = row + within // 2, column + within % 2
    near = ((row[:, :, None] - row[:, None]).abs() < NMS_RADIUS / STRIDE) & (
        (column[:, :, None] - column[:, None]).abs() < NMS_RADIUS / STRIDE
    )
    score = score - 100.0 * near.tril(-1).any(-1)
    score, kept = score.topk(count, dim=1)
    row, column = row.gather(1, kept), column.gather(1, kept)
    around = torch.arange(-1, 2, device=logits.device)
    rows9 = row[:, :, None] + around.repeat_interleave(3)
    columns9 = column[:, :, None] + around.repeat(3)
    outside = (rows9 < 0) | (columns9 < 0) | (rows9 >= rows) | (columns9 >= columns)
    index = rows9.clamp(0, rows - 1) * columns + columns9.clamp(0, columns - 1)
    values = flat.gather(1, index.flatten(1)).view(index.shape)
    share = values.masked_fill(outside, -1e4).softmax(-1)
    place = torch.stack(((columns9 * share).sum(-1), (rows9 * share).sum(-1)), dim=-1) * STRIDE + PATCH / 2
    log_prob = score - best.logsumexp(1, keepdim=True)
    offset = place.view(batch, patches, count, 2) - centers[:, :, None]
    return offset, log_prob.view(batch, patches, count)


def lucas_kanade(
    source: Float[Tensor, "b 3 h w"],
    pixels: Float[Tensor, "b p 3 8 8"],
    centers: Float[Tensor, "b p 2"],
    offset: Float[Tensor, "b p k 2"],
) -> tuple[Float[Tensor, "b p k 2"], Float[Tensor, "b p k"], Float[Tensor, "b p 2"]]:
    """Refine offsets by inverse-compositional Lucas-Kanade (Baker and Matthews 2004) on 8 x 8 gray patches.

    Returns the offsets, the residual difference, and the square roots of the structure tensor's eigenvalues.
    """
    hw, area = (source.shape[-2], source.shape[-1]), PATCH**2
    pixels = pixels.mean(2)
    dy, dx = (
        (slope - slope.mean((-2, -1), keepdim=True)).flatten(-2) for slope in torch.gradient(pixels, dim=(-2, -1))
    )
    xx, yy, xy = ((first * second).mean(-1) for first, second in ((dx, dx), (dy, dy), (dx, dy)))
    root = ((xx - yy).square() + 4 * xy.square()).sqrt()
    texture = torch.stack(((xx + yy - root) / 2, (xx + yy + root) / 2), dim=-1).clamp(min=0).sqrt()
    # Damping keeps the step small along directions without texture.
    xx, yy = xx + DAMPING, yy + DAMPING
    scale = (1 / (area * (xx * yy - xy * xy)))[..., None]
    gain = torch.stack((yy[..., None] * dx - xy[..., None] * dy, xx[..., None] * dy - xy[..., None] * dx), dim=-1)
    gain = gain * scale[..., None]
    template = (pixels - pixels.mean((-2, -1), keepdim=True)).flatten(-2)[:, :, None]
    image, start = source.mean(1).flatten(), offset
    for _ in range(LK_STEPS):
        error = sample_patches(image, hw, centers[:, :, None] + offset) - template
        offset = offset - (error @ gain).clamp(-2, 2)
    error = sample_patches(image, hw, centers[:, :, None] + offset) - template
    lost = (offset - start).abs().amax(-1) > LK_MAX_SHIFT
    offset = torch.where(lost[..., None], start, offset)
    return offset, (error.square().mean(-1) + 0.05 * lost).sqrt(), texture


def sample_patches(image: Float[Tensor, "s"], hw: HW, centers: Float[Tensor, "b p k 2"]) -> Float[Tensor, "b p k t"]:
    """Bilinear 8 x 8 patches around points, their mean removed; the border is repeated."""
    # All pixels of a patch have the same fractional position: gather 9 x 9 whole pixels, then blend.
    corner = centers - PATCH / 2
    whole = corner.floor()
    right, down = (corner - whole)[..., None, None].unbind(-3)
    ticks = torch.arange(PATCH + 1, device=image.device)
    x, y = (part[..., None] for part in whole.int().unbind(-1))
    x, y = (x + ticks).clamp(0, hw[1] - 1), (y + ticks).clamp(0, hw[0] - 1) * hw[1]
    start = torch.arange(len(centers), device=image.device).view(-1, 1, 1, 1) * (hw[0] * hw[1])
    index = (y + start)[..., :, None] + x[..., None, :]
    window = image.index_select(0, index.flatten()).view(index.shape)
    wide = torch.lerp(window[..., :-1], window[..., 1:], right)
    patch = torch.lerp(wide[..., :-1, :], wide[..., 1:, :], down).flatten(-2)
    return patch - patch.mean(-1, keepdim=True)


@torch.no_grad()
def match(
    logits: Float[Tensor, "b p s"],
    source: Float[Tensor, "b 3 h w"],
    pixels: Float[Tensor, "b p 3 8 8"],
    centers: Float[Tensor, "b p 2"],
    count: int,
) -> MatchHypotheses:
    """The best matches of patches of the target, refined on pixels."""
    offset, log_prob = top_matches(logits, centers, (source.shape[-2], source.shape[-1]), count)
    offset, residual, texture = lucas_kanade(source, pixels, centers, offset)
    return MatchHypotheses(offset, log_prob, residual, texture)
