"""Training pairs: what one is, where they come from, how sources are mixed and how batches reach a trainer.

Nothing here has state: a pair is a function of its source and its number, a batch of its number alone, so training
can stop and go on anywhere, with any number of workers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from torch.utils.data import DataLoader

from lpa_cwm.errors import InputError
from lpa_cwm.rng import KeyPart, generator, seed_of

Split = Literal["train", "val"]


@dataclass(frozen=True, slots=True)
class Example:
    """Two square frames of one scene, and how the first moves into the second where that is known."""

    source: UInt8[Tensor, "3 s s"]
    target: UInt8[Tensor, "3 s s"]
    flow: Float[Tensor, "2 s s"] | None = None
    """(dx, dy) in pixels, from each source pixel to its place in the target; NaN where it has none."""
    visible: Bool[Tensor, "s s"] | None = None
    """Whether that place lies inside the target and nothing covers it there."""


@runtime_checkable
class PairSource(Protocol):
    """An endless supply of pairs; pair i depends on the source's identity and i, on nothing else."""

    @property
    def name(self) -> str:
        """Part of the identity of each pair."""
        ...

    def pair(self, index: int, size: int) -> Example:
        """The pair of this number, at `size` x `size` pixels."""
        ...


def split_of(name: str, held_out: float = 0.1) -> Split:
    """The side of the split on which a name falls, whatever else is in the folder."""
    return "val" if seed_of("split", name) % 10_000 < held_out * 10_000 else "train"


def draws(*identity: KeyPart) -> np.random.Generator:
    """A numpy generator seeded by the identity, for the many small draws that make up a scene."""
    return np.random.default_rng(seed_of(*identity))


@dataclass(frozen=True)
class Mixture:
    """Several sources as one: each number belongs to one of them, drawn by weight."""

    sources: Sequence[PairSource]
    weights: Sequence[float]
    seed: int = 0
    name: str = "mixture"

    def __post_init__(self) -> None:
        if len(self.sources) != len(self.weights) or not self.sources:
            raise InputError(
                f"A mixture got {len(self.sources)} sources and {len(self.weights)} weights; it needs one weight for "
                "each source, and at least one source."
            )
        if min(self.weights) < 0 or sum(self.weights) <= 0:
            raise InputError(f"The weights of a mixture are {list(self.weights)}; give positive numbers (or zeros).")

    def source_of(self, index: int) -> PairSource:
        """Which source gives the pair of this number."""
        bounds = np.cumsum(self.weights)
        point = draws(self.name, self.seed, index).uniform(0, bounds[-1])
        return self.sources[int(np.searchsorted(bounds, point, side="right"))]

    def pair(self, index: int, size: int) -> Example:
        """The pair of this number, from the source it belongs to."""
        return self.source_of(index).pair(index, size)


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples stacked; where `known` is false, flow is NaN and nothing counts as visible."""

    source: UInt8[Tensor, "b 3 s s"]
    target: UInt8[Tensor, "b 3 s s"]
    flow: Float[Tensor, "b 2 s s"]
    visible: Bool[Tensor, "b s s"]
    known: Bool[Tensor, "b"]

    def __len__(self) -> int:
        return len(self.known)


def stack(examples: Sequence[Example]) -> Batch:
    """One batch of examples of equal size."""
    hw = examples[0].source.shape[-2:]
    unknown_flow = torch.full((2, *hw), torch.nan)
    unseen = torch.zeros(hw, dtype=torch.bool)
    return Batch(
        source=torch.stack([one.source for one in examples]),
        target=torch.stack([one.target for one in examples]),
        flow=torch.stack([unknown_flow if one.flow is None else one.flow for one in examples]),
        visible=torch.stack([unseen if one.visible is None else one.visible for one in examples]),
        known=torch.tensor([one.flow is not None for one in examples]),
    )


@dataclass(frozen=True)
class Stream:
    """The batches of a source in order, made ahead of time by background processes.

    Batch k holds the pairs k * batch up to (k + 1) * batch, whatever the number of workers and wherever one starts.
    """

    pairs: PairSource
    size: int
    batch: int
    workers: int = 0
    """Background processes; 0 makes the batches in the caller's own."""

    def __getitem__(self, step: int) -> Batch:
        first = step * self.batch
        return stack([self.pairs.pair(index, self.size) for index in range(first, first + self.batch)])

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Batches `start`, `start + 1`, ... up to `stop`, without end if it is not given."""
        steps = range(start, 2**62 if stop is None else stop)
        # A generator of its own, because the loader would otherwise draw from the global one.
        loader = DataLoader(
            self,  # pyright: ignore[reportArgumentType]
            batch_size=None,
            sampler=steps,
            num_workers=self.workers,
            generator=generator("stream"),
            persistent_workers=False,
        )
        return iter(loader)
