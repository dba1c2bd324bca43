"""Matches of target patches in the source: block matching, then refinement to sub-pixel accuracy.

Block matching (Jain & Jain 1981) compares every target patch with all source positions. Descriptors are low-order
coefficients of the discrete cosine transform (Ahmed et al. 1974). They are computed at every second pixel of the source
and under several rotations and scales, so that turned and resized patches are found. Matches are refined by integer
search, then by Lucas-Kanade steps (Lucas & Kanade 1981).

The hypotheses of a patch depend on its own pixels and on the source only. They are computed once per frame pair for
all patches, and no mask can leak. An *offset* is a backward flow: a patch at x in the target comes from x + offset.
"""

import math
from dataclasses import dataclass, replace
from functools import cache

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lpa_cwm.geometry import centered_grid, patch_centers, pixel_centers
from lpa_cwm.sampling import gather_patches, read

PATCH = 8
"""Side of a patch in pixels."""
SEARCH_STRIDE = 2
"""Spacing of the search positions in pixels."""
NMS_BLOCK = 4
"""Non-maximum suppression keeps the best position of each square of this many positions a side."""
DISPLACEMENT_PRIOR = 0.2
"""Strength of the log-displacement prior, cost * (1 + 0.2 log(1 + d)).

It breaks ties among noisy matches towards small motion without penalizing large motion.
"""
DC_WEIGHT = 0.1
"""Weight of the mean coefficients, which illumination changes."""
COST_FLOOR = 2e-4
"""Mean squared error that counts as zero."""
ROTATIONS = (32.0, 65.0)
"""Degrees, in both directions."""
SCALE_CHANGES = (-0.25, 0.33)
"""Relative changes of size; rotations and scales between the sampled ones are matched well enough."""
WARP_PENALTY = 0.1
"""Relative rise of the cost of rotated and resized patches, which give chance matches more to choose from."""
CHUNK = 32
"""Patches compared with all positions at a time: their costs fit into a processor's cache."""


@dataclass(frozen=True, slots=True)
class SourceDescriptors:
    """DCT descriptors at all search positions of a source.

    Positions are ordered by their place within an NMS block first and by block second, which makes block minima
    elementwise.
    """

    values: Float[Tensor, "b v d s"]
    """Per warp and position: coefficients, their squared norm, and one (see `coarse_matches`)."""
    position: Float[Tensor, "s 2"]
    """Positions in pixels."""

    @classmethod
    def of(cls, source: Float[Tensor, "b 3 h w"]) -> "SourceDescriptors":
        values = dense_descriptors(source)
        grid = pixel_centers((values.shape[-2], values.shape[-1]), source.device)
        position = grid * SEARCH_STRIDE + (PATCH - SEARCH_STRIDE) / 2
        blocks = {"y": NMS_BLOCK, "x": NMS_BLOCK}
        return cls(
            rearrange(values, "b v d (i y) (j x) -> b v d (y x i j)", **blocks),
            rearrange(position, "(i y) (j x) d -> (y x i j) d", **blocks),
        )


@dataclass(frozen=True, slots=True)
class CoarseMatches:
    """For every patch the best source positions, best first, in whole steps of the search."""

    offset: Float[Tensor, "b p k 2"]
    """Source position minus center of the patch, in pixels."""
    linear: Float[Tensor, "b p k 2 2"]
    """Warp of the patch at that position, minus the identity."""


def dct_basis(device: torch.device | None = None) -> Float[Tensor, "d 3 8 8"]:
    """Orthonormal low-order DCT basis: 5x5 of brightness, 2x2 of two color differences; means scaled by `DC_WEIGHT`."""
    steps = pixel_centers((1, PATCH), device)[0, :, 0]
    waves = torch.stack([torch.cos(math.pi * i * steps / PATCH) for i in range(5)])
    waves = waves / waves.norm(dim=1, keepdim=True)
    colors = torch.tensor([[1.0, 1, 1], [1, 0, -1], [-0.5, 1, -0.5]], device=device)
    colors = colors / colors.norm(dim=1, keepdim=True)
    planes = []
    for color, order in zip(colors, (5, 2, 2), strict=True):
        for i in range(order):
            for j in range(order):
                wave = torch.outer(waves[i], waves[j]) * (DC_WEIGHT if i == j == 0 else 1.0)
                planes.append(color[:, None, None] * wave)
    return torch.stack(planes)


@cache
def search_warps(device: torch.device) -> Float[Tensor, "v 2 2"]:
    """Warps under which patches are searched, minus the identity: none, rotations, scales."""
    angles = [math.radians(sign * degrees) for degrees in ROTATIONS for sign in (1, -1)]
    rotations = ((math.cos(angle) - 1, math.sin(angle)) for angle in angles)
    kinds = [(0.0, 0.0), *rotations, *((change, 0.0) for change in SCALE_CHANGES)]
    return torch.tensor([[[scale, -turn], [turn, scale]] for scale, turn in kinds], device=device)


@cache
def warped_basis(device: torch.device) -> Float[Tensor, "v d 3 16 16"]:
    """Convolution kernels: `dct_basis` of the source warped by each of `search_warps`."""
    side = 2 * PATCH
    grid = centered_grid(PATCH, device)
    position = grid + torch.einsum("vde,se->vsd", search_warps(device), grid)
    # Bilinear sampling is a weighted sum of pixels, so it can be part of the kernel.
    weight = (1 - (position[:, :, None] - centered_grid(side, device)).abs()).clamp(min=0).prod(-1)
    kernels = torch.einsum("dcs,vsp->vdcp", dct_basis(device).flatten(2), weight)
    return kernels.unflatten(-1, (side, side))


@torch.no_grad()
def dense_descriptors(source: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b v d i j"]:
    """DCT coefficients at all positions under every warp, with their squared norm and a one appended."""
    kernels = warped_basis(source.device)
    padded = F.pad(source, (PATCH // 2,) * 4, mode="replicate")
    values = F.conv2d(padded, kernels.flatten(0, 1), stride=SEARCH_STRIDE).unflatten(1, kernels.shape[:2])
    values = values[..., : values.shape[-2] // NMS_BLOCK * NMS_BLOCK, : values.shape[-1] // NMS_BLOCK * NMS_BLOCK]
    values = torch.cat((values, values.square().sum(2, keepdim=True), torch.ones_like(values[:, :, :1])), dim=2)
    penalty = 1 + WARP_PENALTY * (torch.arange(len(kernels), device=source.device) > 0)
    return values * penalty[:, None, None, None]


def coarse_matches(
    source: SourceDescriptors, pixels: Float[Tensor, "b p 3 s"], centers: Float[Tensor, "b p 2"], keep: int
) -> CoarseMatches:
    """The `keep` best positions of each patch."""
    values, positions = source.values, source.position
    # |a - b|^2 + floor = [-2a, 1, |a|^2 + floor] . [b, |b|^2, 1]: all costs are one matrix product.
    query = torch.einsum("bpcs,dcs->bpd", pixels, dct_basis(values.device).flatten(2))
    norms = query.square().sum(-1, keepdim=True) + 3 * PATCH**2 * COST_FLOOR
    query = torch.cat((-2 * query, torch.ones_like(norms), norms), dim=-1)
    best = []
    for part, places in zip(query.split(CHUNK, dim=1), centers.split(CHUNK, dim=1), strict=True):
        cost = part @ values[:, 0]
        for warped in values[:, 1:].unbind(1):
            torch.minimum(cost, part @ warped, out=cost)
        distance = torch.cdist(places, positions.expand(len(values), -1, -1))
        best.append(nms_topk(cost * displacement_prior(distance), keep))
    index = torch.cat(best, dim=1)
    return CoarseMatches(positions[index] - centers[:, :, None], best_warp(query, values, index))


def displacement_prior(distance: Tensor) -> Tensor:
    """Factor on the matching cost at this distance in pixels."""
    return 1 + DISPLACEMENT_PRIOR * distance.log1p()


def nms_topk(cost: Float[Tensor, "b p s"], keep: int) -> Int[Tensor, "b p k"]:
    """Indices of the best positions, at most one per block: top-k after non-maximum suppression."""
    inner = rearrange(cost, "b p (q s) -> b p q s", q=NMS_BLOCK**2)
    least = inner.amin(2)
    blocks = least.topk(min(keep, least.shape[-1]), largest=False).indices
    inner = inner.gather(3, blocks[:, :, None].expand(-1, -1, NMS_BLOCK**2, -1)).argmin(2)
    return inner * least.shape[-1] + blocks


def best_warp(
    query: Float[Tensor, "b p d"], values: Float[Tensor, "b v d s"], best: Int[Tensor, "b p k"]
) -> Float[Tensor, "b p k 2 2"]:
    """The warp of least cost at each of the given positions."""
    there = values.gather(3, best.flatten(1)[:, None, None].expand(-1, *values.shape[1:3], -1))
    there = there.unflatten(3, best.shape[1:])
    return search_warps(values.device)[torch.einsum("bpd,bvdpk->bvpk", query, there).argmin(1)]


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
