"""Where each patch of the target may come from: exact photometric search, nothing learned.

The hypotheses of a patch depend on its own pixels and on the source alone, so they are found once per frame pair for
all patches, and no mask can leak. An *offset* points backwards: a patch at x in the target comes from x + offset.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from lpa_cwm.geometry import pixel_centres
from lpa_cwm.sampling import read

PATCH = 8
STRIDE = 2
"""Spacing of the coarse search over the source, in pixels."""
BLOCK = 4
"""Side of the squares of coarse positions of which only the best is kept."""
FURTHER = 0.03
"""Relative rise of the error per pixel of motion: among the chance likenesses of noise a near one is preferred."""
MEAN = 0.1
"""Weight of a patch's means among its low frequencies: light changes them."""
COLOUR = 0.01
"""Weight of the difference of mean colours, which light changes, against that of the shapes."""
FLOOR = 2e-4
"""Mean squared error that counts as none."""
AT_ONCE = 32
"""Patches compared with all positions at a time: their costs fit into a processor's cache."""
LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True, slots=True)
class Matches:
    """For every target patch its k best source positions, best first."""

    offset: Float[Tensor, "b p k 2"]
    """Source position minus target position, in pixels, sub-pixel."""
    shape_error: Float[Tensor, "b p k"]
    """Mean squared difference of the patches after their mean colours are removed."""
    colour_error: Float[Tensor, "b p k"]
    """Mean squared difference of their mean colours."""
    light: Float[Tensor, "b p k 3"]
    """Mean colour of the patch minus that of its place in the source."""
    information: Float[Tensor, "b p k 3"]
    """Mean of the products xx, xy, yy of the source's gradient: which components of the offset are certain."""
    detail: Float[Tensor, "b p"]
    """Variance of the patch's grey values."""

    def at(self, patches: Int[Tensor, "b n"]) -> "Matches":
        """The matches of some patches only."""

        def pick(values: Tensor) -> Tensor:
            index = patches.reshape(*patches.shape, *(1,) * (values.ndim - 2))
            return values.gather(1, index.expand(-1, -1, *values.shape[2:]))

        return Matches(*(pick(getattr(self, name)) for name in self.__slots__))


def patch_centres(hw: tuple[int, int], device: torch.device | None = None) -> Float[Tensor, "p 2"]:
    """Centres of the patches in raster order, in pixels."""
    grid = pixel_centres((hw[0] // PATCH, hw[1] // PATCH), device)
    return rearrange(grid * PATCH, "i j d -> (i j) d")


def smooth_basis(device: torch.device | None = None) -> Float[Tensor, "c 3 8 8"]:
    """Orthonormal low frequencies of a patch: 5x5 of its brightness, 2x2 of both its colours, means at `MEAN`."""
    steps = torch.arange(PATCH, device=device) + 0.5
    waves = torch.stack([torch.cos(math.pi * i * steps / PATCH) for i in range(5)])
    waves = waves / waves.norm(dim=1, keepdim=True)
    colours = torch.tensor([[1.0, 1, 1], [1, 0, -1], [-0.5, 1, -0.5]], device=device)
    colours = colours / colours.norm(dim=1, keepdim=True)
    planes = []
    for colour, order in zip(colours, (5, 2, 2), strict=True):
        for i in range(order):
            for j in range(order):
                wave = torch.outer(waves[i], waves[j]) * (MEAN if i == j == 0 else 1.0)
                planes.append(colour[:, None, None] * wave)
    return torch.stack(planes)


def coarse_search(
    source: Float[Tensor, "b 3 h w"], target: Float[Tensor, "b p 3 8 8"], centres: Float[Tensor, "b p 2"], keep: int
) -> Float[Tensor, "b p k 2"]:
    """Offsets of the `keep` best squares of the source by the low frequencies of the patches."""
    basis = smooth_basis(source.device)
    wanted = torch.einsum("bpcij,dcij->bpd", target, basis)
    found = F.conv2d(source, basis, stride=STRIDE)
    hw = (found.shape[-2] // BLOCK * BLOCK, found.shape[-1] // BLOCK * BLOCK)
    found = found[..., : hw[0], : hw[1]]
    positions = pixel_centres(hw, source.device) * STRIDE + (PATCH - STRIDE) / 2
    # Positions of the same place within their blocks are together, so that block minima are elementwise.
    found = rearrange(found, "b d (i u) (j v) -> b d (u v i j)", u=BLOCK, v=BLOCK)
    positions = rearrange(positions, "(i u) (j v) d -> (u v i j) d", u=BLOCK, v=BLOCK)
    # Squared distances, and the floor, as one product.
    lengths = wanted.square().sum(-1, keepdim=True) + 3 * PATCH**2 * FLOOR
    wanted = torch.cat((-2 * wanted, torch.ones_like(lengths), lengths), dim=-1)
    found = torch.cat((found, found.square().sum(1, keepdim=True), torch.ones_like(found[:, :1])), dim=1)
    parts = zip(wanted.split(AT_ONCE, dim=1), centres.split(AT_ONCE, dim=1), strict=True)
    best = [best_of_blocks(some @ found, places, positions, keep) for some, places in parts]
    return positions[torch.cat(best, dim=1)] - centres[:, :, None]


def best_of_blocks(
    cost: Float[Tensor, "b p s"], centres: Float[Tensor, "b p 2"], positions: Float[Tensor, "s 2"], keep: int
) -> Int[Tensor, "b p k"]:
    """Numbers of the best positions, one for each of the `keep` best blocks; the costs are overwritten."""
    cost *= torch.cdist(centres, positions.expand(len(cost), -1, -1)).mul_(FURTHER).add_(1)
    inner = rearrange(cost, "b p (q s) -> b p q s", q=BLOCK**2)
    least = inner.amin(2)
    blocks = least.topk(min(keep, least.shape[-1]), largest=False).indices
    inner = inner.gather(3, blocks[:, :, None].expand(-1, -1, BLOCK**2, -1)).argmin(2)
    return inner * least.shape[-1] + blocks


def window(image: Float[Tensor, "b c h w"], centre: Float[Tensor, "b p k 2"], side: int) -> Float[Tensor, "b p k c s"]:
    """Bilinear `side` x `side` pixels around points."""
    grid = rearrange(pixel_centres((side, side), image.device) - side / 2, "i j d -> (i j) d")
    points = rearrange(centre[:, :, :, None] + grid, "b p k s d -> b (p k s) d")
    return rearrange(read(image, points), "b (p k s) c -> b p k c s", p=centre.shape[1], k=centre.shape[2])


def nearest_pixel(
    grey: Float[Tensor, "b 3 h w"], patch: Float[Tensor, "b p s"], place: Float[Tensor, "b p k 2"]
) -> Float[Tensor, "b p k 2"]:
    """The best of the nine places a pixel around, by squared error."""
    around = window(grey[:, :1], place, PATCH + 2)[..., 0, :]
    around = rearrange(around, "b p k (i j) -> k (b p) i j", i=PATCH + 2)
    kernel = rearrange(patch, "b p (i j) -> (b p) 1 i j", i=PATCH)
    # The square of the difference without that of the patch, which is the same for all nine.
    error = F.avg_pool2d(around.square(), PATCH, stride=1, divisor_override=1)
    error = error - 2 * F.conv2d(around, kernel, groups=len(kernel))
    error = rearrange(error, "k (b p) i j -> b p k i j", b=len(patch))
    best = error.flatten(-2).argmin(-1)
    return place + torch.stack((best % 3, best // 3), dim=-1) - 1


def newton_step(
    grey: Float[Tensor, "b 3 h w"], patch: Float[Tensor, "b p s"], place: Float[Tensor, "b p k 2"]
) -> Float[Tensor, "b p k 2"]:
    """One Gauss-Newton step of at most a pixel that lowers the error of the mean-free grey patch."""
    value, x, y = window(grey, place, PATCH).unbind(-2)
    value, x, y = (part - part.mean(-1, keepdim=True) for part in (value, x, y))
    error = (patch - patch.mean(-1, keepdim=True))[:, :, None] - value
    # The ridge is the squared noise of the gradients: a blank patch does not move.
    ridge = 1e-4 * PATCH**2
    xx, xy, yy = x.square().sum(-1) + ridge, (x * y).sum(-1), y.square().sum(-1) + ridge
    ex, ey = (x * error).sum(-1), (y * error).sum(-1)
    step = torch.stack((yy * ex - xy * ey, xx * ey - xy * ex), dim=-1) / (xx * yy - xy.square())[..., None]
    return place + step.clamp(-1, 1)


def grey_and_gradient(image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]:
    """Brightness and its central differences along x and y."""
    grey = torch.einsum("bchw,c->bhw", image, image.new_tensor(LUMA))
    padded = F.pad(grey[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    x = (padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]) / 2
    y = (padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]) / 2
    return torch.stack((grey, x, y), dim=1)


def drop_repeats(cost: Float[Tensor, "b p k"], place: Float[Tensor, "b p k 2"]) -> Float[Tensor, "b p k"]:
    """Costs with those of hypotheses within a pixel of a cheaper one raised out of reach."""
    close = torch.cdist(place, place) < 1.0
    rank = torch.arange(place.shape[2], device=place.device)
    cheaper = cost[..., None, :] < cost[..., :, None]
    tied = (cost[..., None, :] == cost[..., :, None]) & (rank[None, :] < rank[:, None])
    return cost + 10.0 * (close & (cheaper | tied)).any(-1)


@torch.no_grad()
def match(
    source: Float[Tensor, "b 3 h w"], target: Float[Tensor, "b 3 h w"], patches: Int[Tensor, "b n"], keep: int = 4
) -> Matches:
    """The `keep` best source positions of the given target patches: low frequencies, then pixels, then sub-pixels."""
    hw = (source.shape[-2], source.shape[-1])
    centres = patch_centres(hw, source.device)[patches]
    pixels = rearrange(target, "b c (i u) (j v) -> b (i j) c u v", u=PATCH, v=PATCH)
    pixels = pixels.gather(1, patches[:, :, None, None, None].expand(-1, -1, 3, PATCH, PATCH))
    offset = coarse_search(source, pixels, centres, keep=3 * keep)
    colour = rearrange(pixels, "b p c u v -> b p c (u v)")
    patch = torch.einsum("bpcs,c->bps", colour, source.new_tensor(LUMA))
    grey = grey_and_gradient(source)
    place = nearest_pixel(grey, patch, centres[:, :, None] + offset)
    for _ in range(2):
        place = newton_step(grey, patch, place)
    return measure(torch.cat((source, grey), dim=1), colour, centres, place, keep)


def measure(
    layers: Float[Tensor, "b 6 h w"],
    colour: Float[Tensor, "b p 3 s"],
    centres: Float[Tensor, "b p 2"],
    place: Float[Tensor, "b p k 2"],
    keep: int,
) -> Matches:
    """Errors and certainty of the best places, read from RGB, brightness and gradient of the source."""
    seen = window(layers, place, PATCH)
    difference = seen[..., :3, :] - colour[:, :, None]
    mean = difference.mean(-1)
    shape_error = difference.square().mean((-2, -1)) - mean.square().mean(-1)
    colour_error = mean.square().mean(-1)
    x, y = seen[..., 4, :], seen[..., 5, :]
    information = torch.stack((x.square().mean(-1), (x * y).mean(-1), y.square().mean(-1)), dim=-1)
    offset = place - centres[:, :, None]
    cost = (shape_error + COLOUR * colour_error + FLOOR) * (1 + FURTHER * offset.norm(dim=-1))
    cost = drop_repeats(cost, place)
    best = cost.argsort(-1)[..., :keep]
    pairs = best[..., None]
    return Matches(
        offset=offset.gather(2, pairs.expand(-1, -1, -1, 2)),
        shape_error=(shape_error + 1.0 * (cost > 5)).gather(2, best),
        colour_error=colour_error.gather(2, best),
        light=-mean.gather(2, pairs.expand(-1, -1, -1, 3)),
        information=information.gather(2, pairs.expand(-1, -1, -1, 3)),
        detail=torch.einsum("bpcs,c->bps", colour, layers.new_tensor(LUMA)).var(-1),
    )
