"""Asking the world model: perturb, predict again, subtract (Eq. 1-2)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lpa_cwm.geometry import centre_of_flat
from lpa_cwm.interfaces import WorldModel
from lpa_cwm.types import Candidates
from lpa_cwm.world.masks import Plan


def magnitude(response: Float[Tensor, "*b 3 h w"]) -> Float[Tensor, "*b h w"]:
    """L1 norm over the channels."""
    once = distinct(response)
    return once.abs().sum(-3) * (response.shape[-3] / once.shape[-3])


def distinct(response: Float[Tensor, "*b 3 h w"]) -> Float[Tensor, "*b c h w"]:
    """The channels without repetition: a bump of white light gives one plane, which all three show."""
    return response[..., :1, :, :] if response.stride(-3) == 0 else response


def peak_of(field: Float[Tensor, "*b h w"]) -> Float[Tensor, "*b 2"]:
    """The centre of the pixel with the largest value; the first in raster order among equals."""
    return centre_of_flat(field.flatten(-2).argmax(-1), field.shape[-1])


@dataclass(slots=True)
class Probe:
    """One frame pair, its masks and its queries; memory is set by `batch`, every mask is imagined once."""

    world: WorldModel
    scene: Any
    plan: Plan
    xy: Float[Tensor, "n 2"]
    batch: int
    _factual: dict[int, Any] = field(default_factory=dict)

    def candidates(self) -> Iterator[tuple[Int[Tensor, "b"], Candidates]]:
        """Complete candidate sets; each query's masks must all have the same users (shared or separate plans)."""
        for rows in self.chunks():
            for now, response in self.responses(rows):
                yield now, Candidates(response, peak_of(magnitude(response)))

    def averages(self) -> Iterator[tuple[Int[Tensor, "b"], Float[Tensor, "b 3 h w"], Float[Tensor, "b"]]]:
        """Mean response of each query over its masks, and the mean over masks of its strongest magnitude."""
        for rows in self.chunks():
            total = self.xy.new_zeros(len(rows), 3, self.world.size, self.world.size)
            strength = self.xy.new_zeros(len(rows))
            for now, response in self.responses(rows):
                place = (now - rows[0]).to(self.xy.device)
                total[place] += distinct(response).sum(1)
                strength[place] += magnitude(response).amax((-2, -1)).sum(1)
            count = self.plan.used[rows].sum(1).to(self.xy)
            yield rows, total / count[:, None, None, None], strength / count

    def chunks(self) -> tuple[Int[Tensor, "b"], ...]:
        """Consecutive queries, `batch` at a time."""
        return torch.arange(len(self.xy)).split(self.batch)

    def responses(self, rows: Int[Tensor, "b"]) -> Iterator[tuple[Int[Tensor, "c"], Float[Tensor, "c k 3 h w"]]]:
        """Responses of those of `rows` that share a group of masks, group by group."""
        for group, (masks, users) in enumerate(self.plan.groups()):
            now = users[torch.isin(users, rows)]
            if len(now) == 0:
                continue
            if group not in self._factual:
                self._factual[group] = self.world.imagine(self.scene, self.plan.hidden[masks].to(self.xy.device))
            yield now, self.world.intervene(self.scene, self._factual[group], self.xy[now.to(self.xy.device)])
            if users[-1] <= rows[-1]:
                del self._factual[group]


def shares(belief: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    """Weights that sum to one, from belief that sums to anything; who believes in none prefers none."""
    total = belief.sum(1, keepdim=True)
    return torch.where(total > 0, belief / total, 1 / belief.shape[1])


def effective(weights: Float[Tensor, "n m"]) -> Float[Tensor, "n"]:
    """Effective number of candidates, exp of the weights' entropy: 1 for one-hot, M for uniform."""
    return torch.special.entr(weights).sum(-1).exp()
