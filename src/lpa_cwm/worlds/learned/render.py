"""Rendering by motions: backward warps of the source, and the perturbation (a bump of light) that they carry."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lpa_cwm.geometry import HW, centered_grid, patch_centers, pixel_centers, to_sampler
from lpa_cwm.responses import Responses
from lpa_cwm.worlds.learned.densify import CellList, Motions, pixel_radius
from lpa_cwm.worlds.learned.matching import PATCH

MIN_MODE_WEIGHT = 0.01
"""Modes with less weight than this in all quarters of a cell are ignored."""


def origins(motions: Motions, hw: HW) -> Float[Tensor, "m p s k 2"]:
    """Origin of every pixel of every cell, by every mode."""
    within = centered_grid(PATCH, motions.offset.device)
    centers = patch_centers(hw, PATCH, motions.offset.device)
    shift = torch.einsum("mpkde,se->mpskd", motions.linear, within)
    return (centers[:, None] + within)[:, :, None] + motions.offset[:, :, None] + shift


def pixel_weights(motions: Motions) -> Float[Tensor, "m p s k"]:
    """Weights of the modes at every pixel of every cell."""
    square = motions.weight.unflatten(2, (2, 2))
    half = PATCH // 2
    return square.repeat_interleave(half, 2).repeat_interleave(half, 3).flatten(2, 3)


def warps(source: Float[Tensor, "m 3 h w"], place: Float[Tensor, "m p s k 2"]) -> Float[Tensor, "m p s k 3"]:
    """Colors of the source at points; the border is repeated."""
    grid = to_sampler(place, (source.shape[-2], source.shape[-1]))
    colors = F.grid_sample(source, grid.flatten(1, 2), padding_mode="border", align_corners=False)
    return rearrange(colors, "m c (p s) k -> m p s k c", s=place.shape[2])


def render(source: Float[Tensor, "m 3 h w"], motions: Motions) -> Float[Tensor, "m 3 h w"]:
    """The predicted target."""
    hw = (source.shape[-2], source.shape[-1])
    weight = pixel_weights(motions)[..., None]
    picture = (warps(source, origins(motions, hw)) * weight).sum(3)
    picture = picture + (1 - weight.sum(3)) * motions.color[:, :, None]
    return rearrange(picture, "m (i j) (u v) c -> m c (i u) (j v)", j=hw[1] // PATCH, v=PATCH)


@dataclass(frozen=True)
class RadialBump:
    """A Gaussian cut off at three standard deviations, the same in all channels."""

    sigma: float = 2.0
    amplitude: float = 0.034

    @property
    def radius(self) -> float:
        """Pixels further than this from the point are not changed."""
        return 3 * self.sigma

    def height(self, squared: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """The bump at a squared distance from its center."""
        return self.amplitude * torch.exp(squared * (-0.5 / self.sigma**2)) * (squared <= self.radius**2)

    def image(self, xy: Float[Tensor, "n 2"], hw: HW) -> Float[Tensor, "n h w"]:
        """The bump around each point, at the pixels' centers."""
        offset = pixel_centers(hw, xy.device).to(xy) - xy[:, None, None]
        return self.height(offset.square().sum(-1))


@dataclass(frozen=True, slots=True)
class CarriedModes:
    """The modes that carry something into a hidden cell, as a list."""

    mask: Int[Tensor, "e"]
    cell: Int[Tensor, "e"]
    center: Float[Tensor, "e 2"]
    """Origin of the center of the cell."""
    linear: Float[Tensor, "e 2 2"]
    weight: Float[Tensor, "e 4"]

    @classmethod
    def of(cls, motions: Motions, cells: CellList, shown: Bool[Tensor, "e"], hw: HW) -> "CarriedModes":
        """All modes with some weight in those of the cells, which the motions are of, that are hidden."""
        offset, linear, weight = (part.flatten(0, 1) for part in (motions.offset, motions.linear, motions.weight))
        found = ((weight.amax(1) > MIN_MODE_WEIGHT) & shown[:, None]).nonzero().unbind(1)
        cell = cells.cell[found[0]]
        return cls(
            cells.mask[found[0]],
            cell,
            patch_centers(hw, PATCH, cell.device)[cell] + offset[found],
            linear[found] + torch.eye(2, device=cell.device),
            weight.transpose(1, 2)[found],
        )

    def visible_radius(self, bump: RadialBump) -> Float[Tensor, "e"]:
        """Points further from the center than this are not visible in the cell."""
        return pixel_radius(self.linear) + bump.radius

    def blocks(self, bump: RadialBump, xy: Float[Tensor, "q 2"], entry: Int[Tensor, "q"]) -> Float[Tensor, "q 8 8"]:
        """The bump at each point as the listed mode shows it in its cell."""
        # Squared distance from the point to the origin of every pixel of the cell.
        within = centered_grid(PATCH, xy.device).to(xy).T
        (x, y), (a, b, c, d) = (self.center[entry] - xy).unbind(-1), self.linear[entry].flatten(1).unbind(-1)
        x = torch.addmm(x[:, None], torch.stack((a, b), dim=-1), within)
        y = torch.addmm(y[:, None], torch.stack((c, d), dim=-1), within)
        value = bump.height(x.square_().add_(y.square_()))
        weight = self.weight[entry].view(-1, 2, 1, 2, 1)
        return (value.view(-1, 2, PATCH // 2, 2, PATCH // 2) * weight).view(-1, PATCH, PATCH)


def splat(bump: RadialBump, modes: CarriedModes, xy: Float[Tensor, "n 2"], masks: int, hw: HW) -> Responses:
    """What the bump adds to the hidden patches when motions and weights stay as they are.

    The bump is carried as a function, so nothing is interpolated; only the cells that it reaches are visited.
    """
    query, entry = (torch.cdist(xy, modes.center) < modes.visible_radius(bump)).nonzero().unbind(-1)
    value = modes.blocks(bump, xy[query], entry)
    return add_up(value, query, modes.mask[entry], modes.cell[entry], (len(xy), masks), hw)


def splat_pairs(
    bump: RadialBump,
    motions: Motions,
    hidden: Bool[Tensor, "n m p"],
    xy: Float[Tensor, "n m 2"],
    hw: HW,
    cells: Int[Tensor, "nm c"],
) -> Responses:
    """`splat` for n points with m masks each and a place in each mask's source; motions are those of all masks."""
    masks = hidden.shape[1]
    shown = hidden.flatten(0, 1).gather(1, cells)
    modes = CarriedModes.of(motions, CellList.of(cells), shown.flatten(), hw)
    place = xy.flatten(0, 1)[modes.mask]
    (entry,) = ((modes.center - place).norm(dim=-1) < modes.visible_radius(bump)).nonzero(as_tuple=True)
    value, mask = modes.blocks(bump, place[entry], entry), modes.mask[entry]
    return add_up(value, mask // masks, mask % masks, modes.cell[entry], (len(xy), masks), hw)


def add_up(
    value: Float[Tensor, "q 8 8"],
    query: Int[Tensor, "q"],
    mask: Int[Tensor, "q"],
    cell: Int[Tensor, "q"],
    shape: tuple[int, int],
    hw: HW,
) -> Responses:
    """Responses from the contributions of single modes: the modes of one cell add up."""
    masks, patches = shape[1], (hw[0] // PATCH) * (hw[1] // PATCH)
    rows, block = ((query * masks + mask) * patches + cell).unique(return_inverse=True)
    blocks = value.new_zeros(len(rows), PATCH, PATCH).index_add_(0, block, value)[:, None]
    pair = rows // patches
    return Responses(blocks, pair // masks, pair % masks, rows % patches, shape, hw)
