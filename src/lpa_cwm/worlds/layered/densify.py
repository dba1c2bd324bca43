"""From sparse matches to a dense field, as in EpicFlow (Revaud et al. 2015, arXiv:1501.02565).

Each 8x8 cell attends to its most relevant matches, groups them greedily into a few motions, and fits each motion as an
affine map by weighted least squares. Attention compares source features: a match is relevant to a cell if the cell,
moved with the match, would come from a similar part of the source.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from lpa_cwm.geometry import HW, inside, patch_centers
from lpa_cwm.sampling import read
from lpa_cwm.worlds.layered.matching import PATCH
from lpa_cwm.worlds.layered.networks import (
    COARSE_STRIDE,
    MATCH_FEATURES,
    MAX_NEGATIVE_LOG,
    ReliableMatches,
    group_similarity,
    motion_affinity,
    zero_init,
)
from lpa_cwm.worlds.layered.ransac import LENGTH_UNIT

HIDDEN_WIDTH = 24


@dataclass(frozen=True, slots=True)
class CellMotions:
    """K affine motions per cell: a pixel at x comes from x + offset + linear (x - center of the cell)."""

    offset: Float[Tensor, "b p k 2"]
    linear: Float[Tensor, "b p k 2 2"]
    color_offset: Float[Tensor, "b p k 3"]
    """Change of color along the motion."""
    log_mass: Float[Tensor, "b p k"]
    """Logarithm of the attention behind each motion."""
    support: Float[Tensor, "b p"]
    """Log-sum-exp of all attention logits: low where no match is relevant."""
    descriptor: Float[Tensor, "b p k c"]
    """Mean descriptor of the matches of each motion."""


@dataclass(frozen=True, slots=True)
class SparseAttention:
    """Indices of the matches that each cell attends to."""

    index: Int[Tensor, "b p l"]
    matches: int

    @classmethod
    def top_k(cls, matches: ReliableMatches, distance: Float[Tensor, "b p v"], k: int) -> "SparseAttention":
        """The `k` matches with the largest log-reliability minus distance."""
        priority = matches.log_reliability.detach()[:, None] - distance
        return cls(priority.topk(min(k, priority.shape[-1]), sorted=False).indices, priority.shape[-1])

    def gather(self, values: Float[Tensor, "b v f"]) -> Float[Tensor, "b p l f"]:
        """Values of the attended matches."""
        flat = self.index.flatten(1)[..., None].expand(-1, -1, values.shape[-1])
        return values.gather(1, flat).unflatten(1, self.index.shape[1:])

    def gather_dense(self, values: Float[Tensor, "b p v"]) -> Float[Tensor, "b p l"]:
        """Entries of a dense (cell x match) matrix at the attended matches."""
        return values.gather(2, self.index)

    def gather_row(self, affinity: Float[Tensor, "b v v"], row: Int[Tensor, "b p"]) -> Float[Tensor, "b p l"]:
        """For each cell one row of a (match x match) matrix, at the attended matches."""
        flat = (row[..., None] * self.matches + self.index).flatten(1)
        return affinity.flatten(1).gather(1, flat).unflatten(1, self.index.shape[1:])

    def scatter(self, values: Float[Tensor, "b p *k l"]) -> Float[Tensor, "b p *k v"]:
        """The dense matrix, zero at matches that are not attended to."""
        index = self.index if values.ndim == 3 else self.index[:, :, None].expand(-1, -1, values.shape[2], -1)
        return values.new_zeros(*values.shape[:-1], self.matches).scatter(-1, index, values)


def extrapolate(matches: ReliableMatches, xy: Float[Tensor, "b p 2"]) -> Float[Tensor, "b p v 2"]:
    """The offset of each point under the motion of each match."""
    linear = torch.einsum("bvde,bpe->bpvd", matches.linear, xy)
    constant = matches.offset - torch.einsum("bvde,bve->bvd", matches.linear, matches.center)
    return linear + constant[:, None]


def precision(structure_tensor: Float[Tensor, "b v 3"]) -> Float[Tensor, "b v 2"]:
    """Certainty in (0, 1) of each component of an offset, given that the other is unknown (Schur complement).

    A blank patch is certain of nothing, a patch on an oblique edge of neither component.
    """
    xx, xy, yy = structure_tensor.unbind(-1)
    blank = 1e-4
    alone = torch.stack((xx - xy.square() / (yy + blank), yy - xy.square() / (xx + blank)), dim=-1)
    return (alone.clamp(min=0) + 1e-6) / (alone.clamp(min=0) + blank)


def normal_terms(matches: ReliableMatches) -> Float[Tensor, "b v 2 9"]:
    """Terms of the affine normal equations, per match and component: A'A as [1 x y xx xy yy], A'b as [1 x y] offset."""
    x, y = (matches.center / LENGTH_UNIT).unbind(-1)
    one = torch.ones_like(x)
    left = torch.stack((one, x, y, x * x, x * y, y * y), dim=-1)[:, :, None].expand(-1, -1, 2, -1)
    right = left[..., :3] * matches.offset[..., None]
    return torch.cat((left, right), dim=-1) * precision(matches.structure_tensor)[..., None]


def solve_symmetric3(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    """Solutions of many symmetric 3x3 systems, given as [11 12 13 22 23 33] and [1 2 3], by Cramer's rule."""
    a, b, c, d, e, f = left
    df, ce, be = d * f - e * e, c * e - b * f, b * e - c * d
    determinant = a * df + b * ce + c * be
    bc, ac, ab = b * c - a * e, a * f - c * c, a * d - b * b
    p, q, r = right
    rows = (df * p + ce * q + be * r, ce * p + ac * q + bc * r, be * p + bc * q + ab * r)
    return [row / determinant for row in rows]


def fit_affine(
    mean: Float[Tensor, "b p k 2"], sums: Float[Tensor, "b p k 18"], centers: Float[Tensor, "p 2"], ridge: Tensor
) -> tuple[Float[Tensor, "b p k 2"], Float[Tensor, "b p k 2 2"]]:
    """Weighted least-squares affine motions about each cell's center.

    `mean` are weighted means of the offsets and `sums` of the `normal_terms`; `ridge` penalizes the linear part.
    """
    m1, mx, my, mxx, mxy, myy, r1, rx, ry = sums.unflatten(-1, (2, 9)).unbind(-1)
    x, y = (centers / LENGTH_UNIT)[:, None, None].unbind(-1)
    # Moments about the cell's center instead of the corner of the image.
    mxx, mxy, myy = mxx - 2 * x * mx + x * x * m1, mxy - x * my - y * mx + x * y * m1, myy - 2 * y * my + y * y * m1
    mx, my, rx, ry = mx - x * m1, my - y * m1, rx - x * r1, ry - y * r1
    # Where no match is certain the mean offset decides.
    little = 1e-3
    left = [m1 + little, mx, my, mxx + ridge, mxy, myy + ridge]
    offset, along, across = solve_symmetric3(left, [r1 + little * mean, rx, ry])
    return offset, torch.stack((along, across), dim=-1) / LENGTH_UNIT


class Densifier(nn.Module):
    """Motions of all cells from the sparse matches."""

    def __init__(self, groups: int, channels: int, plain: int, motions: int, top_k: int) -> None:
        """`channels` of the features are compared in `groups`, `plain` ones are read as they are; `top_k` per cell."""
        super().__init__()
        self.groups, self.channels, self.motions, self.top_k = groups, channels, motions, top_k
        # The first layer is split into a pair part and a match part: there are far more pairs than matches.
        self.pair_layer = nn.Linear(groups + 3 + plain, HIDDEN_WIDTH)
        self.match_layer = nn.Linear(1 + MATCH_FEATURES + plain, HIDDEN_WIDTH, bias=False)
        self.output_layer = zero_init(nn.Linear(HIDDEN_WIDTH, 1))
        self.similarity_weight = nn.Parameter(torch.full((groups,), 0.3))
        self.length_scale = nn.Parameter(torch.tensor(2.0))
        self.tolerance = nn.Parameter(torch.tensor(1.0))
        self.tolerance_slope = nn.Parameter(torch.tensor(0.05))
        self.mass_power = nn.Parameter(torch.tensor(2.0))
        self.log_ridge = nn.Parameter(torch.tensor(-6.0))

    def logits(
        self,
        matches: ReliableMatches,
        attention: SparseAttention,
        centers: Float[Tensor, "p 2"],
        distance: Float[Tensor, "b p l"],
        coarse: Float[Tensor, "b c h w"],
    ) -> Float[Tensor, "b p l"]:
        """Attention logits of every attended match; `distance` is in patches."""
        offset = extrapolate(matches, centers.expand(len(coarse), -1, -1))
        offset = offset.gather(2, attention.index[..., None].expand(-1, -1, -1, 2))
        position = centers[:, None] + offset
        features = read(coarse, position.flatten(1, 2) / COARSE_STRIDE).unflatten(1, position.shape[1:3])
        descriptor = attention.gather(matches.descriptor[..., : self.channels])
        similarity = group_similarity(features[..., : self.channels], descriptor, self.groups)
        hw = (coarse.shape[-2] * COARSE_STRIDE, coarse.shape[-1] * COARSE_STRIDE)
        outside = 1.0 - inside(position, hw).to(features.dtype)
        geometry = torch.stack((torch.log1p(distance), distance / 8, outside), dim=-1)
        log_reliability = matches.log_reliability[..., None]
        own = torch.cat((log_reliability, matches.features, matches.descriptor[..., self.channels :]), dim=-1)
        pair = self.pair_layer(torch.cat((similarity, geometry, features[..., self.channels :]), dim=-1))
        learned = self.output_layer(F.relu(pair + attention.gather(self.match_layer(own))))
        fixed = similarity @ self.similarity_weight - distance / self.decay_length - 4 * outside
        return attention.gather(log_reliability)[..., 0] + fixed + learned[..., 0]

    @property
    def decay_length(self) -> Float[Tensor, ""]:
        """Distance in patches over which attention falls to 1/e."""
        return self.length_scale.clamp(min=0.5)

    def forward(self, matches: ReliableMatches, hw: HW, coarse: Float[Tensor, "b c h w"]) -> CellMotions:
        """The strongest motions of each cell."""
        centers = patch_centers(hw, PATCH, coarse.device)
        distance = torch.cdist(centers.expand(len(coarse), -1, -1), matches.center) / PATCH
        attention = SparseAttention.top_k(matches, distance / self.decay_length.detach(), self.top_k)
        logits = self.logits(matches, attention, centers, attention.gather_dense(distance), coarse)
        weight = (logits - logits.detach().amax(-1, keepdim=True)).clamp(min=-MAX_NEGATIVE_LOG).softmax(-1)
        tolerances = self.tolerance, self.tolerance_slope
        affinity = motion_affinity(matches.offset, matches.linear, matches.center, *tolerances)
        power = 1 + self.mass_power.abs()
        modes = greedy_modes(attention, weight.detach(), affinity.detach(), power.detach(), self.motions)
        shares = assign(attention, weight, affinity, modes)
        # A p-norm with p > 1: many distant matches do not outweigh a near one.
        mass = (shares + 1e-9).pow(power).sum(-1).pow(1 / power)
        relative = attention.scatter(shares / (shares.sum(-1, keepdim=True) + 1e-8))
        terms = normal_terms(matches).flatten(2)
        values = torch.cat((matches.offset, terms, matches.color_offset, matches.descriptor), dim=-1)
        means = (relative.flatten(1, 2) @ values).unflatten(1, shares.shape[1:3])
        offset, sums, color_offset, descriptor = means.split((2, 18, 3, matches.descriptor.shape[-1]), dim=-1)
        offset, linear = fit_affine(offset, sums, centers, self.log_ridge.exp())
        return CellMotions(offset, linear, color_offset, torch.log(mass + 1e-6), logits.logsumexp(-1), descriptor)


def greedy_modes(
    attention: SparseAttention,
    weight: Float[Tensor, "b p l"],
    affinity: Float[Tensor, "b v v"],
    power: Tensor,
    count: int,
) -> Int[Tensor, "b p k"]:
    """Greedy mode seeking: pick the match that most weight agrees with, remove what it explains, repeat."""
    left, modes = weight, []
    for _ in range(count):
        agreed = attention.gather_dense(attention.scatter((left + 1e-9).pow(power)) @ affinity.mT)
        best = (agreed * left).argmax(-1, keepdim=True)
        modes.append(attention.index.gather(-1, best)[..., 0])
        left = left * (1 - attention.gather_row(affinity, modes[-1]))
    return torch.stack(modes, dim=-1)


def assign(
    attention: SparseAttention,
    weight: Float[Tensor, "b p l"],
    affinity: Float[Tensor, "b v v"],
    modes: Int[Tensor, "b p k"],
) -> Float[Tensor, "b p k l"]:
    """Soft assignment of the attention weights to the modes, in their order; unexplained weight is dropped."""
    left, shares = weight, []
    for mode in modes.unbind(-1):
        explained = attention.gather_row(affinity, mode)
        shares.append(left * explained)
        left = left * (1 - explained)
    return torch.stack(shares, dim=2)
