"""Training pairs: the example type, sources, mixtures of sources, and batches.

Nothing here has state. A pair is a function of its source and its index, and a batch is a function of its index, so
training can resume at any step with any number of workers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, runtime_checkable

from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from torch.utils.data import DataLoader

from lpa_cwm.rng import generator, seed_of

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


@runtime_checkable
class Indexed(Protocol[BatchT_co]):
    """Batches by their step."""

    def __getitem__(self, step: int, /) -> BatchT_co: ...


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
