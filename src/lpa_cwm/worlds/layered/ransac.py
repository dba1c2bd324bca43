"""Motions that many visible patches share, such as the camera's: found by vote; every patch is compared along them.

By itself a patch finds its origin among chance likenesses. A stream says where to look and how the patch is turned
there. Rest is a stream that needs no finding.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lpa_cwm.rng import generator
from lpa_cwm.worlds.layered.affine import similarity
from lpa_cwm.worlds.layered.refine import Looks, Matches, compare

STREAMS = 4
TRIES = 4096
"""Pairs of likenesses that are drawn; each that could be one motion proposes it."""
PROPOSALS = 1536
"""Proposals that are put to the vote."""
BETTER = 3.0
"""Power of the chance by which patches with more detail and better likenesses are drawn more often."""
APART = 24.0
"""Least distance in pixels of the two patches of a proposal: nearer ones say little about turn and growth."""
STEEPEST = 1.3
"""Largest turn and growth, as change of the offset per pixel: a turn by 81 degrees without growth."""
WITHIN = 4.0
"""Pixels by which a likeness may miss a stream that it votes for."""
STILL = 1.5
"""Pixels: a patch whose best match moves less needs no stream."""
QUORUM = 5.0
"""Votes below which a stream is chance."""
BLANK = 3e-4
"""Variance of the gray values at which a patch has half a vote."""
FITS = 3
STIFFNESS = 1e-2
"""Draws the linear part of a fitted stream to what it was."""
UNIT = 64.0
"""Pixels per unit of length in the least-squares problem, which keeps its entries of order one."""
REACH = 2
"""Pixels around the foretold place that are searched."""


@dataclass(frozen=True, slots=True)
class Streams:
    """Affine motions: a point x of the target comes from x + offset + linear x."""

    offset: Float[Tensor, "b g 2"]
    linear: Float[Tensor, "b g 2 2"]

    def foretell(self, xy: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n g 2"]:
        """The offset of each point in each stream."""
        return self.offset[:, None] + torch.einsum("bgde,bne->bngd", self.linear, xy)

    def at(self, numbers: Int[Tensor, "b k"]) -> "Streams":
        """Some of them."""
        batch = torch.arange(len(numbers), device=numbers.device)[:, None]
        return Streams(self.offset[batch, numbers], self.linear[batch, numbers])


@cache
def draws(patches: int, likenesses: int) -> Int[Tensor, "t 4"]:
    """Two patches, by rank of their detail, and a likeness of each, by rank; keyed, so that a mask decides all."""
    chance = torch.rand(TRIES, 4, generator=generator("streams", patches, likenesses))
    sizes = torch.tensor([patches, patches, likenesses, likenesses])
    return (chance.pow(BETTER) * sizes).long().minimum(sizes - 1)


def propose(
    center: Float[Tensor, "b n 2"], likeness: Float[Tensor, "b n w 2"], detail: Float[Tensor, "b n"]
) -> Streams:
    """Similarities that take two patches to likenesses of theirs; the implausible come last and are cut off."""
    first, second, one, other = draws(*likeness.shape[1:3]).to(center.device).unbind(-1)
    order = detail.argsort(dim=1, descending=True)
    first, second = order[:, first], order[:, second]
    batch = torch.arange(len(center), device=center.device)[:, None]
    start, offset = center[batch, first], likeness[batch, first, one]
    way = center[batch, second] - start
    linear, steepness = similarity(way, likeness[batch, second, other] - offset)
    plausible = (way.norm(dim=-1) > APART) & (steepness < STEEPEST)
    best = plausible.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :PROPOSALS]
    return Streams(offset - torch.einsum("btde,bte->btd", linear, start), linear).at(best)


def votes(
    streams: Streams, center: Float[Tensor, "b n 2"], likeness: Float[Tensor, "b n w 2"]
) -> Float[Tensor, "b n g"]:
    """How far each patch could belong to each stream, from 0 to 1."""
    told = streams.foretell(center)
    # One likeness at a time: the differences of all at once do not fit into a processor's cache.
    miss = torch.full_like(told[..., 0], torch.inf)
    for some in likeness.unbind(2):
        torch.minimum(miss, (told - some[:, :, None]).square().sum(-1), out=miss)
    return (1 - miss / WITHIN**2).clamp(min=0)


def fit(
    streams: Streams,
    center: Float[Tensor, "b n 2"],
    likeness: Float[Tensor, "b n w 2"],
    voice: Float[Tensor, "b n"],
) -> Streams:
    """Least-squares affine motions of the likenesses that vote for each stream."""
    miss = likeness[:, :, None] - streams.foretell(center)[:, :, :, None]
    nearest = miss.square().sum(-1).argmin(-1)[..., None, None]
    miss = miss.gather(3, nearest.expand(-1, -1, -1, -1, 2))[..., 0, :]
    weight = (1 - miss.square().sum(-1) / WITHIN**2).clamp(min=0) * voice[..., None] + 1e-6
    weight = weight / weight.sum(1, keepdim=True)
    middle = torch.einsum("bng,bnd->bgd", weight, center)
    way = (center[:, :, None] - middle[:, None]) / UNIT
    left = torch.einsum("bng,bngd,bnge->bgde", weight, way, way) + STIFFNESS * torch.eye(2, device=way.device)
    right = torch.einsum("bng,bngd,bnge->bgde", weight, miss, way)
    change = torch.linalg.solve(left, right, left=False) / UNIT
    mean = torch.einsum("bng,bngd->bgd", weight, miss)
    offset = streams.offset + mean - torch.einsum("bgde,bge->bgd", change, middle)
    return Streams(offset, streams.linear + change)


def find(looks: Looks, center: Float[Tensor, "b n 2"]) -> Streams:
    """The streams that explain most moving patches, each after the ones before; those without quorum are rest."""
    moving = looks.matches.offset[:, :, 0].norm(dim=-1) > STILL
    voice = moving * looks.detail / (looks.detail + BLANK)
    proposals = propose(center, looks.likeness, looks.detail)
    agree = votes(proposals, center, looks.likeness)
    left, chosen = voice, []
    for _ in range(STREAMS):
        best = (left[:, None] @ agree)[:, 0].argmax(1)
        chosen.append(best)
        left = left * (1 - agree[torch.arange(len(best), device=best.device), :, best])
    streams = proposals.at(torch.stack(chosen, dim=1))
    for _ in range(FITS):
        streams = fit(streams, center, looks.likeness, voice)
    sure = (voice[:, None] @ votes(streams, center, looks.likeness))[:, 0] >= QUORUM
    return Streams(streams.offset * sure[..., None], streams.linear * sure[..., None, None])


@torch.no_grad()
def follow(
    looks: Looks, layers: Float[Tensor, "b 6 h w"], pixels: Float[Tensor, "b n 3 s"], center: Float[Tensor, "b n 2"]
) -> Matches:
    """The best hypotheses of the visible patches, their own and those along the streams; as many as there were."""
    streams = find(looks, center)
    told = streams.foretell(center)
    linear = streams.linear[:, None].expand(-1, center.shape[1], -1, -1, -1)
    both = looks.matches.beside(compare(layers, pixels, center, center[:, :, None] + told, linear, REACH))
    from_stream = (both.offset[:, :, :, None] - told[:, :, None]).norm(dim=-1).amin(-1)
    both = replace(both, away=torch.minimum(both.away, from_stream))
    return both.best(looks.matches.away.shape[2], center)
