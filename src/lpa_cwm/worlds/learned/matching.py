"""Where every target patch may come from: correlation of descriptors, then Lucas-Kanade refinement on pixels.

A hypothesis of a patch depends on its own pixels and on the source alone. So all are found once per frame pair, and no
mask can leak. An *offset* is backward flow: a patch at x in the target comes from x + offset in the source.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from lpa_cwm.geometry import HW, constant, patch_centers, pixel_centers, to_continuous_index
from lpa_cwm.worlds.learned.encoder import PATCH, STRIDE, Description

NMS_RADIUS = 6.0
"""Of two matches nearer than this, in pixels, only the better is kept."""
LK_STEPS = 2
DAMPING = 3e-5
LK_REACH = 4.0
"""A refined match further than this from its start, in pixels, is not believed."""


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
        self._kept: dict[Any, Tensor] = {}

    def forward(self, source: Description, target: Description) -> Float[Tensor, "b p s"]:
        """Logits over the source positions."""
        queries = target.aligned * self.log_scale.exp()
        # One more row and column than there are patches, of no probability: even numbers are faster to search.
        keys = rearrange(F.pad(source.patches, (0, 0, 0, 1, 0, 1)), "b i j d -> b d (i j)")
        return torch.baddbmm(self.displacement_prior(source.hw).expand(len(queries), -1, -1), queries, keys)

    def displacement_prior(self, hw: HW) -> Float[Tensor, "1 p s"]:
        """Log-prior of the displacement; kept between calls unless it is being trained."""
        device = self.prior.device
        if self.training:
            return self.log_prior(hw, device)
        # Weights that were loaded in inference mode never change.
        known = hw, device, 0 if self.prior.is_inference() else self.prior._version
        if known not in self._kept:
            # Frames and crops take turns, so two sizes are kept; more would only be the priors of other clips.
            self._kept = dict([*self._kept.items()][-1:]) | {known: self.log_prior(hw, device)}
        return self._kept[known]

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
    lost = (offset - start).abs().amax(-1) > LK_REACH
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
