"""The perturbation of the source, a smooth bump of light, and its appearance in a target drawn by a fixed drawing."""

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from lpa_cwm.geometry import HW, pixel_centers
from lpa_cwm.worlds.layered.densify import Motions
from lpa_cwm.worlds.layered.patches import PATCH, patch_centers
from lpa_cwm.worlds.layered.render import Drawing


@dataclass(frozen=True)
class GaussianBump:
    """A Gaussian cut off at three standard deviations, sampled at the pixels' centers, the same in all channels."""

    sigma: float = 2.0
    amplitude: float = 0.034
    """So small that a response of half the weight is what the visibility rule counts as seen."""

    @property
    def radius(self) -> float:
        """No pixel further than this from the point, along either axis, is touched."""
        return 3 * self.sigma

    def profile(self, distance: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Height along one axis; the bump is the product of both times the amplitude."""
        return torch.exp(-0.5 * (distance / self.sigma).square()) * (distance.abs() <= self.radius)

    def image(self, xy: Float[Tensor, "n 2"], hw: HW) -> Float[Tensor, "n h w"]:
        """The bump around each point."""
        centers = pixel_centers(hw, xy.device).to(xy)
        across = self.profile(centers[0, :, 0] - xy[:, :1])
        down = self.profile(centers[:, 0, 1] - xy[:, 1:])
        return self.amplitude * down[:, :, None] * across[:, None, :]

    def between(self, place: Float[Tensor, "*b 2"], xy: Float[Tensor, "*#b 2"], hw: HW) -> Float[Tensor, "*b"]:
        """Bilinear value of the bump's image at a place; a product, because image and interpolation both are."""
        limit = place.new_tensor([hw[1] - 0.5, hw[0] - 0.5])
        place = place.clamp(min=place.new_tensor(0.5), max=limit)
        before = (place - 0.5).floor() + 0.5
        share = place - before
        first, second = self.profile(before - xy), self.profile(before + 1 - xy)
        height = first + share * (second - first)
        return self.amplitude * height[..., 0] * height[..., 1]


def reach(motions: Motions, hw: HW) -> tuple[Float[Tensor, "m p k 2"], Float[Tensor, "m p k 2"]]:
    """Corners of the boxes of the source that hold all that the pixels of a cell read, by each motion."""
    middle = patch_centers(hw, motions.offset.device)[:, None] + motions.offset
    matrix = motions.linear + torch.eye(2, device=middle.device)
    extent = matrix.abs().sum(-1) * (PATCH - 1) / 2
    limit = middle.new_tensor([hw[1] - 0.5, hw[0] - 0.5])
    low, high = ((middle + sign * extent).clamp(min=middle.new_tensor(0.5), max=limit) for sign in (-1, 1))
    return low, high


def appearance(
    bump: GaussianBump, drawing: Drawing, hidden: Bool[Tensor, "m p"], xy: Float[Tensor, "n 2"]
) -> Float[Tensor, "n m h w"]:
    """What the bump adds to the hidden patches when origins and weights stay as they are.

    Equal to drawing the bump's image, but only the cells that read pixels of it are visited.
    """
    motions, hw = drawing.motions, drawing.hw
    low, high = reach(motions, hw)
    margin = bump.radius + 1
    near = (low < xy[:, None, None, None] + margin) & (high > xy[:, None, None, None] - margin)
    query, mask, cell, motion = (near.all(-1) & hidden[..., None]).nonzero().unbind(-1)
    within = rearrange(pixel_centers((PATCH, PATCH), xy.device) - PATCH / 2, "i j d -> (i j) d").to(xy)
    start = patch_centers(hw, xy.device)[cell] + motions.offset[mask, cell, motion]
    moved = within + torch.einsum("tde,se->tsd", motions.linear[mask, cell, motion], within)
    value = bump.between(start[:, None] + moved, xy[query][:, None], hw)
    weight = rearrange(drawing.weight, "m k (r i) (c j) -> m (r c) k (i j)", i=PATCH, j=PATCH)
    rows = (query * len(hidden) + mask) * hidden.shape[1] + cell
    total = value.new_zeros(len(xy) * hidden.numel(), PATCH**2)
    total.index_add_(0, rows, value * weight[mask, cell, motion])
    columns = hw[1] // PATCH
    return rearrange(total, "(n m r c) (i j) -> n m (r i) (c j)", n=len(xy), m=len(hidden), c=columns, i=PATCH)
