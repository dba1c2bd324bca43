"""Refinement of block matches: integer search, then Lucas-Kanade steps (Lucas & Kanade 1981) to sub-pixel accuracy.

The hypotheses of a patch depend on its own pixels and on the source only. They are computed once per frame pair for
all patches, and no mask can leak. An *offset* is a backward flow: a patch at x in the target comes from x + offset.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lpa_cwm.geometry import centered_grid, patch_centers
from lpa_cwm.sampling import gather_patches, read
from lpa_cwm.worlds.layered.block_matching import (
    COST_FLOOR,
    PATCH,
    SourceDescriptors,
    coarse_matches,
    displacement_prior,
)

COLOR_WEIGHT = 0.01
"""Weight of the mean color difference, which illumination changes, relative to the zero-mean difference."""
CANDIDATE_RATIO = 3
"""Coarse matches that are refined, per hypothesis that is kept."""
COARSE_KEPT = 6
"""Coarse matches per patch that RANSAC samples from."""
LUCAS_KANADE_STEPS = 2
LUMA = (0.299, 0.587, 0.114)
"""Brightness of RGB (ITU-R BT.601)."""


@dataclass(frozen=True, slots=True)
class Hypotheses:
    """For every target patch the source positions it may come from, best first."""

    offset: Float[Tensor, "b p k 2"]
    """Source position minus target position, in pixels, sub-pixel."""
    linear: Float[Tensor, "b p k 2 2"]
    """Gradient of the offset across the patch: its rotation and scale, minus the identity."""
    displacement: Float[Tensor, "b p k"]
    """Distance in pixels from zero motion, or from the nearest dominant motion."""
    zero_mean_error: Float[Tensor, "b p k"]
    """Zero-mean squared difference per pixel: mean colors are removed first."""
    color_error: Float[Tensor, "b p k"]
    """Squared difference of the mean colors."""
    color_offset: Float[Tensor, "b p k 3"]
    """Mean color of the patch minus mean color at its source position."""
    structure_tensor: Float[Tensor, "b p k 3"]
    """Mean of the gradient products xx, xy, yy (Harris & Stephens 1988): which offset components are certain."""

    @property
    def cost(self) -> Float[Tensor, "b p k"]:
        """The matching cost by which hypotheses are ranked."""
        error = self.zero_mean_error + COLOR_WEIGHT * self.color_error + COST_FLOOR
        return error * displacement_prior(self.displacement)

    def topk(self, keep: int, centers: Float[Tensor, "b p 2"]) -> "Hypotheses":
        """The cheapest hypotheses; duplicates of a cheaper one come last, their error raised by one."""
        duplicate = is_duplicate(self.cost, centers[:, :, None] + self.offset)
        penalized = replace(self, zero_mean_error=self.zero_mean_error + duplicate)
        return penalized.gather(2, penalized.cost.argsort(-1)[..., :keep])

    def concat(self, others: "Hypotheses") -> "Hypotheses":
        """Join the hypotheses of the same patches."""
        return Hypotheses(*(torch.cat((getattr(self, name), getattr(others, name)), dim=2) for name in self.__slots__))

    def gather(self, dim: int, index: Int[Tensor, "b *i"]) -> "Hypotheses":
        """Select by index along the patch (1) or the hypothesis dimension (2)."""

        def pick(values: Tensor) -> Tensor:
            rows = index.reshape(*index.shape, *(1,) * (values.ndim - index.ndim))
            return values.gather(dim, rows.expand(*index.shape, *values.shape[index.ndim :]))

        return Hypotheses(*(pick(getattr(self, name)) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class MatchingFeatures:
    """All of a source that matching reads."""

    layers: Float[Tensor, "b 6 h w"]
    """Colors, brightness and its gradient."""
    descriptors: SourceDescriptors

    @classmethod
    def of(cls, source: Float[Tensor, "b 3 h w"]) -> "MatchingFeatures":
        return cls(torch.cat((source, gray_and_gradient(source)), dim=1), SourceDescriptors.of(source))


@dataclass(frozen=True, slots=True)
class PatchMatches:
    """Result of matching every target patch by itself."""

    hypotheses: Hypotheses
    coarse_offset: Float[Tensor, "b p w 2"]
    """Offsets of the best coarse matches."""
    variance: Float[Tensor, "b p"]
    """Variance of the patch's gray values: how much texture it has."""

    def select(self, patches: Int[Tensor, "b n"]) -> "PatchMatches":
        """The matches of the given patches."""
        batch = torch.arange(len(patches), device=patches.device)[:, None]
        return PatchMatches(
            self.hypotheses.gather(1, patches), self.coarse_offset[batch, patches], self.variance[batch, patches]
        )


def sample_patches(
    image: Float[Tensor, "b c h w"],
    center: Float[Tensor, "b p k 2"],
    linear: Float[Tensor, "b p k 2 2"],
    side: int = PATCH,
) -> Float[Tensor, "b p k c s"]:
    """Bilinear `side` x `side` samples around points, warped by identity plus `linear`."""
    grid = centered_grid(side, image.device)
    points = center[:, :, :, None] + grid + torch.einsum("bpkde,se->bpksd", linear, grid)
    points = rearrange(points, "b p k s d -> b (p k s) d")
    return rearrange(read(image, points), "b (p k s) c -> b p k c s", p=center.shape[1], k=center.shape[2])


def integer_search(
    gray: Float[Tensor, "b 3 h w"],
    patch: Float[Tensor, "b p s"],
    position: Float[Tensor, "b p k 2"],
    linear: Float[Tensor, "b p k 2 2"],
    radius: int,
) -> Float[Tensor, "b p k 2"]:
    """The position of least squared error up to `radius` whole pixels away."""
    side = PATCH + 2 * radius
    around = sample_patches(gray[:, :1], position, linear, side)[..., 0, :]
    around = rearrange(around, "b p k (i j) -> k (b p) i j", i=side)
    kernel = rearrange(patch, "b p (i j) -> (b p) 1 i j", i=PATCH)
    # |a - b|^2 without |a|^2 of the patch, which is the same at all positions.
    error = F.avg_pool2d(around.square(), PATCH, stride=1, divisor_override=1)
    error = error - 2 * F.conv2d(around, kernel, groups=len(kernel))
    error = rearrange(error, "k (b p) i j -> b p k i j", b=len(patch))
    best = error.flatten(-2).argmin(-1)
    step = (torch.stack((best % (2 * radius + 1), best // (2 * radius + 1)), dim=-1) - radius).to(position.dtype)
    return position + step + torch.einsum("bpkde,bpke->bpkd", linear, step)


def lucas_kanade_step(
    gray: Float[Tensor, "b 3 h w"],
    patch: Float[Tensor, "b p s"],
    position: Float[Tensor, "b p k 2"],
    linear: Float[Tensor, "b p k 2 2"],
) -> Float[Tensor, "b p k 2"]:
    """One Gauss-Newton step, at most a pixel per axis, on the squared error of the zero-mean gray patch."""
    value, x, y = sample_patches(gray, position, linear).unbind(-2)
    value, x, y = (part - part.mean(-1, keepdim=True) for part in (value, x, y))
    error = (patch - patch.mean(-1, keepdim=True))[:, :, None] - value
    # The ridge is the squared noise of the gradients: a blank patch does not move.
    ridge = 1e-4 * PATCH**2
    xx, xy, yy = x.square().sum(-1) + ridge, (x * y).sum(-1), y.square().sum(-1) + ridge
    ex, ey = (x * error).sum(-1), (y * error).sum(-1)
    step = torch.stack((yy * ex - xy * ey, xx * ey - xy * ex), dim=-1) / (xx * yy - xy.square())[..., None]
    return position + step.clamp(-1, 1)


def gray_and_gradient(image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]:
    """Brightness and its central differences along x and y."""
    gray = torch.einsum("bchw,c->bhw", image, image.new_tensor(LUMA))
    padded = F.pad(gray[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    x = (padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]) / 2
    y = (padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]) / 2
    return torch.stack((gray, x, y), dim=1)


def is_duplicate(cost: Float[Tensor, "b p k"], position: Float[Tensor, "b p k 2"]) -> Bool[Tensor, "b p k"]:
    """Whether a hypothesis is within a pixel of a cheaper one."""
    close = torch.cdist(position, position) < 1.0
    rank = torch.arange(position.shape[2], device=position.device)
    cheaper = cost[..., None, :] < cost[..., :, None]
    tied = (cost[..., None, :] == cost[..., :, None]) & (rank[None, :] < rank[:, None])
    return (close & (cheaper | tied)).any(-1)


@torch.no_grad()
def match_patches(
    source: MatchingFeatures, target: Float[Tensor, "b 3 h w"], patches: Int[Tensor, "b n"], keep: int
) -> PatchMatches:
    """The `keep` best hypotheses of the given target patches: coarse search, integer search, sub-pixel steps."""
    centers = patch_centers((target.shape[-2], target.shape[-1]), PATCH, target.device)[patches]
    pixels = gather_patches(target, patches, PATCH)
    coarse = coarse_matches(source.descriptors, pixels, centers, CANDIDATE_RATIO * keep)
    refined = refine_matches(source.layers, pixels, centers, centers[:, :, None] + coarse.offset, coarse.linear)
    return PatchMatches(refined.topk(keep, centers), coarse.offset[:, :, :COARSE_KEPT], to_gray(pixels).var(-1))


def to_gray(pixels: Float[Tensor, "b p 3 s"]) -> Float[Tensor, "b p s"]:
    """Brightness of the pixels of patches."""
    return torch.einsum("bpcs,c->bps", pixels, pixels.new_tensor(LUMA))


def refine_matches(
    layers: Float[Tensor, "b 6 h w"],
    pixels: Float[Tensor, "b p 3 s"],
    centers: Float[Tensor, "b p 2"],
    position: Float[Tensor, "b p k 2"],
    linear: Float[Tensor, "b p k 2 2"],
    radius: int = 1,
) -> Hypotheses:
    """Sub-pixel hypotheses up to `radius` pixels around the given positions, with errors and structure tensors."""
    gray = layers[:, 3:]
    patch = to_gray(pixels)
    position = integer_search(gray, patch, position, linear, radius)
    for _ in range(LUCAS_KANADE_STEPS):
        position = lucas_kanade_step(gray, patch, position, linear)
    sampled = sample_patches(layers, position, linear)
    difference = sampled[..., :3, :] - pixels[:, :, None]
    mean = difference.mean(-1)
    x, y = sampled[..., 4, :], sampled[..., 5, :]
    offset = position - centers[:, :, None]
    return Hypotheses(
        offset=offset,
        linear=linear,
        displacement=offset.norm(dim=-1),
        zero_mean_error=difference.square().mean((-2, -1)) - mean.square().mean(-1),
        color_error=mean.square().mean(-1),
        color_offset=-mean,
        structure_tensor=torch.stack((x.square().mean(-1), (x * y).mean(-1), y.square().mean(-1)), dim=-1),
    )
