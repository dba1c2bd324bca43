"""Asking no more than needed: masks are drawn until what the adjudicator makes of a query has settled."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lpa_cwm.interfaces import WorldModel
from lpa_cwm.probe import distinct, magnitude, peak_of, shares
from lpa_cwm.types import Candidates

FIRST, MORE = 4, 2
"""Masks asked at the beginning and in every further round."""

Believe = Callable[[Int[Tensor, "b"], Candidates], Float[Tensor, "b m"]]


@dataclass(slots=True)
class Settling:
    """One frame pair whose masks are imagined only while a query needs them; fewer masks are a prefix of more."""

    world: WorldModel
    scene: Any
    masks: Bool[Tensor, "m p"]
    xy: Float[Tensor, "n 2"]
    batch: int
    tolerance: float
    """Pixels by which the weighted endpoint may still move from one round to the next."""
    _factual: list[Any] = field(default_factory=list)

    def candidates(self, believe: Believe) -> Iterator[tuple[Int[Tensor, "b"], Candidates, Float[Tensor, "b m"]]]:
        """Queries with their candidates and the belief in these, in the order in which they settle."""
        for rows in torch.arange(len(self.xy)).split(self.batch):
            yield from self.rounds(rows, believe)

    def rounds(
        self, waiting: Int[Tensor, "b"], believe: Believe
    ) -> Iterator[tuple[Int[Tensor, "b"], Candidates, Float[Tensor, "b m"]]]:
        """Ask a few queries again and again, each until it has settled or there are no more masks."""
        parts = self.parts()
        known, before = None, self.xy.new_full((len(waiting), 2), torch.inf)
        for number, part in enumerate(parts):
            known = joined(known, self.ask(number, part, waiting))
            belief = believe(waiting, known)
            place = einsum(shares(belief), known.peak, "n m, n m d -> n d")
            done = (place - before).norm(dim=-1) < self.tolerance
            if number == len(parts) - 1:
                done = torch.ones_like(done)
            if done.any():
                yield waiting[done.cpu()], some(known, done), belief[done]
            waiting, known, before = waiting[~done.cpu()], some(known, ~done), place[~done]
            if len(waiting) == 0:
                return

    def parts(self) -> list[Bool[Tensor, "k p"]]:
        """The masks, round by round."""
        first, rest = self.masks[:FIRST], self.masks[FIRST:]
        return [first, *(rest.split(MORE) if len(rest) else ())]

    def ask(self, number: int, masks: Bool[Tensor, "k p"], rows: Int[Tensor, "b"]) -> Candidates:
        """Responses of some queries through the masks of one round, which are imagined once for all."""
        if number == len(self._factual):
            self._factual.append(self.world.imagine(self.scene, masks.to(self.xy.device)))
        response = self.world.intervene(self.scene, self._factual[number], self.xy[rows.to(self.xy.device)])
        return Candidates(response, peak_of(magnitude(response)))


def joined(known: Candidates | None, more: Candidates) -> Candidates:
    """The candidates of one round after those of the rounds before."""
    if known is None:
        return more
    planes = torch.cat((distinct(known.response), distinct(more.response)), dim=1)
    return Candidates(planes.expand(-1, -1, more.response.shape[2], -1, -1), torch.cat((known.peak, more.peak), dim=1))


def some(candidates: Candidates, rows: Bool[Tensor, "n"]) -> Candidates:
    """The candidates of some queries."""
    planes = distinct(candidates.response)[rows]
    return Candidates(planes.expand(-1, -1, candidates.response.shape[2], -1, -1), candidates.peak[rows])
