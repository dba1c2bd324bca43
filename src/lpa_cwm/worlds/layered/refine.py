"""Where each patch of the target may come from: exact photometric search, nothing learned.

The hypotheses of a patch depend on its own pixels and on the source alone, so they are found once per frame pair for
all patches, and no mask can leak. An *offset* points backwards: a patch at x in the target comes from x + offset.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lpa_cwm.sampling import read
from lpa_cwm.worlds.layered.block_matching import FLOOR, Low, dearer, likenesses
from lpa_cwm.worlds.layered.patches import PATCH, patch_centers, patch_grid, pixels_in

COLOUR = 0.01
"""Weight of the difference of mean colors, which light changes, against that of the shapes."""
TRIED = 3
"""Likenesses that are compared pixel by pixel, for each hypothesis that is kept."""
WIDE = 6
"""The best likenesses, which are kept for the search for motions that many patches share."""
LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True, slots=True)
class Matches:
    """For every target patch some source positions it may come from: its hypotheses, best first."""

    offset: Float[Tensor, "b p k 2"]
    """Source position minus target position, in pixels, sub-pixel."""
    linear: Float[Tensor, "b p k 2 2"]
    """Change of the offset across the patch: how it is turned and stretched."""
    away: Float[Tensor, "b p k"]
    """Pixels from rest, or from another motion that many share."""
    shape_error: Float[Tensor, "b p k"]
    """Mean squared difference of the patches after their mean colors are removed."""
    color_error: Float[Tensor, "b p k"]
    """Mean squared difference of their mean colors."""
    light: Float[Tensor, "b p k 3"]
    """Mean color of the patch minus that of its place in the source."""
    information: Float[Tensor, "b p k 3"]
    """Mean of the products xx, xy, yy of the source's gradient: which components of the offset are certain."""

    @property
    def cost(self) -> Float[Tensor, "b p k"]:
        """What the best are chosen by."""
        return (self.shape_error + COLOUR * self.color_error + FLOOR) * dearer(self.away)

    def best(self, keep: int, centers: Float[Tensor, "b p 2"]) -> "Matches":
        """The cheapest, those within a pixel of a cheaper one last and with an error out of reach."""
        repeated = repeats(self.cost, centers[:, :, None] + self.offset)
        told_apart = replace(self, shape_error=self.shape_error + repeated)
        return told_apart.take(2, told_apart.cost.argsort(-1)[..., :keep])

    def beside(self, others: "Matches") -> "Matches":
        """These and others of the same patches."""
        return Matches(*(torch.cat((getattr(self, name), getattr(others, name)), dim=2) for name in self.__slots__))

    def take(self, dim: int, index: Int[Tensor, "b *i"]) -> "Matches":
        """Some along a dimension."""

        def pick(values: Tensor) -> Tensor:
            rows = index.reshape(*index.shape, *(1,) * (values.ndim - index.ndim))
            return values.gather(dim, rows.expand(*index.shape, *values.shape[index.ndim :]))

        return Matches(*(pick(getattr(self, name)) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Ground:
    """What patches are compared with: all of a source that the search for their origins asks."""

    layers: Float[Tensor, "b 6 h w"]
    """Colors, brightness and its gradient."""
    low: Low

    @classmethod
    def of(cls, source: Float[Tensor, "b 3 h w"]) -> "Ground":
        return cls(torch.cat((source, gray_and_gradient(source)), dim=1), Low.of(source))


@dataclass(frozen=True, slots=True)
class Looks:
    """What is known of every target patch from its own pixels and the source."""

    matches: Matches
    likeness: Float[Tensor, "b p w 2"]
    """Offsets of the places that look most alike: whole steps of the coarse search."""
    detail: Float[Tensor, "b p"]
    """Variance of the patch's gray values."""

    def at(self, patches: Int[Tensor, "b n"]) -> "Looks":
        """Those of some patches only."""
        batch = torch.arange(len(patches), device=patches.device)[:, None]
        return Looks(self.matches.take(1, patches), self.likeness[batch, patches], self.detail[batch, patches])


def window(
    image: Float[Tensor, "b c h w"],
    center: Float[Tensor, "b p k 2"],
    linear: Float[Tensor, "b p k 2 2"],
    side: int = PATCH,
) -> Float[Tensor, "b p k c s"]:
    """Bilinear `side` x `side` pixels around points, turned and stretched by identity plus `linear`."""
    grid = patch_grid(side, image.device)
    points = center[:, :, :, None] + grid + torch.einsum("bpkde,se->bpksd", linear, grid)
    points = rearrange(points, "b p k s d -> b (p k s) d")
    return rearrange(read(image, points), "b (p k s) c -> b p k c s", p=center.shape[1], k=center.shape[2])


def nearest_pixel(
    gray: Float[Tensor, "b 3 h w"],
    patch: Float[Tensor, "b p s"],
    place: Float[Tensor, "b p k 2"],
    linear: Float[Tensor, "b p k 2 2"],
    reach: int,
) -> Float[Tensor, "b p k 2"]:
    """The best of the places up to `reach` pixels around, by squared error."""
    side = PATCH + 2 * reach
    around = window(gray[:, :1], place, linear, side)[..., 0, :]
    around = rearrange(around, "b p k (i j) -> k (b p) i j", i=side)
    kernel = rearrange(patch, "b p (i j) -> (b p) 1 i j", i=PATCH)
    # The square of the difference without that of the patch, which is the same for all places.
    error = F.avg_pool2d(around.square(), PATCH, stride=1, divisor_override=1)
    error = error - 2 * F.conv2d(around, kernel, groups=len(kernel))
    error = rearrange(error, "k (b p) i j -> b p k i j", b=len(patch))
    best = error.flatten(-2).argmin(-1)
    step = (torch.stack((best % (2 * reach + 1), best // (2 * reach + 1)), dim=-1) - reach).to(place.dtype)
    return place + step + torch.einsum("bpkde,bpke->bpkd", linear, step)


def newton_step(
    gray: Float[Tensor, "b 3 h w"],
    patch: Float[Tensor, "b p s"],
    place: Float[Tensor, "b p k 2"],
    linear: Float[Tensor, "b p k 2 2"],
) -> Float[Tensor, "b p k 2"]:
    """One Gauss-Newton step of at most a pixel that lowers the error of the mean-free gray patch."""
    value, x, y = window(gray, place, linear).unbind(-2)
    value, x, y = (part - part.mean(-1, keepdim=True) for part in (value, x, y))
    error = (patch - patch.mean(-1, keepdim=True))[:, :, None] - value
    # The ridge is the squared noise of the gradients: a blank patch does not move.
    ridge = 1e-4 * PATCH**2
    xx, xy, yy = x.square().sum(-1) + ridge, (x * y).sum(-1), y.square().sum(-1) + ridge
    ex, ey = (x * error).sum(-1), (y * error).sum(-1)
    step = torch.stack((yy * ex - xy * ey, xx * ey - xy * ex), dim=-1) / (xx * yy - xy.square())[..., None]
    return place + step.clamp(-1, 1)


def gray_and_gradient(image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]:
    """Brightness and its central differences along x and y."""
    gray = torch.einsum("bchw,c->bhw", image, image.new_tensor(LUMA))
    padded = F.pad(gray[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    x = (padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]) / 2
    y = (padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]) / 2
    return torch.stack((gray, x, y), dim=1)


def repeats(cost: Float[Tensor, "b p k"], place: Float[Tensor, "b p k 2"]) -> Bool[Tensor, "b p k"]:
    """Whether a hypothesis is within a pixel of a cheaper one."""
    close = torch.cdist(place, place) < 1.0
    rank = torch.arange(place.shape[2], device=place.device)
    cheaper = cost[..., None, :] < cost[..., :, None]
    tied = (cost[..., None, :] == cost[..., :, None]) & (rank[None, :] < rank[:, None])
    return (close & (cheaper | tied)).any(-1)


@torch.no_grad()
def match(ground: Ground, target: Float[Tensor, "b 3 h w"], patches: Int[Tensor, "b n"], keep: int) -> Looks:
    """The `keep` best source positions of the given target patches: low frequencies, then pixels, then sub-pixels."""
    hw = (target.shape[-2], target.shape[-1])
    centers = patch_centers(hw, target.device)[patches]
    pixels = pixels_in(patches, target)
    alike = likenesses(ground.low, pixels, centers, TRIED * keep)
    matches = compare(ground.layers, pixels, centers, centers[:, :, None] + alike.offset, alike.linear)
    return Looks(matches.best(keep, centers), alike.offset[:, :, :WIDE], gray_of(pixels).var(-1))


def gray_of(pixels: Float[Tensor, "b p 3 s"]) -> Float[Tensor, "b p s"]:
    """Brightness of the pixels of patches."""
    return torch.einsum("bpcs,c->bps", pixels, pixels.new_tensor(LUMA))


def compare(
    layers: Float[Tensor, "b 6 h w"],
    pixels: Float[Tensor, "b p 3 s"],
    centers: Float[Tensor, "b p 2"],
    place: Float[Tensor, "b p k 2"],
    linear: Float[Tensor, "b p k 2 2"],
    reach: int = 1,
) -> Matches:
    """The likeliest places up to `reach` pixels around the given ones, sub-pixel, with errors and certainty."""
    gray = layers[:, 3:]
    patch = gray_of(pixels)
    place = nearest_pixel(gray, patch, place, linear, reach)
    for _ in range(2):
        place = newton_step(gray, patch, place, linear)
    seen = window(layers, place, linear)
    difference = seen[..., :3, :] - pixels[:, :, None]
    mean = difference.mean(-1)
    x, y = seen[..., 4, :], seen[..., 5, :]
    offset = place - centers[:, :, None]
    return Matches(
        offset=offset,
        linear=linear,
        away=offset.norm(dim=-1),
        shape_error=difference.square().mean((-2, -1)) - mean.square().mean(-1),
        color_error=mean.square().mean(-1),
        light=-mean,
        information=torch.stack((x.square().mean(-1), (x * y).mean(-1), y.square().mean(-1)), dim=-1),
    )
