"""Pictures from motions: weighted backward warps of the source, and a color where the source shows nothing."""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from lpa_cwm.geometry import HW, centered_grid, patch_centers, to_sampler
from lpa_cwm.worlds.learned.densify import Motions
from lpa_cwm.worlds.learned.encoder import PATCH


def origins(motions: Motions, hw: HW) -> Float[Tensor, "m p s k 2"]:
    """Where every pixel of every cell comes from, by every mode."""
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
