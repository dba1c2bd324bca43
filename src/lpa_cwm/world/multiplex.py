"""Several distant queries perturbed in one counterfactual prediction; what the masks agree on is a query's own.

Each mask draws the companions of a query anew, so that over the masks a query's own peak is always there and the peaks
of others only now and then.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.interfaces import WorldModel
from lpa_cwm.keys import generator
from lpa_cwm.world.wrapped import Wrapped


@runtime_checkable
class JointWorldModel(WorldModel, Protocol):
    """A world model that can perturb several points in one prediction."""

    def intervene_jointly(self, scene: Any, factual: Any, xy: Float[Tensor, "g m k 2"]) -> Float[Tensor, "g m 3 h w"]:
        """Response of each group under each mask to its k points at once; a point that is NaN is absent."""
        ...


@dataclass(frozen=True, slots=True)
class MultiplexedFactual:
    """The world's own factual, and the masks, which identify the draw of companions."""

    hidden: Bool[Tensor, "m p"]
    own: Any


@dataclass(frozen=True)
class Multiplexed(Wrapped):
    """A world model that asks another, which can be asked jointly, about up to `per_pass` queries at a time."""

    per_pass: int = 4
    apart: float = 48.0
    """Least distance of two queries in one pass, in pixels of the source at working size."""
    attribute: bool = True
    """Give each pixel of a joint response to the companion whose mean response over the masks is largest there."""

    def imagine(self, scene: Any, hidden: Bool[Tensor, "m p"]) -> MultiplexedFactual:
        """As the world does; the masks are kept."""
        return MultiplexedFactual(hidden, self.world.imagine(scene, hidden))

    def intervene(
        self, scene: Any, factual: MultiplexedFactual, xy: Float[Tensor, "n 2"]
    ) -> Float[Tensor, "n m 3 h w"]:
        """Joint responses, handed to every member of the group."""
        group = torch.stack([self.assign(xy.cpu(), mask) for mask in factual.hidden.cpu()], dim=1).to(xy.device)
        joint = self.world.intervene_jointly(scene, factual.own, gathered(xy, group, self.per_pass))
        masks = torch.arange(group.shape[1], device=xy.device)
        response = joint[group, masks]
        return keep_own(response, group) if self.attribute else response

    def assign(self, xy: Float[Tensor, "n 2"], mask: Bool[Tensor, "p"]) -> Int[Tensor, "n"]:
        """The group of each query under one mask: in random order, the first one with room and no neighbour."""
        # A mask belongs to one pair and pass, so it identifies the draw.
        order = torch.randperm(len(xy), generator=generator("multiplex", mask.numpy().tobytes().hex())).tolist()
        near = torch.cdist(xy, xy) < self.apart
        # Companions that met in most masks could not be told apart.
        room = min(self.per_pass, (len(xy) + 1) // 2)
        groups: list[list[int]] = []
        group = torch.zeros(len(xy), dtype=torch.long)
        for query in order:
            fits = (len(g) < room and not near[query, g].any() for g in groups)
            place = next((index for index, free in enumerate(fits) if free), len(groups))
            if place == len(groups):
                groups.append([])
            groups[place].append(query)
            group[query] = place
        return group


def gathered(xy: Float[Tensor, "n 2"], group: Int[Tensor, "n m"], per_pass: int) -> Float[Tensor, "g m k 2"]:
    """The points of each group under each mask, filled up with NaN."""
    queries, masks = group.shape
    groups = int(group.max()) + 1
    same = rearrange(group, "n m -> n 1 m") == rearrange(group, "n m -> 1 n m")
    earlier = torch.ones(queries, queries, dtype=torch.bool, device=xy.device).tril(-1)
    seat = (same & earlier[..., None]).sum(1)
    points = xy.new_full((groups, masks, per_pass, 2), torch.nan)
    points[group, torch.arange(masks, device=xy.device), seat] = xy[:, None].expand(-1, masks, -1)
    return points


def keep_own(response: Float[Tensor, "n m 3 h w"], group: Int[Tensor, "n m"]) -> Float[Tensor, "n m 3 h w"]:
    """Zero where the mean response over the masks of a companion is stronger than the query's own."""
    agreement = response.mean(1).abs().sum(1)
    for mask, member in enumerate(group.T):
        for one in member.unique():
            rows = (member == one).nonzero()[:, 0]
            best = agreement[rows] >= agreement[rows].amax(0)
            response[rows, mask] *= best[:, None]
    return response


def multiplex(world: WorldModel, per_pass: int) -> WorldModel:
    """The world asked about `per_pass` queries at a time, or a sentence why that cannot be."""
    if per_pass == 1:
        return world
    if not isinstance(world, JointWorldModel):
        name = type(world).__name__
        raise InputError(f"{name} cannot perturb {per_pass} queries in one prediction; ask it about 1 at a time.")
    return Multiplexed(world, per_pass)
