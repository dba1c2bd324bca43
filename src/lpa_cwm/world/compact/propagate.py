"""From the voters to every cell of the target: who speaks for it, which few motions they propose, and how strongly.

A cell asks each voter: if I moved with you, would I come from the same thing as you? The answers weigh the voters;
the motions they agree on are found greedily, and each is fitted by weighted least squares as an affine motion.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from lpa_cwm.geometry import inside
from lpa_cwm.sampling import read
from lpa_cwm.world.compact.context import COARSE_STRIDE, agreement, silent
from lpa_cwm.world.compact.match import PATCH, patch_centres
from lpa_cwm.world.compact.read import EVIDENCE, LEAST, Voters

HIDDEN = 24
UNIT = 64.0
"""Pixels per unit of length in the least-squares problems, which keeps their entries of order one."""


@dataclass(frozen=True, slots=True)
class Motions:
    """A few affine motions for each cell: a pixel at x comes from x + offset + linear (x - centre of the cell)."""

    offset: Float[Tensor, "b p k 2"]
    linear: Float[Tensor, "b p k 2 2"]
    light: Float[Tensor, "b p k 3"]
    """Change of colour on the way."""
    log_mass: Float[Tensor, "b p k"]
    """Logarithm of the share of the voters' weight behind each motion."""
    claim: Float[Tensor, "b p"]
    """Log-sum of all answers: low where no voter speaks for the cell."""
    identity: Float[Tensor, "b p k c"]
    """Weighted mean description of the places the motion's voters come from."""


def foretold(voters: Voters, xy: Float[Tensor, "b p 2"]) -> Float[Tensor, "b p v 2"]:
    """The offset each point would have, moved with each voter."""
    turned = torch.einsum("bvde,bpe->bpvd", voters.linear, xy)
    own = voters.offset - torch.einsum("bvde,bve->bvd", voters.linear, voters.centre)
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
    x, y = (voters.centre / UNIT).unbind(-1)
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
    weight: Float[Tensor, "b p k v"], voters: Voters, centres: Float[Tensor, "p 2"], stiffness: Tensor
) -> tuple[Float[Tensor, "b p k 2"], Float[Tensor, "b p k 2 2"]]:
    """Weighted least-squares affine motions about each cell's centre; `stiffness` draws the linear part to zero."""
    mean = torch.einsum("bpkv,bvd->bpkd", weight, voters.offset)
    sums = torch.einsum("bpkv,bvf->bpkf", weight, moments(voters).flatten(2)).unflatten(-1, (2, 9))
    m1, mx, my, mxx, mxy, myy, r1, rx, ry = sums.unbind(-1)
    x, y = (centres / UNIT)[:, None, None].unbind(-1)
    # Moments about the cell's centre instead of the corner of the image.
    mxx, mxy, myy = mxx - 2 * x * mx + x * x * m1, mxy - x * my - y * mx + x * y * m1, myy - 2 * y * my + y * y * m1
    mx, my, rx, ry = mx - x * m1, my - y * m1, rx - x * r1, ry - y * r1
    # Where nobody is certain the mean offset decides.
    little = 1e-3
    left = [m1 + little, mx, my, mxx + stiffness, mxy, myy + stiffness]
    offset, along, across = solve(left, [r1 + little * mean, rx, ry])
    return offset, torch.stack((along, across), dim=-1) / UNIT


class Propagator(nn.Module):
    """Motions of the cells."""

    def __init__(self, groups: int, channels: int, plain: int, motions: int) -> None:
        """`channels` of the context are compared in `groups`; `plain` ones are read as they are."""
        super().__init__()
        self.groups, self.channels, self.motions = groups, channels, motions
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
        told = foretold(voters, voters.centre).transpose(1, 2)
        miss = (told - voters.offset[:, None]).square().sum(-1)
        apart = torch.cdist(voters.centre, voters.centre)
        return torch.exp(-(0.5 * miss / (self.slack.square() + (self.stretch * apart).square())).clamp(max=LEAST))

    def answers(
        self, voters: Voters, centres: Float[Tensor, "p 2"], context: Float[Tensor, "b c h w"]
    ) -> Float[Tensor, "b p v"]:
        """Logits of every voter for every cell."""
        origin = centres[:, None] + foretold(voters, centres.expand(len(context), -1, -1))
        points = rearrange(origin, "b p v d -> b (p v) d")
        seen = read(context, points / COARSE_STRIDE).unflatten(1, (len(centres), -1))
        same = agreement(seen[..., : self.channels], voters.place[:, None, :, : self.channels], self.groups)
        apart = torch.cdist(centres.expand(len(seen), -1, -1), voters.centre) / PATCH
        hw = (context.shape[-2] * COARSE_STRIDE, context.shape[-1] * COARSE_STRIDE)
        outside = 1.0 - inside(origin, hw).to(seen.dtype)
        geometry = torch.stack((torch.log1p(apart), apart / 8, outside), dim=-1)
        own = torch.cat((voters.log_belief[..., None], voters.evidence, voters.place[..., self.channels :]), dim=-1)
        pair = self.of_pair(torch.cat((same, geometry, seen[..., self.channels :]), dim=-1))
        learned = self.answer(F.relu(pair + self.of_voter(own)[:, None]))
        fixed = (self.likeness * same).sum(-1) - apart / self.reach.clamp(min=0.5) - 4 * outside
        return voters.log_belief[:, None] + fixed + learned[..., 0]

    def forward(self, voters: Voters, hw: tuple[int, int], context: Float[Tensor, "b c h w"]) -> Motions:
        """The strongest motions of each cell."""
        centres = patch_centres(hw, context.device)
        answers = self.answers(voters, centres, context)
        weight = (answers - answers.detach().amax(-1, keepdim=True)).clamp(min=-LEAST).softmax(-1)
        kin = self.kinship(voters)
        power = 1 + self.crowd.abs()
        seeds = strongest(weight.detach(), kin.detach(), power.detach(), self.motions)
        shares = divide(weight, kin, seeds)
        # A norm above the first: many distant voters do not outweigh a near one.
        mass = (shares + 1e-9).pow(power).sum(-1).pow(1 / power)
        relative = shares / (shares.sum(-1, keepdim=True) + 1e-8)
        offset, linear = fit(relative, voters, centres, self.log_stiffness.exp())
        light = torch.einsum("bpkv,bvc->bpkc", relative, voters.light)
        identity = torch.einsum("bpkv,bvc->bpkc", relative, voters.place)
        return Motions(offset, linear, light, torch.log(mass + 1e-6), answers.logsumexp(-1), identity)


def strongest(
    weight: Float[Tensor, "b p v"], kin: Float[Tensor, "b v v"], power: Tensor, count: int
) -> Int[Tensor, "b p k"]:
    """For each cell the voters whose motion most weight agrees on, each after the ones before are explained."""
    left, seeds = weight, []
    for _ in range(count):
        seed = ((left + 1e-9).pow(power) @ kin.mT * left).argmax(-1)
        seeds.append(seed)
        left = left * (1 - rows(kin, seed))
    return torch.stack(seeds, dim=-1)


def rows(kin: Float[Tensor, "b v v"], index: Int[Tensor, "b p"]) -> Float[Tensor, "b p v"]:
    """One row of the matrix for each cell."""
    return kin.gather(1, index[..., None].expand(-1, -1, kin.shape[-1]))


def divide(
    weight: Float[Tensor, "b p v"], kin: Float[Tensor, "b v v"], seeds: Int[Tensor, "b p k"]
) -> Float[Tensor, "b p k v"]:
    """The voters' weight divided among the motions; what none of them explains is left out."""
    left, shares = weight, []
    for seed in seeds.unbind(-1):
        like = rows(kin, seed)
        shares.append(left * like)
        left = left * (1 - like)
    return torch.stack(shares, dim=2)
