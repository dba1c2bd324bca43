"""From the voters to every cell of the target: who speaks for it, which few motions they propose, and how strongly.

A cell asks each voter: if I moved with you, would I come from the same thing as you? The answers weigh the voters;
the motions they agree on are found greedily, and each is fitted by weighted least squares as an affine motion.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from lpa_cwm.geometry import inside
from lpa_cwm.sampling import read
from lpa_cwm.worlds.layered.encoder import COARSE_STRIDE, agreement, silent
from lpa_cwm.worlds.layered.patches import PATCH, patch_centers
from lpa_cwm.worlds.layered.reliability import EVIDENCE, LEAST, Voters, kinship

HIDDEN = 24
UNIT = 64.0
"""Pixels per unit of length in the least-squares problems, which keeps their entries of order one."""


@dataclass(frozen=True, slots=True)
class Motions:
    """A few affine motions for each cell: a pixel at x comes from x + offset + linear (x - center of the cell)."""

    offset: Float[Tensor, "b p k 2"]
    linear: Float[Tensor, "b p k 2 2"]
    light: Float[Tensor, "b p k 3"]
    """Change of color on the way."""
    log_mass: Float[Tensor, "b p k"]
    """Logarithm of the share of the voters' weight behind each motion."""
    claim: Float[Tensor, "b p"]
    """Log-sum of all answers: low where no voter speaks for the cell."""
    identity: Float[Tensor, "b p k c"]
    """Weighted mean description of the places the motion's voters come from."""


@dataclass(frozen=True, slots=True)
class Hearing:
    """Which voters each cell listens to: the rest are too far or too little believed to change its motion."""

    index: Int[Tensor, "b p l"]
    voters: int

    @classmethod
    def of(cls, voters: Voters, distance: Float[Tensor, "b p v"], most: int) -> "Hearing":
        """The `most` voters with the largest belief less distance."""
        worth = voters.log_belief.detach()[:, None] - distance
        return cls(worth.topk(min(most, worth.shape[-1]), sorted=False).indices, worth.shape[-1])

    def of_voter(self, values: Float[Tensor, "b v f"]) -> Float[Tensor, "b p l f"]:
        """What is known of the voters, for each cell that hears them."""
        flat = self.index.flatten(1)[..., None].expand(-1, -1, values.shape[-1])
        return values.gather(1, flat).unflatten(1, self.index.shape[1:])

    def of_pair(self, values: Float[Tensor, "b p v"]) -> Float[Tensor, "b p l"]:
        """What is known of cells and voters, of those that are heard."""
        return values.gather(2, self.index)

    def of_seed(self, kin: Float[Tensor, "b v v"], seed: Int[Tensor, "b p"]) -> Float[Tensor, "b p l"]:
        """The row of a matrix over the voters that belongs to one voter of each cell."""
        flat = (seed[..., None] * self.voters + self.index).flatten(1)
        return kin.flatten(1).gather(1, flat).unflatten(1, self.index.shape[1:])

    def spread(self, values: Float[Tensor, "b p *k l"]) -> Float[Tensor, "b p *k v"]:
        """Values over all voters, zero for those that are not heard; a plain matrix, for products."""
        index = self.index if values.ndim == 3 else self.index[:, :, None].expand(-1, -1, values.shape[2], -1)
        return values.new_zeros(*values.shape[:-1], self.voters).scatter(-1, index, values)


def foretold(voters: Voters, xy: Float[Tensor, "b p 2"]) -> Float[Tensor, "b p v 2"]:
    """The offset each point would have, moved with each voter."""
    turned = torch.einsum("bvde,bpe->bpvd", voters.linear, xy)
    own = voters.offset - torch.einsum("bvde,bve->bvd", voters.linear, voters.center)
    return turned + own[:, None]


def precision(information: Float[Tensor, "b v 3"]) -> Float[Tensor, "b v 2"]:
    """How certain a voter is of each component of its offset, in (0, 1), whatever the other component is.

    A blank patch is certain of nothing, a patch on an oblique edge of neither component.
    """
    xx, xy, yy = information.unbind(-1)
    blank = 1e-4
    alone = torch.stack((xx - xy.square() / (yy + blank), yy - xy.square() / (xx + blank)), dim=-1)
    return (alone.clamp(min=0) + 1e-6) / (alone.clamp(min=0) + blank)


def moments(voters: Voters) -> Float[Tensor, "b v 2 9"]:
    """Per voter and component the terms whose weighted sums are the normal equations: [1 x y xx xy yy], [1 x y] o."""
    x, y = (voters.center / UNIT).unbind(-1)
    one = torch.ones_like(x)
    left = torch.stack((one, x, y, x * x, x * y, y * y), dim=-1)[:, :, None].expand(-1, -1, 2, -1)
    right = left[..., :3] * voters.offset[..., None]
    return torch.cat((left, right), dim=-1) * precision(voters.information)[..., None]


def solve(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    """Solutions of many symmetric 3 x 3 systems, given as [11 12 13 22 23 33] and [1 2 3], by cofactors."""
    a, b, c, d, e, f = left
    df, ce, be = d * f - e * e, c * e - b * f, b * e - c * d
    determinant = a * df + b * ce + c * be
    bc, ac, ab = b * c - a * e, a * f - c * c, a * d - b * b
    p, q, r = right
    rows = (df * p + ce * q + be * r, ce * p + ac * q + bc * r, be * p + bc * q + ab * r)
    return [row / determinant for row in rows]


def fit(
    mean: Float[Tensor, "b p k 2"], sums: Float[Tensor, "b p k 18"], centers: Float[Tensor, "p 2"], stiffness: Tensor
) -> tuple[Float[Tensor, "b p k 2"], Float[Tensor, "b p k 2 2"]]:
    """Least-squares affine motions about each cell's center, from weighted means of the voters' offsets and `moments`.

    `stiffness` draws the linear part to zero.
    """
    m1, mx, my, mxx, mxy, myy, r1, rx, ry = sums.unflatten(-1, (2, 9)).unbind(-1)
    x, y = (centers / UNIT)[:, None, None].unbind(-1)
    # Moments about the cell's center instead of the corner of the image.
    mxx, mxy, myy = mxx - 2 * x * mx + x * x * m1, mxy - x * my - y * mx + x * y * m1, myy - 2 * y * my + y * y * m1
    mx, my, rx, ry = mx - x * m1, my - y * m1, rx - x * r1, ry - y * r1
    # Where nobody is certain the mean offset decides.
    little = 1e-3
    left = [m1 + little, mx, my, mxx + stiffness, mxy, myy + stiffness]
    offset, along, across = solve(left, [r1 + little * mean, rx, ry])
    return offset, torch.stack((along, across), dim=-1) / UNIT


class Propagator(nn.Module):
    """Motions of the cells."""

    def __init__(self, groups: int, channels: int, plain: int, motions: int, heard: int) -> None:
        """`channels` of the context are compared in `groups`, `plain` ones are read as they are; `heard` per cell."""
        super().__init__()
        self.groups, self.channels, self.motions, self.heard = groups, channels, motions, heard
        # The first layer is split into what a pair and what a voter has, for there are far more pairs than voters.
        self.of_pair = nn.Linear(groups + 3 + plain, HIDDEN)
        self.of_voter = nn.Linear(1 + EVIDENCE + plain, HIDDEN, bias=False)
        self.answer = silent(nn.Linear(HIDDEN, 1))
        self.likeness = nn.Parameter(torch.full((groups,), 0.3))
        self.reach = nn.Parameter(torch.tensor(2.0))
        self.slack = nn.Parameter(torch.tensor(1.0))
        self.stretch = nn.Parameter(torch.tensor(0.05))
        self.crowd = nn.Parameter(torch.tensor(2.0))
        self.log_stiffness = nn.Parameter(torch.tensor(-6.0))

    def kinship(self, voters: Voters) -> Float[Tensor, "b v v"]:
        """How far the motion around one voter (row) foretells the offset of another (column)."""
        return kinship(voters.offset, voters.linear, voters.center, self.slack, self.stretch)

    def answers(
        self,
        voters: Voters,
        hearing: Hearing,
        centers: Float[Tensor, "p 2"],
        apart: Float[Tensor, "b p l"],
        context: Float[Tensor, "b c h w"],
    ) -> Float[Tensor, "b p l"]:
        """Logits of every voter that a cell hears; `apart` are their distances in patches."""
        told = foretold(voters, centers.expand(len(context), -1, -1))
        told = told.gather(2, hearing.index[..., None].expand(-1, -1, -1, 2))
        origin = centers[:, None] + told
        seen = read(context, origin.flatten(1, 2) / COARSE_STRIDE).unflatten(1, origin.shape[1:3])
        place = hearing.of_voter(voters.place[..., : self.channels])
        same = agreement(seen[..., : self.channels], place, self.groups)
        hw = (context.shape[-2] * COARSE_STRIDE, context.shape[-1] * COARSE_STRIDE)
        outside = 1.0 - inside(origin, hw).to(seen.dtype)
        geometry = torch.stack((torch.log1p(apart), apart / 8, outside), dim=-1)
        own = torch.cat((voters.log_belief[..., None], voters.evidence, voters.place[..., self.channels :]), dim=-1)
        pair = self.of_pair(torch.cat((same, geometry, seen[..., self.channels :]), dim=-1))
        learned = self.answer(F.relu(pair + hearing.of_voter(self.of_voter(own))))
        fixed = same @ self.likeness - apart / self.nearness - 4 * outside
        return hearing.of_voter(voters.log_belief[..., None])[..., 0] + fixed + learned[..., 0]

    @property
    def nearness(self) -> Float[Tensor, ""]:
        """Patches over which a voter's say falls to a third."""
        return self.reach.clamp(min=0.5)

    def forward(self, voters: Voters, hw: tuple[int, int], context: Float[Tensor, "b c h w"]) -> Motions:
        """The strongest motions of each cell."""
        centers = patch_centers(hw, context.device)
        apart = torch.cdist(centers.expand(len(context), -1, -1), voters.center) / PATCH
        hearing = Hearing.of(voters, apart / self.nearness.detach(), self.heard)
        answers = self.answers(voters, hearing, centers, hearing.of_pair(apart), context)
        weight = (answers - answers.detach().amax(-1, keepdim=True)).clamp(min=-LEAST).softmax(-1)
        kin = self.kinship(voters)
        power = 1 + self.crowd.abs()
        seeds = strongest(hearing, weight.detach(), kin.detach(), power.detach(), self.motions)
        shares = divide(hearing, weight, kin, seeds)
        # A norm above the first: many distant voters do not outweigh a near one.
        mass = (shares + 1e-9).pow(power).sum(-1).pow(1 / power)
        relative = hearing.spread(shares / (shares.sum(-1, keepdim=True) + 1e-8))
        known = torch.cat((voters.offset, moments(voters).flatten(2), voters.light, voters.place), dim=-1)
        means = (relative.flatten(1, 2) @ known).unflatten(1, shares.shape[1:3])
        offset, sums, light, identity = means.split((2, 18, 3, voters.place.shape[-1]), dim=-1)
        offset, linear = fit(offset, sums, centers, self.log_stiffness.exp())
        return Motions(offset, linear, light, torch.log(mass + 1e-6), answers.logsumexp(-1), identity)


def strongest(
    hearing: Hearing, weight: Float[Tensor, "b p l"], kin: Float[Tensor, "b v v"], power: Tensor, count: int
) -> Int[Tensor, "b p k"]:
    """For each cell the voters whose motion most weight agrees on, each after the ones before are explained."""
    left, seeds = weight, []
    for _ in range(count):
        agreed = hearing.of_pair(hearing.spread((left + 1e-9).pow(power)) @ kin.mT)
        best = (agreed * left).argmax(-1, keepdim=True)
        seeds.append(hearing.index.gather(-1, best)[..., 0])
        left = left * (1 - hearing.of_seed(kin, seeds[-1]))
    return torch.stack(seeds, dim=-1)


def divide(
    hearing: Hearing, weight: Float[Tensor, "b p l"], kin: Float[Tensor, "b v v"], seeds: Int[Tensor, "b p k"]
) -> Float[Tensor, "b p k l"]:
    """The voters' weight divided among the motions; what none of them explains is left out."""
    left, shares = weight, []
    for seed in seeds.unbind(-1):
        like = hearing.of_seed(kin, seed)
        shares.append(left * like)
        left = left * (1 - like)
    return torch.stack(shares, dim=2)
