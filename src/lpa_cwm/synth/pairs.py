"""Training pairs: the example type, sources, mixtures of sources, and batches.

Nothing here has state. A pair is a function of its source and its index, and a batch is a function of its index, so
training can resume at any step with any number of workers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from torch.utils.data import DataLoader

from lpa_cwm.errors import InputError
from lpa_cwm.rng import generator, numpy_rng, seed_of

Split = Literal["train", "val"]
BatchT = TypeVar("BatchT")
BatchT_co = TypeVar("BatchT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Example:
    """Two square frames of one scene, with optical flow and visibility where they are known."""

    source: UInt8[Tensor, "3 s s"]
    target: UInt8[Tensor, "3 s s"]
    flow: Float[Tensor, "2 s s"] | None = None
    """(dx, dy) in pixels, from each source pixel to its position in the target; NaN where it has none."""
    visible: Bool[Tensor, "s s"] | None = None
    """Whether that position is inside the target and not occluded."""


@runtime_checkable
class PairSource(Protocol):
    """An infinite sequence of pairs; pair i depends on the identity of the source and on i only."""

    @property
    def name(self) -> str:
        """Part of the random seed of each pair."""
        ...

    def pair(self, index: int, size: int) -> Example:
        """Pair `index` at `size` x `size` pixels."""
        ...


def split_of(name: str, held_out: float = 0.1) -> Split:
    """Split of a name by its hash; independent of the other names."""
    return "val" if seed_of("split", name) % 10_000 < held_out * 10_000 else "train"


@dataclass(frozen=True)
class Mixture:
    """Several sources as one; each index belongs to one of them, sampled by weight."""

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
        """The source of pair `index`."""
        bounds = np.cumsum(self.weights)
        point = numpy_rng(self.name, self.seed, index).uniform(0, bounds[-1])
        return self.sources[int(np.searchsorted(bounds, point, side="right"))]

    def pair(self, index: int, size: int) -> Example:
        """Pair `index` of the source it belongs to."""
        return self.source_of(index).pair(index, size)


@dataclass(frozen=True, slots=True)
class Batch:
    """Stacked frames of several examples."""

    source: UInt8[Tensor, "b 3 s s"]
    target: UInt8[Tensor, "b 3 s s"]

    def __len__(self) -> int:
        return len(self.source)


def stack(examples: Sequence[Example]) -> Batch:
    """One batch of examples of equal size."""
    sources, targets = ([getattr(one, name) for one in examples] for name in ("source", "target"))
    return Batch(torch.stack(sources), torch.stack(targets))


@runtime_checkable
class Indexed(Protocol[BatchT_co]):
    """Batches by their step."""

    def __getitem__(self, step: int, /) -> BatchT_co: ...


@dataclass(frozen=True)
class Stream:
    """The batches of a source in order, prefetched by background processes.

    Batch k holds the pairs k * batch to (k + 1) * batch - 1 for any number of workers and any first batch.
    """

    pairs: PairSource
    size: int
    batch: int
    workers: int = 0
    """Background processes; 0 computes the batches in the calling process."""

    def __getitem__(self, step: int) -> Batch:
        first = step * self.batch
        return stack([self.pairs.pair(index, self.size) for index in range(first, first + self.batch)])

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Batches `start`, `start + 1`, ... before `stop`; infinite without `stop`."""
        return prefetch(self, range(start, 2**62 if stop is None else stop), self.workers)


def prefetch(batches: Indexed[BatchT], steps: range, workers: int) -> Iterator[BatchT]:
    """The batches of these steps, made ahead by background processes; by this one if there are none."""
    # Without a generator the loader would draw from the global one.
    loader = DataLoader(
        batches,  # pyright: ignore[reportArgumentType]
        batch_size=None,
        sampler=steps,
        num_workers=workers,
        generator=generator("stream"),
        persistent_workers=False,
    )
    return iter(loader)
