"""From motions to pixels: a per-pixel mixture of backward warps (Finn et al. 2016, arXiv:1605.07157) and inpainting.

The inferred quantities (positions, weights, inpainted color) are a `WarpMixture`. Rendering is linear in the source
once the mixture is fixed, so the response to a perturbation is the perturbation warped alone: `warp_bump`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lpa_cwm.geometry import HW, bilinear_neighbors, centered_grid, clamp_to_centers, patch_centers, pixel_centers
from lpa_cwm.responses import Responses
from lpa_cwm.sampling import read
from lpa_cwm.worlds.layered.densify import CellMotions
from lpa_cwm.worlds.layered.matching import PATCH
from lpa_cwm.worlds.layered.networks import FINE_STRIDE, SmallUNet


@dataclass(frozen=True, slots=True)
class WarpMixture:
    """A target frame as the sum over k of weight * (warped source + color offset), plus the inpainting."""

    motions: CellMotions
    weight: Float[Tensor, "b k h w"]
    inpainting: Float[Tensor, "b 3 h w"]
    """Inpainted color times its weight."""

    @property
    def hw(self) -> HW:
        """Size of the frame in pixels."""
        return self.weight.shape[-2], self.weight.shape[-1]


def source_positions(motions: CellMotions, hw: HW, step: int = 1) -> Float[Tensor, "b k h w 2"]:
    """Where in the source each pixel (or each center of `step` x `step` pixels) comes from, by each motion."""
    side = PATCH // step
    within = (pixel_centers((side, side), motions.offset.device) * step - PATCH / 2).to(motions.offset.dtype)
    moved = torch.einsum("bpkde,ije->bpkijd", motions.linear, within) + motions.offset[..., None, None, :]
    columns = hw[1] // PATCH
    field = rearrange(moved, "b (r c) k i j d -> b k (r i) (c j) d", c=columns)
    return field + pixel_centers((hw[0] // step, hw[1] // step), field.device) * step


def backward_warp(image: Float[Tensor, "b c h w"], position: Float[Tensor, "b k i j 2"]) -> Float[Tensor, "b k c i j"]:
    """Bilinear samples of one image at the positions of each of k fields, in pixels of the image."""
    k, i, j = position.shape[1:4]
    values = read(image, rearrange(position, "b k i j d -> b (k i j) d"))
    return rearrange(values, "b (k i j) c -> b k c i j", k=k, i=i, j=j)


def upsample_cells(values: Float[Tensor, "b p k f"], columns: int, side: int) -> Float[Tensor, "b k f h w"]:
    """Values of the cells repeated over squares of `side` pixels."""
    return repeat(values, "b (r c) k f -> b k f (r i) (c j)", c=columns, i=side, j=side)


def per_motion_warps(source: Float[Tensor, "b 3 h w"], motions: CellMotions) -> Float[Tensor, "b k 3 h w"]:
    """The frame as each motion alone predicts it."""
    hw = (source.shape[-2], source.shape[-1])
    warped = backward_warp(source, source_positions(motions, hw))
    return warped + upsample_cells(motions.color_offset, hw[1] // PATCH, PATCH)


def render(source: Float[Tensor, "b 3 h w"], mixture: WarpMixture) -> Float[Tensor, "b 3 h w"]:
    """The predicted frame: linear in the source up to color offsets and inpainting."""
    return (per_motion_warps(source, mixture.motions) * mixture.weight[:, :, None]).sum(1) + mixture.inpainting


def cell_similarity(
    features: Float[Tensor, "b k c h w"], descriptor: Float[Tensor, "b p k c"], groups: int
) -> Float[Tensor, "b k groups h w"]:
    """Inner products, per group of channels, of warped source features with the descriptor of the cell's motion."""
    side = PATCH // FINE_STRIDE
    # A cell's descriptor is broadcast over its pixels, never copied to them.
    features = rearrange(features, "b k (g f) (r i) (c j) -> b k g f r i c j", g=groups, i=side, j=side)
    own = rearrange(descriptor, "b (r c) k (g f) -> b k g f r 1 c 1", g=groups, c=features.shape[6])
    return rearrange((features * own).sum(3), "b k g r i c j -> b k g (r i) (c j)")


class MixtureRenderer(nn.Module):
    """Infers per pixel the weights of the motions and the color of what no motion explains."""

    def __init__(self, groups: int, channels: int, motions: int, descriptor: int) -> None:
        """`channels` of the fine features are compared with the descriptors in `groups`; four are read as they are."""
        super().__init__()
        self.groups, self.channels, self.motions = groups, channels, motions
        self.plain = 4
        self.similarity_weight = nn.Parameter(torch.full((groups,), 0.3))
        per_motion = 1 + groups + self.plain + 3
        outputs = (motions + 4) * FINE_STRIDE**2
        self.unet = SmallUNet(motions * per_motion + 5, (24, 40, 64), (outputs,), stem=1)
        for parameter in self.unet.heads.parameters():
            nn.init.zeros_(parameter)
        self.descriptor_layer = nn.Linear(descriptor, channels)
        self.inpaint_logit = nn.Parameter(torch.tensor(-3.0))

    def forward(
        self,
        source: Float[Tensor, "b 3 h w"],
        visible: Float[Tensor, "b 4 h w"],
        motions: CellMotions,
        fine: Float[Tensor, "b f h2 w2"],
    ) -> WarpMixture:
        """The mixture of the frame; `visible` is the target, zero where hidden, and the mask of visible pixels."""
        hw = (source.shape[-2], source.shape[-1])
        cells = hw[1] // PATCH, PATCH // FINE_STRIDE
        position = source_positions(motions, hw, FINE_STRIDE) / FINE_STRIDE
        warped = backward_warp(torch.cat((fine, F.avg_pool2d(source, FINE_STRIDE)), dim=1), position)
        compared, plain, color = warped.split((self.channels, self.plain, 3), dim=2)
        color = color + upsample_cells(motions.color_offset, *cells)
        similarity = cell_similarity(compared, self.descriptor_layer(motions.descriptor), self.groups)
        log_mass = upsample_cells(motions.log_mass[..., None], *cells)
        support = upsample_cells(motions.support[:, :, None, None], *cells)[:, 0] / 4
        inputs = torch.cat((log_mass / 4, similarity, plain, color - 0.5), dim=2).flatten(1, 2)
        out = self.unet(torch.cat((inputs, support, F.avg_pool2d(visible, FINE_STRIDE)), dim=1))[0]
        out = F.pixel_shuffle(out, FINE_STRIDE)
        # Mixture weights: a prior from the cells, corrected by the U-Net; the last component is inpainting.
        prior = log_mass[:, :, 0] + torch.einsum("g,bkghw->bkhw", self.similarity_weight, similarity)
        logits = repeat(prior, "b k h w -> b k (h i) (w j)", i=FINE_STRIDE, j=FINE_STRIDE) + out[:, : self.motions]
        inpaint_logit = out[:, self.motions, None].squeeze(2) + self.inpaint_logit
        weight = torch.cat((logits, inpaint_logit), dim=1).softmax(1)
        blend = torch.einsum("bkhw,bkchw->bchw", prior.softmax(1), color).detach()
        blend = F.interpolate(blend, scale_factor=FINE_STRIDE, mode="bilinear")
        inpainting = weight[:, -1:] * (blend + out[:, self.motions + 1 :])
        return WarpMixture(motions, weight[:, :-1], inpainting)


@dataclass(frozen=True)
class GaussianBump:
    """The perturbation: a Gaussian truncated at three standard deviations, the same in all channels."""

    sigma: float = 2.0
    amplitude: float = 0.034
    """Small, so that a response of half the mixture weight is at the visibility threshold."""

    @property
    def radius(self) -> float:
        """Distance along either axis beyond which no pixel changes."""
        return 3 * self.sigma

    def profile(self, distance: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Height along one axis; the bump is the product of both axes times the amplitude."""
        return torch.exp(-0.5 * (distance / self.sigma).square()) * (distance.abs() <= self.radius)

    def image(self, xy: Float[Tensor, "n 2"], hw: HW) -> Float[Tensor, "n h w"]:
        """The bump around each point, sampled at the pixel centers."""
        centers = pixel_centers(hw, xy.device).to(xy)
        across = self.profile(centers[0, :, 0] - xy[:, :1])
        down = self.profile(centers[:, 0, 1] - xy[:, 1:])
        return self.amplitude * down[:, :, None] * across[:, None, :]

    def interpolate(self, position: Float[Tensor, "*b 2"], xy: Float[Tensor, "*#b 2"], hw: HW) -> Float[Tensor, "*b"]:
        """Bilinear sample of the bump's image at a position; separable, because image and interpolation both are."""
        before, fraction = bilinear_neighbors(clamp_to_centers(position, hw))
        first, second = self.profile(before - xy), self.profile(before + 1 - xy)
        height = first + fraction * (second - first)
        return self.amplitude * height[..., 0] * height[..., 1]


def source_extent(motions: CellMotions, hw: HW) -> tuple[Float[Tensor, "m p k 2"], Float[Tensor, "m p k 2"]]:
    """Corners of the source box that the pixels of each cell sample, by each motion."""
    middle = patch_centers(hw, PATCH, motions.offset.device)[:, None] + motions.offset
    matrix = motions.linear + torch.eye(2, device=middle.device)
    extent = matrix.abs().sum(-1) * (PATCH - 1) / 2
    low, high = (clamp_to_centers(middle + sign * extent, hw) for sign in (-1, 1))
    return low, high


def warp_bump(
    bump: GaussianBump, mixture: WarpMixture, hidden: Bool[Tensor, "m p"], xy: Float[Tensor, "n 2"]
) -> Responses:
    """What the bump at each point adds to the hidden patches while the mixture stays fixed.

    Equal to rendering the bump's image, but only cells that sample pixels of it are visited.
    """
    motions, hw = mixture.motions, mixture.hw
    query, mask, cell, motion = reading_cells(bump, mixture, hidden, xy)
    within = centered_grid(PATCH, xy.device).to(xy)
    start = patch_centers(hw, PATCH, xy.device)[cell] + motions.offset[mask, cell, motion]
    moved = within + torch.einsum("tde,se->tsd", motions.linear[mask, cell, motion], within)
    value = bump.interpolate(start[:, None] + moved, xy[query][:, None], hw)
    weight = rearrange(mixture.weight, "m k (r i) (c j) -> m r c k i j", i=PATCH, j=PATCH)
    columns = hw[1] // PATCH
    value = value * weight[mask, cell // columns, cell % columns, motion].flatten(1)
    # Motions of one cell follow each other, so their sum is one over runs of equal keys.
    key = (query * len(hidden) + mask) * hidden.shape[1] + cell
    key, place = torch.unique_consecutive(key, return_inverse=True)
    blocks = value.new_zeros(len(key), PATCH**2).index_add_(0, place, value)
    candidate, patch = key // hidden.shape[1], key % hidden.shape[1]
    shape = len(xy), len(hidden)
    blocks = rearrange(blocks, "r (i j) -> r 1 i j", i=PATCH)
    return Responses(blocks, candidate // shape[1], candidate % shape[1], patch, shape, hw)


def reading_cells(
    bump: GaussianBump, mixture: WarpMixture, hidden: Bool[Tensor, "m p"], xy: Float[Tensor, "n 2"]
) -> tuple[Int[Tensor, "t"], Int[Tensor, "t"], Int[Tensor, "t"], Int[Tensor, "t"]]:
    """Query, mask, cell and motion wherever a hidden cell may sample pixels of the query's bump."""
    low, high = source_extent(mixture.motions, mixture.hw)
    margin = bump.radius + 1
    # Along one axis after the other: what is out of reach in x is not looked at in y.
    x = xy[:, None, None, None, 0]
    near = hidden[..., None] & (low[..., 0] < x + margin) & (high[..., 0] > x - margin)
    query, mask, cell, motion = near.nonzero().unbind(-1)
    y = xy[query, 1]
    kept = (low[mask, cell, motion, 1] < y + margin) & (high[mask, cell, motion, 1] > y - margin)
    return query[kept], mask[kept], cell[kept], motion[kept]
