"""Places of the source that look like a patch: low frequencies compared everywhere, also turned and stretched."""

import math
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from lpa_cwm.geometry import pixel_centers
from lpa_cwm.worlds.layered.patches import PATCH, patch_grid

STRIDE = 2
"""Spacing of the positions, in pixels."""
BLOCK = 4
"""Side of the squares of positions of which only the best is kept."""
FURTHER = 0.2
"""Relative rise of the error wherever the motion, in pixels and one more, grows by a factor of e.

Among the chance likenesses of noise a near one is preferred, but of two far ones the nearer hardly.
"""
MEAN = 0.1
"""Weight of a patch's means among its low frequencies: light changes them."""
FLOOR = 2e-4
"""Mean squared error that counts as none."""
TURNS = (32.0, 65.0)
"""Degrees, either way."""
GROWTHS = (-0.25, 0.33)
"""With turns and growths half a step away a patch still looks as it would there."""
SHAPED = 0.1
"""Relative rise of the error where a patch is turned or stretched, which gives chance more to choose from."""
AT_ONCE = 32
"""Patches compared with all positions at a time: their costs fit into a processor's cache."""


@dataclass(frozen=True, slots=True)
class Low:
    """Low frequencies of a source at all positions, in an order in which block minima are elementwise.

    First the positions of the same place within their blocks, then the blocks.
    """

    found: Float[Tensor, "b v d s"]
    """In every shape, with all that squared distances need."""
    place: Float[Tensor, "s 2"]
    """The positions in pixels."""

    @classmethod
    def of(cls, source: Float[Tensor, "b 3 h w"]) -> "Low":
        found = describe(source)
        place = pixel_centers((found.shape[-2], found.shape[-1]), source.device) * STRIDE + (PATCH - STRIDE) / 2
        blocks = {"y": BLOCK, "x": BLOCK}
        return cls(
            rearrange(found, "b v d (i y) (j x) -> b v d (y x i j)", **blocks),
            rearrange(place, "(i y) (j x) d -> (y x i j) d", **blocks),
        )


@dataclass(frozen=True, slots=True)
class Likenesses:
    """For every patch some places that look alike, best first, in whole steps of the search."""

    offset: Float[Tensor, "b p k 2"]
    """Place minus center of the patch, in pixels."""
    linear: Float[Tensor, "b p k 2 2"]
    """How the patch is turned and stretched there, less the identity."""


def smooth_basis(device: torch.device | None = None) -> Float[Tensor, "d 3 8 8"]:
    """Orthonormal low frequencies of a patch: 5x5 of its brightness, 2x2 of both its colors, means at `MEAN`."""
    steps = torch.arange(PATCH, device=device) + 0.5
    waves = torch.stack([torch.cos(math.pi * i * steps / PATCH) for i in range(5)])
    waves = waves / waves.norm(dim=1, keepdim=True)
    colors = torch.tensor([[1.0, 1, 1], [1, 0, -1], [-0.5, 1, -0.5]], device=device)
    colors = colors / colors.norm(dim=1, keepdim=True)
    planes = []
    for color, order in zip(colors, (5, 2, 2), strict=True):
        for i in range(order):
            for j in range(order):
                wave = torch.outer(waves[i], waves[j]) * (MEAN if i == j == 0 else 1.0)
                planes.append(color[:, None, None] * wave)
    return torch.stack(planes)


@cache
def shapes(device: torch.device) -> Float[Tensor, "v 2 2"]:
    """In what shapes a patch is looked for, less the identity: as it is, turned either way, shrunk, grown."""
    angles = [math.radians(sign * turn) for turn in TURNS for sign in (1, -1)]
    turned = ((math.cos(angle) - 1, math.sin(angle)) for angle in angles)
    kinds = [(0.0, 0.0), *turned, *((growth, 0.0) for growth in GROWTHS)]
    return torch.tensor([[[grow, -turn], [turn, grow]] for grow, turn in kinds], device=device)


@cache
def shaped_basis(device: torch.device) -> Float[Tensor, "v d 3 16 16"]:
    """Kernels that give of a source what `smooth_basis` gives of the source turned and stretched."""
    side = 2 * PATCH
    grid = patch_grid(device=device)
    place = grid + torch.einsum("vde,se->vsd", shapes(device), grid)
    # Bilinear reading is a weighted sum of pixels, so it can be part of the kernel.
    weight = (1 - (place[:, :, None] - patch_grid(side, device)).abs()).clamp(min=0).prod(-1)
    kernels = torch.einsum("dcs,vsp->vdcp", smooth_basis(device).flatten(2), weight)
    return kernels.unflatten(-1, (side, side))


@torch.no_grad()
def describe(source: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b v d i j"]:
    """Low frequencies around all positions in every shape, with all that squared distances need."""
    kernels = shaped_basis(source.device)
    around = F.pad(source, (PATCH // 2,) * 4, mode="replicate")
    found = F.conv2d(around, kernels.flatten(0, 1), stride=STRIDE).unflatten(1, kernels.shape[:2])
    found = found[..., : found.shape[-2] // BLOCK * BLOCK, : found.shape[-1] // BLOCK * BLOCK]
    found = torch.cat((found, found.square().sum(2, keepdim=True), torch.ones_like(found[:, :, :1])), dim=2)
    price = 1 + SHAPED * (torch.arange(len(kernels), device=source.device) > 0)
    return found * price[:, None, None, None]


def likenesses(low: Low, pixels: Float[Tensor, "b p 3 s"], centers: Float[Tensor, "b p 2"], keep: int) -> Likenesses:
    """The `keep` best places of each patch."""
    found, positions = low.found, low.place
    # Squared distances, and the floor, as one product.
    wanted = torch.einsum("bpcs,dcs->bpd", pixels, smooth_basis(found.device).flatten(2))
    lengths = wanted.square().sum(-1, keepdim=True) + 3 * PATCH**2 * FLOOR
    wanted = torch.cat((-2 * wanted, torch.ones_like(lengths), lengths), dim=-1)
    best = []
    for some, places in zip(wanted.split(AT_ONCE, dim=1), centers.split(AT_ONCE, dim=1), strict=True):
        cost = some @ found[:, 0]
        for shape in found[:, 1:].unbind(1):
            torch.minimum(cost, some @ shape, out=cost)
        far = torch.cdist(places, positions.expand(len(found), -1, -1))
        best.append(best_of_blocks(cost * dearer(far), keep))
    numbers = torch.cat(best, dim=1)
    return Likenesses(positions[numbers] - centers[:, :, None], shaped(wanted, found, numbers))


def dearer(far: Tensor) -> Tensor:
    """By what an error is multiplied so many pixels away."""
    return 1 + FURTHER * far.log1p()


def best_of_blocks(cost: Float[Tensor, "b p s"], keep: int) -> Int[Tensor, "b p k"]:
    """Numbers of the best positions, one for each of the `keep` best blocks."""
    inner = rearrange(cost, "b p (q s) -> b p q s", q=BLOCK**2)
    least = inner.amin(2)
    blocks = least.topk(min(keep, least.shape[-1]), largest=False).indices
    inner = inner.gather(3, blocks[:, :, None].expand(-1, -1, BLOCK**2, -1)).argmin(2)
    return inner * least.shape[-1] + blocks


def shaped(
    wanted: Float[Tensor, "b p d"], found: Float[Tensor, "b v d s"], best: Int[Tensor, "b p k"]
) -> Float[Tensor, "b p k 2 2"]:
    """The shape in which each patch is most alike at the positions found."""
    there = found.gather(3, best.flatten(1)[:, None, None].expand(-1, *found.shape[1:3], -1))
    there = there.unflatten(3, best.shape[1:])
    return shapes(found.device)[torch.einsum("bpd,bvdpk->bvpk", wanted, there).argmin(1)]
