"""The perturbation of the source, a Gaussian bump of light, and what it changes when the motions stay as they are."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lpa_cwm.geometry import HW, centered_grid, patch_centers, pixel_centers
from lpa_cwm.responses import Responses
from lpa_cwm.worlds.learned.densify import Motions
from lpa_cwm.worlds.learned.encoder import PATCH

LEAST = 0.01
"""Modes with less weight than this everywhere in a cell carry nothing."""


@dataclass(frozen=True)
class RadialBump:
    """A Gaussian cut off at three standard deviations, the same in all channels."""

    sigma: float = 2.0
    amplitude: float = 0.034

    @property
    def radius(self) -> float:
        """No pixel further than this from the point is touched."""
        return 3 * self.sigma

    def height(self, squared: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """The bump at a squared distance from its center."""
        return self.amplitude * torch.exp(squared * (-0.5 / self.sigma**2)) * (squared <= self.radius**2)

    def image(self, xy: Float[Tensor, "n 2"], hw: HW) -> Float[Tensor, "n h w"]:
        """The bump around each point, at the pixels' centers."""
        offset = pixel_centers(hw, xy.device).to(xy) - xy[:, None, None]
        return self.height(offset.square().sum(-1))


def splat(
    bump: RadialBump, motions: Motions, hidden: Bool[Tensor, "m p"], xy: Float[Tensor, "n 2"], hw: HW
) -> Responses:
    """What the bump adds to the hidden patches when motions and weights stay as they are.

    The bump is carried as a function, so nothing is interpolated; only the cells that it reaches are visited.
    """
    masks, patches = hidden.shape
    # Modes that carry something, as a list; then all pairs of queries and modes whose origins come near.
    carried = (motions.weight.amax(2) > LEAST) & hidden[..., None]
    mask, cell, mode = carried.nonzero().unbind(-1)
    center = patch_centers(hw, PATCH, xy.device)[cell] + motions.offset[mask, cell, mode]
    linear = motions.linear[mask, cell, mode] + torch.eye(2, device=xy.device)
    extent = linear.abs().sum(-1).amax(-1) * (2**0.5 * (PATCH - 1) / 2) + bump.radius
    query, entry = (torch.cdist(xy, center) < extent).nonzero().unbind(-1)
    # Squared distance from the query to the origin of every pixel of the cells.
    within = centered_grid(PATCH, xy.device).to(xy).T
    (x, y), (a, b, c, d) = (center[entry] - xy[query]).unbind(-1), linear[entry].flatten(1).unbind(-1)
    x = torch.addmm(x[:, None], torch.stack((a, b), dim=-1), within)
    y = torch.addmm(y[:, None], torch.stack((c, d), dim=-1), within)
    value = bump.height(x.square_().add_(y.square_()))
    weight = motions.weight.transpose(2, 3)[mask, cell, mode][entry].view(-1, 2, 1, 2, 1)
    value = (value.view(-1, 2, PATCH // 2, 2, PATCH // 2) * weight).view(-1, PATCH, PATCH)
    # Modes of one cell add up.
    row = (query * masks + mask[entry]) * patches + cell[entry]
    rows, block = row.unique(return_inverse=True)
    blocks = value.new_zeros(len(rows), PATCH, PATCH).index_add_(0, block, value)[:, None]
    pair = rows // patches
    return Responses(blocks, pair // masks, pair % masks, rows % patches, (len(xy), masks), hw)
