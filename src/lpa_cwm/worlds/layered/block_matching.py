"""Block matching (Jain & Jain 1981) of target patches against all source positions, in a truncated DCT basis.

Descriptors are low-order coefficients of the discrete cosine transform (Ahmed et al. 1974). They are computed at every
second pixel of the source and under several rotations and scales, so that turned and resized patches are found.
"""

import math
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from lpa_cwm.geometry import centered_grid, pixel_centers

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
