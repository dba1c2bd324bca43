"""How the motion turns and grows around each voter: the similarity that most of its neighbors confirm."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lpa_cwm.worlds.layered.patches import PATCH

NEIGHBOURS = 6
STEEPEST = 0.5
"""Change of the offset per pixel beyond which a pair of voters is not believed to be one body."""
NEARBY = 5.0
"""Distance, in patches, within which voters are asked."""
WITHIN = 1.0
"""Pixels by which a confirmed offset may differ."""


def nearest(center: Float[Tensor, "b v 2"]) -> Int[Tensor, "b v j"]:
    """The nearest voters of other patches."""
    apart = torch.cdist(center, center)
    apart = torch.where(apart < PATCH / 2, torch.inf, apart)
    return apart.topk(min(NEIGHBOURS, center.shape[1] - 1), largest=False).indices


def similarity(
    way: Float[Tensor, "*b 2"], change: Float[Tensor, "*b 2"]
) -> tuple[Float[Tensor, "*b 2 2"], Float[Tensor, "*b"]]:
    """The turn and growth by which an offset changes so much on the way between two points, and its steepness."""
    x, y = way.unbind(-1)
    u, v = change.unbind(-1)
    length = (x * x + y * y).clamp(min=1.0)
    grow, turn = (x * u + y * v) / length, (x * v - y * u) / length
    linear = torch.stack((grow, -turn, turn, grow), dim=-1).unflatten(-1, (2, 2))
    return linear, torch.sqrt(grow.square() + turn.square())


def similarities(
    center: Float[Tensor, "b v 2"], offset: Float[Tensor, "b v 2"], partner: Int[Tensor, "b v j"]
) -> Float[Tensor, "b v j 2 2"]:
    """The turn and growth that takes a voter's offset to its partner's; zero where it would be too steep."""
    batch = torch.arange(len(center), device=center.device)[:, None, None]
    way, change = (values[batch, partner] - values[:, :, None] for values in (center, offset))
    linear, steepness = similarity(way, change)
    return linear * (steepness < STEEPEST)[..., None, None]


@torch.no_grad()
def local_linear(
    center: Float[Tensor, "b v 2"],
    offset: Float[Tensor, "b v 2"],
    own: Float[Tensor, "b v 2 2"],
    log_belief: Float[Tensor, "b v"],
) -> Float[Tensor, "b v 2 2"]:
    """For each voter the linear part of its motion: none, its own, or one of its partners' that more others confirm."""
    partner = nearest(center)
    own = own[:, :, None]
    linear = torch.cat((torch.zeros_like(own), own, similarities(center, offset, partner)), dim=2)
    way = center[:, None] - center[:, :, None]
    foretold = offset[:, :, None, None] + torch.einsum("bvjde,bvle->bvjld", linear, way)
    miss = (foretold - offset[:, None, None]).square().sum(-1)
    voice = log_belief[:, None].exp() * torch.exp(-way.norm(dim=-1) / (NEARBY * PATCH))
    agree = torch.exp(-0.5 * (miss / WITHIN**2).clamp(max=25.0)) * voice[:, :, None]
    # The partner itself confirms by construction, so it is not asked.
    asked = torch.ones_like(agree)
    asked[:, :, 2:].scatter_(3, partner[..., None], 0.0)
    best = (agree * asked).sum(-1).argmax(-1)
    return linear.gather(2, best[..., None, None, None].expand(-1, -1, 1, 2, 2))[:, :, 0]
